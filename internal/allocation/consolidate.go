package allocation

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"
	"time"
)

// A gang may fit in sum and not in whole nodes. Workers of elastic jobs are moved then: a replacement is
// made elsewhere first, and when it is bound the worker leaves, so that the job pauses once and never has
// less than before. Nothing is remembered between the two: a job that has more workers than its target has
// replacements on their way.

// move is a worker that is to be elsewhere.
type move struct {
	job    JobID
	worker int
}

// moving is one attempt to make whole nodes.
type moving struct {
	p     *planner
	d     *demand
	moves []move
	marks [3]int
	// row is what is free on a node soon, and what is within reach there; memory that is used again for the next one.
	row []int64
}

// consolidate moves workers of elastic jobs together, if that makes room for a demand. It changes nothing
// when it does not, or not for less than the given loss (that of another plan), and says how many places could be made at most.
func (p *planner) consolidate(d *demand, below float64) (int64, bool) {
	if d.kind == replace || p.opaque(p.c.Jobs[d.job].Gang) || !p.quotaAdmitsNow(d) {
		return unknown, false
	}
	// Each attempt looks at the whole cluster. That one came to nothing is no bound for smaller gangs.
	if d.queues() && !p.vain.moved[p.likenessOf(d.class)].worthwhile(d.places) {
		return unknown, false
	}
	if sum := p.inSum(d.class); sum < int64(d.places) {
		return sum, false
	}
	m := &moving{p: p, d: d, marks: [3]int{p.now.mark(), p.soon.mark(), p.reach.mark()}}
	if !m.choose() || !p.lasts(d, true, m.moves) || !p.besideEquals(d) {
		most := p.soon.of(d.class).total
		m.undo()
		return most, false
	}
	if m.loses() >= below {
		m.undo()
		return unknown, false
	}
	free := p.freeOfPromises(d)
	if m.ready() {
		m.undo()
		for _, v := range m.moves {
			p.choose(v.job, v.worker, d.job, RuleConsolidation)
			p.jobs[v.job].lends = true
		}
		p.promise(d)
		p.leaveFree(d, free)
		return unknown, true
	}
	waits, awaited, promised := p.jobs[d.job].waits, maps.Clone(p.awaited), p.out[d.job].Promised
	p.promise(d)
	places, ok := m.replacements()
	if !ok {
		m.undo()
		p.jobs[d.job].waits, p.awaited, p.out[d.job].Promised = waits, awaited, promised
		k := p.likenessOf(d.class)
		p.vain.moved[k] = p.vain.moved[k].after(d.places)
		return unknown, false
	}
	m.give(places)
	p.leaveFree(d, free)
	return unknown, true
}

// replaced is how long it is taken to be until a replacement is there.
const replaced = 10 * time.Second

// movesInstead has workers move instead of those that a search has leave, if that is cheaper.
func (p *planner) movesInstead(d *demand, s *search) bool {
	loss := s.loses()
	if loss == 0 {
		return false
	}
	chosen := slices.Clone(s.chosen)
	s.abandon()
	if _, done := p.consolidate(d, loss); done {
		return true
	}
	for _, v := range chosen {
		s.choose(v.job, v.worker)
	}
	return false
}

// loses is what those lose whom a search has leave, in seconds of devices: their jobs pause, and again when they grow back,
// and lack them until then. What leaves already costs nothing more, unless it does so for another gang.
func (s *search) loses() float64 {
	p, sum := s.p, 0.0
	var seen []JobID
	for _, v := range s.chosen {
		in := &p.c.Jobs[v.job]
		if worker := &in.Workers[v.worker]; worker.Marked && !p.givenAway(worker, s.job) || !worker.World {
			continue
		}
		sum += p.c.Settings.RegrowDelay(in.Reclaims+1).Seconds() * float64(p.devices(v.job))
		if !slices.Contains(seen, v.job) {
			seen = append(seen, v.job)
			sum += 2 * p.pauseLoss(v.job)
		}
	}
	return sum
}

// pauseLoss is what a job loses by a change of its world, in seconds of devices; nothing where that changes anyway.
func (p *planner) pauseLoss(id JobID) float64 {
	in, j := &p.c.Jobs[id], &p.jobs[id]
	if j.paused || j.lends {
		return 0
	}
	return in.PauseExpected().Seconds() * float64(j.live) * float64(p.devices(id))
}

// loses is what the moves lose: those who move pause, and the gang waits for their replacements. Where these are on their
// way, the plan in force is kept: it costs nothing more.
func (m *moving) loses() float64 {
	p, sum, waits := m.p, 0.0, false
	all, _ := m.perJob()
	for i, v := range m.moves {
		same := func(other move) bool { return other.job == v.job }
		if !slices.ContainsFunc(m.moves[:i], same) && p.jobs[v.job].spares(&p.c.Jobs[v.job]) < all[v.job] {
			waits = true
			sum += p.pauseLoss(v.job)
		}
	}
	if waits {
		sum += replaced.Seconds() * float64(m.d.places) * float64(p.devices(m.d.job))
	}
	return sum
}

func (m *moving) undo() {
	for i, r := range []*room{&m.p.now, &m.p.soon, &m.p.reach} {
		r.undo(m.marks[i])
	}
}

// inSum is how many places of a class there would be if all that is free were in one place. What replacements
// hold is free as soon as those leave whom they replace.
func (p *planner) inSum(id classID) int64 {
	k, width := &p.classes.all[id], len(p.c.Resources)
	if p.coming == nil {
		p.coming = make([]int64, width)
		for id := range p.c.Jobs {
			in := &p.c.Jobs[id]
			if in.Stage != Training || in.Gang < 0 {
				continue
			}
			for r, amount := range p.c.Shapes[in.Gang].Request {
				p.coming[r] += amount * int64(p.jobs[id].spares(in))
			}
		}
	}
	most := unknown
	for r, amount := range k.request {
		if amount <= 0 {
			continue
		}
		sum := p.coming[r]
		for w, word := range k.nodes {
			for ; word != 0; word &= word - 1 {
				sum += max(p.soon.free[(w*64+bits.TrailingZeros64(word))*width+r], 0)
			}
		}
		most = min(most, sum/amount)
	}
	return most
}

// choose finds the workers to move: node by node, the nodes first for which the fewest replacements are yet to be made, and of
// those where the fewest make a place. So a move that has begun is finished.
func (m *moving) choose() bool {
	p := m.p
	on := m.byNode()
	type option struct {
		moves []move
		lacks int32
	}
	var options []option
	for n := range p.c.Nodes {
		if moves := m.option(NodeID(n), on[n]); moves != nil {
			options = append(options, option{moves, m.lacks(moves)})
		}
	}
	slices.SortStableFunc(options, func(a, b option) int {
		return cmp.Or(cmp.Compare(a.lacks, b.lacks), cmp.Compare(len(a.moves), len(b.moves)))
	})
	for _, option := range options {
		if p.soon.of(m.d.class).total >= int64(m.d.places) {
			break
		}
		for _, v := range option.moves {
			m.free(v)
		}
		m.moves = append(m.moves, option.moves...)
	}
	m.rest()
	return len(m.moves) > 0 && min(p.soon.of(m.d.class).total, p.reach.of(m.d.class).total) >= int64(m.d.places)
}

// byNode are the workers that may be moved from each node that is of use.
func (m *moving) byNode() [][]move {
	p := m.p
	all := make([]move, 0, len(p.leaving))
	count := make([]int32, len(p.c.Nodes))
	for id := range p.c.Jobs {
		if !m.movable(JobID(id)) {
			continue
		}
		agreed := m.agreed(JobID(id))
		for w := range p.c.Jobs[id].Workers {
			worker := &p.c.Jobs[id].Workers[w]
			if agreed && !worker.movesFor(m.d.job) {
				continue
			}
			if worker.Bound && worker.World && !worker.Ending && !worker.Leaving && !p.leaving[p.jobs[id].first+w].chosen &&
				worker.Node >= 0 && p.classes.all[m.d.class].nodes.Has(int(worker.Node)) {
				all = append(all, move{JobID(id), w})
				count[worker.Node]++
			}
		}
	}
	on, memory := make([][]move, len(p.c.Nodes)), make([]move, len(all))
	for n, here := range count {
		on[n], memory = memory[:0:here], memory[here:]
	}
	for _, v := range all {
		n := p.c.Jobs[v.job].Workers[v.worker].Node
		on[n] = append(on[n], v)
	}
	return on
}

// agreed says whether the plan in force has workers of a job move for the demand. Then those are moved, and all of them,
// or nobody: the job's number of workers was chosen for that.
func (m *moving) agreed(id JobID) bool {
	return m.p.jobs[id].marked && slices.ContainsFunc(m.p.c.Jobs[id].Workers, func(w Worker) bool { return w.movesFor(m.d.job) })
}

// rest adds the others of those that the plan in force has leave together.
func (m *moving) rest() {
	for _, v := range slices.Clone(m.moves) {
		if !m.agreed(v.job) {
			continue
		}
		for w := range m.p.c.Jobs[v.job].Workers {
			also := move{v.job, w}
			if m.p.c.Jobs[v.job].Workers[w].movesFor(m.d.job) && !slices.Contains(m.moves, also) {
				m.free(also)
				m.moves = append(m.moves, also)
			}
		}
	}
}

// movesFor says whether a worker is about to leave for a job, by the plan in force, and has a replacement.
func (w *Worker) movesFor(id JobID) bool {
	return w.Marked && w.Moves && !w.Ending && !w.Leaving && w.For == id
}

// movable says whether workers of a job may be moved: it costs it a pause.
func (m *moving) movable(id JobID) bool {
	in, j := &m.p.c.Jobs[id], &m.p.jobs[id]
	return in.Stage == Training && id != m.d.job && j.policy != Never && !in.Regrouping && !in.Finishing && !in.Restarts &&
		!j.evicted && !j.lends && j.moves == 0 && j.live >= in.Min && j.own >= in.Min && j.young.IsZero() && !in.GrowAfter.After(m.p.c.Now) &&
		!m.p.shrinks(id, m.d.job)
}

// shrinks says whether workers are about to leave a job by the plan in force, but for those that move for one gang. It has more of
// them than its target then, and none is a replacement.
func (p *planner) shrinks(id, but JobID) bool {
	return p.jobs[id].marked && slices.ContainsFunc(p.c.Jobs[id].Workers, func(w Worker) bool {
		return w.Marked && !w.Ending && !w.Leaving && !w.movesFor(but)
	})
}

// option are the workers whose move gives a node one place more that the demand may have, nil when none do: what is kept for
// another one there comes first.
func (m *moving) option(n NodeID, on []move) []move {
	if len(on) == 0 {
		return nil
	}
	p, class, width := m.p, &m.p.classes.all[m.d.class], len(m.p.c.Resources)
	places := func() int32 { return min(class.times(m.row[:width]), class.times(m.row[width:])) }
	begin := func() {
		m.row = append(append(m.row[:0], p.soon.free[int(n)*width:(int(n)+1)*width]...), p.reach.free[int(n)*width:(int(n)+1)*width]...)
	}
	leave := func(v move) {
		reach := !p.takeable(v.job, v.worker)
		for r, amount := range p.c.Shapes[p.c.Jobs[v.job].Workers[v.worker].Shape].Request {
			if m.row[r] += amount; reach {
				m.row[width+r] += amount
			}
		}
	}
	begin()
	was := places()
	for _, v := range on {
		leave(v)
	}
	if places() <= was {
		return nil // not even if all of them moved
	}
	slices.SortStableFunc(on, func(a, b move) int {
		x, y := &p.c.Jobs[a.job], &p.c.Jobs[b.job]
		return cmp.Or(-cmp.Compare(p.jobs[a.job].spares(x), p.jobs[b.job].spares(y)), cmp.Compare(x.Pause, y.Pause))
	})
	begin()
	for i, v := range on {
		if leave(v); places() > was {
			return on[:i+1]
		}
	}
	return nil
}

// spares is how many workers a job has beyond its target: replacements that were made for a move.
func (j *job) spares(in *Job) int32 { return max(j.live-j.gone-in.Target, 0) }

// lacks is how many replacements are yet to be made for some moves.
func (m *moving) lacks(moves []move) int32 {
	lacks, found := int32(0), map[JobID]int32{}
	for _, v := range moves {
		if found[v.job]++; found[v.job] > m.p.jobs[v.job].spares(&m.p.c.Jobs[v.job]) {
			lacks++
		}
	}
	return lacks
}

// free counts what a worker holds as coming free.
func (m *moving) free(v move) {
	worker := &m.p.c.Jobs[v.job].Workers[v.worker]
	m.p.soon.add(worker.Node, worker.Shape, 1)
	if !m.p.takeable(v.job, v.worker) {
		m.p.reach.add(worker.Node, worker.Shape, 1)
	}
}

// perJob counts the moves of each job, and those of its own class.
func (m *moving) perJob() (all, own map[JobID]int32) {
	all, own = map[JobID]int32{}, map[JobID]int32{}
	for _, v := range m.moves {
		all[v.job]++
		if m.p.c.Jobs[v.job].Workers[v.worker].Own {
			own[v.job]++
		}
	}
	return all, own
}

// ready says whether all replacements are bound, so that the workers may leave.
func (m *moving) ready() bool {
	all, own := m.perJob()
	for id, count := range all {
		in, j := &m.p.c.Jobs[id], &m.p.jobs[id]
		if j.bound-j.gone-in.Target < count || j.ownBound-j.ownGone-own[id] < in.Min {
			return false
		}
	}
	return true
}

// replacements finds a node for each that is not on its way.
func (m *moving) replacements() (map[JobID][]NodeID, bool) {
	p := m.p
	mark, made := p.now.mark(), []change{}
	if !p.hasPromise(m.d) {
		p.setAside(&p.now, p.c.Jobs[m.d.job].Priority)
	}
	places, coming := map[JobID][]NodeID{}, map[JobID]int32{}
	for _, own := range []bool{true, false} {
		for _, v := range m.moves {
			in, j := &p.c.Jobs[v.job], &p.jobs[v.job]
			worker := &in.Workers[v.worker]
			if worker.Own != own {
				continue
			}
			if coming[v.job] < j.spares(in) {
				coming[v.job]++
				continue
			}
			k := p.classes.of(worker.Shape, scope{growth: !own})
			if !own {
				k = p.growthScope(v.job)
			}
			n := p.now.of(k).fullest(in.Avoid)
			if n == None || p.now.bounds(worker.Shape, 0) < 1 || p.opaque(worker.Shape) {
				return nil, false
			}
			p.charge(n, worker.Shape)
			made = append(made, change{n, worker.Shape, -1})
			places[v.job] = append(places[v.job], n)
		}
	}
	p.now.undo(mark)
	for _, c := range made {
		p.now.add(c.node, c.shape, c.times)
	}
	return places, true
}

// give writes down the replacements, and that those who have them keep their number of workers.
func (m *moving) give(places map[JobID][]NodeID) {
	p := m.p
	all, own := m.perJob()
	for _, id := range p.order {
		if all[id] == 0 {
			continue
		}
		in, j, out := &p.c.Jobs[id], &p.jobs[id], &p.out[id]
		j.moves = all[id]
		j.kept = min(j.spares(in), all[id])
		out.Places = append(out.Places, places[id]...)
		out.Own += max(min(own[id]-max(j.ownBound-in.Min, j.own-in.Min), int32(len(places[id]))), 0)
	}
	for _, v := range m.moves {
		p.leaving[p.jobs[v.job].first+v.worker].moves = true
		p.leaving[p.jobs[v.job].first+v.worker].job = m.d.job
	}
}
