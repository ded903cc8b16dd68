package replay

import (
	"fmt"
	"slices"
	"time"

	"github.com/concertina-dev/concertina/internal/allocation"
)

// Planned is the operator's planner as a policy for Ticks: what it plans at a tick is carried out at once, and again
// until it changes nothing more.
type Planned struct {
	operator *operator
	pause    time.Duration
	sight    Sight
	ids      map[*Run]allocation.JobID
	watches  map[*Run]*watch
}

// NewPlanned is for one run; restart is what a change costs, which the planner is told, as of a pause that was measured.
func NewPlanned(c Cluster, settings allocation.Settings, restart time.Duration, sight Sight) *Planned {
	return &Planned{
		operator: newOperator(c, settings, sight), pause: restart, sight: sight, ids: map[*Run]allocation.JobID{}, watches: map[*Run]*watch{},
	}
}

// mostPlans bounds how often a plan is made at one time. Plans come to rest after a few.
const mostPlans = 1000

func restless(now time.Duration) error { return fmt.Errorf("the plans at %s do not come to rest", now) }

// Assign says which devices each job has.
func (p *Planned) Assign(now int64, active []*Run) ([][]int, error) {
	for r, id := range p.ids {
		if r.done {
			p.operator.finish(id)
			delete(p.ids, r)
			delete(p.watches, r)
		}
	}
	for _, r := range active {
		if _, known := p.ids[r]; !known {
			p.ids[r] = p.operator.submit(r.Job)
			p.operator.job(p.ids[r]).Pause = p.pause
			p.watches[r] = p.sight.watch(r.Job)
		}
		at := time.Duration(now) * time.Second
		p.watches[r].look(at, r.placement, r.Steps, r.Seconds)
		p.operator.job(p.ids[r]).Pace = p.watches[r].pace(at)
	}
	if err := p.plan(time.Duration(now) * time.Second); err != nil {
		return nil, err
	}
	out := make([][]int, len(active))
	for i, r := range active {
		if out[i] = p.operator.members(p.ids[r]); sameNodes(out[i], r.Nodes) {
			out[i] = r.Nodes
		}
	}
	return out, nil
}

// Why is what the planner says.
func (p *Planned) Why(r *Run) string { return p.operator.why[p.ids[r]] }

// plan plans until nothing more changes at this time.
func (p *Planned) plan(now time.Duration) error {
	for range mostPlans {
		if !p.operator.plan(now) {
			return nil
		}
		for _, id := range p.ids {
			p.operator.remove(id, func(w *allocation.Worker) bool { return w.Marked })
			if len(p.operator.job(id).Workers) > 0 {
				p.operator.join(id, func(*allocation.Worker) bool { return true })
			}
		}
	}
	return restless(now)
}

// sameNodes says whether a job has as many devices on each node as before: which of them comes first is nothing that
// the planner decides.
func sameNodes(a, b []int) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
