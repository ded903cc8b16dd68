package allocation

import (
	"cmp"
	"math"
	"slices"
)

// market are the jobs of one priority that are after the same devices: their pods fit the same nodes, whatever else they ask for.
type market struct {
	p        *planner
	priority int32
	jobs     []JobID
	// kinds are the classes of their pods.
	kinds  []podKind
	stalls []*stall
	// known are the classes that are among kinds, at the stalls by namespace.
	known map[classID]bool
	at    map[NamespaceID]*stall
}

// podKind is a class of pods, and how many devices one of them has.
type podKind struct {
	class   classID
	devices int64
}

// stall are those of them in one namespace: reports move devices among them only.
type stall struct {
	namespace NamespaceID
	jobs      []JobID
	// untaken are the surplus devices in the market without those that could be taken from jobs of lower priority.
	untaken int64
}

// price finds the markets in which a pace is known, those of higher priority first.
func (p *planner) price() {
	p.markets, p.opened = nil, 0
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
		k := key{in.Priority, p.classes.rival(p.growthScope(id))}
		if at[k] == nil {
			at[k] = &market{p: p, priority: in.Priority, known: map[classID]bool{}, at: map[NamespaceID]*stall{}}
			p.markets = append(p.markets, at[k])
		}
		at[k].enter(id)
	}
	p.markets = slices.DeleteFunc(p.markets, func(m *market) bool {
		return !slices.ContainsFunc(m.jobs, func(id JobID) bool { return p.c.Jobs[id].Pace != nil })
	})
}

// open says for each job of at least a priority whose pace is known how many workers it is to have at most (job.wish), as far as there
// is room: the namespaces' shares are those by devices, and within one the jobs take from what its jobs share, those with least work
// first, each the size that is worth most for what it costs those behind it.
func (p *planner) open(priority int64) {
	for ; p.opened < len(p.markets) && int64(p.markets[p.opened].priority) >= priority; p.opened++ {
		p.markets[p.opened].open()
	}
}

// enter adds a job.
func (m *market) enter(id JobID) {
	m.jobs = append(m.jobs, id)
	class, ns := m.p.growthScope(id), m.p.c.Jobs[id].Namespace
	if !m.known[class] {
		m.known[class] = true
		m.kinds = append(m.kinds, podKind{class, m.p.devices(id)})
	}
	if m.at[ns] == nil {
		m.at[ns] = &stall{namespace: ns}
		m.stalls = append(m.stalls, m.at[ns])
	}
	m.at[ns].jobs = append(m.at[ns].jobs, id)
}

// free is how many devices there are that nobody has, or nobody soon, on nodes that pods may use; how many pods more there is room
// for where they use none. It counts devices and no places: of these there are more or less depending on who holds a node, and what
// is shared would change with who has it.
func (m *market) free() int64 {
	p, first := m.p, &m.p.classes.all[m.kinds[0].class]
	sum, devices, width := int64(0), false, len(m.p.c.Resources)
	for i, device := range p.c.Devices {
		if !device || i >= len(first.request) || first.request[i] <= 0 {
			continue
		}
		devices = true
		for n := range p.c.Nodes {
			if first.fits.Has(n) {
				sum += max(p.soon.free[n*width+i], 0)
			}
		}
	}
	if devices {
		return sum
	}
	return m.places()
}

// places is how many of these devices pods could have, those of the kind that has most use for each node.
func (m *market) places() int64 {
	sum, most := int64(0), make([]int64, len(m.p.c.Nodes))
	for _, k := range m.kinds {
		places := m.p.soon.of(k.class)
		if len(m.kinds) == 1 {
			return places.total * k.devices
		}
		for n := 0; places.total > 0 && n < len(most); n++ {
			most[n] = max(most[n], int64(places.at[n])*k.devices)
		}
	}
	for _, n := range most {
		sum += n
	}
	return sum
}

// open shares what there is between namespaces and then has each share its own.
func (m *market) open() {
	p := m.p
	total := m.free()
	for _, id := range m.jobs {
		total += p.surplus(id)
	}
	for _, s := range m.stalls {
		s.untaken = total
	}
	total += m.below()
	caps, wanted, weights := make([]float64, len(m.stalls)), make([]float64, len(m.stalls)), make([]float64, len(m.stalls))
	for i, s := range m.stalls {
		caps[i], wanted[i], weights[i] = s.most(p, p.room), s.most(p, p.wanted), float64(p.weight(s.namespace))
	}
	shares, claims := waterFill(float64(total), caps, weights), waterFill(float64(total), wanted, weights)
	spare := 0.0
	for i, s := range m.stalls {
		left := s.open(p, shares[i], claims[i])
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
			m.stalls[i].open(p, shares[i]+more, claims[i])
		}
	}
}

// below is what jobs of lower priority could give, in devices, where any of these takes it.
func (m *market) below() int64 {
	p := m.p
	if !slices.ContainsFunc(m.jobs, func(id JobID) bool { return p.c.Jobs[id].Preempts }) {
		return 0
	}
	sum := int64(0)
	for _, id := range p.order {
		j := &p.jobs[id]
		if p.c.Jobs[id].Priority < m.priority && j.limit > j.gone {
			sum += int64(min(m.givesHere(id), j.limit-j.gone)) * p.devices(id)
		}
	}
	return sum
}

// givesHere is how many workers a job could give on these nodes, without those that leave by now.
func (m *market) givesHere(id JobID) (there int32) {
	p, j := m.p, &m.p.jobs[id]
	class := &p.classes.all[m.kinds[0].class]
	for _, h := range j.holds {
		if h.node >= 0 && class.fits.Has(int(h.node)) && p.classes.alike(p.c.Shapes[h.shape].Request, class.request) {
			there += h.times
		}
	}
	if j.gone == 0 {
		return there
	}
	for i := range j.lendables {
		l := &j.lendables[i]
		if l.node >= 0 && p.leaving[j.first+int(l.worker)].chosen && class.fits.Has(int(l.node)) &&
			p.classes.alike(p.c.Shapes[l.shape].Request, class.request) {
			there--
		}
	}
	return there
}

// most is how many surplus devices the jobs of a namespace could have, of each of which that is known.
func (s *stall) most(p *planner, of func(JobID) int64) float64 {
	sum, has := 0.0, 0.0
	for i, most := range s.caps(p, of) {
		id := s.jobs[i]
		sum += most
		has += float64(p.surplus(id))
	}
	return min(sum, has+s.quota(p))
}

// within is how many of so many surplus devices a job may have: one that takes nothing has no part in what others could give.
func (s *stall) within(p *planner, id JobID, devices int64) int64 {
	if p.c.Jobs[id].Preempts {
		return devices
	}
	return min(devices, s.untaken)
}

// caps is how many surplus devices each of its jobs may have. Those that take nothing have together no more than nobody needs to be
// taken from.
func (s *stall) caps(p *planner, of func(JobID) int64) []float64 {
	caps := make([]float64, len(s.jobs))
	var patient []float64
	sum := 0.0
	for i, id := range s.jobs {
		caps[i] = float64(s.within(p, id, of(id)))
		if !p.c.Jobs[id].Preempts {
			patient = append(patient, caps[i])
			sum += caps[i]
		}
	}
	if sum <= float64(s.untaken) {
		return caps
	}
	shares := waterFill(float64(s.untaken), patient, slices.Repeat([]float64{1}, len(patient)))
	for i, id := range s.jobs {
		if !p.c.Jobs[id].Preempts {
			caps[i], shares = shares[0], shares[1:]
		}
	}
	return caps
}

// quota is how many devices more the quotas of the namespace admit, for those of its jobs for whom that is most.
func (s *stall) quota(p *planner) (most float64) {
	asked := ShapeID(None)
	for _, id := range s.jobs {
		if growth := p.c.Jobs[id].Growth; growth != asked {
			asked = growth
			most = max(most, float64(p.soon.bounds(growth, p.c.Namespaces[s.namespace].HeadRoom))*float64(p.devices(id)))
		}
	}
	return most
}

// room is how many surplus devices a job may have now.
func (p *planner) room(id JobID) int64 {
	if in := &p.c.Jobs[id]; p.mayGrow(id) {
		return int64(in.Max-in.Min) * p.devices(id)
	}
	return p.surplus(id)
}

// wanted is how many it may have at other times: its share is found by that, as if nothing kept it from growing for a while.
func (p *planner) wanted(id JobID) int64 {
	if in := &p.c.Jobs[id]; p.grows(id) {
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
// together. It says how many devices nobody wants. What the namespace would have if all might grow is what half of their
// share is of.
func (s *stall) open(p *planner, total, claim float64) float64 {
	caps, wanted := s.caps(p, p.room), s.caps(p, p.wanted)
	equal := slices.Repeat([]float64{1}, len(s.jobs))
	shares, claims := waterFill(total, caps, equal), waterFill(claim, wanted, equal)
	bids := make([]*bid, 0, len(s.jobs))
	p.offers = p.offers[:0]
	all, untaken := 0.0, float64(s.untaken)
	for i, id := range s.jobs {
		if p.c.Jobs[id].Pace != nil {
			b := p.bid(id, claims[i])
			b.upTo(int64(p.c.Jobs[id].Min)*p.devices(id)+s.within(p, id, math.MaxInt32), p.size(id))
			bids = append(bids, b)
			all += shares[i]
		} else if !p.c.Jobs[id].Preempts {
			untaken -= shares[i]
		}
	}
	if len(bids) == 0 {
		return 0
	}
	slices.SortStableFunc(bids, (*bid).before)
	first := &p.c.Jobs[s.jobs[0]]
	others := p.queued(s.namespace, first.Priority)
	shared := pool{all: int64(all + 0.5), untaken: int64(untaken + 0.5)}
	p.guard(bids, shared, others)
	for _, b := range bids {
		b.floor = b.least
	}
	p.urge(bids, shared)
	left := p.sell(bids, shared, others)
	for i, id := range s.jobs {
		if in := &p.c.Jobs[id]; in.Pace == nil && left.open(!in.Preempts) <= 0 {
			p.jobs[id].wish = in.Min + int32(math.Ceil(shares[i]/float64(p.devices(id))-rounding))
		}
	}
	for _, b := range bids {
		p.jobs[b.id].wish = b.offers[b.taken].size
		p.out[b.id].Wish, p.out[b.id].Price = p.jobs[b.id].wish, b.price
		b.short = b.short || min(b.offers[b.taken].size, p.size(b.id)) < b.half
		if b.short || p.c.Jobs[b.id].Again.From == 0 { // what it is tried with is not its own yet: it may be short again in a moment
			p.out[b.id].ShortSince = p.shortSince(b)
		}
	}
	return float64(max(left.all, 0))
}

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
