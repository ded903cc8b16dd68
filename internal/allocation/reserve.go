package allocation

import (
	"slices"
	"time"
)

// reservation is room that is kept together for a gang which does not fit yet.
type reservation struct {
	job   JobID
	shape ShapeID
	// held is what was taken for it out of the room of others; nothing while others may start on it. It is None for
	// each pod whose quota alone is kept.
	held []NodeID
	// taken is what was taken out of now and out of soon for it, on one node after the other, quotas the same of one quota after the
	// other. They are empty while nothing is held.
	taken, quotas []int64
	// firm is true once all of it is taken from what is free.
	firm bool
	// quota is true for one of quota alone.
	quota bool
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
	if p.classes.empty(d.class) < int64(d.places) {
		return
	}
	for i := range p.reservations {
		if r := &p.reservations[i]; !r.quota && p.concerns(r, in.Gang) {
			return
		}
	}
	r := reservation{job: d.job, shape: in.Gang, expected: p.expected(d)}
	p.out[d.job].Expected = r.expected
	if p.keeps(d, r.expected) {
		p.claim(&r, func(from *room) {
			all := *d
			all.places = min(int32(min(from.of(d.class).total, int64(d.places))), from.bounds(in.Gang, 0))
			r.held = p.spread(from, &all, nil)
		})
		if lacks := d.places - int32(len(r.held)); lacks > 0 {
			p.lacking = append(p.lacking, lack{r.job, r.shape, d.class, lacks, r.patient, false})
		}
		if len(r.held) == 0 {
			return // for one that nothing can be kept for, others do not lose their claim
		}
		p.hold(&r, true)
	}
	p.reservations = append(p.reservations, r)
}

// lack is what a gang would be kept beyond what it is kept now, if there were any.
type lack struct {
	job     JobID
	shape   ShapeID
	class   classID
	places  int32
	patient bool
	// quota is true for one that lacks quota alone.
	quota bool
}

// lasts says whether a demand would still have its room once those who are to leave have left. A patient gang before it, which
// takes nothing, is kept what comes free as long as it lacks room. Where hidden, so is any gang before it that lacks room: what whole
// jobs leave, and workers that move, was within nobody's reach until now.
func (p *planner) lasts(d *demand, hidden bool, moves []move) bool {
	claims := func(l lack) bool { return hidden || l.patient }
	if d.beside() == 1 || !slices.ContainsFunc(p.lacking, claims) {
		return true
	}
	soon, reach := p.soon.mark(), p.reach.mark()
	defer func() {
		p.soon.undo(soon)
		p.reach.undo(reach)
	}()
	p.keepOwn(moves)
	for _, l := range p.lacking {
		if !claims(l) {
			continue
		}
		from := &p.reach
		if l.patient {
			from = &p.soon // it is kept what comes free by itself
		}
		var nodes []NodeID
		if l.quota {
			nodes = slices.Repeat([]NodeID{None}, int(max(min(from.bounds(l.shape, 0), l.places), 0)))
		} else {
			more := demand{job: l.job, class: l.class, places: int32(min(from.of(l.class).total, int64(l.places)))}
			nodes = p.spread(from, &more, nil)
		}
		for _, n := range nodes {
			p.reach.add(n, l.shape, -1)
			if l.patient {
				p.soon.add(n, l.shape, -1)
			}
		}
	}
	if gang := p.c.Jobs[d.job].Gang; min(p.soon.bounds(gang, 0), p.reach.bounds(gang, 0)) < d.made {
		return false
	}
	now, then := p.soon.of(d.class), p.reach.of(d.class)
	total := int64(0)
	for n := range now.at {
		if !slices.Contains(d.avoid, NodeID(n)) {
			total += int64(min(now.at[n], then.at[n]))
		}
	}
	return total >= int64(d.places)
}

// claim does something with the room that a reservation may be taken from. Who takes nothing from others never gets
// what is taken from them: it is kept what comes free by itself. All others have what can be taken of surplus. Workers
// of a job's own class are none: they are within reach only while a replacement is there for one that moves, and the
// move is for another gang. If they were claimed, that gang would lose its room to the reservation as soon as the
// replacement is bound, which would leave then, and come again.
func (p *planner) claim(r *reservation, do func(from *room)) {
	if r.patient = !p.c.Jobs[r.job].Preempts; r.patient {
		p.claimPatiently(do)
		return
	}
	mark := p.reach.mark()
	defer func() { p.reach.undo(mark) }()
	p.keepOwn(nil)
	do(&p.reach)
}

// keepOwn puts workers of jobs' own classes out of reach that nobody has chosen and that are not among those that are to move.
func (p *planner) keepOwn(moves []move) {
	for _, id := range p.overstaffed {
		for _, l := range p.jobs[id].lendables {
			if p.c.Jobs[id].Workers[l.worker].Own && p.takeable(id, int(l.worker)) && !slices.Contains(moves, move{id, int(l.worker)}) {
				p.reach.add(l.node, l.shape, -1)
			}
		}
	}
}

// claimPatiently does something with what comes free by itself. The quota that others claim may be lent: it is not
// taken out of what is free then. Otherwise a gang would be kept more once a lender has shrunk for one behind it, which
// would not start on that, and the lender grow again.
func (p *planner) claimPatiently(do func(from *room)) {
	const soon = 1
	lend := func(times int64) {
		for i := range p.reservations {
			if r := &p.reservations[i]; !r.patient {
				p.grantKept(r, soon, &p.soon, times)
			}
		}
	}
	lend(1)
	do(&p.soon)
	lend(-1)
}

// stillOpen says whether others may start on what a gang waits for.
func (p *planner) stillOpen(d *demand) bool {
	queued := p.c.Jobs[d.job].Queued
	if queued.IsZero() {
		return false // it was granted already
	}
	end := until(queued, p.c.Settings.Backfill, p.c.Now)
	p.wake(end)
	return !end.IsZero()
}

// patientFor is the shortest turn in which room is kept for a gang that takes nothing.
const patientFor = 10 * time.Minute

// keeps says whether room is kept for a gang now. What is kept for one that takes nothing nobody else uses meanwhile, and where
// the rest is held by a job that never ends that would be for ever. Unless deadlines tell when it can start, it is kept in turns:
// for as long as others could start on it before, then growth may have it for as long.
func (p *planner) keeps(d *demand, expected time.Time) bool {
	if p.stillOpen(d) {
		return false
	}
	in := &p.c.Jobs[d.job]
	waited := p.c.Now.Sub(in.Queued) - p.c.Settings.Backfill
	if in.Preempts || !expected.IsZero() || in.Queued.IsZero() || waited < 0 {
		return true
	}
	turn := max(p.c.Settings.Backfill, patientFor)
	p.wake(p.c.Now.Add(turn - waited%turn))
	return waited/turn%2 == 0
}

// blockQuota keeps what is left of its quotas for a gang that they would admit if nobody else used them: jobs
// behind it in its namespace would use it up again and again.
func (p *planner) blockQuota(d *demand) {
	in := &p.c.Jobs[d.job]
	if !p.quotaCouldAdmit(d) || p.classes.empty(d.class) < int64(d.places) || !p.keeps(d, time.Time{}) {
		return
	}
	r := reservation{job: d.job, shape: in.Gang, quota: true}
	left := min(p.reach.bounds(in.Gang, 0), d.made)
	p.claim(&r, func(from *room) { left = min(left, from.bounds(in.Gang, 0)) })
	if lacks := d.made - max(left, 0); lacks > 0 {
		p.lacking = append(p.lacking, lack{r.job, r.shape, d.class, lacks, r.patient, true})
	}
	if left <= 0 {
		return
	}
	r.held = slices.Repeat([]NodeID{None}, int(left))
	p.hold(&r, true)
	p.reservations = append(p.reservations, r)
}

// quotaCouldAdmit says whether a gang is within what its quotas allow altogether.
func (p *planner) quotaCouldAdmit(d *demand) bool {
	shape := &p.c.Shapes[p.c.Jobs[d.job].Gang]
	for _, q := range shape.Quotas {
		for i, amount := range shape.Demand {
			if hard := p.c.Quotas[q].Hard; amount > 0 && i < len(hard) && hard[i] < Unbounded/2 && hard[i]/amount < int64(d.made) {
				return false
			}
		}
	}
	return true
}

// concerns says whether a reservation keeps something that pods of a shape could have.
func (p *planner) concerns(r *reservation, s ShapeID) bool {
	if r.quota {
		return slices.ContainsFunc(p.c.Shapes[s].Quotas, func(q QuotaID) bool { return slices.Contains(p.c.Shapes[r.shape].Quotas, q) })
	}
	return overlap(p.c.Shapes[s].Nodes, p.c.Shapes[r.shape].Nodes)
}

// sharedNodes are those of a class, beside some, on which room is kept that has yet to come free.
func (p *planner) sharedNodes(k classID, avoid []NodeID) []NodeID {
	var all []NodeID
	for i := range p.reservations {
		r := &p.reservations[i]
		if len(r.taken) == 0 || r.patient || r.firm {
			continue // nothing is held just now, or all of it was taken already
		}
		for _, n := range r.held {
			if n >= 0 && p.classes.all[k].nodes.Has(int(n)) && !slices.Contains(avoid, n) {
				all = append(all, n)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
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

// liftReservations gives to growth what no gang but one may have, if that one can take it back. Where another gang waits
// for pods to end nothing is lent meanwhile: with less on the node besides what is reserved, the room that comes would not
// do for it any more, and it would take the growth back at once, again and again.
func (p *planner) liftReservations() {
	for i := range p.reservations {
		r := &p.reservations[i]
		if r.patient {
			continue
		}
		p.hold(r, false)
		r.held = slices.DeleteFunc(r.held, func(n NodeID) bool { return !p.awaited[n] })
		r.firm = true // what is lent anew is to be beside all of it
		p.hold(r, true)
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
		if len(r.held) == 0 || r.quota && !p.concerns(r, in.Gang) {
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
