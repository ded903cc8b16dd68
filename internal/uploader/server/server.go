package server

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/concertina-dev/concertina/internal/uploader/uploaderv1/uploaderv1connect"
)

// Server is an uploader on a socket.
type Server struct {
	http *http.Server
	done sync.WaitGroup
}

// Listen serves an uploader on a unix socket, in the place of one that an earlier life of this container has left.
func Listen(path string, u *Uploader) (*Server, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("make the uploader's socket: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("make the uploader's socket: %w", err)
	}
	// The agent may run as another user of the pod's group.
	if err := os.Chmod(path, 0o770); err != nil {
		return nil, errors.Join(fmt.Errorf("make the uploader's socket: %w", err), listener.Close())
	}
	mux := http.NewServeMux()
	mux.Handle(uploaderv1connect.NewUploaderHandler(u))
	s := &Server{http: &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}}
	s.done.Go(func() { _ = s.http.Serve(listener) })
	return s, nil
}

// Close ends the server and what it is doing. What was broken off goes on where it was when it is asked for again.
func (s *Server) Close() error {
	err := s.http.Close()
	s.done.Wait()
	return err
}
