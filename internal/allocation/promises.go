package allocation

import (
	"math"
	"slices"
)

// Whom others leave room to was promised places, and the next plans keep them for as long as they are there: what comes free for one
// gang is not taken by another one that was to have its room elsewhere. Otherwise somebody would have left in vain, and others would
// leave in their stead.

// promise is what the last plan promised a gang.
type promise struct {
	job JobID
	// turn is when it is kept: after that of so many others.
	turn int
	// places are all of it, free those on nodes where any is free when the plan begins: in its course no more become so.
	places, free []run
}

// pledges is what the last plan promised.
type pledges struct {
	// promised is what has yet to be kept: that of gangs that were not served so far.
	promised []promise
	// turn is how many promises were kept.
	turn int
	// byNode are all promises, nil until somebody asks, pledged how many nodes they are on that have yet to be kept.
	byNode  map[NodeID][]pledge
	pledged int
	// besideAll is what is free beside all promises, besideSome beside those of some priorities.
	besideAll, besideSome aside
}

// memory keeps nothing of it but what it took.
func (s *pledges) memory() pledges {
	return pledges{besideAll: s.besideAll.memory(), besideSome: s.besideSome.memory()}
}

// outstanding are the promises that have yet to be kept by this plan.
func (p *planner) outstanding(demands []demand) (all []promise) {
	for i := range demands {
		d := &demands[i]
		if in := &p.c.Jobs[d.job]; d.queues() && len(in.Promised) > 0 {
			made, at := promise{job: d.job, turn: len(all), places: runs(in.Promised)}, p.now.of(d.class).at
			for _, one := range made.places {
				if one.node >= 0 && int(one.node) < len(at) && at[one.node] > 0 {
					made.free = append(made.free, one)
				}
			}
			p.pledged += len(made.free)
			all = append(all, made)
		}
	}
	return all
}

// setAside takes what is there of the promises of others out of a room, of those that have at least a priority.
func (p *planner) setAside(r *room, least int32) {
	for i := range p.promised {
		in, places := &p.c.Jobs[p.promised[i].job], p.promised[i].places
		if r == &p.now {
			places = p.promised[i].free
		}
		if in.Priority < least || len(places) == 0 {
			continue
		}
		k := p.classes.of(in.Gang, scope{})
		for _, at := range places {
			if at.node < 0 || int(at.node) >= len(p.c.Nodes) {
				continue
			}
			if times := min(at.count, r.of(k).at[at.node]); times > 0 {
				r.add(at.node, in.Gang, -times)
			}
		}
	}
}

// hasPromise says whether the last plan promised places to a demand, though they may be more or fewer than it is for now.
func (p *planner) hasPromise(d *demand) bool { return len(p.c.Jobs[d.job].Promised) > 0 }

// besideEquals says whether a demand for which workers are to move has its room beside what was promised to others of its priority:
// where these had others leave, and it could not, that is no room for it. Who was promised some itself goes on as it was.
func (p *planner) besideEquals(d *demand) bool {
	if p.hasPromise(d) {
		return true
	}
	mark := p.soon.mark()
	defer p.soon.undo(mark)
	p.setAside(&p.soon, p.c.Jobs[d.job].Priority)
	return p.soon.of(d.class).total >= int64(d.places)
}

// freeOfPromises is what is free now of the promises of others of a demand's priority.
func (p *planner) freeOfPromises(d *demand) map[NodeID][]change {
	in, free := &p.c.Jobs[d.job], map[NodeID][]change{}
	if p.besidePromises(in.Gang, in.Priority, &p.besideSome) == &p.now {
		return free
	}
	for n, taken := range p.besideSome.taken {
		free[n] = slices.Clone(taken)
	}
	return free
}

// leaveFree leaves to others what is free of their promises where a demand has its places once workers have moved for it. It will be
// there by then beside that, and the demand starts no earlier for nobody having it meanwhile.
func (p *planner) leaveFree(d *demand, free map[NodeID][]change) {
	width := len(p.c.Resources)
	for _, at := range runs(p.out[d.job].Promised) {
		left := make(Amounts, width)
		for _, c := range free[at.node] {
			for i, amount := range p.c.Shapes[c.shape].Request {
				left[i] += amount * int64(c.times)
			}
		}
		for i := range left {
			cell := int(at.node)*width + i
			left[i] = max(min(left[i], p.soon.free[cell])-p.now.free[cell], 0)
		}
		p.now.give(at.node, left, 1)
	}
}

// keptFree says whether what is free is left to others of the same priority, who were promised it: a gang that would have to take that,
// and whose own places come free as soon as pods have ended, waits for those.
func (p *planner) keptFree(d *demand) bool {
	if !d.queues() || len(p.promised) == 0 {
		return false
	}
	now, soon := p.now.mark(), p.soon.mark()
	defer func() {
		p.now.undo(now)
		p.soon.undo(soon)
	}()
	in := &p.c.Jobs[d.job]
	if _, rest := p.asPromised(&p.now, d); rest.places == 0 || p.fits(p.besidePromises(in.Gang, in.Priority, &p.besideSome), &rest) {
		return false
	}
	_, rest := p.asPromised(&p.soon, d)
	return rest.places == 0
}

// asPromised takes those places out of a room that a demand was promised, as far as they are there, and says what is left of it.
func (p *planner) asPromised(r *room, d *demand) ([]NodeID, demand) {
	in, rest := &p.c.Jobs[d.job], *d
	if !p.hasPromise(d) {
		return nil, rest
	}
	nodes := make([]NodeID, 0, min(len(in.Promised), int(d.places)))
	for _, n := range in.Promised {
		at := r.of(d.class).at
		if rest.places > 0 && n >= 0 && int(n) < len(at) && at[n] > 0 && !slices.Contains(in.Avoid, n) {
			r.add(n, in.Gang, -1)
			nodes = append(nodes, n)
			rest.places, rest.made = rest.places-1, max(rest.made-1, 0)
		}
	}
	return nodes, rest
}

// stillPromised are those of what a demand was promised that are there or come.
func (p *planner) stillPromised(d *demand) []NodeID {
	mark := p.soon.mark()
	defer p.soon.undo(mark)
	nodes, _ := p.asPromised(&p.soon, d)
	return nodes
}

// nodesFor names nodes for a demand that fits what is free, without taking them: those that it was promised, then such as nobody was.
func (p *planner) nodesFor(d *demand) []NodeID {
	mark := p.now.mark()
	defer p.now.undo(mark)
	nodes, rest := p.asPromised(&p.now, d)
	if rest.places == 0 {
		return nodes
	}
	in, from := &p.c.Jobs[d.job], &p.now
	if left := p.besidePromises(in.Gang, math.MinInt32, &p.besideAll); p.fits(left, &rest) {
		from = left
	}
	return append(nodes, p.spread(from, &rest, in.Avoid)...)
}
