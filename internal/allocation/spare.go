package allocation

import "slices"

// A search has those leave whom one demand needs, and knows nothing of those that come after it. Where workers leave for one of
// these who hold more than it needs, because the number of workers of a job is to be a legal one, all of a job has to go, or a
// quota was used up, some of those who were chosen before may be needed by nobody any more.

// spareUnused lets those stay whose room nobody needs once all demands are served. Room that comes much later has nobody stay: a gang
// of high priority would wait for what one behind it is promised.
func (p *planner) spareUnused() {
	late := p.late()
	p.comesSoon(late, -1)
	defer p.comesSoon(late, 1)
	for _, id := range p.order {
		if j := &p.jobs[id]; j.evicted && !j.later && p.out[id].For != None && p.unusedWhole(id) {
			p.spareWhole(id)
		}
	}
	for _, id := range p.order {
		if j := &p.jobs[id]; j.lends && !j.evicted {
			p.spareWorkers(id)
		}
	}
}

// late is room that counts as coming soon, and comes much later: that of workers who may not leave yet, of whole jobs that end when these
// may, and of workers who have replacements made first.
func (p *planner) late() (all []holding) {
	for _, id := range p.order {
		j := &p.jobs[id]
		if !j.lends && !j.later && j.moves == 0 {
			continue
		}
		for w := range p.c.Jobs[id].Workers {
			worker, l := &p.c.Jobs[id].Workers[w], &p.leaving[j.first+w]
			if l.held || l.moves || j.later && p.goesWhole(id, w) {
				all = append(all, holding{worker.Node, worker.Shape, 1})
			}
		}
	}
	return all
}

// comesSoon adds room to what comes soon, so many times.
func (p *planner) comesSoon(some []holding, times int32) {
	for _, h := range some {
		p.soon.apply(h.node, h.shape, times*h.times)
	}
}

// spareWhole lets all of a job stay.
func (p *planner) spareWhole(id JobID) {
	p.jobs[id].evicted = false
	p.evicted--
	p.evict(id, -1)
	p.out[id].For = None
}

// spareWorkers lets workers of a job stay, those first whom it misses most: one by one, or as many together as make a legal number.
func (p *planner) spareWorkers(id JobID) {
	all, j := p.c.Jobs[id].Workers, &p.jobs[id]
	mark, together := p.soon.mark(), []int{}
	for _, w := range p.leaveForGangs(id) {
		if !p.unused(&all[w]) {
			continue
		}
		if together = append(together, w); !p.legalWith(id, int32(len(together))) {
			continue // with the next ones, or not at all
		}
		p.soon.undo(mark)
		for _, w := range together {
			p.spare(id, w)
		}
		mark, together = p.soon.mark(), together[:0]
	}
	p.soon.undo(mark)
	j.lends = j.gone > 0 || p.holdsBack(id)
}

// leaveForGangs are the workers of a job that leave for gangs, those last whom it misses least.
func (p *planner) leaveForGangs(id JobID) (chosen []int) {
	all := p.c.Jobs[id].Workers
	for w := range all {
		if l := &p.leaving[p.jobs[id].first+w]; l.chosen && (l.rule == RuleGangsFirst || l.rule == RuleGangClass) {
			chosen = append(chosen, w)
		}
	}
	slices.SortFunc(chosen, func(a, b int) int { return missed(&all[b], &all[a]) })
	return chosen
}

// holdsBack says whether workers of a job are to leave later, when it may be shrunk.
func (p *planner) holdsBack(id JobID) bool {
	first := p.jobs[id].first
	return slices.ContainsFunc(p.leaving[first:first+len(p.c.Jobs[id].Workers)], func(l leaving) bool { return l.held })
}

// unused takes what a worker leaves from what comes soon, if nobody needs that, and says whether that is so.
func (p *planner) unused(w *Worker) bool {
	mark := p.soon.mark()
	if p.soon.add(w.Node, w.Shape, -1); p.enoughOn(w) {
		return true
	}
	p.soon.undo(mark)
	return false
}

// unusedWhole says whether nobody needs what all of a job leaves.
func (p *planner) unusedWhole(id JobID) bool {
	mark := p.soon.mark()
	defer p.soon.undo(mark)
	all := p.c.Jobs[id].Workers
	for w := range all {
		if p.goesWhole(id, w) {
			p.soon.add(all[w].Node, all[w].Shape, -1)
		}
	}
	for w := range all {
		if p.goesWhole(id, w) && !p.enoughOn(&all[w]) {
			return false
		}
	}
	return true
}

// enoughOn says whether no more is promised of a worker's node and quotas than comes free there.
func (p *planner) enoughOn(w *Worker) bool {
	shape := &p.c.Shapes[w.Shape]
	if w.Node >= 0 {
		row := p.soon.free[int(w.Node)*len(p.c.Resources):]
		for r, amount := range shape.Request {
			if amount > 0 && row[r] < 0 {
				return false
			}
		}
	}
	for _, q := range shape.Quotas {
		row := p.soon.quota[int(q)*len(p.c.Counts):]
		for i, amount := range shape.Demand {
			if amount > 0 && row[i] < 0 {
				return false
			}
		}
	}
	return true
}
