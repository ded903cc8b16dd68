package server

import (
	"runtime"
	"sync/atomic"
	"time"
)

// turnPatience is for how long a session may keep its turn while the other side does not read.
const turnPatience = 20 * time.Millisecond

// turns has a place for each session of a large job that may use a processor at the same time; the others wait for one, and come
// in the order in which they have asked. A world of thousands is told to all of them at once, and all answer at once: without
// that, whatever another job says waits behind all that is ready then. Half of the processors are left to others.
type turns chan struct{}

func newTurns() turns { return make(turns, max(1, runtime.GOMAXPROCS(0)/2)) }

// take waits for a turn.
func (t turns) take() *turn {
	select {
	case t <- struct{}{}:
	default:
		t <- struct{}{}
		runtime.Gosched() // whoever has waited is next by the scheduler's rules, before all that others have to do
	}
	return &turn{of: t}
}

// turn is that of one session; nil where nobody waits for one.
type turn struct {
	of   turns
	over atomic.Bool
}

// end lets the next session have it. Later calls do nothing.
func (t *turn) end() {
	if t != nil && t.over.CompareAndSwap(false, true) {
		<-t.of
	}
}

// turn waits until one of the job's sessions may use a processor.
func (j *job) turn() *turn {
	if !j.large.Load() {
		return nil
	}
	return j.turns.take()
}

// freeTurn is turn where none is waited for: false when there is none.
func (j *job) freeTurn() (*turn, bool) {
	if !j.large.Load() {
		return nil, true
	}
	select {
	case j.turns <- struct{}{}:
		return &turn{of: j.turns}, true
	default:
		return nil, false
	}
}
