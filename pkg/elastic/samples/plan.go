// Package samples says which samples each rank uses in each step, by the section "Samples" of
// docs/program-protocol.md: every sample of an epoch exactly once, whatever the number of ranks.
//
// It is pure arithmetic; it holds no data and no state.
package samples

import (
	"fmt"
	"math/bits"
)

// MaxSamples is the largest number of samples in a data set, and of steps in a training.
const MaxSamples = 1 << 62

// Shape is what a training does with its data set.
type Shape struct {
	// Samples is the number of samples in the data set, 1 to MaxSamples.
	Samples uint64
	// GlobalBatch is the number of samples in one step of all ranks together, 1 to 2^31. The last
	// step of an epoch has what is left.
	GlobalBatch int
	// MicroBatch is the largest number of samples that one rank computes at a time. 0 means all
	// of its part of the step at once.
	MicroBatch int
	// Epochs is how often the data set is gone through, at least 1.
	Epochs int
	// Seed selects the order of the samples.
	Seed uint64
}

const maxBatch = 1 << 31

// Check says what is wrong with a shape; nil when nothing is.
func (s Shape) Check() error {
	switch {
	case s.Samples < 1 || s.Samples > MaxSamples:
		return fmt.Errorf("the number of samples is %d: it must lie between 1 and 2^62", s.Samples)
	case s.GlobalBatch < 1 || s.GlobalBatch > maxBatch:
		return fmt.Errorf("the global batch is %d: it must lie between 1 and 2^31", s.GlobalBatch)
	case s.MicroBatch < 0 || s.MicroBatch > maxBatch:
		return fmt.Errorf("the micro-batch is %d: it must lie between 1 and 2^31, or be 0 for none", s.MicroBatch)
	case s.Epochs < 1:
		return fmt.Errorf("the number of epochs is %d: it must be at least 1", s.Epochs)
	}
	if high, low := bits.Mul64(uint64(s.Epochs), s.StepsPerEpoch()); high > 0 || low > MaxSamples {
		return fmt.Errorf("%d epochs of %d steps are more than 2^62 steps", s.Epochs, s.StepsPerEpoch())
	}
	if high, low := bits.Mul64(uint64(s.Epochs), s.Samples); high > 0 || low > MaxSamples {
		return fmt.Errorf("%d epochs of %d samples are more than 2^62 samples", s.Epochs, s.Samples)
	}
	return nil
}

// StepsPerEpoch is the number of steps in each epoch.
func (s Shape) StepsPerEpoch() uint64 {
	batch := uint64(s.GlobalBatch)
	return (s.Samples-1)/batch + 1
}

// Steps is the number of steps in the whole training.
func (s Shape) Steps() uint64 { return uint64(s.Epochs) * s.StepsPerEpoch() }

// Batch is the part of an epoch's positions that one step uses.
type Batch struct {
	// Step is the number of the step in the whole training, from 1.
	Step uint64
	// Epoch counts from 0.
	Epoch uint64
	// First is the first position, Samples how many there are.
	First   uint64
	Samples int
}

// Batch is the batch of a step, which must lie between 1 and Steps.
func (s Shape) Batch(step uint64) Batch {
	perEpoch := s.StepsPerEpoch()
	epoch, index := (step-1)/perEpoch, (step-1)%perEpoch
	first := index * uint64(s.GlobalBatch)
	return Batch{
		Step: step, Epoch: epoch, First: first,
		Samples: int(min(uint64(s.GlobalBatch), s.Samples-first)),
	}
}

// After is the batch of the step after b's, without a division.
func (s Shape) After(b Batch) Batch {
	next := Batch{Step: b.Step + 1, Epoch: b.Epoch, First: b.First + uint64(b.Samples)}
	if next.First == s.Samples {
		next.Epoch, next.First = b.Epoch+1, 0
	}
	next.Samples = int(min(uint64(s.GlobalBatch), s.Samples-next.First))
	return next
}

// Used is the number of samples in the steps 1 to step.
func (s Shape) Used(step uint64) uint64 {
	if step == 0 {
		return 0
	}
	return s.UsedAfter(s.Batch(step))
}

// UsedAfter is the number of samples in the steps up to this batch, itself included.
func (s Shape) UsedAfter(b Batch) uint64 {
	return b.Epoch*s.Samples + b.First + uint64(b.Samples)
}

// Part is what one rank computes at a time: the positions First to First+Samples-1.
type Part struct {
	First   uint64
	Samples int
	// Weight is what a mean over these samples is multiplied by, so that the sum over a rank's
	// parts, averaged over the ranks, is the mean over the whole batch.
	Weight float64
}

// Of is one rank's part of the batch, for rank 0 to ranks-1. It may be empty.
func (b Batch) Of(rank, ranks int) Part {
	start, end := b.cut(rank, ranks), b.cut(rank+1, ranks)
	return b.part(start, end, ranks)
}

// cut is ⌊rank·b/ranks⌋; the product stays below 2^63.
func (b Batch) cut(rank, ranks int) int {
	return int(uint64(rank) * uint64(b.Samples) / uint64(ranks))
}

func (b Batch) part(start, end, ranks int) Part {
	return Part{
		First: b.First + uint64(start), Samples: end - start,
		Weight: float64(uint64(end-start)*uint64(ranks)) / float64(b.Samples),
	}
}

// MicroBatches is how many micro-batches every rank runs in this step: the same number on each, so
// that every rank takes part in every collective. most is the micro-batch, 0 for all at once.
func (b Batch) MicroBatches(ranks, most int) int {
	largest := (b.Samples-1)/ranks + 1
	if most == 0 {
		return 1
	}
	return (largest-1)/most + 1
}

// MicroBatch is the i-th of a rank's micro-batches, from 0. The last ones may be smaller or empty.
func (b Batch) MicroBatch(rank, ranks, most, i int) Part {
	start, end := b.cut(rank, ranks), b.cut(rank+1, ranks)
	if most == 0 {
		return b.part(start, end, ranks)
	}
	return b.part(min(start+i*most, end), min(start+(i+1)*most, end), ranks)
}
