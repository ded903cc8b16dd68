package allocation

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Pricing are the constants by which jobs share by value. The zero value is DefaultPricing.
type Pricing struct {
	// Crowding is by how much a device costs more for each job behind the one that takes it, as a part of the devices
	// that they share.
	Crowding float64
	// Hesitation is the part of what is left by which another size has to be better: noise is less.
	Hesitation float64
	// Trial is how many times the largest size that was measured a job may have.
	Trial int32
}

// DefaultPricing is what a sweep over generated workloads found best (docs/fleet.md).
var DefaultPricing = Pricing{Crowding: 4, Hesitation: 0.1, Trial: 2}

// pricing are the constants in force.
func (s *Settings) pricing() *Pricing {
	if s.Pricing == (Pricing{}) {
		return &DefaultPricing
	}
	return &s.Pricing
}

const (
	// keeping is for how long a job that gave to an equal does not grow by value.
	keeping = time.Minute
	// offersOf bounds how many sizes of a job are looked at.
	offersOf = 256
)

// discounts are what is made of the price, one after the other, while devices are left that nobody wants for the price
// before.
var discounts = [...]float64{1, 1. / 4, 1. / 16, 1. / 256}

// market are the jobs of one priority that grow by pods of one class.
type market struct {
	p     *planner
	class classID
	jobs  []JobID
}

// stall are those of them in one namespace: reports move devices among them only.
type stall struct {
	namespace NamespaceID
	jobs      []JobID
}

// bid is a job whose pace is known, and the sizes that it may have.
type bid struct {
	id JobID
	// work is what it has left at its least size: the logarithm of device-seconds.
	work float64
	// offers are all sizes, least to most those that it can have now.
	offers      []offer
	least, most int
	// urgent is the most of them that it can have now where it needs that to meet its deadline, or was short of half its share for
	// too long: what it gave lately does not count then.
	urgent int
	// floor is the least that it takes.
	floor int
	// taken is the one of them that it has so far.
	taken int
	// price is what a device costs it.
	price float64
	// half is how many workers beyond its least half its share is.
	half int32
	// anew is true while it is found out what it would have if nobody had any size yet.
	anew bool
}

// offer is one size: how many devices that are, how many seconds are left then, and what the change costs, in seconds.
type offer struct {
	size            int32
	devices         int64
	seconds, change float64
}

// price says for each job whose pace is known how many workers it is to have at most (job.wish), as far as there is
// room: the namespaces' shares are those by devices, and within one the jobs take from what its jobs share, those with
// least work first, each the size that is worth most for what it costs those behind it.
func (p *planner) price() {
	var markets []*market
	type key struct {
		priority int32
		class    classID
	}
	at := map[key]*market{}
	for _, id := range p.order {
		in := &p.c.Jobs[id]
		if in.Stage != Training || p.jobs[id].evicted || in.Growth < 0 {
			continue
		}
		k := key{in.Priority, p.growthScope(id)}
		if at[k] == nil {
			at[k] = &market{p: p, class: k.class}
			markets = append(markets, at[k])
		}
		at[k].jobs = append(at[k].jobs, id)
	}
	for _, m := range markets {
		if slices.ContainsFunc(m.jobs, func(id JobID) bool { return p.c.Jobs[id].Pace != nil }) {
			m.open()
		}
	}
}

// open shares what there is between namespaces and then has each share its own.
func (m *market) open() {
	p := m.p
	var stalls []*stall
	at := map[NamespaceID]*stall{}
	total := float64(p.soon.of(m.class).total)*float64(p.devices(m.jobs[0])) + m.below()
	for _, id := range m.jobs {
		ns := p.c.Jobs[id].Namespace
		if at[ns] == nil {
			at[ns] = &stall{namespace: ns}
			stalls = append(stalls, at[ns])
		}
		at[ns].jobs = append(at[ns].jobs, id)
		total += float64(p.surplus(id))
	}
	caps, weights := make([]float64, len(stalls)), make([]float64, len(stalls))
	for i, s := range stalls {
		caps[i], weights[i] = s.most(p), float64(p.weight(s.namespace))
	}
	shares := waterFill(total, caps, weights)
	spare := 0.0
	for i, s := range stalls {
		left := s.open(p, shares[i])
		spare += left
		if caps[i] -= shares[i]; left > 0 {
			caps[i] = 0
		}
	}
	if spare == 0 {
		return
	}
	for i, more := range waterFill(spare, caps, weights) {
		if more > 0 {
			stalls[i].open(p, shares[i]+more)
		}
	}
}

// below is what jobs of lower priority could give, in devices.
func (m *market) below() float64 {
	p, first := m.p, &m.p.c.Jobs[m.jobs[0]]
	if !first.Preempts {
		return 0
	}
	sum := 0.0
	for _, id := range p.order {
		if j := &p.jobs[id]; p.c.Jobs[id].Priority < first.Priority && j.limit > j.gone {
			sum += float64(int64(j.limit-j.gone) * p.devices(id))
		}
	}
	return sum
}

// most is how many surplus devices the jobs of a namespace could have.
func (s *stall) most(p *planner) float64 {
	sum, has := 0.0, 0.0
	for _, id := range s.jobs {
		sum += float64(p.room(id))
		has += float64(p.surplus(id))
	}
	first := &p.c.Jobs[s.jobs[0]]
	quota := p.soon.bounds(first.Growth, p.c.Namespaces[s.namespace].HeadRoom)
	return min(sum, has+float64(quota)*float64(p.devices(s.jobs[0])))
}

// room is how many surplus devices a job may have.
func (p *planner) room(id JobID) int64 {
	if in := &p.c.Jobs[id]; p.mayGrow(id) {
		return int64(in.Max-in.Min) * p.devices(id)
	}
	return p.surplus(id)
}

// waterFill shares a total out by weights, to none more than its cap.
func waterFill(total float64, caps, weights []float64) []float64 {
	order := make([]int, len(caps))
	sum := 0.0
	for i := range order {
		order[i] = i
		sum += weights[i]
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(caps[a]/weights[a], caps[b]/weights[b]) })
	shares := make([]float64, len(caps))
	for _, i := range order {
		shares[i] = max(0, min(caps[i], total*weights[i]/sum))
		total -= shares[i]
		sum -= weights[i]
	}
	return shares
}

// open has the jobs take from what their namespace has: each that has no pace its share, the others of what is theirs
// together. It says how many devices nobody wants.
func (s *stall) open(p *planner, total float64) float64 {
	caps := make([]float64, len(s.jobs))
	for i, id := range s.jobs {
		caps[i] = float64(p.room(id))
	}
	shares := waterFill(total, caps, slices.Repeat([]float64{1}, len(s.jobs)))
	bids := make([]*bid, 0, len(s.jobs))
	p.offers = p.offers[:0]
	pool := 0.0
	for i, id := range s.jobs {
		if p.c.Jobs[id].Pace != nil {
			bids = append(bids, p.bid(id, shares[i]))
			pool += shares[i]
		}
	}
	if len(bids) == 0 {
		return 0
	}
	slices.SortStableFunc(bids, func(a, b *bid) int { return cmp.Compare(a.work, b.work) })
	first := &p.c.Jobs[s.jobs[0]]
	others := p.queued(s.namespace, first.Priority)
	p.guard(bids, int64(pool+0.5), others)
	for _, b := range bids {
		b.floor = b.least
	}
	p.urge(bids, int64(pool+0.5))
	left := p.sell(bids, int64(pool+0.5), others)
	for i, id := range s.jobs {
		if p.c.Jobs[id].Pace == nil && left <= 0 {
			p.jobs[id].wish = p.c.Jobs[id].Min + int32(math.Ceil(shares[i]/float64(p.devices(id))-rounding))
		}
	}
	for _, b := range bids {
		p.jobs[b.id].wish = b.offers[b.taken].size
		p.out[b.id].Wish, p.out[b.id].Price = p.jobs[b.id].wish, b.price
		in := &p.c.Jobs[b.id]
		p.out[b.id].Short = p.out[b.id].Short || min(b.offers[b.taken].size, p.size(b.id)) < in.most(in.Min+b.half)
	}
	return float64(max(left, 0))
}

// guard finds out who would have less than half its share if changes were free, and keeps that much for those of whom
// it has been so for as long as backfill.
func (p *planner) guard(bids []*bid, pool int64, others int) {
	for _, b := range bids {
		b.anew, b.floor = true, 0
	}
	p.urge(bids, pool)
	p.sell(bids, pool, others)
	for _, b := range bids {
		in := &p.c.Jobs[b.id]
		b.anew = false
		half := in.most(in.Min + b.half)
		p.out[b.id].Short = b.offers[b.taken].size < half
		since := in.ShortSince
		if p.out[b.id].Short && since.IsZero() {
			since = p.c.Now
		}
		end := until(since, p.c.Settings.Backfill, p.c.Now)
		p.wake(end)
		if since.IsZero() || !end.IsZero() {
			continue
		}
		for b.least < b.urgent && b.offers[b.least].size < half {
			b.least++
		}
		b.most = max(b.most, b.least)
		p.jobs[b.id].owed = in.Min + b.half
	}
}

// rounding is what sums of shares may be off.
const rounding = 1e-9

// crowd are the jobs of one namespace and priority.
type crowd struct {
	namespace NamespaceID
	priority  int32
}

// queued is how many gangs of a namespace wait that are of a priority. Who starts by this plan is known by now.
func (p *planner) queued(namespace NamespaceID, priority int32) int {
	if p.waiters == nil {
		p.waiters = map[crowd]int{}
		for i := range p.c.Jobs {
			if in := &p.c.Jobs[i]; in.Name != "" && in.Stage == Queued && !p.out[i].Start {
				p.waiters[crowd{in.Namespace, in.Priority}]++
			}
		}
	}
	return p.waiters[crowd{namespace, priority}]
}

// bid lists the sizes that a job may have, whose share is so many surplus devices.
func (p *planner) bid(id JobID, share float64) *bid {
	in, j := &p.c.Jobs[id], &p.jobs[id]
	size, devices := p.size(id), p.devices(id)
	b := &bid{id: id, half: int32(share/2/float64(devices) + rounding)}
	first, tuned := len(p.offers), p.c.Settings.pricing()
	perNode, left := p.classes.perNode(p.growthScope(id)), in.Pace.left()
	seconds := func(n int32) float64 { return left / in.Pace.Speed.Speed(int(n), int((n+perNode-1)/perNode)) }
	could, fixed := p.mayGrow(id), j.limit <= j.gone
	grows := could && p.kept(id) && p.tried(id)
	for n := in.next(in.Min - 1); n != 0 && (n <= max(size, tuned.Trial*in.Pace.Tried) || n == in.Min) && len(p.offers)-first < offersOf; n = in.next(n) {
		o := offer{size: n, devices: int64(n) * devices, seconds: seconds(n)}
		if n != size {
			o.change = max(in.PauseExpected().Seconds(), o.seconds*tuned.Hesitation)
		}
		if n <= size || grows {
			b.most = len(p.offers) - first
		}
		if n <= size || could {
			b.urgent = len(p.offers) - first
		}
		if n <= size && fixed {
			b.least = len(p.offers) - first
		}
		p.offers = append(p.offers, o)
	}
	b.offers = p.offers[first:len(p.offers):len(p.offers)]
	// In powers of two: among those that have about as much to do, noise does not turn the order round.
	b.work = math.Floor(math.Log2(b.offers[0].seconds * float64(b.offers[0].devices)))
	return b
}

// tried says whether a job was measured with as many workers as its world has. Those that have yet to join it pause it in any case:
// whoever is added meanwhile costs it no other pause.
func (p *planner) tried(id JobID) bool {
	in, members := &p.c.Jobs[id], int32(0)
	if in.Pace.Tried >= p.size(id) {
		return true
	}
	for w := range in.Workers {
		if worker := &in.Workers[w]; worker.World && !worker.Ending && !worker.Leaving {
			members++
		}
	}
	return in.Pace.Tried >= members
}

// kept says whether a job has kept to what it gave to an equal for long enough: else noise would have it take that back
// before the other one has it.
func (p *planner) kept(id JobID) bool {
	end := until(p.c.Jobs[id].EvenedAt, min(p.c.Settings.CoolDown, keeping), p.c.Now)
	p.wake(end)
	return end.IsZero()
}

// sell has jobs take devices, those first that have least to do, and says how many are left. Others wait behind all of
// them.
func (p *planner) sell(bids []*bid, pool int64, others int) int64 {
	all := pool
	for _, b := range bids {
		mins := int64(p.c.Jobs[b.id].Min) * p.devices(b.id)
		all += mins
		b.taken = b.floor
		pool -= b.offers[b.taken].devices - mins
	}
	for i, b := range bids {
		b.price = p.c.Settings.pricing().Crowding * float64(len(bids)-1-i+others) / float64(max(all, 1))
	}
	for _, discount := range discounts {
		for _, b := range bids {
			has := b.offers[b.taken].devices
			b.take(pool, discount*b.price)
			pool -= b.offers[b.taken].devices - has
		}
	}
	return pool
}

// take has a job take the size that is best at a price, of those for which there are devices enough, but no smaller one
// than it has taken.
func (b *bid) take(pool int64, price float64) {
	has, best, most := b.offers[b.taken].devices, b.taken, b.most
	if b.anew {
		most = len(b.offers) - 1
	}
	for n := b.taken + 1; n <= most && b.offers[n].devices-has <= pool; n++ {
		if b.offers[n].cost(price, b.anew) < b.offers[best].cost(price, b.anew) {
			best = n
		}
	}
	b.taken = best
}

// cost is the time that is left, and what others lose meanwhile. Where all is sold anew changes cost nothing.
func (o *offer) cost(price float64, anew bool) float64 {
	seconds := o.seconds
	if !anew {
		seconds += o.change
	}
	return seconds * (1 + price*float64(o.devices))
}

// trade has a job that wishes for more take a step from one of the same namespace that has more than it wishes for. Who gave lately
// takes nothing back, since noise would have two trade to and fro; but it may give more at once: what it tried may be known to be of
// no use only now, and it ends at its min.
func (l *level) trade(id JobID, steps int32) bool {
	p := l.p
	if p.c.Jobs[id].Pace == nil {
		return false
	}
	for _, donor := range l.jobsOver() {
		j := &p.jobs[donor]
		if donor == id || p.size(donor) <= j.wish || p.c.Jobs[donor].Namespace != p.c.Jobs[id].Namespace {
			continue
		}
		fair := func(int64) bool { return p.size(donor) >= j.wish }
		if (p.rested(id) || p.entitled(id) || p.marksFor(donor, id)) && p.takeOne(id, donor, steps, fair) {
			return true
		}
	}
	return false
}

// entitled says whether a job is to have more whatever it gave lately: it was short of half its share for too long, or would miss
// its deadline.
func (p *planner) entitled(id JobID) bool { return p.size(id) < max(p.jobs[id].owed, p.out[id].Needs) }

// jobsOver are the jobs of this priority that have more than they wish for.
func (l *level) jobsOver() []JobID {
	p := l.p
	if l.over == nil {
		l.over = []JobID{}
		for _, id := range p.order {
			if in := &p.c.Jobs[id]; in.Priority == l.priority && in.Pace != nil && p.jobs[id].wish > 0 && p.size(id) > p.jobs[id].wish {
				l.over = append(l.over, id)
			}
		}
	}
	return l.over
}
