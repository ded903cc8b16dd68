package server

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous/link"
)

const (
	// maxAcceptFailures is how often in a row no connection can be taken before the server gives up, and acceptPause
	// how long it waits in between: file descriptors come back.
	maxAcceptFailures = 100
	acceptPause       = 100 * time.Millisecond
)

// vanished is how a connection is found out whose other end is gone without a word: the operator's kernel asks after
// so long without a byte, and then twice more. Between two long beats nobody is asked.
var vanished = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 2 * time.Second, Count: 3}

// serve takes in who connects, until the door is closed. Sessions end when the context does, with its cause.
func (s *Server) serve(ctx context.Context) error {
	secured := link.Secured(s.options.TLS)
	for failures := 0; ; {
		conn, err := s.door.Accept()
		switch {
		case err == nil:
			failures = 0
			v := conn.(*visitor)
			if !s.callers.come(v, func() { s.receive(ctx, v, secured) }) {
				_ = v.Close()
			}
		case errors.Is(err, net.ErrClosed) || failures == maxAcceptFailures:
			return err
		default:
			failures++
			s.options.Logger.Error(err, "no connection of an agent could be taken")
			time.Sleep(acceptPause)
		}
	}
}

// receive serves one connection until it is over.
func (s *Server) receive(ctx context.Context, v *visitor, secured *tls.Config) {
	defer func() { _ = v.Close() }()
	if tcp, ok := v.Conn.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(vanished)
	}
	conn := tls.Server(v, secured)
	_ = v.SetDeadline(time.Now().Add(link.HandshakeTimeout))
	if conn.HandshakeContext(context.Background()) != nil || link.Agreed(conn) != nil {
		return
	}
	_ = v.SetDeadline(time.Time{})
	s.converse(ctx, v, link.New(conn))
}

// callers are the connections that are served.
type callers struct {
	mu     sync.Mutex
	all    map[*visitor]struct{}
	over   bool
	serves sync.WaitGroup
}

// come serves a connection, unless the server stops.
func (c *callers) come(v *visitor, serve func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return false
	}
	c.all[v] = struct{}{}
	c.serves.Go(func() {
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			delete(c.all, v)
		}()
		serve()
	})
	return true
}

// end gives sessions a moment to tell their agents why they end, and closes what is left.
func (c *callers) end(patience time.Duration) {
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	late := time.AfterFunc(patience, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for v := range c.all {
			// Whoever serves it closes it: that takes the door's lock.
			_ = v.Conn.Close()
		}
	})
	defer late.Stop()
	c.serves.Wait()
}
