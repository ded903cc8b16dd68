package replay

import "math"

// Limits are the bounds within which a kind of program splits its batch.
type Limits struct {
	// InitBatch is the batch in which progress is counted, MaxBatch the largest in total.
	InitBatch, MaxBatch int
	// MinLocal and MaxLocal bound what one worker takes in one pass.
	MinLocal, MaxLocal int
}

// Split is how a batch is split: Local samples in one pass of a worker, and Accumulated passes before the one that
// ends the step.
type Split struct {
	Local, Accumulated int
}

// Batch is what so many workers take in a step, which can differ from what was asked for because of rounding.
func (s Split) Batch(workers int) int { return workers * s.Local * (s.Accumulated + 1) }

// slack keeps a quotient that is a whole number, but for rounding, from being rounded up.
const slack = 1e-8

// Split is how so many workers share a batch: evenly, in equal passes where a share does not fit in one. One worker
// alone takes two passes at least where the batch is above InitBatch, since one cannot tell the noise of its gradient
// from a single pass (Pollux, section 4).
func (l Limits) Split(batch, workers int) Split {
	share := math.Ceil(float64(batch)/float64(workers) - slack)
	passes := int(math.Ceil(share/float64(l.MaxLocal) - slack))
	if workers == 1 && batch > l.InitBatch {
		passes = max(2, passes)
	}
	local := int(math.Ceil(share/float64(passes) - slack))
	return Split{Local: min(local, l.MaxBatch/(workers*passes)), Accumulated: passes - 1}
}
