package socket

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/concertina-dev/concertina/internal/agent/gate"
	"github.com/concertina-dev/concertina/internal/agent/wire"
)

// The methods in this file tell processes what to do. One that names a connection does nothing when
// the slot has another owner by now.

// owner is the slot's connection, if it is still the one of this number. The lock is held.
func (s *Server) owner(slot int, number uint64) *connection {
	if slot < 0 || slot >= len(s.slots) || s.slots[slot].owner == nil || s.slots[slot].owner.number != number {
		return nil
	}
	return s.slots[slot].owner
}

// Give tells a process that waits its next world. What it has said of its last one is forgotten.
// When the process of rank 0 cannot have the master port it is told so instead.
func (s *Server) Give(slot int, connection uint64, place Place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.owner(slot, connection)
	if c == nil {
		return
	}
	world := place.world(slot, s.identity.Slots)
	var files []*os.File
	if world.Rank == 0 && place.GivesPort {
		file, err := s.masterSocket(place.MasterAddress, place.MasterPort)
		if err != nil {
			s.deny(c, err.Error())
			return
		}
		world.FDs, files = 1, []*os.File{file}
	}
	last := s.carried(slot)
	s.slots[slot] = newSlot(c, place, s.slots[slot], last)
	s.page.Lift(slot)
	s.page.SetWorld(slot, s.term, place.Round)
	s.page.Rewind(slot, place.FromStep)
	c.send(world, files...)
	if !last.stood.IsZero() {
		s.serving.Go(func() { s.watch(slot, c, place.Round) })
	}
}

// newSlot is a slot whose process goes to another world: what was said of its faults is over.
func newSlot(c *connection, place Place, old slot, last before) slot {
	next := slot{owner: c, round: place.Round, from: place.FromStep, total: old.total, before: last}
	next.state.Metrics = old.state.Metrics
	return next
}

func (p Place) world(slot, slots int) wire.World {
	return wire.World{
		Type: wire.TypeWorld, Term: p.Term, Round: p.Round, Parent: p.Parent, FromStep: p.FromStep,
		Rank: p.WorkerRank*slots + slot, Size: p.Workers * slots,
		LocalRank: slot, LocalSize: slots,
		WorkerRank: p.WorkerRank, Workers: p.Workers,
		MasterAddress: p.MasterAddress, MasterPort: p.MasterPort,
		Restore: p.Restore, Handover: p.Handover, Snapshot: p.Snapshot, Shares: p.Shares, Shards: p.Shards, Writer: p.Writer && slot == 0, Staging: p.stagingOf(slot),
	}
}

// stagingOf is what the process of a slot writes: one of each worker does, since all of them have the same state.
func (p Place) stagingOf(slot int) *wire.Staging {
	if slot > 0 {
		return nil
	}
	return p.Staging
}

// masterSocket listens at the master port of a world. That of the world before is another: its listening
// socket stays with the process, which may still serve there, and closes it when it leaves.
func (s *Server) masterSocket(address string, port int) (*os.File, error) {
	listener, err := s.listen(s.ctx, address, port)
	if err != nil {
		return nil, err
	}
	defer func() { _ = listener.Close() }()
	file, err := listener.File()
	if err != nil {
		return nil, fmt.Errorf("hand over the master port: %w", err)
	}
	// The mode is shared with whoever gets it, and most languages expect a socket that blocks.
	if err := unix.SetNonblock(int(file.Fd()), false); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("hand over the master port: %w", err)
	}
	return file, nil
}

// Deny ends a connection, with the reason.
func (s *Server) Deny(slot int, connection uint64, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.owner(slot, connection); c != nil {
		s.deny(c, why)
	}
}

func (s *Server) deny(c *connection, why string) {
	c.send(wire.Error{Type: wire.TypeError, Message: wire.HeadOf(why, maxReason)})
	c.close()
}

// Say sends a message that needs nothing else.
func (s *Server) Say(slot int, connection uint64, message any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.owner(slot, connection); c != nil {
		if _, goes := message.(wire.Go); goes {
			s.slots[slot].stood = time.Time{}
		}
		c.send(message)
	}
}

// Arm has a slot's process stop after step n, or the last one that it has begun; it returns which.
func (s *Server) Arm(slot int, n uint64) (stop uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.page == nil || slot >= len(s.slots) {
		return 0
	}
	return s.page.Arm(slot, n)
}

// Lift takes the bound of Arm away.
func (s *Server) Lift(slot int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.page != nil && slot < len(s.slots) {
		s.page.Lift(slot)
	}
}

// Hangs says whether a slot's process has done nothing since it was told to leave its world: no step, and nothing else than what it
// was about then.
func (s *Server) Hangs(slot int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.page != nil && slot < len(s.slots) && s.page.Progress(slot) == s.slots[slot].interrupted
}

// Interrupt tells a slot's process to leave the world of a round. A process that looks at the gate
// alone learns it there. It returns what the process is about: forming is true until it has ended its first step in
// the world that it was given.
func (s *Server) Interrupt(slot int, connection, round uint64, reason string) (forming bool, phase gate.Phase) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.page != nil && slot < len(s.slots) {
		s.page.Interrupt(slot)
		progress := s.page.Progress(slot)
		s.slots[slot].interrupted = progress
		forming, phase = progress.Done <= s.slots[slot].from, progress.Phase
	}
	if c := s.owner(slot, connection); c != nil {
		c.send(wire.Abort{Type: wire.TypeAbort, Round: round, Reason: wire.HeadOf(reason, maxReason)})
	}
	return forming, phase
}
