package allocation

import (
	"slices"
	"time"
)

// reservation is room that is kept together for a gang which does not fit yet.
type reservation struct {
	job   JobID
	shape ShapeID
	// held is what was taken for it out of the room of others; nothing while others may start on it.
	held []NodeID
	// patient is true for a gang that takes nothing from others: what it waits for must not be lent.
	patient bool
	// expected is when the gang may start at the latest, zero when that is not known.
	expected time.Time
}

// block has a gang that finds no room reserve some, if it is the first on its nodes. Only a gang that could
// ever start may.
func (p *planner) block(d *demand) {
	in := &p.c.Jobs[d.job]
	p.forget(d)
	if p.classes.empty(d.class) < int64(d.places) || !in.Preempts && p.c.Settings.Backfill == 0 {
		return
	}
	for i := range p.reservations {
		if overlap(p.c.Shapes[in.Gang].Nodes, p.c.Shapes[p.reservations[i].shape].Nodes) {
			return
		}
	}
	r := reservation{job: d.job, shape: in.Gang, expected: p.expected(d)}
	p.out[d.job].Expected = r.expected
	open := until(in.Queued, p.c.Settings.Backfill, p.c.Now)
	if !open.IsZero() {
		p.wake(open)
	} else if p.c.Settings.Backfill > 0 {
		// Who takes nothing from others gets what is taken from them never: it is kept what comes free by itself.
		from := &p.reach
		if r.patient = !in.Preempts; r.patient {
			from = &p.soon
		}
		all := *d
		all.places = int32(min(from.of(d.class).total, int64(d.places)))
		r.held = p.spread(from, &all, nil)
		p.hold(&r, true)
	}
	p.reservations = append(p.reservations, r)
}

// hold takes the room of a reservation, or gives it back.
func (p *planner) hold(r *reservation, take bool) {
	times := int32(1)
	if take {
		times = -1
	}
	for _, n := range r.held {
		p.now.add(n, r.shape, times)
		p.soon.add(n, r.shape, times)
		p.reach.add(n, r.shape, times)
	}
}

// besideReservations does something as if nothing were reserved: for those who run, and for those who will
// have ended in time.
func (p *planner) besideReservations(do func()) {
	for i := range p.reservations {
		p.hold(&p.reservations[i], false)
	}
	do()
	for i := range p.reservations {
		p.hold(&p.reservations[i], true)
	}
}

// liftReservations gives to growth what no gang but one may have, if that one can take it back.
func (p *planner) liftReservations() {
	for i := range p.reservations {
		if p.reservations[i].patient {
			continue
		}
		p.hold(&p.reservations[i], false)
		p.reservations[i].held = nil
	}
}

// leavesInTime says whether a gang will have ended before any reservation that holds room can be used.
func (p *planner) leavesInTime(in *Job) bool {
	if in.Ends.IsZero() {
		return false
	}
	holds := false
	for i := range p.reservations {
		r := &p.reservations[i]
		if len(r.held) == 0 {
			continue
		}
		holds = true
		if r.expected.IsZero() || in.Ends.After(r.expected) {
			return false
		}
	}
	return holds
}

// expected is when a gang may start at the latest, by the deadlines of those that run.
func (p *planner) expected(d *demand) time.Time {
	in := &p.c.Jobs[d.job]
	var ending []JobID
	for id := range p.c.Jobs {
		other := &p.c.Jobs[id]
		if other.Name != "" && !other.Ends.IsZero() && other.Ends.After(p.c.Now) && len(other.Workers) > 0 && !p.jobs[id].evicted {
			ending = append(ending, JobID(id))
		}
	}
	slices.SortStableFunc(ending, func(a, b JobID) int { return p.c.Jobs[a].Ends.Compare(p.c.Jobs[b].Ends) })
	mark := p.reach.mark()
	defer func() { p.reach.undo(mark) }()
	for _, id := range ending {
		for w := range p.c.Jobs[id].Workers {
			worker := &p.c.Jobs[id].Workers[w]
			if !worker.Ending && !worker.Leaving && !p.leaving[p.jobs[id].first+w].chosen && !p.takeable(id, w) {
				p.reach.add(worker.Node, worker.Shape, 1)
			}
		}
		if p.reach.of(d.class).total >= int64(d.places) && p.reach.bounds(in.Gang, 0) >= d.made {
			return p.c.Jobs[id].Ends
		}
	}
	return time.Time{}
}
