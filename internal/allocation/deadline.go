package allocation

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"time"
)

// A job that says when it is to be complete is widened before others of its namespace and priority as far as it needs that,
// where it is known how fast it is and how many steps are left. It has no more than others beyond what it needs, and
// nothing beyond what they have where it cannot make it at any size that it could have.

// A size has to be in time by a part of what is left, since paces are off: more before a job is widened to it, so that it is
// not widened again and again.
const ahead, aheadAtRest = 0.10, 0.05

// sameSpeed is by what part two sizes may differ that count as equally fast.
const sameSpeed = 0.01

// urge has jobs with a deadline take at least what they need to meet it, the earliest deadline first, as far as there are
// surplus devices; of those that would be late with all of them none takes any. It does not wait until it was measured with what it
// has: where room comes piece by piece, what is left to spare would be gone by then. What a job has that ends in a moment, or that gives
// nothing only while it regroups, is not there to be taken yet, but makes nobody late for good.
func (p *planner) urge(bids []*bid, left pool) {
	var due []*bid
	soon := int64(0)
	for _, b := range bids {
		in := &p.c.Jobs[b.id]
		has, least := b.offers[b.floor].devices, int64(in.Min)*p.devices(b.id)
		left.take(b, has-least)
		switch {
		case in.Finishing:
			soon += has
		case in.Regrouping:
			soon += has - least
		}
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
		could := p.could(b, left.open(b.patient)+soon)
		p.jobs[b.id].could = could
		if out.Could = 0; (out.Late || out.Needs > could) && p.hopeless(b, could) {
			out.Could = could
			continue
		}
		at := b.quickest(could)
		if out.Needs > 0 && out.Needs <= could {
			for at = len(b.offers) - 1; at > 0 && b.offers[at-1].size >= out.Needs; {
				at--
			}
		}
		if b.sale == actual {
			at = min(at, b.urgent)
		}
		for b.floor < at && b.offers[b.floor+1].devices-b.offers[b.floor].devices <= left.open(b.patient) {
			b.floor++
			left.take(b, b.offers[b.floor].devices-b.offers[b.floor-1].devices)
		}
		if b.sale == actual {
			b.most = max(b.most, b.floor)
		}
	}
}

// quickest is the least offer of so many workers at most that is about as fast as the fastest one: who will be a little late with any
// size takes nothing that is of no use to it.
func (b *bid) quickest(could int32) (at int) {
	best := 0
	for i := range b.offers {
		if b.offers[i].size <= could && b.offers[i].seconds < b.offers[best].seconds {
			best = i
		}
	}
	for b.offers[at].seconds > b.offers[best].seconds*(1+sameSpeed) {
		at++
	}
	return at
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
	from, size, oneNode := max(in.Min, 1), p.size(b.id), in.withSpares(b.perNode)
	alike := in.World(size) // the least size with which as many train as now
	if in.World(alike) != alike {
		alike = size
	}
	for _, last := range [...]int32{min(alike-1, oneNode), alike - 1, alike, size, oneNode, in.Max} {
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
	in := &p.c.Jobs[b.id]
	turn := in.Pace.Speed.Turn(int((in.World(last) + b.perNode - 1) / b.perNode))
	best := min(max(in.withSpares(after(turn)), from), last)
	if !p.inTime(b, best) {
		return 0
	}
	return from + int32(sort.Search(int(best-from), func(i int) bool { return p.inTime(b, from+int32(i)) }))
}

// after is one worker more than so many.
func after(workers int) int32 { return int32(min(int64(workers), math.MaxInt32-1) + 1) }

// mightBeInTime is a quick look at whether a job would meet its deadline if workers cost each other nothing: where a cluster has too
// little for its deadlines, many jobs would look at all their sizes in vain.
func (p *planner) mightBeInTime(b *bid) bool {
	in := &p.c.Jobs[b.id]
	serial, parallel := in.Pace.Speed.Alone()
	takes := b.left * (serial + parallel/float64(max(in.World(in.Max), 1))) / in.Pace.keeps()
	return takes*(1+aheadAtRest) <= in.Deadline.Sub(p.c.Now).Seconds()
}

// inTime says whether a job meets its deadline with so many workers, as far as it is known how fast it is.
func (p *planner) inTime(b *bid, n int32) bool {
	in, size := &p.c.Jobs[b.id], p.size(b.id)
	takes := b.seconds(in, n) / in.Pace.keeps()
	switch n, size := in.World(n), in.World(size); {
	case n > size:
		takes = (takes + in.PauseExpected().Seconds()) * (1 + ahead)
	case n < size:
		takes = (takes + in.PauseExpected().Seconds()) * (1 + aheadAtRest)
	default:
		takes *= 1 + aheadAtRest
	}
	return takes <= in.Deadline.Sub(p.c.Now).Seconds()
}

// could is how many workers a job can have at most, of so many surplus devices that its namespace has left for it, in the cluster as it
// is: spec.workers.max often stands for as many as there are. It is all that it may have while it may not grow for a while.
func (p *planner) could(b *bid, pool int64) int32 {
	in, size := &p.c.Jobs[b.id], p.size(b.id)
	switch {
	case !p.grows(b.id):
		return size
	case in.next(size) != 0 && !p.mayGrow(b.id):
		return in.Max
	}
	has := &b.offers[b.floor]
	workers := min((has.devices+max(pool, 0))/p.devices(b.id), p.classes.empty(p.growthScope(b.id)), int64(in.Max))
	return max(in.most(int32(workers)), has.size)
}

// hopeless says whether a job would be late, and by more than paces are off, with any size that it could have, even if it were as fast
// as workers are many beyond those that are looked at: none is tried to find that out, and what another one needs to be in time is
// left to it.
func (p *planner) hopeless(b *bid, could int32) bool {
	in := &p.c.Jobs[b.id]
	takes, last := math.Inf(1), &b.offers[0]
	for i := range b.offers {
		if o := &b.offers[i]; o.size <= could {
			takes, last = min(takes, o.seconds), o
		}
	}
	if most := in.most(could); most > last.size {
		takes = min(takes, last.seconds*float64(last.world)/float64(in.World(most)))
	}
	return takes/in.Pace.keeps() > in.Deadline.Sub(p.c.Now).Seconds()*(1+aheadAtRest)
}

// spareTime is for how long a gang with a deadline may wait and be in time, if it has then all that an empty cluster has room for, and
// by how much that may be off; false where it has no deadline that could be met, or would be late by more than paces are off. It writes
// down what it needs.
func (p *planner) spareTime(d demand) (spare, off time.Duration, ok bool) {
	in, out := &p.c.Jobs[d.job], &p.out[d.job]
	most := in.most(int32(min(p.classes.empty(d.class), int64(in.Max))))
	if !in.Deadline.After(p.c.Now) || in.Pace.Left <= 0 || most == 0 {
		return 0, 0, false // who does not fit at all has other sorrows
	}
	b := &bid{id: d.job, left: in.Pace.left(), perNode: p.classes.perNode(d.class)}
	out.Needs = p.needs(b)
	left := in.Deadline.Sub(p.c.Now)
	takes := b.fastest(in, most)/in.Pace.keeps() + in.PauseExpected().Seconds()
	if takes > left.Seconds()*(1+aheadAtRest) {
		out.Late = true
		return 0, 0, false
	}
	// Both are less than what is left, and a twentieth.
	return left - time.Duration(takes*float64(time.Second)), time.Duration(takes * ahead * float64(time.Second)), true
}

// fastest is how many seconds are left with the best of so many workers at most, on one node or on several.
func (b *bid) fastest(in *Job, most int32) float64 {
	best := math.Inf(1)
	for _, last := range [...]int32{min(in.withSpares(b.perNode), most), most} {
		turn := in.Pace.Speed.Turn(int((in.World(last) + b.perNode - 1) / b.perNode))
		n := min(in.withSpares(after(turn)), last)
		for _, n := range [...]int32{in.most(n), in.next(n - 1), in.most(last)} {
			if n > 0 && n <= most {
				best = min(best, b.seconds(in, n))
			}
		}
	}
	return best
}

// onItsWay says whether a job will be in time since it grows to what it needs, which it could have: it is given that step by step, and
// measured with each.
func (p *planner) onItsWay(id JobID) bool {
	in, j, out := &p.c.Jobs[id], &p.jobs[id], &p.out[id]
	if out.Needs <= p.size(id)-j.virtual || out.Could > 0 || out.Needs > j.could {
		return false
	}
	return j.added > 0 || in.Pace != nil && in.Pace.Tried < in.World(p.size(id)) && p.mayGrow(id)
}

// lateness says that a job will miss its deadline, and what it would need; empty where it will not, as far as is known.
func (p *planner) lateness(id JobID) string {
	out, size := &p.out[id], p.size(id)-p.jobs[id].virtual
	switch {
	case out.Needs > size && out.Could > 0:
		return fmt.Sprintf("with %s it will miss its deadline: it needs %d and could have %d at most, so it takes none for that",
			count(int(size), "worker"), out.Needs, out.Could)
	case out.Needs > size:
		return fmt.Sprintf("with %s it will miss its deadline: it needs %d", count(int(size), "worker"), out.Needs)
	case out.Late:
		return "it will miss its deadline, as far as is known with any number of workers"
	}
	return ""
}
