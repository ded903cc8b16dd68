package allocation

import (
	"cmp"
	"math"
	"time"
)

// Pricing are the constants by which jobs share by value. The zero value is DefaultPricing.
type Pricing struct {
	// Crowding is by how much a device costs more for each job behind the one that takes it, as a part of the devices
	// that they share.
	Crowding float64
	// Hesitation is the part of what is left by which another size has to be better: noise is less.
	Hesitation float64
	// Trial is how many times the largest size that was measured a job may have; as many times that where it is no more than its even
	// share.
	Trial int32
	// NoHalves is true where nobody is kept half of its share: a replay asks what that rule costs.
	NoHalves bool
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
)

// discounts are what is made of the price, one after the other, while devices are left that nobody wants for the price
// before.
var discounts = [...]float64{1, 1. / 4, 1. / 16, 1. / 256}

// bid is a job whose pace is known, and the sizes that it may have.
type bid struct {
	id JobID
	// size is how many workers it has.
	size int32
	// work is what it has left at its least size, in device-seconds: a power of two.
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
	// half is how many workers it has with half of its share. It is short where it would have less if nobody had any size yet, or
	// is to have less.
	half  int32
	short bool
	// kept is true once half of its share is kept for it.
	kept bool
	// patient is true where it takes nothing from jobs of lower priority.
	patient bool
	// left is how many steps are left, perNode how many workers a node holds.
	left    float64
	perNode int32
	sale    sale
}

// sale is by which rules jobs take devices.
type sale uint8

const (
	// actual is how it is: jobs have a size, some may not grow now, and some are kept half of their share.
	actual sale = iota
	// unkept is how it would be in a while if nobody was kept anything, with the sizes that jobs have.
	unkept
	// anew is how it would be if nobody had any size yet.
	anew
)

// offer is one size: how many devices that are, how many seconds are left then, and what the change costs, in seconds.
type offer struct {
	size            int32
	world           int32 // with how many of them it trains
	devices         int64
	seconds, change float64
}

// guard finds out who would have less than half its share if changes were free, and keeps that much for those of whom
// it has been so for as long as backfill. Who was short counts as short for as long as it would be if nothing were kept for it, with
// the sizes that there are and with what is kept for others: else what is kept for it would be taken from it again at once.
func (p *planner) guard(bids []*bid, shared pool, others int) {
	was := false
	for _, b := range bids {
		b.sale, b.floor = anew, 0
		was = was || !p.c.Jobs[b.id].ShortSince.IsZero()
	}
	p.tellShort(bids, shared, others)
	for range mostRounds {
		if p.keepHalves(bids, true); !was {
			break
		}
		for _, b := range bids {
			b.sale, b.floor = unkept, b.least
		}
		if !p.tellShort(bids, shared, others) {
			break
		}
	}
	p.keepHalves(bids, false) // it may be short of what it is to have yet
	for _, b := range bids {
		b.sale = actual
	}
}

// mostRounds bounds how often it is asked who is short beside those for whom half of their share is kept. Mostly it is once.
const mostRounds = 8

// tellShort marks those who would have less than half of their share after a sale, and says whether there are any more of them. By
// what is as it is nobody becomes short that was not: that is told by what it is to have.
func (p *planner) tellShort(bids []*bid, shared pool, others int) (more bool) {
	p.urge(bids, shared)
	p.sell(bids, shared, others)
	for _, b := range bids {
		if !b.short && b.offers[b.taken].size < b.half && (b.sale == anew || !p.c.Jobs[b.id].ShortSince.IsZero()) {
			b.short, more = true, true
		}
	}
	return more
}

// keepHalves keeps half of their share for those who were short for as long as backfill, and are.
func (p *planner) keepHalves(bids []*bid, short bool) {
	if p.c.Settings.pricing().NoHalves {
		return
	}
	for _, b := range bids {
		since := p.c.Jobs[b.id].ShortSince
		if b.short {
			since = p.shortSince(b)
		}
		end := until(since, p.c.Settings.Backfill, p.c.Now)
		p.wake(end)
		if since.IsZero() || !end.IsZero() || short && !b.short || b.kept {
			continue
		}
		could := p.reachable(b.id)
		for b.least < b.urgent && b.offers[b.least].size < b.half && b.offers[b.least+1].size <= could {
			b.least++
		}
		b.most, b.kept = max(b.most, b.least), true
		p.jobs[b.id].owed = b.half
	}
}

// reachable is how many workers a job could have at most if others gave all that they could: what it could never have is not kept
// from them. What it could give itself is within reach as well, and no more for it.
func (p *planner) reachable(id JobID) int32 {
	in, j := &p.c.Jobs[id], &p.jobs[id]
	class, own := p.growthScope(id), int64(0)
	for _, h := range j.holds {
		if h.node >= 0 && p.classes.all[class].fits.Has(int(h.node)) && p.classes.alike(p.c.Shapes[h.shape].Request, p.classes.all[class].request) {
			own += int64(h.times)
		}
	}
	more := min(p.reach.of(class).beside(in.Avoid), int64(p.reach.bounds(in.Growth, p.c.Namespaces[in.Namespace].HeadRoom))) - own
	return int32(min(int64(p.size(id))+max(more, 0), math.MaxInt32))
}

// shortSince is since when a job is short.
func (p *planner) shortSince(b *bid) time.Time {
	switch since := p.c.Jobs[b.id].ShortSince; {
	case !b.short:
		return time.Time{}
	case since.IsZero():
		return p.c.Now
	default:
		return since
	}
}

// rounding is what sums of shares may be off.
const rounding = 1e-9

// bid lists the sizes that a job may have, whose share is so many surplus devices.
func (p *planner) bid(id JobID, share float64) *bid {
	in, j := &p.c.Jobs[id], &p.jobs[id]
	size, devices := p.size(id), p.devices(id)
	b := &bid{id: id, size: size, patient: !in.Preempts, half: in.most(in.Min + int32(share/2/float64(devices)+rounding))}
	first, tuned := len(p.offers), p.c.Settings.pricing()
	b.perNode, b.left = p.classes.perNode(p.growthScope(id)), in.Pace.left()
	could, fixed := p.mayGrow(id), j.limit <= j.gone
	grows := could && p.kept(id) && p.tried(id)
	sizes := in.ladder(max(size, in.trial(share, devices, tuned.Trial)), in.most(size), b.half)
	for n := in.next(in.Min - 1); n != 0; n = sizes.after(n) {
		o := offer{size: n, world: in.World(n), devices: int64(n) * devices, seconds: b.seconds(in, n)}
		if n != size && o.world != in.World(size) { // a spare that comes or goes stops nobody
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
	b.work = workOf(b.offers[0].seconds*float64(b.offers[0].devices), in.Work, tuned.Hesitation)
	p.out[id].Work = b.work
	return b
}

// workOf is by how much work a job stands among others: in powers of two, so that noise does not turn the order of those round that have
// about as much to do. Who has about as much as a power of two stays where it stood, as far as noise goes.
func workOf(deviceSeconds, stood, noise float64) float64 {
	if stood > 0 && deviceSeconds >= stood*(1-noise) && deviceSeconds < 2*stood*(1+noise) {
		return stood
	}
	return math.Exp2(math.Floor(math.Log2(deviceSeconds)))
}

// upTo leaves sizes out that have more than so many devices, but none that is not above what it has.
func (b *bid) upTo(devices int64, has int32) {
	last := len(b.offers) - 1
	for last > 0 && b.offers[last].devices > devices && b.offers[last].size > has {
		last--
	}
	b.offers = b.offers[:last+1]
	b.least, b.most, b.urgent = min(b.least, last), min(b.most, last), min(b.urgent, last)
}

// trial is how many workers are tried at once at most, of a job whose share is so many surplus devices: so many times as many as it
// was measured with, and as much again up to its even share, which it would have if nothing was known of it.
func (j *Job) trial(share float64, devices int64, times int32) int32 {
	tried, even := int64(times)*int64(j.Pace.Tried), float64(j.Min)+math.Floor(share/float64(devices)+rounding)
	world := int64(j.World(int32(min(even, math.MaxInt32))))
	return j.withSpares(int32(min(max(tried, min(int64(times)*tried, world)), math.MaxInt32)))
}

// seconds is how many seconds are left with so many workers.
func (b *bid) seconds(in *Job, n int32) float64 {
	n = in.World(n)
	return b.left / in.Pace.Speed.Speed(int(n), int((n+b.perNode-1)/b.perNode))
}

// before orders those first that have least to do.
func (b *bid) before(other *bid) int { return cmp.Compare(b.work, other.work) }

// tried says whether a job was measured with as many workers as its world has. Those that have yet to join it pause it in any case:
// whoever is added meanwhile costs it no other pause.
func (p *planner) tried(id JobID) bool {
	in, members := &p.c.Jobs[id], int32(0)
	if in.Pace.Tried >= in.World(p.size(id)) {
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
func (p *planner) sell(bids []*bid, left pool, others int) pool {
	all := left.all
	for _, b := range bids {
		mins := int64(p.c.Jobs[b.id].Min) * p.devices(b.id)
		all += mins
		b.taken = b.floor
		left.take(b, b.offers[b.taken].devices-mins)
	}
	for i, b := range bids {
		b.price = p.c.Settings.pricing().Crowding * float64(len(bids)-1-i+others) / float64(max(all, 1))
	}
	for _, discount := range discounts {
		for _, b := range bids {
			has := b.offers[b.taken].devices
			b.take(left.open(b.patient), discount*b.price)
			left.take(b, b.offers[b.taken].devices-has)
		}
	}
	for _, b := range bids {
		has := b.offers[b.taken].devices
		b.takeSpares(left.open(b.patient))
		left.take(b, b.offers[b.taken].devices-has)
	}
	return left
}

// takeSpares has a job take spares, which make it no faster, of devices that nobody wants for any price. Beyond its least size they come
// with each.
func (b *bid) takeSpares(pool int64) {
	has, most := b.offers[b.taken].devices, b.most
	if b.sale != actual {
		most = len(b.offers) - 1
	}
	for n := b.taken + 1; n <= most && b.offers[n].world == b.offers[b.taken].world && b.offers[n].devices-has <= pool; n++ {
		b.taken = n
	}
}

// take has a job take the size that is best at a price, of those for which there are devices enough, but no smaller one
// than it has taken. Who is to have fewer workers than it has keeps as many of them as it would keep if it had no more: it gives them one
// after the other, and would otherwise wish for more again on its way.
func (b *bid) take(pool int64, price float64) {
	has, best, most := b.offers[b.taken].devices, b.taken, b.most
	if b.sale != actual {
		most = len(b.offers) - 1
	}
	for n := b.taken + 1; n <= most && b.offers[n].devices-has <= pool; n++ {
		if b.offers[n].cost(price, b.sale) < b.offers[best].cost(price, b.sale) {
			best = n
		}
	}
	for n := best + 1; b.sale != anew && n <= most && b.offers[n].size < b.size && b.offers[n].devices-has <= pool; n++ {
		if b.offers[n].alone(price) <= b.offers[best].cost(price, b.sale) {
			b.taken = n
		}
	}
	b.taken = max(b.taken, best)
}

// cost is the time that is left, and what others lose meanwhile. Where all is sold anew changes cost nothing.
func (o *offer) cost(price float64, by sale) float64 {
	if by == anew {
		return o.alone(price)
	}
	return (o.seconds + o.change) * (1 + price*float64(o.devices))
}

// alone is what it costs who has that size.
func (o *offer) alone(price float64) float64 { return o.seconds * (1 + price*float64(o.devices)) }
