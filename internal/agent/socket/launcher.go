package socket

import (
	"errors"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/wire"
)

// Launcher stands for the slot of a program that starts the processes of this worker itself.
const Launcher = -2

// launch takes a message of a launcher. The first is hello.
func (c *connection) launch(message any) error {
	switch message := message.(type) {
	case wire.Hello:
		if c.slot != -1 {
			return errSaidBefore
		}
		if err := c.claimLauncher(); err != nil {
			return err
		}
		c.server.said(Message{Slot: Launcher, Connection: c.number, Body: message})
		return nil
	case wire.Stopped:
		c.server.said(Message{Slot: Launcher, Connection: c.number, Body: message})
		return nil
	default:
		return errors.New("a launcher says hello and stopped: what concerns training is said by the processes that it starts")
	}
}

func (c *connection) claimLauncher() error {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.identity.Launcher:
		return errors.New("this worker has no launcher: set spec.workers.launch to PerWorker, so that the command is started once")
	case s.page == nil:
		return errors.New("no program has been started yet")
	case s.launcher != nil:
		return errors.New("this worker has a launcher already")
	}
	s.launcher, c.slot = c, Launcher
	_ = c.wire.SetReadDeadline(time.Time{})
	c.send(wire.Welcome{
		Type: wire.TypeWelcome, Protocol: wire.Protocol,
		Namespace: s.identity.Namespace, Job: s.identity.Job, Attempt: s.identity.Attempt, Slots: s.identity.Slots,
	})
	return nil
}

// Lead gives a launcher its world. Nothing happens when it is not the one of this connection any more.
func (s *Server) Lead(connection uint64, place Place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.launcher != nil && s.launcher.number == connection {
		s.launcher.send(place.world(0, s.identity.Slots))
	}
}

// Relaunch opens the slots anew, for the processes that the launcher of this connection is about to start in the world of
// a round that begins after step from.
func (s *Server) Relaunch(connection, round, from uint64) error {
	s.mu.Lock()
	kept := s.launcher
	s.mu.Unlock()
	if kept == nil || kept.number != connection {
		return nil // its program ends, and is started anew
	}
	return s.reopen(round, from, kept)
}

// Rest tells a launcher to end the processes that it has started.
func (s *Server) Rest(connection uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.launcher != nil && s.launcher.number == connection {
		s.launcher.send(wire.Stop{Type: wire.TypeStop})
	}
}
