package allocation

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"time"
)

// level is growth among jobs of one priority: they are equals.
type level struct {
	p        *planner
	priority int32
	// jobs are those that may grow, groups the same by namespace.
	jobs   []JobID
	groups []*group
	// cursor says for what is sought how many of the lenders below this level have nothing more for it.
	cursor  map[sought]int
	wide    map[int32]*wideCursor
	lenders []JobID
	looked  bool
	// donors are equals that could give something, by namespace, top is the largest surplus of them.
	donors []donors
	top    []int64
	// marked is true when any of them has marked workers, left are namespaces that have yet to be looked at.
	marked bool
	left   []int32
	found  []JobID
	// uneven says with how much surplus nobody was found to give to a job.
	uneven map[evenKey]int64
	ranked bool
	// over are jobs that have more than they wish for, by namespace; nil until somebody asks.
	over map[NamespaceID][]JobID
	// resold is true once jobs wish for what is left over: nobody gives anything for that.
	resold bool
}

// donors are the jobs of one namespace that could give something to equals.
type donors struct {
	namespace NamespaceID
	jobs      []JobID
}

// group are the jobs of one namespace that may grow: a heap, the one with the least surplus first.
type group struct {
	namespace NamespaceID
	jobs      []JobID
}

// grow gives what gangs have left to jobs that may have more, level by level.
func (p *planner) grow() {
	p.held = make([]int64, len(p.c.Namespaces))
	var all []JobID
	for _, id := range p.order {
		if p.c.Jobs[id].Stage == Training && !p.jobs[id].evicted {
			p.held[p.c.Jobs[id].Namespace] += p.surplus(id)
			p.paced = p.paced || p.c.Settings.ByValue && p.c.Jobs[id].Pace != nil
			p.judge(id)
			if p.mayGrow(id) {
				all = append(all, id)
			}
		}
	}
	if p.paced {
		p.price()
	}
	for len(all) > 0 {
		n := 1
		for n < len(all) && p.c.Jobs[all[n]].Priority == p.c.Jobs[all[0]].Priority {
			n++
		}
		l := &level{p: p, priority: p.c.Jobs[all[0]].Priority, jobs: all[:n], cursor: map[sought]int{}}
		p.open(int64(l.priority)) // what is left by those above is known by now
		l.fill()
		if l.resold = l.resell(); l.resold {
			l.fill()
		}
		all = all[n:]
	}
	p.open(math.MinInt64)
	p.tryAgain()
}

// firstLook is how long a job is watched at its first size at most where sizes go by value and its pace is not known: programs take
// their time to the first step, and more workers do not shorten that; then it takes five seconds of steps until a pace counts. If it
// grew before that, only the larger size would be known, and it would count as one that scales until workers are taken from it.
const firstLook = time.Minute

// mayGrow says whether a job may be given more workers now, as far as it itself is concerned.
func (p *planner) mayGrow(id JobID) bool {
	in, j := &p.c.Jobs[id], &p.jobs[id]
	switch {
	case !p.grows(id), in.Regrouping,
		j.lends || j.moves > 0 || j.live-j.gone < in.Min || j.own < in.Min,
		in.next(p.size(id)) == 0:
		return false
	case in.GrowAfter.After(p.c.Now):
		p.wake(in.GrowAfter)
		return false
	}
	if in.Pace == nil && p.c.Settings.ByValue {
		if end := until(in.Began, firstLook, p.c.Now); !end.IsZero() {
			p.wake(end)
			return false
		}
	}
	quiet := until(in.ReclaimedAt, p.c.Settings.RegrowDelay(in.Reclaims), p.c.Now)
	p.wake(quiet)
	return quiet.IsZero()
}

// grows says whether a job may ever be given more workers.
func (p *planner) grows(id JobID) bool {
	in := &p.c.Jobs[id]
	return !in.NoGrowth && in.Fault == "" && in.Growth >= 0 && p.jobs[id].policy != Never && !in.Finishing && !p.c.Namespaces[in.Namespace].Ending
}

// size is how many workers a job will have once this plan is carried out.
func (p *planner) size(id JobID) int32 {
	j := &p.jobs[id]
	return j.live - j.gone + j.added + j.virtual
}

// surplus is how many devices a job has beyond its min, pods where it uses none.
func (p *planner) surplus(id JobID) int64 {
	return int64(max(p.size(id)-p.c.Jobs[id].Min, 0)) * p.devices(id)
}

// devices is how many devices one worker has, 1 where it uses none.
func (p *planner) devices(id JobID) int64 {
	j := &p.jobs[id]
	if j.devices == 0 {
		if in := &p.c.Jobs[id]; in.Gang >= 0 {
			for i, amount := range p.c.Shapes[in.Gang].Request {
				if i < len(p.c.Devices) && p.c.Devices[i] {
					j.devices += amount
				}
			}
		}
		j.devices = max(j.devices, 1)
	}
	return j.devices
}

func (p *planner) weight(ns NamespaceID) int64 { return max(p.c.Namespaces[ns].Weight, 1) }

// fill gives room to the job that has least, again and again, until nobody can have more.
func (l *level) fill() {
	l.group()
	for {
		var least *group
		for _, g := range l.groups {
			if len(g.jobs) > 0 && (least == nil || l.p.poorer(g.namespace, least.namespace)) {
				least = g
			}
		}
		if least == nil {
			return
		}
		l.p.commit()
		if id := least.jobs[0]; l.step(id) {
			least.down(l.p, 0)
		} else {
			least.pop(l.p)
		}
	}
}

func (l *level) group() {
	at := map[NamespaceID]*group{}
	for _, id := range l.jobs {
		ns := l.p.c.Jobs[id].Namespace
		if at[ns] == nil {
			at[ns] = &group{namespace: ns}
			l.groups = append(l.groups, at[ns])
		}
		at[ns].jobs = append(at[ns].jobs, id)
	}
	for _, g := range l.groups {
		for i := len(g.jobs)/2 - 1; i >= 0; i-- {
			g.down(l.p, i)
		}
	}
}

// poorer says whether a namespace has less than another, by their weights.
func (p *planner) poorer(a, b NamespaceID) bool {
	return p.less(a, p.held[a], b, p.held[b])
}

// less says whether so many devices are less for a namespace than so many others for another, by their weights.
func (p *planner) less(a NamespaceID, has int64, b NamespaceID, other int64) bool {
	x, lowX := product(has, p.weight(b))
	y, lowY := product(other, p.weight(a))
	return x < y || x == y && lowX < lowY
}

// product has 128 bits, the upper half of them first: devices may be counted in bytes. The weight is positive.
func product(amount, weight int64) (int64, uint64) {
	high, low := bits.Mul64(uint64(amount), uint64(weight))
	if amount < 0 {
		high -= uint64(weight)
	}
	return int64(high), low
}

// down restores the order of the heap below i.
func (g *group) down(p *planner, i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(g.jobs); child++ {
			if p.behind(g.jobs[child], g.jobs[least]) < 0 {
				least = child
			}
		}
		if least == i {
			return
		}
		g.jobs[i], g.jobs[least] = g.jobs[least], g.jobs[i]
		i = least
	}
}

func (g *group) pop(p *planner) {
	last := len(g.jobs) - 1
	g.jobs[0] = g.jobs[last]
	g.jobs = g.jobs[:last]
	g.down(p, 0)
}

// behind orders jobs by how little surplus they have.
func (p *planner) behind(a, b JobID) int {
	return cmp.Or(cmp.Compare(p.surplus(a), p.surplus(b)), p.before(a, b))
}

// step gives a job one legal step more, and says whether it might have yet more.
func (l *level) step(id JobID) bool {
	p, in, j := l.p, &l.p.c.Jobs[id], &l.p.jobs[id]
	size := p.larger(id)
	if size == 0 {
		return false
	}
	steps := size - p.size(id)
	k := p.growthScope(id)
	head := p.c.Namespaces[in.Namespace].HeadRoom
	if p.opaque(in.Growth) {
		if j.unbound == 0 && j.added == 0 && p.now.holds(k, in.Avoid, int64(steps)) && p.now.bounds(in.Growth, head) >= steps {
			for _, n := range p.growInto(&p.now, id, steps) {
				p.charge(n, in.Growth)
				p.out[id].Places = append(p.out[id].Places, None)
			}
			l.add(id, &j.added, steps)
		}
		return false
	}
	// By value, who has no pace waits as well before it takes back what it gave: others may be about to have that.
	keeps := p.paced && in.Pace == nil && !p.kept(id)
	for _, r := range []*room{&p.now, &p.soon} {
		if keeps || !r.holds(k, in.Avoid, int64(steps)) || r.bounds(in.Growth, head) < steps {
			continue
		}
		nodes := p.growInto(r, id, steps)
		for _, n := range nodes {
			p.charge(n, in.Growth)
		}
		if r == &p.now && j.virtual == 0 {
			p.out[id].Places = append(p.out[id].Places, nodes...)
			l.add(id, &j.added, steps)
		} else {
			l.add(id, &j.virtual, steps)
		}
		return true
	}
	return !l.resold && l.take(id, k, steps)
}

// take has others give what a job needs for one legal step more.
func (l *level) take(id JobID, k classID, steps int32) bool {
	p, in := l.p, &l.p.c.Jobs[id]
	if !p.reach.holds(k, in.Avoid, int64(steps)) || p.reach.bounds(in.Growth, p.c.Namespaces[in.Namespace].HeadRoom) < steps {
		return false
	}
	if l.takeFromLower(id, steps) || l.trade(id, steps) || l.even(id, steps) {
		for _, n := range p.growInto(&p.soon, id, steps) {
			p.charge(n, in.Growth)
		}
		l.add(id, &p.jobs[id].virtual, steps)
		return true
	}
	return false
}

// larger is the next legal size of a job, 0 when it is not to have more.
func (p *planner) larger(id JobID) int32 {
	size := p.c.Jobs[id].next(p.size(id))
	if wish := p.jobs[id].wish; wish > 0 && size > wish || size > p.goesBack(id) {
		return 0
	}
	return size
}

func (l *level) add(id JobID, count *int32, steps int32) {
	*count += steps
	l.p.held[l.p.c.Jobs[id].Namespace] += int64(steps) * l.p.devices(id)
}

// growthScope is the class of the pods by which a job grows, on the nodes that it avoids as well.
func (p *planner) growthScope(id JobID) classID {
	in, j := &p.c.Jobs[id], &p.jobs[id]
	if j.hasClass {
		return j.growthClass
	}
	within := scope{growth: true}
	if j.tally.home != None && p.asksForDevices(in.Growth) {
		within.typed, within.kind = true, p.c.Nodes[j.tally.home].DeviceType
	}
	j.growthClass, j.hasClass = p.classes.of(in.Growth, within), true
	return j.growthClass
}

func (p *planner) asksForDevices(s ShapeID) bool {
	for i, amount := range p.c.Shapes[s].Request {
		if amount > 0 && i < len(p.c.Devices) && p.c.Devices[i] {
			return true
		}
	}
	return false
}

// growInto names nodes for so many more: the fullest for pods with devices.
func (p *planner) growInto(r *room, id JobID, steps int32) []NodeID {
	in, k, mark := &p.c.Jobs[id], p.growthScope(id), r.mark()
	if !p.asksForDevices(in.Growth) {
		return p.apart(r, id, k, steps, in.Avoid)
	}
	nodes := make([]NodeID, 0, steps)
	for range steps {
		n := r.of(k).fullest(in.Avoid)
		if n == None {
			break
		}
		r.add(n, in.Growth, -1)
		nodes = append(nodes, n)
	}
	r.undo(mark)
	return nodes
}

// takeFromLower has jobs of lower priority give up surplus.
func (l *level) takeFromLower(id JobID, steps int32) bool {
	p, in := l.p, &l.p.c.Jobs[id]
	if !in.Preempts {
		return false
	}
	if !l.looked {
		l.looked, l.lenders = true, p.lendersBelow(l.priority)
	}
	k := p.growthSought(id)
	alike := l.alike(k.class)
	for i := max(l.cursor[k], l.cursor[k.anywhere()], alike.upTo()); i < len(l.lenders); i++ {
		if p.takeOne(id, l.lenders[i], steps, nil) {
			return true
		}
		alike.pass(p, l.lenders[i], i)
		if steps == 1 {
			l.cursor[k] = i + 1
			if l.cursor[k.anywhere()] == i && !p.couldGive(l.lenders[i]) {
				l.cursor[k.anywhere()] = i + 1
			}
		}
	}
	return false
}

// lendersBelow are the jobs of lower priority that could give something, those that do already first.
func (p *planner) lendersBelow(priority int32) []JobID {
	var all []JobID
	for id := range p.c.Jobs {
		if p.c.Jobs[id].Name != "" && p.c.Jobs[id].Priority < priority && p.jobs[id].limit > p.jobs[id].gone {
			all = append(all, JobID(id))
		}
	}
	slices.SortFunc(all, func(a, b JobID) int {
		if x, y := p.jobs[a].marked, p.jobs[b].marked; x != y {
			if x {
				return -1
			}
			return 1
		}
		return p.before(b, a)
	})
	return all
}

// couldGive says whether a job has anything that it could give to growth, if it may be shrunk now.
func (p *planner) couldGive(from JobID) bool {
	j := &p.jobs[from]
	return !j.evicted && j.added == 0 && j.virtual == 0 && j.limit > j.gone
}

// takeOne takes room for growth from one other job, which may be shrunk now, unless what that leaves to it is not fair.
func (p *planner) takeOne(id, from JobID, steps int32, fair func(gives int64) bool) bool {
	in, j := &p.c.Jobs[id], &p.jobs[from]
	if !p.couldGive(from) {
		return false
	}
	if !j.young.IsZero() {
		p.wake(j.young)
		return false
	}
	k := p.growthScope(id)
	if w := p.classes.wideOf(k); w != 0 && p.atMost(w, from) < steps {
		return false
	}
	seeks := pair{p.growthSought(id), None}
	if p.soon.bounds(in.Growth, p.c.Namespaces[in.Namespace].HeadRoom) < steps {
		seeks.shape = in.Growth
	}
	if p.refused(seeks, from, steps) {
		return false
	}
	s := p.newSearch(want{
		job: id, shape: in.Growth, class: k, avoid: in.Avoid, places: steps, made: steps,
		headRoom: p.c.Namespaces[in.Namespace].HeadRoom, rule: RuleGrowth, only: from,
	})
	before := p.surplus(from)
	if s.hopeless() || !s.surplus() {
		p.refuse(seeks, in.Avoid, from, steps)
		return false
	}
	if !p.lasts(&demand{job: id, kind: begin, class: k, avoid: in.Avoid, places: steps}, false, nil) {
		s.abandon()
		p.refuse(seeks, in.Avoid, from, steps)
		return false
	}
	gives := before - p.surplus(from)
	if fair != nil && !fair(gives) {
		s.abandon()
		return false
	}
	p.take(s)
	p.taken++
	p.held[p.c.Jobs[from].Namespace] -= gives
	return true
}
