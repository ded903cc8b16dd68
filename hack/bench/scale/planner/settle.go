package planner

import (
	"slices"
	"time"

	"github.com/concertina-dev/concertina/internal/allocation"
)

// Settle carries plans of a planner out, at once and as often as told, as if pods came and went in no time. It says
// whether the last one changed nothing.
func Settle(p *allocation.Planner, c *allocation.Cluster, rounds int) bool {
	b := &builder{Cluster: c}
	for range rounds {
		tally(c)
		plan := p.Plan(c)
		c.Foresight = plan.Foresight
		changed := false
		for id := range plan.Decisions {
			changed = b.carryOut(&c.Jobs[id], &plan.Decisions[id]) || changed
		}
		if !changed {
			return true
		}
		c.Now = c.Now.Add(time.Minute)
	}
	return false
}

// carryOut says whether it did anything.
func (b *builder) carryOut(j *allocation.Job, d *allocation.Decision) bool {
	gone := make([]bool, len(j.Workers))
	for _, l := range d.Leave {
		gone[l.Worker] = true
	}
	stay := make([]allocation.Worker, 0, len(j.Workers)+len(d.Places))
	for w, worker := range j.Workers {
		if gone[w] || d.Evict {
			b.give(worker.Node, worker.Shape)
			continue
		}
		stay = append(stay, worker)
	}
	if d.Evict {
		j.Stage, j.Queued = allocation.Queued, b.Now
	}
	if d.Start {
		j.Stage, j.Queued = allocation.Training, time.Time{}
	}
	for i, n := range d.Places {
		b.take(n, j.Gang)
		ordinal := int32(0)
		for slices.ContainsFunc(stay, func(w allocation.Worker) bool { return w.Ordinal == ordinal }) {
			ordinal++
		}
		stay = append(stay, allocation.Worker{
			Node: n, Shape: j.Gang, Own: int32(i) < d.Own, Bound: true, World: true, For: allocation.None, Rank: ordinal, Ordinal: ordinal,
		})
	}
	changed := len(d.Places) > 0 || len(d.Leave) > 0 || d.Evict || d.Start
	j.InVain = d.InVain
	if j.Workers, j.Target, j.Promised = stay, d.Count, d.Promised; changed {
		j.Tally = nil
	}
	return changed
}
