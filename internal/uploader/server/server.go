package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/internal/uploader"
)

const (
	// askTimeout is how long a connection may take to ask, answerTimeout to take its answer.
	askTimeout    = 10 * time.Second
	answerTimeout = 10 * time.Second
	// maxConnections is how many there may be: the agent has one for a save and one for a restore.
	maxConnections = 16
)

// Server is an uploader on a socket.
type Server struct {
	uploader *Uploader
	listener net.Listener
	ctx      context.Context
	cancel   context.CancelFunc
	done     sync.WaitGroup
	places   chan struct{}
}

// Listen serves an uploader on a unix socket, in the place of one that an earlier life of this container has left. The
// socket's folder is made: the uploader begins before anybody else in its pod, and may run as another user than they.
func Listen(path string, u *Uploader) (*Server, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the folder of the uploader's socket: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("make the uploader's socket: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("make the uploader's socket: %w", err)
	}
	// The agent may run as another user. Whoever shares the volume is of this pod.
	if err := os.Chmod(path, 0o777); err != nil {
		return nil, errors.Join(fmt.Errorf("make the uploader's socket: %w", err), listener.Close())
	}
	s := &Server{uploader: u, listener: listener, places: make(chan struct{}, maxConnections)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.done.Go(s.serve)
	return s, nil
}

// Close ends the server and what it is doing. What was broken off goes on where it was when it is asked for again.
func (s *Server) Close() error {
	s.cancel()
	err := s.listener.Close()
	s.done.Wait()
	return err
}

func (s *Server) serve() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			if s.ctx.Err() != nil {
				return
			}
			continue
		}
		unix, _ := conn.(*net.UnixConn)
		select {
		case s.places <- struct{}{}:
			s.done.Go(func() {
				defer func() { <-s.places }()
				s.hear(unix)
			})
		default:
			_ = conn.Close()
		}
	}
}

// hear carries out what one connection asks.
func (s *Server) hear(unix *net.UnixConn) {
	conn := wire.NewReceiver(unix)
	defer func() { _ = conn.Close() }()
	defer conn.CloseFiles()
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = unix.SetDeadline(time.Now()) })
	defer stop()
	_ = conn.SetReadDeadline(time.Now().Add(askTimeout))
	line, err := conn.ReadLine()
	if err != nil {
		return
	}
	var request uploader.Request
	if err := json.Unmarshal(line, &request); err != nil {
		_ = conn.Write(uploader.Answer{Error: fmt.Sprintf("%v: %v", errAsked, err)})
		return
	}
	var file *os.File
	if files, err := conn.Take(1); err == nil {
		file = files[0]
		defer func() { _ = file.Close() }()
	}
	// When there is nothing more to read nobody waits for the answer any more.
	_ = conn.SetReadDeadline(time.Time{})
	said := make(chan []byte)
	s.done.Go(func() {
		defer cancel()
		for {
			line, err := conn.ReadLine()
			if err != nil {
				return
			}
			select {
			case said <- slices.Clone(line):
			case <-ctx.Done():
				return
			}
		}
	})
	answer := s.uploader.answer(ctx, &request, file, func(bytes uint64) error { return askForRoom(ctx, conn, said, bytes) })
	_ = conn.SetWriteDeadline(time.Now().Add(answerTimeout))
	_ = conn.Write(answer)
}

// askForRoom has the worker give the file so many bytes of its memory, and waits until it has.
func askForRoom(ctx context.Context, conn *wire.Conn, said <-chan []byte, bytes uint64) error {
	_ = conn.SetWriteDeadline(time.Now().Add(answerTimeout))
	if err := conn.Write(uploader.Answer{Room: bytes}); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case line := <-said:
		var made uploader.Made
		if err := json.Unmarshal(line, &made); err != nil {
			return fmt.Errorf("%w: %w", errAsked, err)
		}
		if made.Error != "" {
			return fmt.Errorf("%w: %s", errNoRoom, made.Error)
		}
		return nil
	}
}
