package socket

import "time"

// Pause is how long a process stands still between two worlds: from the end of the last step that it has made
// to the beginning of its first in the world that it was given, by the clock of its node.
type Pause struct {
	// Begun is true once that first step has begun.
	Begun bool
	// Length is 0 when it is not known, as for a process that has made no step before.
	Length time.Duration
}

// before is when the last step ended before the world that a process is in. Its own stamp is exact. For a
// program that writes none it is the moment at which it said that it stands.
type before struct {
	ended uint64
	stood time.Time
}

// firstLook and lastLook bound the time between two looks at whether a program that writes no stamps has begun
// its first step; between them it is a twentieth of the time that has passed.
const (
	firstLook = 10 * time.Millisecond
	lastLook  = time.Second
)

// carried is what stays of a slot's last step when its process goes to another world, or another process
// comes. The lock is held.
func (s *Server) carried(i int) before {
	old := &s.slots[i]
	switch ended := s.page.Stamps(i).Ended; {
	case ended > old.before.ended:
		return before{ended: ended}
	case ended == 0 && s.page.Progress(i).Done > old.from:
		return before{stood: old.stood}
	}
	return old.before
}

// pause is what is known of how long a slot's process stood still; done is what was read of its steps before.
// The lock is held.
func (s *Server) pause(i int, done uint64) Pause {
	slot, stamps := &s.slots[i], s.page.Stamps(i)
	switch {
	case slot.round == 0:
		return Pause{}
	case !slot.before.stood.IsZero() && !slot.begun.IsZero():
		return Pause{Begun: true, Length: slot.begun.Sub(slot.before.stood)}
	case !slot.before.stood.IsZero():
		return Pause{}
	case slot.before.ended > 0 && stamps.Begun > slot.before.ended:
		return Pause{Begun: true, Length: time.Duration(stamps.Begun - slot.before.ended)}
	}
	return Pause{Begun: stamps.Begun > 0 || done > slot.from}
}

// stands notes that a process has said that it makes no step for now. The lock is held.
func (s *slot) stands() {
	if s.stood.IsZero() {
		s.stood = time.Now()
	}
}

// watch finds out when a process that writes no stamps begins its first step in its world.
func (s *Server) watch(i int, c *connection, round uint64) {
	since, wait := time.Now(), firstLook
	for s.waitsForStep(i, c, round) {
		select {
		case <-s.ctx.Done():
			return
		case <-c.ended:
			return
		case <-time.After(wait):
		}
		wait = min(max(time.Since(since)/20, firstLook), lastLook)
	}
}

// waitsForStep is true while a process is in that world and has begun no step there; it notes when it has.
func (s *Server) waitsForStep(i int, c *connection, round uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.page == nil || i >= len(s.slots) || s.slots[i].owner != c || s.slots[i].round != round {
		return false
	}
	if s.page.Progress(i).Entered <= s.slots[i].from {
		return true
	}
	s.slots[i].begun = time.Now()
	return false
}
