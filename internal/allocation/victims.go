package allocation

import (
	"slices"
	"time"
)

// want is room that somebody needs and that is not free.
type want struct {
	job   JobID
	shape ShapeID
	class classID
	// avoid are nodes on which a place is of no use.
	avoid  []NodeID
	places int32
	// made is how many new pods the quotas have to admit, headRoom what is left to others.
	made     int32
	headRoom int64
	rule     Rule
	// only is the one from whom room may be taken, None for everybody but the job itself.
	only JobID
}

// search looks for the workers from whom least is lost. What it has chosen is a proposal until it is taken.
type search struct {
	p *planner
	want
	// chosen are the workers that leave, in the order in which they were added; whole the jobs of which all go.
	chosen []victim
	whole  []JobID
	one    lender
	// starved is true when workers had to leave so that quotas do: those may not be the ones who help most.
	starved bool
	// placed is true while workers are chosen for their nodes only.
	placed bool
	// mark is where the changes of soon begin that are of this search.
	mark int
	// shared are the nodes on which room is kept for another gang, which has its part of what comes free there.
	shared []NodeID
	// most is how many places there were with all that could be taken, when that was too little; unknown when
	// it was quotas that did not do.
	most int64
	// admits is how many new pods the quotas would have admitted then.
	admits int32
}

type victim struct {
	job    JobID
	worker int
}

func (p *planner) newSearch(w want) *search {
	return &search{p: p, want: w, mark: p.soon.mark(), shared: p.sharedNodes(w.class, w.avoid)}
}

// mayUse says whether a place on a node would be of use.
func (s *search) mayUse(n NodeID) bool {
	return n >= 0 && s.p.classes.all[s.class].nodes.Has(int(n)) && !slices.Contains(s.avoid, n)
}

// enough says whether the room would be there.
func (s *search) enough() bool { return s.enoughPlaces() && s.enoughQuota() }

func (s *search) enoughPlaces() bool {
	return s.p.soon.of(s.class).beside(s.avoid) >= int64(s.places) && s.total() >= int64(s.places)
}

// total is how many places there are. What comes free beyond what is within reach is kept for another gang (keepReserved).
func (s *search) total() int64 {
	soon, reach := s.p.soon.of(s.class), s.p.reach.of(s.class)
	total := soon.beside(s.avoid)
	for _, n := range s.shared {
		total -= int64(max(soon.at[n]-reach.at[n], 0))
	}
	return total
}

func (s *search) enoughQuota() bool { return s.admitted() >= s.made }

// admitted is how many new pods the quotas would admit. What comes free beyond what is within reach is kept there as well.
func (s *search) admitted() int32 {
	return min(s.p.soon.bounds(s.shape, s.headRoom), s.p.reach.bounds(s.shape, s.headRoom))
}

// surplus chooses workers beyond what their jobs must have, none when all of them would not do.
func (s *search) surplus() bool {
	if s.only != None {
		s.fromOne()
	} else {
		if s.starved = !s.enoughQuota(); s.starved {
			s.from(s.p.quotaLenders(s.shape), s.enoughQuota)
		}
		s.fromNodes()
	}
	if s.enough() {
		return s.prune()
	}
	s.note()
	s.abandon()
	return false
}

// note keeps how far all that could be taken went.
func (s *search) note() {
	s.most, s.admits = unknown, s.admitted()
	if !s.starved && s.enoughQuota() {
		s.most = s.total()
	}
}

// hopeless says at a glance that the one lender that may be asked would not do, whoever of it left: most would
// not, and a search orders workers, has them leave and takes that back.
func (s *search) hopeless() bool {
	p := s.p
	class, width := &p.classes.all[s.class], len(p.c.Resources)
	quota := s.enoughQuota()
	for _, h := range p.stillHolds(s.only) {
		quota = quota || s.countsAgainst(h.shape)
		if n := h.node; n >= 0 && s.couldGain(n) {
			p.glance.add(n, p.c.Shapes[h.shape].Request, int64(h.times))
		}
	}
	places := p.soon.upTo(s.class, s.avoid, int64(s.places))
	for i, n := range p.glance.nodes {
		row := p.glance.rows[i*width : (i+1)*width]
		for r := range row {
			row[r] += p.soon.free[int(n)*width+r]
		}
		places += int64(class.times(row) - p.soon.at(s.class, n))
	}
	p.glance.clear()
	return !quota || places < int64(s.places)
}

// stillHolds is what those hold whom a job could give, without those who were chosen. It is memory that is used
// again by the next job.
func (p *planner) stillHolds(id JobID) []holding {
	j := &p.jobs[id]
	if j.gone == 0 && !j.lends {
		return j.holds
	}
	p.still = p.still[:0]
	for i := range j.lendables {
		one := &j.lendables[i]
		if l := &p.leaving[j.first+int(one.worker)]; !l.chosen && !l.held {
			p.still = withHeld(p.still, one)
		}
	}
	return p.still
}

// glance sums up what a few workers hold, by node. Its memory is used again and again.
type glance struct {
	nodes []NodeID
	rows  []int64
}

func (g *glance) add(n NodeID, request Amounts, times int64) {
	at := len(g.nodes) - 1
	for at >= 0 && g.nodes[at] != n {
		at--
	}
	if at < 0 {
		at = len(g.nodes)
		g.nodes, g.rows = append(g.nodes, n), append(g.rows, make([]int64, len(request))...)
	}
	for r, amount := range request {
		g.rows[at*len(request)+r] += amount * times
	}
}

func (g *glance) clear() { g.nodes, g.rows = g.nodes[:0], g.rows[:0] }

// fromOne adds workers of the one lender that may be asked.
func (s *search) fromOne() {
	s.one.job, s.one.workers = s.only, s.one.workers[:0]
	quota := !s.enoughQuota()
	for _, l := range s.p.jobs[s.only].lendables {
		if (s.mayUse(l.node) || quota && s.countsAgainst(l.shape)) && s.p.takeable(s.only, int(l.worker)) {
			s.one.workers = append(s.one.workers, l.worker)
		}
	}
	asked := lenders{places: s.p.reach.of(s.class).at}
	for which := mine; which <= given; which++ {
		s.add(&asked, &s.one, which, s.enough)
	}
}

// fromNodes adds workers until there are places enough.
func (s *search) fromNodes() {
	s.placed = true
	s.from(s.p.lendersTo(s.class), s.enoughPlaces)
	s.placed = false
}

// from adds workers of lenders until enough is there: those that leave for this job already, those that are
// in no world or leave anyway, then those of the lender who loses least, and so on. Those that leave for another gang come last:
// if that one needs them, others would have to leave for it instead, and one more job would have begun to pause. But who has to wait
// until a lender has run for long enough has those first that leave at once for somebody less important.
func (s *search) from(all *lenders, enough func() bool) {
	s.addMarked(all, mine, enough)
	for _, i := range all.idle {
		s.add(all, &all.all[i], idle, enough)
	}
	if enough() {
		return
	}
	queue := s.rank(all)
	ripe := true
	for !enough() {
		l := queue.pop()
		if l == nil {
			break
		}
		if ripe && !s.p.jobs[l.job].young.IsZero() {
			ripe = false
			s.addMarked(all, lesser, enough)
		}
		if !enough() {
			s.add(all, l, working, enough)
		}
	}
	s.addMarked(all, given, enough)
}

// addMarked adds workers that leave anyway.
func (s *search) addMarked(all *lenders, which stage, enough func() bool) {
	for _, i := range all.marked {
		s.add(all, &all.all[i], which, enough)
	}
}

// stage is which of a lender's workers are looked at.
type stage uint8

const (
	// mine leave for this job already.
	mine stage = iota
	// idle are in no world, or leave anyway.
	idle
	// working are all others but the last two.
	working
	// lesser leave for a less important gang already.
	lesser
	// given leave for another gang already that has yet to be served.
	given
)

// looksAt says whether a worker is among those of a stage.
func (s *search) looksAt(which stage, w *Worker) bool {
	switch {
	case which == mine:
		return w.Marked && w.For == s.job
	case which == lesser:
		return s.p.givenAway(w, s.job) && s.p.c.Jobs[s.p.beneficiary(w.For)].Priority < s.p.c.Jobs[s.job].Priority
	case which != given && s.p.givenAway(w, s.job):
		return false
	case which == idle:
		return w.Marked || !w.World
	}
	return true
}

// givenAway says whether a worker leaves by the plan in force for another gang, which waits for room.
func (p *planner) givenAway(w *Worker, but JobID) bool {
	if !w.Marked || w.For == but {
		return false
	}
	whom := p.beneficiary(w.For)
	return whom != None && (p.c.Jobs[whom].Stage == Queued || p.c.Jobs[whom].Stage == Starting) && !p.out[whom].Start
}

// givenAway is how many workers of a job are to be left to other gangs.
func (s *search) givenAway(id JobID) (count int32) {
	if !s.p.jobs[id].marked {
		return 0
	}
	for _, l := range s.p.jobs[id].lendables {
		if l.marked && s.p.givenAway(&s.p.c.Jobs[id].Workers[l.worker], s.job) && s.p.takeable(id, int(l.worker)) {
			count++
		}
	}
	return count
}

// add chooses workers of a lender until enough is there.
func (s *search) add(all *lenders, l *lender, which stage, enough func() bool) {
	in, j := &s.p.c.Jobs[l.job], &s.p.jobs[l.job]
	if j.evicted || j.moves > 0 || l.job == s.job && s.rule != RuleGangClass || j.gone >= j.limit {
		return
	}
	limit := j.limit
	if which == idle || which == working {
		limit -= s.givenAway(l.job)
	}
	for _, w := range all.inOrder(l, in.Workers) {
		if j.gone >= limit || enough() {
			return
		}
		worker := &in.Workers[w]
		if !s.looksAt(which, worker) {
			continue
		}
		if s.placed && !s.couldGain(worker.Node) {
			continue
		}
		if !s.p.takeable(l.job, int(w)) || worker.Own && j.ownBound-j.ownGone <= in.Min {
			continue
		}
		s.choose(l.job, int(w))
	}
}

// couldGain says whether anything that can be taken makes a place on a node that would be of use.
func (s *search) couldGain(n NodeID) bool {
	return s.p.reach.at(s.class, n) > s.p.soon.at(s.class, n) && !slices.Contains(s.avoid, n)
}

func (s *search) choose(id JobID, w int) {
	s.p.choose(id, w, s.job, s.rule)
	s.chosen = append(s.chosen, victim{id, w})
}

// prune lets those stay who are not needed, the last that were chosen first, until each that leaves is
// needed or makes the number of workers of its job a legal one.
func (s *search) prune() bool {
	for turn := range 2 {
		s.spareAll(false)
		if turn == 0 && s.only == None {
			s.fewer()
		}
		if !s.legalise() {
			return true
		}
	}
	s.legalise()
	s.spareAll(true) // those who leave for a legal number may do for others
	return true
}

// spareAll lets all stay who are not needed; where the numbers of workers are legal and are to remain so, those only whose job has
// a legal one then.
func (s *search) spareAll(legally bool) {
	for i := len(s.chosen) - 1; i >= 0; i-- {
		v := s.chosen[i]
		if s.missing(v) || legally && !s.p.legalWith(v.job, 1) {
			continue
		}
		s.p.spare(v.job, v.worker)
		if s.enough() {
			s.chosen = slices.Delete(s.chosen, i, i+1)
		} else {
			s.p.choose(v.job, v.worker, s.job, s.rule)
		}
	}
}

// missing says at a glance that a place would be missing if a worker stayed.
func (s *search) missing(v victim) bool {
	soon, worker := &s.p.soon, &s.p.c.Jobs[v.job].Workers[v.worker]
	at := soon.of(s.class)
	if at.beside(s.avoid) > int64(s.places) || !s.mayUse(worker.Node) {
		return false
	}
	row, request := soon.free[int(worker.Node)*len(s.p.c.Resources):], s.p.c.Shapes[worker.Shape].Request
	for i, amount := range at.class.request {
		if amount > 0 && row[i]-request[i] < amount*int64(at.at[worker.Node]) {
			return true
		}
	}
	return false
}

// legalWith says whether a job has a legal number of workers if so many that were chosen stay.
func (p *planner) legalWith(id JobID, more int32) bool {
	in, j := &p.c.Jobs[id], &p.jobs[id]
	stay := j.live - j.gone + more
	return in.Stage != Training || stay > in.Max || in.legal(stay)
}

// legalise has more workers leave where what would stay is not a legal number.
func (s *search) legalise() bool {
	changed := false
	for i := 0; i < len(s.chosen); i++ {
		id := s.chosen[i].job
		in, j := &s.p.c.Jobs[id], &s.p.jobs[id]
		stay := j.live - j.gone
		if in.Stage != Training || stay > in.Max || in.legal(stay) {
			continue
		}
		excess := stay - in.most(stay)
		for _, w := range s.p.leavers(id) {
			if excess == 0 {
				break
			}
			if in.Workers[w].Own && j.ownBound-j.ownGone <= in.Min {
				continue
			}
			s.choose(id, w)
			changed = true
			excess--
		}
	}
	return changed
}

// moves says whether any of the chosen has a replacement, and leaves because of that.
func (s *search) moves() bool {
	return slices.ContainsFunc(s.chosen, func(v victim) bool { return s.p.c.Jobs[v.job].Workers[v.worker].Own })
}

// abandon takes all choices back.
func (s *search) abandon() {
	for i := len(s.chosen) - 1; i >= 0; i-- {
		s.p.unchoose(s.chosen[i].job, s.chosen[i].worker)
	}
	s.p.soon.undo(s.mark)
	s.chosen = s.chosen[:0]
}

// take has the chosen leave. When some of them may not leave yet, nobody new does: their work would be lost
// for room that nobody can use. The room counts as coming all the same.
func (p *planner) take(s *search) {
	var ripe time.Time
	for _, v := range s.chosen {
		j := &p.jobs[v.job]
		if p.c.Jobs[v.job].Workers[v.worker].World && j.young.After(ripe) {
			ripe = j.young
		}
	}
	p.wake(ripe)
	for _, v := range s.chosen {
		j := &p.jobs[v.job]
		worker := &p.c.Jobs[v.job].Workers[v.worker]
		j.lends = true
		j.paused = j.paused || worker.World
		if !ripe.IsZero() && !worker.Marked {
			p.leaving[j.first+v.worker] = leaving{held: true, rule: s.rule, job: p.beneficiary(s.job)}
			j.gone--
			j.limit--
			if worker.Own {
				j.ownGone--
			}
		}
	}
	for _, id := range s.whole {
		p.out[id].For = s.job
		p.jobs[id].later = !ripe.IsZero()
	}
	p.keepReserved()
}
