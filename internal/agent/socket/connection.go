package socket

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/concertina-dev/concertina/internal/agent/process"
	"github.com/concertina-dev/concertina/internal/agent/wire"
)

// connection is one training process.
type connection struct {
	server *Server
	unix   *net.UnixConn
	wire   *wire.Conn
	ended  chan struct{}

	// slot and joined belong to the goroutine that serves; slot is -1 before hello.
	slot   int
	joined bool
}

// maxReason is the longest reason in bytes: an error may quote what the program sent.
const maxReason = 1 << 10

// hangUp ends the connection from outside.
func (c *connection) hangUp() { _ = c.unix.Close() }

func (c *connection) serve() {
	defer c.leave()
	if err := c.checkPeer(); err != nil {
		c.refuse(err)
		return
	}
	_ = c.wire.SetReadDeadline(time.Now().Add(c.server.timing.Hello))
	for {
		line, err := c.wire.ReadLine()
		if errors.Is(err, wire.ErrTooLong) {
			c.refuse(err)
		}
		if err != nil {
			return
		}
		message, err := wire.FromProgram(line)
		if err == nil {
			err = c.take(message)
		}
		if err != nil {
			c.refuse(err)
			return
		}
	}
}

// leave gives the slot back.
func (c *connection) leave() {
	_ = c.unix.Close()
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
	if c.owns() {
		s.slots[c.slot].owner = nil
	}
	close(c.ended)
}

// owns is true while the slot is this connection's: another program may have been started since.
// The server's lock is held.
func (c *connection) owns() bool {
	return c.slot >= 0 && c.slot < len(c.server.slots) && c.server.slots[c.slot].owner == c
}

// checkPeer lets in whoever has the agent's user id, and the agent's descendants.
func (c *connection) checkPeer() error {
	raw, err := c.unix.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var optErr error
	if err := raw.Control(func(fd uintptr) {
		peer, optErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if optErr != nil {
		return fmt.Errorf("who is there: %w", optErr)
	}
	if int(peer.Uid) == c.server.user || process.IsDescendant(int(peer.Pid), os.Getpid()) {
		return nil
	}
	return fmt.Errorf("process %d of user %d was not started by this agent", peer.Pid, peer.Uid)
}

func (c *connection) refuse(reason error) {
	_ = c.write(wire.Error{Type: wire.TypeError, Message: wire.HeadOf(reason.Error(), maxReason)})
}

func (c *connection) write(message any, files ...*os.File) error {
	_ = c.wire.SetWriteDeadline(time.Now().Add(c.server.timing.Write))
	return c.wire.Write(message, files...)
}

// take does what a message asks for. An error is told to the program, and ends the connection.
func (c *connection) take(message any) error {
	if hello, ok := message.(wire.Hello); ok {
		return c.hello(hello)
	}
	if c.slot < 0 {
		return errors.New("the first message must be hello")
	}
	switch message := message.(type) {
	case wire.Join:
		return c.join()
	case wire.Progress:
		return c.update(func(s *slot) {
			if message.TotalSteps > 0 {
				s.total = message.TotalSteps
			}
			if message.Metrics != nil {
				s.state.Metrics = maps.Clone(message.Metrics)
			}
		})
	case wire.Fault:
		return c.fault(message)
	case wire.Finished:
		c.server.changed()
	}
	return nil
}

func (c *connection) hello(hello wire.Hello) error {
	if c.slot >= 0 {
		return errors.New("hello was said before on this connection")
	}
	s := c.server
	s.mu.Lock()
	err := c.claim(hello.LocalRank)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	// A duplicate: the page may be closed as soon as the lock is gone.
	page, err := duplicate(s.page.File())
	s.mu.Unlock()
	if err != nil {
		return fmt.Errorf("hand over the gate page: %w", err)
	}
	defer func() { _ = page.Close() }()
	_ = c.wire.SetReadDeadline(time.Time{})
	return c.write(wire.Welcome{
		Type: wire.TypeWelcome, Protocol: wire.Protocol,
		Namespace: s.identity.Namespace, Job: s.identity.Job, Attempt: s.identity.Attempt,
		Slot: c.slot, Slots: s.identity.Slots, FDs: 1,
	}, page)
}

// claim takes a free slot. The server's lock is held.
func (c *connection) claim(localRank int) error {
	s := c.server
	switch {
	case s.page == nil:
		return errors.New("no program has been started yet")
	case localRank < 0 || localRank >= len(s.slots):
		return fmt.Errorf("local rank %d: this worker has the local ranks 0 to %d", localRank, len(s.slots)-1)
	case s.slots[localRank].owner != nil:
		return fmt.Errorf("local rank %d belongs to another process of this worker: each process has its own LOCAL_RANK", localRank)
	}
	s.page.Clear(localRank)
	s.slots[localRank] = slot{owner: c}
	c.slot = localRank
	return nil
}

func duplicate(file *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(file.Fd(), syscall.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), file.Name()), nil
}

func (c *connection) join() error {
	if c.joined {
		return errors.New("join was said before on this connection")
	}
	c.joined = true
	s := c.server
	s.mu.Lock()
	if !c.owns() {
		s.mu.Unlock()
		return errNotYours
	}
	place := *s.place
	s.mu.Unlock()
	world := place.world(c.slot, s.identity.Slots)
	if world.Rank != 0 || !place.HandOver {
		return c.write(world)
	}
	listener, err := s.listen(s.ctx, place.MasterAddress, place.MasterPort)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()
	file, err := listener.File()
	if err != nil {
		return fmt.Errorf("hand over the master port: %w", err)
	}
	defer func() { _ = file.Close() }()
	// The mode is shared with whoever gets it, and most languages expect a socket that blocks.
	if err := unix.SetNonblock(int(file.Fd()), false); err != nil {
		return fmt.Errorf("hand over the master port: %w", err)
	}
	world.FDs = 1
	return c.write(world, file)
}

func (p Place) world(slot, slots int) wire.World {
	return wire.World{
		Type: wire.TypeWorld, Term: p.Term, Round: p.Round, FromStep: p.FromStep,
		Rank: p.WorkerRank*slots + slot, Size: p.Workers * slots,
		LocalRank: slot, LocalSize: slots,
		WorkerRank: p.WorkerRank, Workers: p.Workers,
		MasterAddress: p.MasterAddress, MasterPort: p.MasterPort,
	}
}

var errNotYours = errors.New("this slot is no longer yours: the program was started anew")

// update changes what is known of the slot's process.
func (c *connection) update(change func(*slot)) error {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	if !c.owns() {
		return errNotYours
	}
	change(&c.server.slots[c.slot])
	return nil
}

func (c *connection) fault(fault wire.Fault) error {
	err := c.update(func(s *slot) {
		if s.state.FaultOrder == 0 {
			c.server.faults++
			s.state.FaultOrder = c.server.faults
		}
		s.state.Fault = wire.TailOf(fault.Message, wire.MaxFault)
		s.state.FaultStep = fault.Step
	})
	c.server.changed()
	return err
}
