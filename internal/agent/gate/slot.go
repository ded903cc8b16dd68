package gate

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Slot is a training process's side of a gate page. Its methods write one or two words each and may
// be called by one goroutine at a time.
type Slot struct {
	mem  words
	line int
	// stop is the agent's word that says where to stop.
	stop  int
	clock clock
	// fresh is true until the first step in a world has begun.
	fresh bool
}

// Private is a slot that nobody else sees, for a program without an agent.
func Private() *Slot {
	return &Slot{mem: make(words, size(1)), line: programLine(0), stop: agentLine(0), clock: newClock()}
}

// Open maps the page in file, which the caller may close afterwards; it stays mapped as long as the
// process lives, so that no late write can end it. Open fails when the file is
// shorter than its slots need, is no gate page, has another layout, or has no such slot.
func Open(file *os.File, slot int) (*Slot, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("look at the gate page: %w", err)
	}
	if slot < 0 || slot >= MaxSlots || info.Size() < int64(size(slot+1)) {
		return nil, fmt.Errorf("a gate page of %d bytes has no slot %d", info.Size(), slot)
	}
	mem, err := unix.Mmap(int(file.Fd()), 0, size(slot+1), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the gate page: %w", err)
	}
	s := &Slot{mem: mem, line: programLine(slot), stop: agentLine(slot), clock: newClock()}
	if err := s.check(slot); err != nil {
		return nil, errors.Join(err, unix.Munmap(mem))
	}
	return s, nil
}

func (s *Slot) check(slot int) error {
	if magic := s.mem.load(0, wordMagic); magic != Magic {
		return fmt.Errorf("not a gate page: it starts with %#x", magic)
	}
	if version := s.mem.load(0, wordVersion); version != LayoutVersion {
		return fmt.Errorf("the gate page has layout %d, this program knows %d: use an SDK of the operator's version", version, LayoutVersion)
	}
	if slots := s.mem.load(0, wordSlots); uint64(slot) >= slots {
		return fmt.Errorf("the gate page has %d slots and no slot %d", slots, slot)
	}
	return nil
}

// Enter says that step k begins, and returns what Stop returns after that: when it is neither 0 nor
// at least k the step must not be made. Steps count from 1.
func (s *Slot) Enter(k uint64) (stop uint64) {
	// Both sides write their own word before they read the other's, so one of them sees the other.
	s.mem.announce(s.line, wordEntered, k)
	stop = s.mem.load(s.stop, wordStop)
	if s.fresh && (stop == 0 || stop >= k) {
		s.fresh = false
		s.mem.store(s.line, wordBegun, s.clock.now())
	}
	return stop
}

// Stop is the last step that may be made now; 0 when there is no such bound.
func (s *Slot) Stop() uint64 { return s.mem.load(s.stop, wordStop) }

// Rewind says that the process is in another world, with the state after step k: no later step has been
// begun.
func (s *Slot) Rewind(k, samples uint64) {
	s.fresh = true
	s.mem.store(s.line, wordSamples, samples)
	s.mem.rewind(s.line, k)
}

// Done says that step k has ended, and how many samples the whole world has used up to it.
func (s *Slot) Done(k, samples uint64) {
	s.mem.store(s.line, wordSamples, samples)
	s.mem.store(s.line, wordEnded, s.clock.now())
	s.mem.store(s.line, wordDone, k)
}

// SetPhase says what the process is busy with.
func (s *Slot) SetPhase(phase Phase) { s.mem.store(s.line, wordPhase, uint64(phase)) }

// SetLastStep says which step is the last of the whole training.
func (s *Slot) SetLastStep(k uint64) { s.mem.store(s.line, wordLastStep, k) }
