package elastic

import (
	"context"
	"iter"

	"github.com/concertina-dev/concertina/internal/agent/gate"
	"github.com/concertina-dev/concertina/pkg/elastic/samples"
)

// Step is one update of the model. It is valid in its turn of the loop over Steps.
type Step struct {
	run   *Run
	batch samples.Batch
	order samples.Permutation
}

// Steps goes through the steps of the whole training, epoch after epoch. A turn of the loop is a
// step: it has begun when the body starts, and is done when the body ends; a body that is left with
// break or return leaves its step undone. The loop ends early when ctx ends: Err says so.
//
// It is called within Train, from one goroutine.
func (r *Run) Steps(ctx context.Context) iter.Seq[*Step] {
	return func(yield func(*Step) bool) {
		last := r.shape.Steps()
		r.setPhase(gate.PhaseData)
		defer r.setPhase(gate.PhaseData)
		for ; r.next <= last; r.next++ {
			if ctx.Err() != nil {
				r.err = context.Cause(ctx)
				return
			}
			r.begin()
			if !yield(&r.step) {
				return
			}
			r.end()
		}
	}
}

func (r *Run) begin() {
	batch := r.shape.Batch(r.next)
	if r.step.run == nil || batch.Epoch != r.step.batch.Epoch {
		r.step.run = r
		r.step.order = samples.NewPermutation(r.shape.Seed, batch.Epoch, r.shape.Samples)
	}
	r.step.batch = batch
	r.entered = r.next
	r.slot.Enter(r.next)
	if r.phase != gate.PhaseStep {
		r.setPhase(gate.PhaseStep)
	}
}

// end leaves the phase alone: the next step follows at once.
func (r *Run) end() { r.slot.Done(r.next, r.shape.UsedAfter(r.step.batch)) }

func (r *Run) setPhase(phase gate.Phase) {
	r.phase = phase
	r.slot.SetPhase(phase)
}

// Err is why the loop over Steps ended early; nil when it did not.
func (r *Run) Err() error { return r.err }

// TotalSteps is the number of steps in the whole training.
func (r *Run) TotalSteps() uint64 { return r.shape.Steps() }

// Number is the number of the step in the whole training, 1 to TotalSteps.
func (s *Step) Number() uint64 { return s.batch.Step }

// Epoch counts from 0.
func (s *Step) Epoch() uint64 { return s.batch.Epoch }

// EndsEpoch is true for the last step of an epoch.
func (s *Step) EndsEpoch() bool {
	return s.batch.First+uint64(s.batch.Samples) == s.run.shape.Samples
}

// Samples is the number of samples in this step of all ranks together.
func (s *Step) Samples() int { return s.batch.Samples }

// MicroBatches goes through this rank's part of the step: indices of samples, and the weight that
// the mean gradient over them is multiplied by. Summed over the micro-batches and averaged over the
// ranks, that makes the mean gradient of the whole batch, whatever the number of ranks.
//
// Every rank gets the same number of micro-batches. One that would be empty holds one sample with
// the weight 0, so that every rank takes part in every collective. The indices are valid until the
// next turn of the loop.
func (s *Step) MicroBatches() iter.Seq2[[]uint64, float64] {
	return func(yield func([]uint64, float64) bool) {
		r := s.run
		for i := range s.batch.MicroBatches(r.ranks, r.shape.MicroBatch) {
			part := s.batch.MicroBatch(r.rank, r.ranks, r.shape.MicroBatch, i)
			if !yield(s.indices(part), part.Weight) {
				return
			}
		}
	}
}

func (s *Step) indices(part samples.Part) []uint64 {
	indices := s.run.indices[:0]
	for i := range part.Samples {
		indices = append(indices, s.order.At(part.First+uint64(i)))
	}
	if part.Samples == 0 {
		indices = append(indices, s.order.At(s.batch.First))
	}
	s.run.indices = indices
	return indices
}

// Report shows the loss of this step; see Run.Report. A loss that is not finite is left out.
func (s *Step) Report(loss float64) { _ = s.run.Report(map[string]float64{"loss": loss}) }
