package allocation

import (
	"fmt"
	"slices"
	"sort"
)

// A job that says when it is to be complete is widened before others of its namespace and priority as far as it needs that,
// where it is known how fast it is and how many steps are left. It has no more than others beyond what it needs, and
// nothing beyond what they have where it cannot make it at any size.

// A size has to be in time by a part of what is left, since paces are off: more before a job is widened to it, so that it is
// not widened again and again.
const ahead, aheadAtRest = 0.10, 0.05

// urge has jobs with a deadline take at least what they need to meet it, the earliest deadline first, as far as there are
// surplus devices. It does not wait until it was measured with what it has: where room comes piece by piece, what is left to spare
// would be gone by then.
func (p *planner) urge(bids []*bid, pool int64) {
	var due []*bid
	for _, b := range bids {
		in := &p.c.Jobs[b.id]
		pool -= b.offers[b.floor].devices - int64(in.Min)*p.devices(b.id)
		if in.Deadline.After(p.c.Now) && in.Pace.Left > 0 {
			due = append(due, b)
		}
	}
	slices.SortStableFunc(due, func(a, b *bid) int { return p.c.Jobs[a.id].Deadline.Compare(p.c.Jobs[b.id].Deadline) })
	for _, b := range due {
		out := &p.out[b.id]
		if j := &p.jobs[b.id]; !j.needed {
			j.needed, out.Needs = true, p.needs(b)
		}
		out.Late = out.Needs == 0
		if out.Late && p.hopeless(b) {
			continue
		}
		at := len(b.offers) - 1
		for out.Needs > 0 && at > 0 && b.offers[at-1].size >= out.Needs {
			at--
		}
		if b.sale == actual {
			at = min(at, b.urgent)
		}
		for b.floor < at && b.offers[b.floor+1].devices-b.offers[b.floor].devices <= pool {
			b.floor++
			pool -= b.offers[b.floor].devices - b.offers[b.floor-1].devices
		}
		if b.sale == actual {
			b.most = max(b.most, b.floor)
		}
	}
}

// needs is the least size with which a job meets its deadline, by what was measured, of all that it may have; 0 where there is none.
func (p *planner) needs(b *bid) int32 {
	in := &p.c.Jobs[b.id]
	if !p.mightBeInTime(b) {
		return 0
	}
	if len(in.Sizes) > 0 {
		for n := in.next(in.Min - 1); n != 0; n = in.next(n) {
			if p.inTime(b, n) {
				return n
			}
		}
		return 0
	}
	from, size := max(in.Min, 1), p.size(b.id)
	for _, last := range [...]int32{min(size-1, b.perNode), size - 1, size, b.perNode, in.Max} {
		// Up to there as much is to spare, and the workers are on one node, or on several.
		if last = min(last, in.Max); last < from {
			continue
		}
		if n := p.firstInTime(b, from, last); n != 0 {
			return n
		}
		from = last + 1
	}
	return 0
}

// firstInTime is the least size of some with which a job meets its deadline, 0 for none of them. Their time falls up to where another
// worker makes a step longer, and rises from then on.
func (p *planner) firstInTime(b *bid, from, last int32) int32 {
	turn := p.c.Jobs[b.id].Pace.Speed.Turn(int((last + b.perNode - 1) / b.perNode))
	best := int32(min(max(int64(turn)+1, int64(from)), int64(last)))
	if !p.inTime(b, best) {
		return 0
	}
	return from + int32(sort.Search(int(best-from), func(i int) bool { return p.inTime(b, from+int32(i)) }))
}

// mightBeInTime is a quick look at whether a job would meet its deadline if workers cost each other nothing: where a cluster has too
// little for its deadlines, many jobs would look at all their sizes in vain.
func (p *planner) mightBeInTime(b *bid) bool {
	in := &p.c.Jobs[b.id]
	serial, parallel := in.Pace.Speed.Alone()
	takes := b.left * (serial + parallel/float64(max(in.Max, 1))) / in.Pace.keeps()
	return takes*(1+aheadAtRest) <= in.Deadline.Sub(p.c.Now).Seconds()
}

// inTime says whether a job meets its deadline with so many workers, as far as it is known how fast it is.
func (p *planner) inTime(b *bid, n int32) bool {
	in, size := &p.c.Jobs[b.id], p.size(b.id)
	takes := b.seconds(in, n) / in.Pace.keeps()
	switch {
	case n > size:
		takes = (takes + in.PauseExpected().Seconds()) * (1 + ahead)
	case n < size:
		takes = (takes + in.PauseExpected().Seconds()) * (1 + aheadAtRest)
	default:
		takes *= 1 + aheadAtRest
	}
	return takes <= in.Deadline.Sub(p.c.Now).Seconds()
}

// hopeless says whether a job would be late with the most that it may have even if it were as fast as workers are many, beyond what is
// believed of it: none is tried to find that out.
func (p *planner) hopeless(b *bid) bool {
	in, last := &p.c.Jobs[b.id], &b.offers[len(b.offers)-1]
	most, left := in.most(in.Max), in.Deadline.Sub(p.c.Now).Seconds()*in.Pace.keeps()
	return last.size >= most || last.seconds*float64(last.size)/float64(most) > left
}

// lateness says that a job will miss its deadline, and what it would need; empty where it will not, as far as is known.
func (p *planner) lateness(id JobID) string {
	out, size := &p.out[id], p.size(id)-p.jobs[id].virtual
	switch {
	case out.Needs > size:
		return fmt.Sprintf("with %s it will miss its deadline: it needs %d", count(int(size), "worker"), out.Needs)
	case out.Late:
		return "it will miss its deadline, as far as is known with any number of workers"
	}
	return ""
}
