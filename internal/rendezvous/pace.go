package rendezvous

import (
	"math"
	"time"
)

// uploadRate is how many bytes of a checkpoint a member may send in a second; 0 for all that it can. What somebody waits for is
// not held back: all are about to go, the training is over, the world stands at its barrier for it, or the member itself goes.
func (m *Machine) uploadRate(mem *member) uint64 {
	s, u, c := m.gang.Storage, m.uploading, m.change
	switch {
	case s == nil, s.Park != "", m.world != nil && !m.world.finishedAt.IsZero(), mem != nil && mem.leaving():
		return 0
	case u != nil && c != nil && c.arrived && c.step == u.snapshot.Step:
		return 0
	}
	return s.Rate
}

// noteFreed takes note of who is not held back any more, and of who is again.
func (m *Machine) noteFreed(now time.Time, u *uploading) {
	for _, uid := range u.at() {
		_, noted := u.freed[uid]
		switch free := m.uploadRate(m.members[uid]) == 0; {
		case free && !noted:
			if u.freed == nil {
				u.freed = map[string]time.Time{}
			}
			u.freed[uid] = now
		case !free:
			delete(u.freed, uid)
		}
	}
}

// heldBack is how much more time than others a member needs for so many bytes because of its rate: what they take at that, but no
// longer than it was held back. From then on somebody waits.
func (m *Machine) heldBack(u *uploading, uid string, since time.Time, bytes uint64) time.Duration {
	long := m.paced(bytes)
	if at, free := u.freed[uid]; free {
		long = min(long, max(0, at.Sub(since)))
	}
	return long
}

// paced is how long so many bytes take at the rate alone.
func (m *Machine) paced(bytes uint64) time.Duration {
	s := m.gang.Storage
	if s == nil || s.Rate == 0 {
		return 0
	}
	seconds := float64(bytes) / float64(s.Rate)
	return time.Duration(min(seconds, math.MaxInt64/4/float64(time.Second)) * float64(time.Second))
}
