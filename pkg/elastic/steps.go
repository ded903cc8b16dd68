package elastic

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/gate"
	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/pkg/elastic/samples"
)

// Step is one update of the model. It is valid in its turn of the loop over Steps.
type Step struct {
	run   *Run
	batch samples.Batch
	order samples.Permutation
}

// Steps goes through the steps of the whole training, epoch after epoch, from where the state is. A
// turn of the loop is a step: it has begun when the body starts, and is done when the body ends; a
// body that is left with break or return leaves its step undone. The loop ends early when ctx ends or
// the world does: Err says so, and train returns that.
//
// It is called within Train, from one goroutine.
func (r *Run) Steps(ctx context.Context) iter.Seq[*Step] { return r.stepsTo(ctx, r.shape.Steps()) }

// Epoch is once through the training set. It is valid in its turn of the loop over Epochs.
type Epoch struct {
	run    *Run
	number uint64
}

// Number counts from 0.
func (e *Epoch) Number() uint64 { return e.number }

// Steps goes through the steps of this epoch, like Run.Steps.
func (e *Epoch) Steps(ctx context.Context) iter.Seq[*Step] {
	return e.run.stepsTo(ctx, (e.number+1)*e.run.shape.StepsPerEpoch())
}

// Epochs goes through the epochs, for programs that do something between two of them, such as
// evaluating the model (Run.Evaluate): after the loop over the epoch's Steps, when Err is nil. What comes after the
// last step of an epoch begins anew in the next world when the world changes before the first step of
// the next epoch: no epoch is left without it, and on every rank it is the same.
//
// The loop ends early when ctx ends, the world does, or a turn leaves steps of its epoch undone: Err
// says so.
func (r *Run) Epochs(ctx context.Context) iter.Seq[*Epoch] {
	return func(yield func(*Epoch) bool) {
		perEpoch := r.shape.StepsPerEpoch()
		for e := (max(r.done(), 1) - 1) / perEpoch; e < uint64(r.shape.Epochs); e++ {
			if !yield(&Epoch{run: r, number: e}) || r.err != nil {
				return
			}
			if ctx.Err() != nil {
				r.err = context.Cause(ctx)
				return
			}
			if r.done() < (e+1)*perEpoch {
				r.err = fmt.Errorf("elastic: epoch %d was left after step %d, and has %d", e, r.done(), (e+1)*perEpoch)
				return
			}
		}
	}
}

func (r *Run) stepsTo(ctx context.Context, last uint64) iter.Seq[*Step] {
	return func(yield func(*Step) bool) {
		r.setPhase(gate.PhaseData)
		defer func() { r.setPhase(gate.PhaseData) }()
		if r.writer && r.next == 1 && r.entered == 0 {
			r.snapshotLater(0)
		}
		for ; r.err == nil && r.next <= last; r.next++ {
			if !r.begin(ctx) || !yield(&r.step) {
				return
			}
			r.end()
		}
	}
}

// begin goes through the gate. False: the loop is over.
func (r *Run) begin(ctx context.Context) bool {
	for {
		if ctx.Err() != nil {
			r.err = context.Cause(ctx)
			return false
		}
		if stop := r.slot.Enter(r.next); stop == 0 || stop >= r.next {
			break
		}
		if r.park(); r.err != nil {
			return false
		}
	}
	r.entered, r.dirty = r.next, !r.marked
	var batch samples.Batch
	if last := r.step.batch; last.Step > 0 && last.Step == r.done() {
		batch = r.shape.After(last)
	} else {
		batch = r.shape.Batch(r.next)
	}
	if r.step.run == nil || batch.Epoch != r.step.batch.Epoch {
		r.step.run = r
		r.step.order = samples.NewPermutation(r.shape.Seed, batch.Epoch, r.shape.Samples)
	}
	r.step.batch = batch
	if r.phase != gate.PhaseStep {
		r.setPhase(gate.PhaseStep)
	}
	return true
}

// end leaves the phase alone: the next step follows at once.
func (r *Run) end() {
	k := r.next
	r.dirty = false
	r.slot.Done(k, r.shape.UsedAfter(r.step.batch))
	if r.initial != nil {
		r.initial = nil // from here on there is no way back to it
	}
	if r.writer && k&(r.snaps.every-1) == 0 && r.snaps.due(k, time.Now()) {
		r.snapshotLater(k)
	}
}

// snapshotLater copies the state after a step; the rest happens in the background.
func (r *Run) snapshotLater(step uint64) {
	defer r.setPhase(r.phase)
	r.setPhase(gate.PhaseSaving)
	pieces, err := r.pieces(step)
	if err != nil {
		r.link.say(failed(step, err))
		return
	}
	r.snaps.later(step, pieces, func(s wire.Snapshot) { r.link.say(s) })
}

func (r *Run) snapshotName(step uint64) string {
	return r.snaps.name(step, r.world.Round, r.world.LocalRank)
}

// done is the last step that was done.
func (r *Run) done() uint64 { return r.next - 1 }

func (r *Run) setPhase(phase gate.Phase) {
	r.phase = phase
	r.slot.SetPhase(phase)
}

// Err is why the loop over Steps or Epochs, or Poll, ended early; nil when it did not. It is
// ErrWorldEnded when another world follows.
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
		for i := range s.batch.MicroBatches(r.world.Size, r.shape.MicroBatch) {
			part := s.batch.MicroBatch(r.world.Rank, r.world.Size, r.shape.MicroBatch, i)
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

// BeginUpdate says that the program changes its state from here to the end of the step. From the first call on
// it promises to change nothing of Options.State elsewhere in a step, random numbers that it draws included.
// When a rank is lost, the others then go on with the state that they have, unless they were past this point:
// the step is made again, and none before it. Without such a call everybody goes back to a snapshot. What can
// take long or fail, such as talking to other ranks, comes before it.
func (s *Step) BeginUpdate() { s.run.dirty, s.run.marked = true, true }

// Report shows the loss of this step; see Run.Report. A loss that is not finite is left out.
func (s *Step) Report(loss float64) { _ = s.run.Report(map[string]float64{"loss": loss}) }
