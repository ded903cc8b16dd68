package elastic

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/concertina-dev/concertina/internal/agent/gate"
	"github.com/concertina-dev/concertina/internal/agent/wire"
)

// Evaluate tests the model between two steps, such as after the loop over an epoch's Steps, when Err is nil: do says how good it is, by
// up to 8 numbers as of Report, which are shown. All ranks call it, and what rank 0 says counts; numbers that are not finite are left out.
//
// In a job that keeps its best checkpoints (spec.checkpoint.storage.best) the state is kept as it was before do, where the number of that
// name is among the best. do may take long: it is known as Evaluating to the operator, and may call Poll.
//
// Errors: that of do, or the end of the world; a name that is none; a call in the body of a step.
func (r *Run) Evaluate(do func() (map[string]float64, error)) error {
	switch {
	case r.err != nil:
		return r.err
	case r.ctx.Err() != nil:
		return context.Cause(r.ctx)
	case r.entered >= r.next:
		return fmt.Errorf("elastic: Evaluate is called in step %d: call it after the loop over the Steps of an epoch", r.next)
	}
	if r.best != "" && r.writer && r.snaps.taken != r.done() {
		r.snaps.writing.Wait()
		r.snapshotLater(r.done())
	}
	var found map[string]float64
	if err := r.During(Evaluating, func() (err error) {
		found, err = do()
		return err
	}); err != nil {
		return cmp.Or(r.err, err)
	}
	if r.err != nil {
		return r.err
	}
	r.say(found)
	finite := maps.Clone(found)
	maps.DeleteFunc(finite, func(_ string, value float64) bool { return !isFinite(value) })
	return r.Report(finite)
}

// say tells the agent how good the state is. One that is evaluated in several ways needs no score by each.
func (r *Run) say(found map[string]float64) {
	if _, there := found[r.best]; r.best == "" || r.world.Rank != 0 || !there && r.done() > 0 && r.scored == r.done() {
		return
	}
	defer r.setPhase(r.phase)
	r.setPhase(gate.PhaseSaving)
	r.snaps.writing.Wait() // it is there by then, whatever follows
	said := wire.Score{Type: wire.TypeScore, Step: r.done()}
	switch value, there := found[r.best]; {
	case !there:
		names := cmp.Or(strings.Join(slices.Sorted(maps.Keys(found)), ", "), "nothing")
		said.Error = wire.HeadOf(fmt.Sprintf("evaluations report %s, and spec.checkpoint.storage.best wants %s", names, r.best), maxWhy)
	case !isFinite(value):
		said.Error = fmt.Sprintf("an evaluation reports %s=%v, which is no better or worse than others", r.best, value)
	default:
		said.Value, r.scored = &value, r.done()
	}
	r.link.say(said)
}

// maxWhy is how much is said of a score that is missing, in bytes.
const maxWhy = 1 << 10

func isFinite(value float64) bool { return !math.IsNaN(value) && !math.IsInf(value, 0) }
