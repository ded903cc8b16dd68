package rendezvous

import (
	"math"
	"time"
)

// uploadRate is how many bytes of a checkpoint a member may send in a second; 0 for all that it can. What somebody waits for is
// not held back: all are about to go, the world stands at its barrier for it, or the member itself goes.
func (m *Machine) uploadRate(mem *member) uint64 {
	s, u, c := m.gang.Storage, m.uploading, m.change
	switch {
	case s == nil, s.Park != "", mem != nil && mem.leaving():
		return 0
	case u != nil && c != nil && c.arrived && c.step == u.snapshot.Step:
		return 0
	}
	return s.Rate
}

// paced is how long a member needs for so many bytes because of its rate alone, whoever may wait for them by now.
func (m *Machine) paced(bytes uint64) time.Duration {
	s := m.gang.Storage
	if s == nil || s.Rate == 0 {
		return 0
	}
	seconds := float64(bytes) / float64(s.Rate)
	return time.Duration(min(seconds, math.MaxInt64/4/float64(time.Second)) * float64(time.Second))
}
