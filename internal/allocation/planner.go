package allocation

import (
	"cmp"
	"slices"
	"time"
)

// planner is one plan in the making.
//
// It looks at room in three ways, each of which has at least what the one before has: now is what is free,
// soon is also what comes free in any case (pods that end, and workers that were chosen to leave), and reach
// is also what could be taken from others. Whoever is given room takes it from all three.
type planner struct {
	c                *Cluster
	classes          *classes
	now, soon, reach room
	jobs             []job
	// leaving has an entry for each worker of each job, in one row; job.first says where a job's begin.
	leaving []leaving
	// order are the jobs by priority and time of submission.
	order []JobID
	// reservations are those in force or soon to be, in order.
	reservations []reservation
	// lacking are the gangs that would be kept more room if there were any, in order.
	lacking []lack
	// awaited are the nodes where a gang waits for pods to end.
	awaited map[NodeID]bool
	vain    vain
	// most is what there would be without all that may be evicted, evicted how many jobs are.
	most    utmost
	evicted int
	// overstaffed are jobs that could give workers of their own class: there are more of them than min.
	overstaffed []JobID
	// coming is what replacements hold that were made for moves; nil until somebody asks.
	coming []int64
	// claims are what pods of others have that wait for the scheduler.
	claims claims
	// evictable are the jobs that may be ended for another, those of which least is lost first; nil until
	// somebody asks.
	evictable []JobID
	asked     bool
	// barred are the gangs for which no whole job ends, barredOn the nodes that they may use, nil until somebody asks.
	barred   bar
	barredOn Bits
	pledges
	// attempts are the gangs which only the scheduler can place and which wait for it.
	attempts []attempt
	// held is how many surplus devices each namespace has.
	held []int64
	// markets are those in which a pace is known, opened how many of them have shared what there is.
	markets []*market
	opened  int
	// waiters are how many gangs wait, nil until somebody asks.
	waiters map[crowd]int
	// offers are those of the bids of one namespace, in one row.
	offers []offer
	// paced is true when the pace of any job that trains is known, and they share by it.
	paced bool
	// refusals say for each job how few pods of a kind it had no room to give for, 0 when it was not asked or had some.
	refusals map[pair][]int32
	wideBounds
	// avoided numbers the lists of nodes beside which room was looked for at others.
	avoided map[string]int
	// givers says who gives to a job.
	givers map[JobID][]giver
	// scarcity says of classes of gangs what keeps them from devices that are free.
	scarcity map[classID][]string
	out      []Decision
	// giving are the jobs that may give anything.
	giving []JobID
	asLenders
	glance glance
	still  []holding
	beside []int32
	next   time.Time
}

// job is what the plan knows of one job beside its input.
type job struct {
	first int
	counts
	tally *Tally
	// lendables are the workers that it could give, holds is what they hold.
	lendables []lendable
	holds     []holding
	// gone are live workers that were chosen to leave, ownGone those of them of the own class.
	gone, ownGone int32
	// limit is how many may leave for others.
	limit  int32
	policy Policy
	// young is when the job may be shrunk, zero for now.
	young time.Time
	// paused is true when its world will change in any case.
	paused bool
	// evicted is true when all of it goes, later when it does so only once others may leave as well, lends when
	// workers leave for others, leaves when any worker was chosen, if only for a while.
	evicted, later, lends, leaves bool
	// moves is how many of its workers are to be moved, kept how many replacements of them it has already.
	moves, kept int32
	// added is how many workers it is given beyond those that it has, virtual how many once others have left.
	added, virtual int32
	// wish is how many workers it is to have at most by what they are worth, 0 where that is not known; owed how many half its
	// share would be where it was short of that for too long, back what it goes back to (Job.before), could how
	// many it could have where it has a deadline; otherwise 0.
	wish, owed, back, could int32
	// needed is true once it was looked for what it needs to meet its deadline (Decision.Needs), goesOn where it was tried again with
	// more workers, and that was of use.
	needed, goesOn bool
	growthClass    classID // known where hasClass is true (growthScope)
	hasClass       bool
	// beside numbers what it avoids, 0 until somebody asks.
	beside  int
	devices int64
	waits   waits
}

// leaving says whether a worker leaves by this plan, and for whom.
type leaving struct {
	chosen bool
	// held is true for a worker that is to leave later, when its job may be shrunk.
	held bool
	// moves is true for a worker that is to leave once it has a replacement.
	moves bool
	rule  Rule
	job   JobID
}

func (p *planner) plan(c *Cluster) Plan {
	p.c, p.classes = c, newClasses(c)
	p.avoided = nil
	p.vain, p.refusals, p.awaited = newVain(), map[pair][]int32{}, map[NodeID]bool{}
	p.out = make([]Decision, len(c.Jobs))
	p.now.reset(c, p.classes)
	p.setClaimsAside()
	p.soon.copyOf(&p.now)
	p.soon.come()
	p.reach.copyOf(&p.soon)
	p.gather()
	p.serveGangs()
	p.grow()
	p.collect()
	for j := range p.jobs {
		p.conclude(JobID(j))
	}
	return Plan{Decisions: p.out, Next: p.next}
}

// gather reads the jobs: who stays, who leaves in any case, who could.
func (p *planner) gather() {
	workers := 0
	for i := range p.c.Jobs {
		workers += len(p.c.Jobs[i].Workers)
	}
	p.jobs, p.leaving = sized(p.jobs, len(p.c.Jobs)), sized(p.leaving, workers)
	first := 0
	for i := range p.c.Jobs {
		p.out[i].For = None
		if in := &p.c.Jobs[i]; in.Stage == Training || in.Stage == Fixed {
			p.out[i].remember(in) // without a world it has nothing that could be too little
		}
		if p.c.Jobs[i].Name == "" {
			continue
		}
		p.jobs[i].first = first
		p.gatherJob(JobID(i))
		first += len(p.c.Jobs[i].Workers)
	}
	p.sortOrder()
}

// sortOrder puts the jobs in order. Nearly always priority and time decide, and those lie side by side here. It
// begins with the order of the last plan, which is soon sorted where little has changed since.
func (p *planner) sortOrder() {
	listed := make([]bool, len(p.c.Jobs))
	p.order = slices.DeleteFunc(p.order, func(id JobID) bool {
		if int(id) >= len(listed) || p.c.Jobs[id].Name == "" {
			return true
		}
		listed[id] = true
		return false
	})
	for i := range p.c.Jobs {
		if p.c.Jobs[i].Name != "" && !listed[i] {
			p.order = append(p.order, JobID(i))
		}
	}
	type key struct {
		seconds        int64
		priority, nano int32
		id             JobID
	}
	keys := make([]key, len(p.order))
	for i, id := range p.order {
		in := &p.c.Jobs[id]
		keys[i] = key{in.Submitted.Unix(), in.Priority, int32(in.Submitted.Nanosecond()), id}
	}
	slices.SortFunc(keys, func(a, b key) int {
		switch {
		case a.priority != b.priority:
			return cmp.Compare(b.priority, a.priority)
		case a.seconds != b.seconds:
			return cmp.Compare(a.seconds, b.seconds)
		case a.nano != b.nano:
			return cmp.Compare(a.nano, b.nano)
		}
		return cmp.Or(p.before(a.id, b.id), cmp.Compare(a.id, b.id))
	})
	for i := range keys {
		p.order[i] = keys[i].id
	}
}

func (p *planner) gatherJob(id JobID) {
	in, j := &p.c.Jobs[id], &p.jobs[id]
	j.policy = p.policy(in)
	if j.tally = in.Tally; j.tally == nil {
		j.tally = TallyOf(in.Workers)
	}
	j.counts = j.tally.counts
	for _, w := range j.tally.apart {
		p.gatherApart(id, int(w))
	}
	p.limit(id)
	p.gatherLendables(id)
	if j.marked && in.Armed {
		p.finishArmed(id)
	}
	p.giveBack(id)
}

// gatherApart enters a worker that leaves in any case.
func (p *planner) gatherApart(id JobID, w int) {
	j, worker := &p.jobs[id], &p.c.Jobs[id].Workers[w]
	if !worker.Overdue {
		p.soon.apply(worker.Node, worker.Shape, 1)
		p.reach.apply(worker.Node, worker.Shape, 1)
	}
	if worker.Marked {
		j.leaves = true
		p.leaving[j.first+w] = leaving{chosen: true, rule: RuleLeavingRoom, job: p.beneficiary(worker.For)}
	}
	j.paused = j.paused || worker.World
}

// gatherLendables lists what a job could give, all of which is within reach.
func (p *planner) gatherLendables(id JobID) {
	in, j := &p.c.Jobs[id], &p.jobs[id]
	switch {
	case j.limit <= 0:
	case in.Stage == Training && j.ownBound <= in.Min:
		j.lendables, j.holds = j.tally.surplus, j.tally.holds // as nearly always: none of its own class
	default:
		for w := range in.Workers {
			if p.lendable(id, w) {
				j.lendables = append(j.lendables, in.Workers[w].lendable(w))
			}
		}
		j.holds = holdsOf(j.lendables)
		if in.Stage == Training {
			p.overstaffed = append(p.overstaffed, id)
		}
	}
	for _, h := range j.holds {
		p.reach.apply(h.node, h.shape, h.times)
	}
}

// finishArmed has those leave who are to leave in a change that is under way.
func (p *planner) finishArmed(id JobID) {
	in, j := &p.c.Jobs[id], &p.jobs[id]
	for w := range in.Workers {
		worker := &in.Workers[w]
		if !worker.Marked || worker.Ending || worker.Leaving {
			continue
		}
		p.choose(id, w, worker.For, RuleNoHostage)
		if j.limit <= 0 || !p.lendable(id, w) {
			p.reach.apply(worker.Node, worker.Shape, 1)
		}
	}
}

// giveBack has those leave by whom a job has grown that lends nothing, and did when it grew: they are borrowed.
func (p *planner) giveBack(id JobID) {
	in, j := &p.c.Jobs[id], &p.jobs[id]
	if j.policy != Never || in.Stage != Training || in.Finishing {
		return
	}
	for _, w := range p.leavers(id) {
		worker := &in.Workers[w]
		if j.live-j.gone <= in.Min {
			return
		}
		if !worker.Own || j.ownBound-j.ownGone > in.Min {
			p.choose(id, w, None, RuleLendsAndBorrows)
			p.reach.apply(worker.Node, worker.Shape, 1)
		}
	}
}

// policy is what may be taken from a job, within what its namespace allows: all of it as well when it loses nothing.
func (p *planner) policy(in *Job) Policy {
	if in.SizedBy != "" {
		return Never
	}
	namespace := &p.c.Namespaces[in.Namespace]
	policy := namespace.InForce(in.Policy)
	if policy == Shrink && in.Durable && namespace.EvictAllowed {
		return Evict
	}
	return policy
}

// limit is how many workers may leave a job for others.
func (p *planner) limit(id JobID) {
	in, j := &p.c.Jobs[id], &p.jobs[id]
	if j.policy == Never {
		return
	}
	switch in.Stage {
	case Starting, Fixed:
		j.limit = j.unbound
	case Training:
		if j.live <= in.Min || in.Regrouping || in.Finishing {
			return
		}
		surplus := j.growth + max(j.ownBound-in.Min, 0)
		size := in.Min
		for size < j.live && j.live-size > surplus {
			if size = in.next(size); size == 0 {
				size = j.live
			}
		}
		j.limit = j.live - size
		j.young = until(in.GrewAt, p.c.Settings.MinRuntime, p.c.Now)
	}
}

// takeable says whether a worker could leave for another job, were it not for how many may.
func (p *planner) takeable(id JobID, w int) bool {
	j := &p.jobs[id]
	l := &p.leaving[j.first+w]
	return j.limit > 0 && !j.evicted && !l.chosen && !l.held && p.lendable(id, w)
}

// lendable is what of that does not change while the plan is made.
func (p *planner) lendable(id JobID, w int) bool {
	in, j := &p.c.Jobs[id], &p.jobs[id]
	worker := &in.Workers[w]
	if worker.Ending || worker.Leaving {
		return false
	}
	if in.Stage != Training {
		return !worker.Own && !worker.Bound && (worker.Marked || in.Stage != Fixed || !p.c.NoEviction)
	}
	return !worker.Own || worker.Bound && j.ownBound > in.Min
}

// choose has a worker leave: its room comes free soon. What is within reach does not change.
func (p *planner) choose(id JobID, w int, whom JobID, rule Rule) {
	in, j := &p.c.Jobs[id], &p.jobs[id]
	worker := &in.Workers[w]
	p.leaving[j.first+w] = leaving{chosen: true, rule: rule, job: p.beneficiary(whom)}
	j.leaves = true
	p.soon.add(worker.Node, worker.Shape, 1)
	j.gone++
	if worker.Own {
		j.ownGone++
	}
}

// spare takes the choice back.
func (p *planner) spare(id JobID, w int) {
	worker := &p.c.Jobs[id].Workers[w]
	p.unchoose(id, w)
	p.soon.add(worker.Node, worker.Shape, -1)
}

// unchoose forgets the choice, and leaves its room to the caller.
func (p *planner) unchoose(id JobID, w int) {
	j := &p.jobs[id]
	p.leaving[j.first+w] = leaving{}
	j.gone--
	if p.c.Jobs[id].Workers[w].Own {
		j.ownGone--
	}
}

// beneficiary is the job that a worker leaves for, None when it is gone.
func (p *planner) beneficiary(id JobID) JobID {
	if id < 0 || int(id) >= len(p.c.Jobs) || p.c.Jobs[id].Name == "" {
		return None
	}
	return id
}

// before orders jobs: by priority, then by who was submitted first.
func (p *planner) before(a, b JobID) int {
	x, y := &p.c.Jobs[a], &p.c.Jobs[b]
	switch {
	case x.Priority != y.Priority:
		if x.Priority > y.Priority {
			return -1
		}
		return 1
	case !x.Submitted.Equal(y.Submitted):
		return x.Submitted.Compare(y.Submitted)
	case x.Name != y.Name:
		if x.Name < y.Name {
			return -1
		}
		return 1
	case x.UID < y.UID:
		return -1
	case x.UID > y.UID:
		return 1
	}
	return 0
}

// wake notes that the plan may be another one at a time.
func (p *planner) wake(at time.Time) {
	if at.After(p.c.Now) && (p.next.IsZero() || at.Before(p.next)) {
		p.next = at
	}
}

// conclude writes down how many workers a job has and who leaves.
func (p *planner) conclude(id JobID) {
	in, j, out := &p.c.Jobs[id], &p.jobs[id], &p.out[id]
	switch {
	case in.Name == "" || in.Stage == Held:
	case j.later:
		out.Count = max(in.Target-j.gone, in.Min)
	case j.evicted:
		out.Evict = true
	case in.Stage == Queued:
		if out.Start {
			out.Count = in.Min
		}
	case in.Stage == Starting:
		out.Count = in.Min
	case in.Stage == Fixed:
		out.Count = max(in.Target-j.gone, 0)
	default:
		p.trim(id)
		p.isBack(id)
		out.Count = max(j.live-j.gone+j.added-j.kept, in.Min)
	}
	if j.leaves {
		for w := range in.Workers {
			if l := p.leaving[j.first+w]; l.chosen {
				out.Leave = append(out.Leave, Leave{Worker: w, For: l.job, Rule: l.rule})
			}
		}
	}
	p.explain(id)
}

// trim has the workers leave that the job may not have: its maximum was lowered, or so many are not legal.
func (p *planner) trim(id JobID) {
	in, j := &p.c.Jobs[id], &p.jobs[id]
	if j.moves > 0 {
		return
	}
	stay := j.live - j.gone + j.added
	excess := stay - max(in.most(min(stay, p.goesBack(id))), in.Min)
	if replacing := j.live - j.bound; in.Target <= in.Max && replacing > 0 {
		// Replacements are bound before others leave for them.
		excess = min(excess, j.bound-j.gone+j.added-max(in.most(j.bound-j.gone+j.added), in.Min))
	}
	if excess <= 0 || in.Finishing {
		return
	}
	for _, w := range p.leavers(id) {
		if excess == 0 {
			break
		}
		if in.Workers[w].Own && j.ownBound-j.ownGone <= in.Min {
			continue
		}
		p.choose(id, w, None, RuleGrowth)
		excess--
	}
}

// leavers are the workers of a job that stay so far, those first whom it misses least.
func (p *planner) leavers(id JobID) []int {
	in, j := &p.c.Jobs[id], &p.jobs[id]
	var all []int
	for w := range in.Workers {
		worker := &in.Workers[w]
		if !worker.Ending && !worker.Leaving && !p.leaving[j.first+w].chosen && (!worker.Own || worker.Bound) {
			all = append(all, w)
		}
	}
	slices.SortFunc(all, func(a, b int) int { return missed(&in.Workers[a], &in.Workers[b]) })
	return all
}
