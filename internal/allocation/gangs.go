package allocation

import (
	"cmp"
	"math"
	"slices"
)

// kind is what a demand is for. Of one priority the lower ones are served first.
type kind uint8

const (
	// starting completes a gang whose start was granted.
	starting kind = iota
	// refill brings a job back to its min.
	refill
	// replace replaces a loss among the workers of the own class.
	replace
	// begin starts the gang of a queued job.
	begin
)

// demand is room that a job needs for workers of its own class, all of it or none.
type demand struct {
	job  JobID
	kind kind
	// places are needed, the first made of them by pods that are still to be made; the others wait for the
	// scheduler already.
	places, made int32
	class        classID
	// avoid are nodes on which a place is of no use to it.
	avoid []NodeID
	// intime is true for a gang that will have ended before reserved room can be used.
	intime bool
	// granted is true for a gang that was granted and of which there is nothing yet.
	granted bool
}

// queues says whether a demand stands in the queue, behind what is reserved for others.
func (d *demand) queues() bool { return d.kind == begin || d.granted }

// verdict is what became of a demand.
type verdict uint8

const (
	blocked verdict = iota
	// served has its room now.
	served
	// waiting gets its room when others have left.
	waiting
)

// serveGangs gives room to all that is not growth, in order.
func (p *planner) serveGangs() {
	demands := p.demands()
	p.promised = p.outstanding(demands)
	place := int32(0)
	for i := range demands {
		d := &demands[i]
		p.commit()
		p.heedFor(&p.c.Jobs[d.job])
		p.keep(d)
		if p.jobs[d.job].evicted {
			continue
		}
		if d.kind == begin {
			place++
			p.out[d.job].Queue = place
			p.serveQueued(d)
			if p.out[d.job].Start {
				place--
				p.out[d.job].Queue = 0
			}
			continue
		}
		if d.queues() {
			// It lost its room between the grant and its pods, or has yet to make them: it holds nothing, so it
			// stands in the queue again, before those that were not granted yet.
			p.serveGang(d)
			continue
		}
		p.besideReservations(func() { p.serve(d) })
	}
	p.commit()
	p.heed(math.MinInt32)
	p.spareUnused()
	p.liftReservations()
}

// commit keeps the memory for undoing as small as one attempt needs.
func (p *planner) commit() {
	for _, r := range []*room{&p.now, &p.soon, &p.reach} {
		r.commit()
	}
}

// demands are all of them, in the order in which they are served.
func (p *planner) demands() []demand {
	var all []demand
	for _, id := range p.order {
		in := &p.c.Jobs[id]
		if in.Gang < 0 || p.c.Namespaces[in.Namespace].Ending {
			continue
		}
		d := demand{job: id}
		switch in.Stage {
		case Starting:
			d.kind, d.places = starting, p.startingPlaces(id)
			d.made = max(in.Min-p.jobs[id].live, 0)
			d.granted = p.jobs[id].live == 0
		case Training:
			d.kind, d.places = p.missing(id)
			d.made = d.places
		case Queued:
			d.kind, d.places, d.made = begin, in.Min, in.Min
		}
		if d.places > 0 {
			if d.kind == replace {
				d.avoid = in.Avoid // who has min workers all the same does without such nodes
			}
			d.class = p.classes.of(in.Gang, scope{})
			all = append(all, d)
		}
	}
	slices.SortStableFunc(all, func(a, b demand) int {
		if c := cmp.Compare(p.c.Jobs[b.job].Priority, p.c.Jobs[a.job].Priority); c != 0 {
			return c
		}
		return cmp.Compare(a.kind, b.kind)
	})
	p.byWork(all)
	return all
}

// startingPlaces are those that a starting gang has yet to be given: pods that are missing, and pods that
// wait for the scheduler and hold no room so far.
func (p *planner) startingPlaces(id JobID) int32 {
	in := &p.c.Jobs[id]
	places := max(in.Min-p.jobs[id].live, 0)
	for w := range in.Workers {
		worker := &in.Workers[w]
		if worker.Own && !worker.Bound && worker.Node == None && !worker.Ending && !worker.Leaving {
			places++
			if places == 1 && (p.opaque(in.Gang) || p.c.Settings.Autoscaled) {
				p.attempts = append(p.attempts, attempt{in.Gang, in.Priority})
			}
		}
	}
	return places
}

// missing is what a training job lacks of its own class.
func (p *planner) missing(id JobID) (kind, int32) {
	in, j := &p.c.Jobs[id], &p.jobs[id]
	switch {
	case in.Finishing:
		return refill, 0
	case j.live < in.Min:
		return refill, in.Min - j.live
	default:
		return replace, max(in.Min-j.own, 0)
	}
}

// serve finds room for a demand: what is free, what comes free, what can be taken.
func (p *planner) serve(d *demand) verdict {
	in := &p.c.Jobs[d.job]
	if p.opaque(in.Gang) {
		return p.serveOpaque(d)
	}
	if p.fits(&p.now, d) && !p.keptFree(d) {
		p.settle(d)
		return served
	}
	if d.kind == replace && d.places > 1 {
		return p.serveEach(d)
	}
	if p.fits(&p.soon, d) {
		p.promise(d)
		return waiting
	}
	if in.Preempts && p.reclaim(d) {
		return waiting
	}
	return blocked
}

// serveEach serves what need not come together one by one.
func (p *planner) serveEach(d *demand) verdict {
	last := served
	for range d.places {
		one := *d
		one.places, one.made = 1, min(d.made, 1)
		if last = p.serve(&one); last == blocked {
			break
		}
	}
	return last
}

// fits says whether there is room for a demand.
func (p *planner) fits(r *room, d *demand) bool {
	return r.holds(d.class, d.avoid, int64(d.places)) && r.bounds(p.c.Jobs[d.job].Gang, 0) >= d.made
}

// reclaim chooses who leaves so that the demand fits soon.
func (p *planner) reclaim(d *demand) bool {
	if p.inVain(d) {
		return false
	}
	in, rule := &p.c.Jobs[d.job], RuleGangsFirst
	if d.kind == replace {
		rule = RuleGangClass
	}
	s := p.newSearch(want{job: d.job, shape: in.Gang, class: d.class, avoid: d.avoid, places: d.places, made: d.made, rule: rule, only: None})
	most := p.reach.of(d.class).beside(d.avoid)
	if p.fits(&p.reach, d) {
		if s.surplus() {
			if p.lasts(d, s.moves(), nil) {
				if p.movesInstead(d, s) {
					return true
				}
				p.take(s)
				p.promise(d)
				return true
			}
			s.note()
			s.abandon()
		}
		most = s.most
		p.stint(d, s)
	}
	moved, done := p.consolidate(d, math.Inf(1))
	if done {
		return true
	}
	whole := int64(0)
	if p.mayEvict(d) {
		if whole = p.placesWithAll(d.class, in.Priority); whole >= int64(d.places) {
			if p.admitsWithAll(in.Gang, d.made, in.Priority) && s.wholeJobs(d) {
				p.take(s)
				p.promise(d)
				return true
			}
			whole = s.most
		}
	}
	p.lower(d, max(most, moved, whole))
	return false
}

// settle gives a demand room that is free now.
func (p *planner) settle(d *demand) {
	in, out := &p.c.Jobs[d.job], &p.out[d.job]
	nodes := p.nodesFor(d)
	for _, n := range nodes {
		p.charge(n, in.Gang)
	}
	if held := d.places - d.made; held > 0 {
		// Pods that wait already are counted by the quotas.
		p.uncount(in.Gang, held)
	}
	out.Places = append(out.Places, nodes[:d.made]...)
	out.Own += d.made
	out.Promised = append(out.Promised, nodes...)
	switch d.kind {
	case begin:
		out.Start = true
	case refill, replace:
		p.jobs[d.job].added += d.made
	}
}

// promise keeps room for a demand that has to wait: what it was promised before, what is free, then what comes.
func (p *planner) promise(d *demand) {
	in, out, w, rest := &p.c.Jobs[d.job], &p.out[d.job], &p.jobs[d.job].waits, *d
	w.free, w.comes = 0, 0
	keep := func(nodes []NodeID) {
		for _, n := range nodes {
			if p.now.of(d.class).at[n] > 0 {
				w.free++
			} else {
				w.comes++
				p.awaited[n] = true
			}
			p.charge(n, in.Gang)
		}
		out.Promised = append(out.Promised, nodes...)
		rest.places -= int32(len(nodes))
	}
	keep(p.stillPromised(d))
	free := rest
	free.places = min(rest.places, int32(min(p.now.of(d.class).beside(d.avoid), int64(rest.places))))
	keep(p.spread(&p.now, &free, in.Avoid))
	keep(p.spread(&p.soon, &rest, in.Avoid))
	if held := d.places - d.made; held > 0 {
		p.uncount(in.Gang, held)
	}
}

// charge takes one place from all that look at room.
func (p *planner) charge(n NodeID, s ShapeID) {
	p.now.add(n, s, -1)
	p.soon.add(n, s, -1)
	p.reach.add(n, s, -1)
}

// uncount gives quotas back what pods that exist were counted twice.
func (p *planner) uncount(s ShapeID, times int32) {
	p.now.add(None, s, times)
	p.soon.add(None, s, times)
	p.reach.add(None, s, times)
}

// opaque says whether only the scheduler knows where such pods fit.
func (p *planner) opaque(s ShapeID) bool { return p.c.Shapes[s].Unmodelled != "" }

// serveOpaque lets the scheduler try: what the pods request must be free somewhere, and no other gang that
// could take the same nodes is being tried. What they may get is kept for them.
func (p *planner) serveOpaque(d *demand) verdict {
	in, out := &p.c.Jobs[d.job], &p.out[d.job]
	if d.queues() && !p.mayAttempt(in) {
		return waiting
	}
	if !p.fits(&p.now, d) {
		if p.fits(&p.soon, d) {
			p.promise(d)
			return waiting
		}
		if in.Preempts && p.reclaim(d) {
			return waiting
		}
		return blocked
	}
	p.settle(d)
	for i := range out.Places {
		out.Places[i] = None
	}
	if d.queues() {
		p.attempts = append(p.attempts, attempt{in.Gang, in.Priority})
	}
	return served
}

// attempt is a gang that waits for the scheduler, on nodes that only that knows.
type attempt struct {
	shape    ShapeID
	priority int32
}

// mayAttempt says whether nobody of as high a priority tries for the nodes of a job already. Those of a lower one
// do not hold it up: the scheduler serves it before them.
func (p *planner) mayAttempt(in *Job) bool {
	return !slices.ContainsFunc(p.attempts, func(other attempt) bool {
		return other.priority >= in.Priority && overlap(p.c.Shapes[in.Gang].Nodes, p.c.Shapes[other.shape].Nodes)
	})
}

// mayAskForNodes says whether an attempt may be made of a gang that fits nowhere, so that the cluster grows: one at a time, of the
// highest priority there is, of those that could use the same nodes.
func (p *planner) mayAskForNodes(d *demand) bool {
	in := &p.c.Jobs[d.job]
	if !p.c.Settings.Autoscaled || !p.quotaAdmitsNow(d) {
		return false
	}
	nodes := p.c.Shapes[in.Gang].Nodes
	p.jobs[d.job].waits.attempt = slices.ContainsFunc(p.attempts, func(other attempt) bool {
		others := p.c.Shapes[other.shape].Nodes
		// Of those for which there are no nodes yet nobody knows whether they would be the same.
		return other.priority >= in.Priority && (overlap(nodes, others) || !overlap(nodes, nodes) && !overlap(others, others))
	})
	return !p.jobs[d.job].waits.attempt
}

func overlap(a, b Bits) bool {
	for i := range min(len(a), len(b)) {
		if a[i]&b[i] != 0 {
			return true
		}
	}
	return false
}

// serveGang gives room to a gang that has no pods, and keeps some for one that finds none.
func (p *planner) serveGang(d *demand) verdict {
	in, result := &p.c.Jobs[d.job], blocked
	if p.admitted(d) {
		d.intime = p.leavesInTime(in)
		switch {
		case !d.intime:
			result = p.serve(d)
		case p.opaque(in.Gang) || !p.inVain(d): // to give all back that is reserved, and take it again, takes long
			p.besideReservations(func() { result = p.serve(d) })
		}
		if result == blocked {
			p.block(d)
		}
	} else {
		p.blockQuota(d)
	}
	if result == blocked && p.mayAskForNodes(d) {
		p.attempts = append(p.attempts, attempt{in.Gang, in.Priority})
		out := &p.out[d.job]
		out.Start, out.Own = d.kind == begin, in.Min
		out.Places = slices.Repeat([]NodeID{None}, int(in.Min))
		result = served
	}
	return result
}

// serveQueued starts a gang, or says why it waits.
func (p *planner) serveQueued(d *demand) {
	result := p.serveGang(d)
	w := &p.jobs[d.job].waits
	w.verdict, w.demand, w.behind = result, *d, None
	if result != served && w.free == 0 {
		w.free = int32(min(max(p.now.of(d.class).total, 0), int64(d.places)))
	}
	if result == blocked {
		w.behind = p.behindReservation(d)
	}
}

// behindReservation is the job for which room is kept that would do for a gang.
func (p *planner) behindReservation(d *demand) JobID {
	for i := range p.reservations {
		r := &p.reservations[i]
		if len(r.held) > 0 && r.job != d.job && p.concerns(r, p.c.Jobs[d.job].Gang) {
			return r.job
		}
	}
	return None
}

// quotaAdmitsNow says whether the quotas would let the pods of a gang be made.
func (p *planner) quotaAdmitsNow(d *demand) bool {
	return p.now.bounds(p.c.Jobs[d.job].Gang, 0) >= d.made
}

// admitted says whether the quotas admit a gang now, or after its own namespace has shrunk. Nothing is taken
// from others for one that could not start all the same.
func (p *planner) admitted(d *demand) bool {
	return len(p.c.Shapes[p.c.Jobs[d.job].Gang].Quotas) == 0 || p.admits(d, false) || p.mayEvict(d) && p.admits(d, true)
}

// admits says whether the quotas would admit a gang once all have left who may. Where whole, whole jobs are among them.
func (p *planner) admits(d *demand, whole bool) bool {
	in := &p.c.Jobs[d.job]
	enough := func() bool {
		if whole {
			return p.admitsWithAll(in.Gang, d.made, in.Priority)
		}
		return p.reach.bounds(in.Gang, 0) >= d.made
	}
	if !enough() {
		return false // nor would they without those who cannot leave
	}
	mark := p.reach.mark()
	defer func() { p.reach.undo(mark) }()
	p.keepMins(in, whole)
	return enough()
}

// keepMins puts those out of the quotas' reach who cannot leave beside others of their job's own class: any of them may, but
// no more than the job has beyond its min. While replacements are there for workers that move, all would count otherwise, and
// a gang be kept room for as long which the quotas do not admit. Where whole, all of those who may be ended for the gang may leave.
// Quotas are those of a namespace.
func (p *planner) keepMins(gang *Job, whole bool) {
	for _, id := range p.overstaffed {
		in, j := &p.c.Jobs[id], &p.jobs[id]
		if in.Namespace != gang.Namespace || whole && j.policy == Evict && in.Priority < gang.Priority {
			continue
		}
		may := j.ownBound - j.ownGone - in.Min
		for _, l := range j.lendables {
			if in.Workers[l.worker].Own && p.takeable(id, int(l.worker)) {
				if may--; may < 0 {
					p.reach.add(None, l.shape, -1)
				}
			}
		}
	}
}
