package allocation

import (
	"math"
	"time"

	"github.com/concertina-dev/concertina/internal/speed"
)

// Pace is what was measured of a job, and how far it has come.
type Pace struct {
	// Speed says how fast it is with how many workers; it must be known (speed.Model.Known).
	Speed speed.Model
	// Tried is the most workers with which it was measured. Beyond twice as many nothing is believed.
	Tried int32
	// Done and Left are steps. Left is 0 where the program does not say what is left, or is not believed: as much is
	// expected then as was done.
	Done, Left float64
	// Kept is the part of its time in which it makes the steps that Speed counts: pauses, evaluation and what is made again are no part
	// of them. 0 for not known.
	Kept float64
	// Seen is what was seen of it at each size, from which Speed is.
	Seen []speed.Seen
}

// left is how many steps are expected to be left, above 0. Without a report it is what was done, in powers of two, so
// that it changes seldom.
func (p *Pace) left() float64 {
	if p.Left > 0 {
		return p.Left
	}
	return math.Exp2(math.Ceil(math.Log2(max(p.Done, 1))))
}

// leastKept is the part of its time that a job is expected to keep in any case: what it lost while it waited for room is not lost again.
const leastKept = 0.5

// keeps is what part of its time a job is expected to make steps in.
func (p *Pace) keeps() float64 {
	if p.Kept > 0 && p.Kept < 1 {
		return max(p.Kept, leastKept)
	}
	return 1
}

// PauseExpected is how long a change of its world stops a job: as measured, or as is usual.
func (j *Job) PauseExpected() time.Duration {
	switch {
	case j.Pause > 0:
		return j.Pause
	case j.Restarts:
		return restart
	}
	return unmeasured
}
