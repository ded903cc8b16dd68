package allocation

import (
	"fmt"
	"slices"
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
		in, out := &p.c.Jobs[b.id], &p.out[b.id]
		at, meets := p.inTime(b)
		out.Late = !meets
		if meets {
			out.Needs = b.offers[at].size
		} else if b.offers[at].size == in.most(in.Max) {
			continue // it is late whatever it is given
		}
		if !b.anew {
			at = min(at, b.urgent)
		}
		for b.floor < at && b.offers[b.floor+1].devices-b.offers[b.floor].devices <= pool {
			b.floor++
			pool -= b.offers[b.floor].devices - b.offers[b.floor-1].devices
		}
		if !b.anew {
			b.most = max(b.most, b.floor)
		}
	}
}

// inTime is the least size with which a job meets its deadline, by what was measured, and whether there is one; the largest
// that is believed where there is none.
func (p *planner) inTime(b *bid) (int, bool) {
	in := &p.c.Jobs[b.id]
	left, size := in.Deadline.Sub(p.c.Now).Seconds(), p.size(b.id)
	for i := range b.offers {
		takes := b.offers[i].seconds
		switch {
		case b.offers[i].size > size:
			takes = (takes + in.PauseExpected().Seconds()) * (1 + ahead)
		case b.offers[i].size < size:
			takes = (takes + in.PauseExpected().Seconds()) * (1 + aheadAtRest)
		default:
			takes *= 1 + aheadAtRest
		}
		if takes <= left {
			return i, true
		}
	}
	return len(b.offers) - 1, false
}

// lateness says that a job will miss its deadline, and what it would need; empty where it will not, as far as is known.
func (p *planner) lateness(id JobID) string {
	out, size := &p.out[id], p.size(id)-p.jobs[id].virtual
	switch {
	case out.Needs > size:
		return fmt.Sprintf("with %s it will miss its deadline: it needs %d", count(int(size), "worker"), out.Needs)
	case out.Late:
		return "it will miss its deadline, with any number of workers of which it is known how fast it would be"
	}
	return ""
}
