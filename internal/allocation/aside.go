package allocation

import "math/bits"

// Hundreds of gangs may have been promised something, and each of hundreds that start is to leave that alone. What is left then is not
// found out anew for each of them: it is kept beside what is free, and where that changes on a node, or a promise there is kept, what is
// left on that node is found out again.

// aside is what is free without what is there of the promises of some.
type aside struct {
	// room is memory until it is asked for.
	room room
	used bool
	// least is the lowest priority whose promises count.
	least int32
	// stale are the nodes that are to be looked at again beside those where what is free has changed since it was looked at, seen up to
	// which change that was.
	stale Bits
	seen  int64
	// taken is what promises take of each node now, quota what all of them take of the quotas.
	taken map[NodeID][]change
	quota []int64
}

// pledge is what was promised on one node to the gang that is served at a turn.
type pledge struct {
	turn  int
	job   JobID
	count int32
}

// besidePromises is what is free for pods of a shape without what is there of the promises of others that have at least a priority. It may
// be changed as long as that is undone.
func (p *planner) besidePromises(s ShapeID, least int32, a *aside) *room {
	if p.pledged == 0 {
		return &p.now
	}
	if p.byNode == nil {
		p.sortPledges()
	}
	if !a.used {
		p.use(a, least)
	}
	p.countFrom(a, least)
	for n := p.now.touched.newest; p.now.touched.since(n, a.seen); n = p.now.touched.nodes[n].before {
		a.stale.Set(int(n))
	}
	a.seen = p.now.touched.times
	for w, word := range a.stale {
		for ; word != 0; word &= word - 1 {
			p.lookAgain(a, NodeID(w*64+bits.TrailingZeros64(word)))
		}
		a.stale[w] = 0
	}
	p.quotasOf(a, s)
	return &a.room
}

// sortPledges lists what was promised by node.
func (p *planner) sortPledges() {
	p.byNode = map[NodeID][]pledge{}
	for i := range p.promised {
		one := &p.promised[i]
		for _, at := range one.free {
			p.byNode[at.node] = append(p.byNode[at.node], pledge{one.turn, one.job, at.count})
		}
	}
}

// countFrom has promises count from another priority on.
func (p *planner) countFrom(a *aside, least int32) {
	if a.least == least {
		return
	}
	for i := range p.promised {
		if one := &p.promised[i]; p.counts(a, one.job) != (p.c.Jobs[one.job].Priority >= least) {
			a.markStale(one.free)
		}
	}
	a.least = least
}

// use has it follow what is free from now on.
func (p *planner) use(a *aside, least int32) {
	a.room.copyOf(&p.now)
	a.used, a.least, a.taken = true, least, map[NodeID][]change{}
	a.quota, a.stale = sized(a.quota, len(a.room.quota)), sized(a.stale, (len(p.c.Nodes)+63)/64)
	for n := range p.byNode {
		a.stale.Set(int(n))
	}
	a.seen = p.now.touched.times
}

// counts says whether promises of a job count.
func (p *planner) counts(a *aside, id JobID) bool { return p.c.Jobs[id].Priority >= a.least }

// markStale has nodes be looked at again.
func (a *aside) markStale(places []run) {
	for _, at := range places {
		a.stale.Set(int(at.node))
	}
}

// lookAgain finds out anew what is left on a node.
func (p *planner) lookAgain(a *aside, n NodeID) {
	width := len(p.c.Resources)
	row := a.room.free[int(n)*width : (int(n)+1)*width]
	copy(row, p.now.free[int(n)*width:])
	taken := a.taken[n]
	for _, c := range taken {
		p.addQuota(a, c.shape, -int64(c.times))
	}
	taken = taken[:0]
	for _, one := range p.byNode[n] {
		if one.turn < p.turn || !p.counts(a, one.job) {
			continue
		}
		gang := p.c.Jobs[one.job].Gang
		k := &p.classes.all[p.classes.of(gang, scope{})]
		times := min(one.count, k.times(row))
		if times <= 0 || !k.nodes.Has(int(n)) {
			continue
		}
		for i, amount := range p.c.Shapes[gang].Request {
			row[i] -= amount * int64(times)
		}
		p.addQuota(a, gang, int64(times))
		taken = append(taken, change{n, gang, times})
	}
	if len(taken) > 0 {
		a.taken[n] = taken
	} else {
		delete(a.taken, n)
	}
	a.room.touched.note(n)
}

// addQuota adds what some pods take of their quotas.
func (p *planner) addQuota(a *aside, s ShapeID, times int64) {
	shape := &p.c.Shapes[s]
	for _, q := range shape.Quotas {
		for i, amount := range shape.Demand {
			a.quota[int(q)*len(p.c.Counts)+i] += amount * times
		}
	}
}

// quotasOf brings the quotas of a shape up to date.
func (p *planner) quotasOf(a *aside, s ShapeID) {
	for _, q := range p.c.Shapes[s].Quotas {
		for i := range p.c.Counts {
			at := int(q)*len(p.c.Counts) + i
			if a.room.quota[at] = p.now.quota[at]; p.now.quota[at] < Unbounded/2 {
				a.room.quota[at] -= a.quota[at]
			}
		}
	}
}

// keep drops the promise of a gang that is about to be served: from now on its places are its own.
func (p *planner) keep(d *demand) {
	if len(p.promised) == 0 || p.promised[0].job != d.job {
		return
	}
	kept := p.promised[0]
	p.promised, p.turn, p.pledged = p.promised[1:], kept.turn+1, p.pledged-len(kept.free)
	for _, a := range []*aside{&p.besideAll, &p.besideSome} {
		if a.used {
			a.markStale(kept.free)
		}
	}
}

// memory keeps nothing but what it took.
func (a *aside) memory() aside {
	return aside{room: a.room.memory(), quota: a.quota[:0], stale: a.stale[:0]}
}
