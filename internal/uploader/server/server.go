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
	s.uploader.pace(request.Pace)
	files, err := conn.Take(1)
	if err != nil {
		files = nil
	}
	defer func() {
		for _, file := range files {
			_ = file.Close()
		}
	}()
	// When there is nothing more to read nobody waits for the answer any more.
	_ = conn.SetReadDeadline(time.Time{})
	said := make(chan heard)
	s.done.Go(func() {
		defer cancel()
		for {
			line, err := conn.ReadLine()
			if err != nil {
				return
			}
			h := hearMade(conn, line)
			if h.pace.Rate != nil {
				s.uploader.pace(h.pace)
				continue
			}
			select {
			case said <- h:
			case <-ctx.Done():
				h.close()
				return
			}
		}
	})
	answer := s.uploader.answer(ctx, &request, files, func(need uploader.Answer) (*os.File, error) { return askForRoom(ctx, conn, said, need) })
	_ = conn.SetWriteDeadline(time.Now().Add(answerTimeout))
	_ = conn.Write(answer)
	_ = conn.Close()
	if (request.Ask == uploader.AskSave || request.Ask == uploader.AskFinish) && answer.Error == "" {
		s.uploader.tidy(s.ctx, request.Keep)
	}
}

// heard is a line that came after the request, and the file that came with it.
type heard struct {
	pace uploader.Pace
	made uploader.Made
	file *os.File
	err  error
}

// hearMade reads such a line. Nobody else takes files meanwhile.
func hearMade(conn *wire.Conn, line []byte) (h heard) {
	for _, said := range []any{&h.pace, &h.made} {
		if err := json.Unmarshal(line, said); err != nil {
			return heard{err: fmt.Errorf("%w: %w", errAsked, err)}
		}
	}
	if h.made.Files == 0 {
		return h
	}
	files, err := conn.Take(1)
	if err != nil {
		return heard{err: fmt.Errorf("%w: %w", errAsked, err)}
	}
	h.file = files[0]
	return h
}

func (h *heard) close() {
	if h.file != nil {
		_ = h.file.Close()
	}
}

// askForRoom has the worker make room, and waits until it has. It returns the file that came, nil where that came with the
// request.
func askForRoom(ctx context.Context, conn *wire.Conn, said <-chan heard, need uploader.Answer) (*os.File, error) {
	_ = conn.SetWriteDeadline(time.Now().Add(answerTimeout))
	if err := conn.Write(need); err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case h := <-said:
		switch {
		case h.err != nil:
			return nil, h.err
		case h.made.Error != "":
			h.close()
			return nil, fmt.Errorf("%w: %s", errNoRoom, h.made.Error)
		case (need.Part != "") != (h.file != nil):
			h.close()
			return nil, fmt.Errorf("%w: a file comes with the room for a part, and with nothing else", errAsked)
		}
		return h.file, nil
	}
}
