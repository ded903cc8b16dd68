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
	number uint64
	unix   *net.UnixConn
	wire   *wire.Conn
	// outgoing are the messages to the process, in their order; over is true once it is closed. Both
	// are guarded by the server's lock.
	outgoing chan parcel
	over     bool
	// ended is closed when all that the process has said is read, and all that it was told is sent.
	ended chan struct{}

	// slot belongs to the goroutine that serves, and to the server's lock once hello was said; it is
	// -1 before, and Launcher for one. joined belongs to that goroutine.
	slot   int
	joined bool
}

// parcel is a message with its files, which it owns.
type parcel struct {
	message any
	files   []*os.File
}

// maxOutgoing is how many messages may wait for a process that does not read.
const maxOutgoing = 64

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

// deliver writes what the process is told, until leave.
func (c *connection) deliver() {
	defer close(c.ended)
	defer c.hangUp()
	failed := false
	for next := range c.outgoing {
		if !failed {
			_ = c.wire.SetWriteDeadline(time.Now().Add(c.server.timing.Write))
			failed = c.wire.Write(next.message, next.files...) != nil
		}
		closeFiles(next.files)
		if failed {
			// A process that does not read its messages is none that could be led.
			c.hangUp()
		}
	}
}

func closeFiles(files []*os.File) {
	for _, file := range files {
		_ = file.Close()
	}
}

// send has a message written, and takes over its files. The server's lock is held.
func (c *connection) send(message any, files ...*os.File) {
	if !c.over {
		select {
		case c.outgoing <- parcel{message, files}:
			return
		default:
			c.hangUp()
		}
	}
	closeFiles(files)
}

// close ends the connection once what was sent is written. The server's lock is held.
func (c *connection) close() {
	if !c.over {
		c.over = true
		close(c.outgoing)
	}
}

// leave gives the slot back.
func (c *connection) leave() {
	s := c.server
	s.mu.Lock()
	delete(s.open, c)
	owned := c.owns()
	if owned {
		s.slots[c.slot].owner = nil
	}
	launched := s.launcher == c
	if launched {
		s.launcher = nil
	}
	c.close()
	s.mu.Unlock()
	if owned || launched {
		s.said(Message{Slot: c.slot, Connection: c.number})
	}
	<-c.ended
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
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.send(wire.Error{Type: wire.TypeError, Message: wire.HeadOf(reason.Error(), maxReason)})
}

// take does what a message asks for. An error is told to the program, and ends the connection.
func (c *connection) take(message any) error {
	if hello, ok := message.(wire.Hello); ok && hello.Launcher || c.slot == Launcher {
		return c.launch(message)
	} else if ok {
		if err := c.hello(hello); err != nil {
			return err
		}
	} else if c.slot < 0 {
		return errors.New("the first message must be hello")
	}
	var round uint64
	err := c.update(func(s *slot) { round = s.round })
	switch message := message.(type) {
	case wire.Join:
		if c.joined {
			return errors.New("join was said before on this connection")
		}
		c.joined = true
	case wire.Progress:
		return c.update(func(s *slot) {
			if message.TotalSteps > 0 {
				s.total = message.TotalSteps
			}
			if message.Metrics != nil {
				s.state.Metrics = maps.Clone(message.Metrics)
			}
		})
	case wire.Score:
		err = c.score(message)
	case wire.Stopped:
		return errors.New("only a launcher says stopped, about the processes that it has started")
	case wire.Fault:
		err = c.fault(message)
	case wire.Parked, wire.Aborted, wire.Left:
		err = c.update((*slot).stands)
	}
	if err == nil {
		c.server.said(Message{Slot: c.slot, Connection: c.number, Round: round, Body: message})
	}
	return err
}

var errSaidBefore = errors.New("hello was said before on this connection")

func (c *connection) hello(hello wire.Hello) error {
	if c.slot >= 0 {
		return errSaidBefore
	}
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if hello.Leaves && !s.identity.Restarts {
		return errors.New("resize.strategy of this job is InPlace: its programs live on in other worlds, and this one would be started " +
			"anew in each; set spec.resize.strategy to Restart, or have the program train in the loop of the SDK")
	}
	if err := c.claim(hello.LocalRank); err != nil {
		return err
	}
	if hello.Leaves {
		c.place()
	}
	// A duplicate: the page may be closed before it is sent.
	page, err := duplicate(s.page.File())
	if err != nil {
		return fmt.Errorf("hand over the gate page: %w", err)
	}
	_ = c.wire.SetReadDeadline(time.Time{})
	c.send(wire.Welcome{
		Type: wire.TypeWelcome, Protocol: wire.Protocol,
		Namespace: s.identity.Namespace, Job: s.identity.Job, Attempt: s.identity.Attempt,
		Slot: c.slot, Slots: s.identity.Slots,
		Snapshots: s.identity.Snapshots, Interval: s.identity.Interval, Leaves: hello.Leaves, Sharded: hello.Sharded, Local: hello.Local,
		Best: s.identity.Best, FDs: 1,
	}, page)
	return nil
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
	last := s.carried(localRank)
	s.page.Clear(localRank)
	s.slots[localRank] = slot{owner: c, before: last}
	c.slot = localRank
	return nil
}

// place puts a process into the world that its program was started in. The server's lock is held.
func (c *connection) place() {
	s := c.server
	s.slots[c.slot].round, s.slots[c.slot].from = s.round, s.from
	s.page.SetWorld(c.slot, s.term, s.round)
}

func duplicate(file *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(file.Fd(), syscall.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), file.Name()), nil
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
	return c.update(func(s *slot) {
		if s.state.FaultOrder == 0 {
			c.server.faults++
			s.state.FaultOrder = c.server.faults
		}
		s.state.Fault = wire.TailOf(fault.Message, wire.MaxFault)
		s.state.FaultStep = fault.Step
		s.stands()
	})
}
