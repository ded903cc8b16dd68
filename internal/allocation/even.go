package allocation

import "slices"

// even has an equal that has much more give one legal step: so much more that it still has more afterwards.
// It is done once per cool-down; who is being evened out already is not held up.
func (l *level) even(id JobID, steps int32) bool {
	p := l.p
	if !l.ranked {
		l.ranked, l.uneven = true, map[evenKey]int64{}
		l.rankDonors()
	}
	if !l.anyRicher(id, steps) {
		return false
	}
	// Whoever has as much as one for whom nobody could be found finds nobody either.
	key := evenKey{p.growthSought(id), p.c.Jobs[id].Namespace, steps, p.devices(id)}
	anywhere := key
	anywhere.sought = key.anywhere()
	for _, known := range []evenKey{key, anywhere} {
		if least, ok := l.uneven[known]; ok && p.surplus(id) >= least {
			return false
		}
	}
	for _, donor := range l.richest(id, steps) {
		// How much a step takes is known once it was looked for: all that it needs may have to come from one donor.
		surplus := p.surplus(donor)
		fair := func(gives int64) bool { return p.richerAfter(donor, surplus, gives, id, steps) }
		if (p.marksFor(donor, id) || p.rested(id) && p.rested(donor)) && p.takeOne(id, donor, steps, fair) {
			return true
		}
	}
	if p.rested(id) {
		l.uneven[key] = p.surplus(id)
	}
	return false
}

// rankDonors finds those that could give something to equals.
func (l *level) rankDonors() {
	p := l.p
	l.top = make([]int64, len(p.c.Namespaces))
	at := make([]int, len(p.c.Namespaces)) // where a namespace is among the donors, counted from 1
	for _, id := range p.order {
		in, j := &p.c.Jobs[id], &p.jobs[id]
		if in.Priority != l.priority || in.Stage != Training || j.limit <= j.gone || j.added > 0 {
			continue
		}
		ns := in.Namespace
		if at[ns] == 0 {
			l.donors = append(l.donors, donors{namespace: ns})
			at[ns] = len(l.donors)
		}
		of := &l.donors[at[ns]-1]
		of.jobs = append(of.jobs, id)
		l.marked = l.marked || j.marked
		l.top[ns] = max(l.top[ns], p.surplus(id))
	}
}

// evenKey is what jobs have in common for which the same donors come into question.
type evenKey struct {
	sought
	namespace NamespaceID
	steps     int32
	devices   int64
}

// anyRicher is a quick look at whether any donor could have enough more.
func (l *level) anyRicher(id JobID, steps int32) bool {
	p, own := l.p, l.p.c.Jobs[id].Namespace
	if l.top[own] > p.surplus(id)+int64(steps)*p.devices(id) {
		return true
	}
	for i := range l.donors {
		if ns := l.donors[i].namespace; ns != own && p.poorer(own, ns) {
			return true
		}
	}
	return false
}

// asked is how many donors are asked for one step, so that a plan remains a matter of milliseconds: of those
// who have most, some are on nodes that do not help.
const asked = 4

// richest are the donors that would still have more than a job which is given a step, the richest first.
func (l *level) richest(id JobID, steps int32) []JobID {
	p := l.p
	l.found, l.left = l.found[:0], l.left[:0]
	to, takes := p.c.Jobs[id].Namespace, int64(steps)*p.devices(id)
	for i := range l.donors {
		// A namespace that would not have more even if it gave nothing need not be looked at.
		if from := l.donors[i].namespace; from == to || p.less(to, p.held[to]+takes, from, p.held[from]) {
			l.left = append(l.left, int32(i))
		}
	}
	for len(l.left) > 0 {
		of := l.richestLeft()
		// Who has marked workers may give to this job already, and comes first then wherever it is.
		if !l.marked && len(l.found) == asked && p.poorer(of.namespace, p.c.Jobs[l.found[asked-1]].Namespace) {
			break
		}
		for _, donor := range of.jobs {
			if j := &p.jobs[donor]; donor != id && j.limit > j.gone && !j.evicted && j.virtual == 0 && p.unequal(donor, id, steps) {
				l.rank(donor, id)
			}
		}
	}
	return l.found
}

// richestLeft takes the namespace that has most out of those that are left to be looked at.
func (l *level) richestLeft() *donors {
	most := 0
	for i := range l.left {
		if l.p.poorer(l.donors[l.left[most]].namespace, l.donors[l.left[i]].namespace) {
			most = i
		}
	}
	of := &l.donors[l.left[most]]
	last := len(l.left) - 1
	l.left[most] = l.left[last]
	l.left = l.left[:last]
	return of
}

// rank enters a donor among those that were found.
func (l *level) rank(donor, id JobID) {
	at := len(l.found)
	for at > 0 && l.p.richer(donor, l.found[at-1], id) {
		at--
	}
	if at < asked {
		l.found = slices.Insert(l.found, at, donor)
		l.found = l.found[:min(len(l.found), asked)]
	}
}

// richer orders donors: who gives to the job already comes first, then whose namespace has more, then who
// has more.
func (p *planner) richer(a, b, id JobID) bool {
	if x, y := p.marksFor(a, id), p.marksFor(b, id); x != y {
		return x
	}
	x, y := p.c.Jobs[a].Namespace, p.c.Jobs[b].Namespace
	if p.poorer(x, y) || p.poorer(y, x) {
		return p.poorer(y, x)
	}
	return p.behind(a, b) > 0
}

// unequal says whether a donor that gives one legal step, the least that it can give, has more than the other one
// afterwards.
func (p *planner) unequal(donor, id JobID, steps int32) bool {
	gives := int64(p.size(donor)-p.c.Jobs[donor].most(p.size(donor)-1)) * p.devices(donor)
	return p.richerAfter(donor, p.surplus(donor), gives, id, steps)
}

// richerAfter says whether a donor with so much surplus that gives so many devices has more than one that is given a
// step: by namespace and its weight, within one namespace by job. Otherwise that one would have to give them back.
func (p *planner) richerAfter(donor JobID, surplus, gives int64, id JobID, steps int32) bool {
	takes := int64(steps) * p.devices(id)
	from, to := p.c.Jobs[donor].Namespace, p.c.Jobs[id].Namespace
	if from == to {
		if p.jobs[donor].wish > 0 && p.jobs[id].wish > 0 && p.c.Jobs[donor].Pace != nil && p.c.Jobs[id].Pace != nil {
			return false // what they wish for decides
		}
		return surplus-gives > p.surplus(id)+takes
	}
	return p.less(to, p.held[to]+takes, from, p.held[from]-gives)
}

// rested says whether a job gave nothing to an equal lately.
func (p *planner) rested(id JobID) bool {
	end := until(p.c.Jobs[id].EvenedAt, p.c.Settings.CoolDown, p.c.Now)
	p.wake(end)
	return end.IsZero()
}

// marksFor says whether workers of a donor leave for a job already.
func (p *planner) marksFor(donor, id JobID) bool {
	return p.jobs[donor].marked && slices.ContainsFunc(p.c.Jobs[donor].Workers, func(w Worker) bool { return w.Marked && w.For == id })
}
