package allocation

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Gangs of one namespace and priority that wait start by what is left of them, where sizes go by value: a job that ran
// before has a measured pace, and those with least to do come first. One that never ran has said nothing, and stands before
// all that are known to have more, as if it were short: only so it is found out what it is. Who would miss its deadline if it waited for
// as long as Backfill, and were a tenth slower than its pace says, stands before those, as long as it could be in time. Who has waited for longer than
// Backfill stands by age, before all others: so nobody is passed for ever. Between namespaces age decides, as ever.

// byWork puts the gangs that wait in that order. The demands are sorted by priority, kind and age.
func (p *planner) byWork(all []demand) {
	if !p.c.Settings.ByValue {
		return
	}
	for first := 0; first < len(all); {
		last := first + 1
		for last < len(all) && p.c.Jobs[all[last].job].Priority == p.c.Jobs[all[first].job].Priority && all[last].kind == all[first].kind {
			last++
		}
		if all[first].kind == begin {
			p.byWorkOf(all[first:last])
		}
		first = last
	}
}

// byWorkOf orders gangs of one priority: each namespace keeps the places that its gangs have among those of others.
func (p *planner) byWorkOf(some []demand) {
	at := map[NamespaceID][]int{}
	paced := false
	for i := range some {
		in := &p.c.Jobs[some[i].job]
		at[in.Namespace] = append(at[in.Namespace], i)
		paced = paced || in.Pace != nil
	}
	if !paced {
		return // all are alike
	}
	for _, places := range at {
		waits := make([]waiter, len(places))
		for i, place := range places {
			waits[i] = p.waiter(some[place])
		}
		slices.SortStableFunc(waits, waiter.before)
		for i, place := range places {
			some[place] = waits[i].demand
		}
	}
}

// waiter is a gang that waits: whether it has waited for long, for how much longer it may wait and be in time, where that is not long,
// and what it has to do, in powers of two.
type waiter struct {
	demand      demand
	long, hurry bool
	spare       time.Duration
	work        float64
}

func (p *planner) waiter(d demand) waiter {
	in := &p.c.Jobs[d.job]
	end := until(in.Queued, p.c.Settings.Backfill, p.c.Now)
	p.wake(end)
	w := waiter{demand: d, long: end.IsZero() && !in.Queued.After(p.c.Now), work: math.Inf(-1)}
	if in.Pace != nil {
		least := int(max(in.Min, 1))
		nodes := (least + int(p.classes.perNode(d.class)) - 1) / int(p.classes.perNode(d.class))
		w.work = math.Floor(math.Log2(in.Pace.left() / in.Pace.Speed.Speed(least, nodes) * float64(int64(least)*p.devices(d.job))))
		spare, off, inTime := p.spareTime(d)
		if w.spare = spare; inTime {
			early := p.c.Settings.Backfill + off
			p.wake(p.c.Now.Add(spare - early))
			w.hurry = spare <= early
		}
	}
	return w
}

func (w waiter) before(other waiter) int {
	switch {
	case w.long != other.long && w.long:
		return -1
	case w.long != other.long:
		return 1
	case w.long:
		return 0 // both by age, as they are
	case w.hurry != other.hurry && w.hurry:
		return -1
	case w.hurry != other.hurry:
		return 1
	case w.hurry:
		return cmp.Compare(w.spare, other.spare)
	}
	return cmp.Compare(w.work, other.work)
}
