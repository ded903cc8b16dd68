package allocation

import "slices"

// These checks hold however many gangs take room at once, and whatever quotas there are. They look at what the planner itself knows
// once gangs have been served: what is promised to one cannot be told from what is promised to another by the plan alone.

// gangsServed is the planner when gangs have their room, and growth has none yet.
func (s *simulation) gangsServed() *planner {
	_, barred := new(Planner).ahead(s.Cluster)
	p := &planner{
		c: s.Cluster, barred: barred, classes: newClasses(s.Cluster), vain: newVain(), refusals: map[pair][]int32{}, awaited: map[NodeID]bool{},
		out: make([]Decision, len(s.Jobs)),
	}
	p.now.reset(p.c, p.classes)
	p.soon.copyOf(&p.now)
	p.soon.come()
	p.reach.copyOf(&p.soon)
	p.gather()
	p.serveGangs()
	return p
}

// usedUp says whether a node or a quota lacks what pods of a shape hold there.
func (p *planner) usedUp(n NodeID, of ShapeID) bool {
	shape := &p.c.Shapes[of]
	if n >= 0 && p.soon.free[int(n)*len(p.c.Resources)+gpu] < shape.Request[gpu] {
		return true
	}
	return slices.ContainsFunc(shape.Quotas, func(q QuotaID) bool { return p.soon.quota[int(q)*len(p.c.Counts)] < shape.Demand[0] })
}

// eachNeeded fails when one of those who leave for gangs, or a whole job, could stay, and all gangs would have their room. Room that
// comes much later is none here.
func (s *simulation) eachNeeded(t failer, plan Plan) {
	if len(s.takes(plan)) == 0 {
		return
	}
	p := s.gangsServed()
	p.comesSoon(p.late(), -1)
	for id := range s.Jobs {
		d := &plan.Decisions[id]
		if d.Evict {
			s.wholeNeeded(t, p, JobID(id))
			continue
		}
		s.stepNeeded(t, p, JobID(id), d)
		stay := s.stay(JobID(id), d) + 1
		for _, l := range d.Leave {
			w := &s.Jobs[id].Workers[l.Worker]
			needed := w.Ending || w.Leaving || l.Rule != RuleGangsFirst || stay <= s.Jobs[id].Max && !s.Jobs[id].legal(stay)
			if !needed && !p.usedUp(w.Node, w.Shape) {
				t.Fatalf("worker %d of %s leaves for %s, and nobody needs its room", l.Worker, s.Jobs[id].Name, s.Jobs[l.For].Name)
			}
		}
	}
}

// stepNeeded fails when so many of a job could stay together that their number is the next legal one. What is kept for a gang that
// waits may be more than one worker's room.
func (s *simulation) stepNeeded(t failer, p *planner, id JobID, d *Decision) {
	j, stay := &s.Jobs[id], s.stay(id, d)
	next := j.next(stay)
	if next == 0 || len(d.Leave) == 0 || len(p.reservations) > 0 || slices.ContainsFunc(j.Workers, func(w Worker) bool { return w.Shape != j.Workers[0].Shape }) {
		return
	}
	request, could := s.Shapes[j.Workers[0].Shape].Request[gpu], int64(0)
	leaving := map[NodeID]int64{}
	for _, l := range d.Leave {
		w := &j.Workers[l.Worker]
		if l.Rule == RuleGangsFirst && !w.Ending && !w.Leaving && w.Node >= 0 {
			leaving[w.Node]++
		}
	}
	for n, count := range leaving {
		could += min(count, max(p.soon.free[int(n)*len(s.Resources)+gpu], 0)/request)
	}
	for _, q := range s.Shapes[j.Workers[0].Shape].Quotas {
		could = min(could, max(p.soon.quota[int(q)*len(s.Counts)], 0)/request)
	}
	if could >= int64(next-stay) {
		t.Fatalf("%d of %s leave, and it could have %d: nobody needs the room of %d", len(d.Leave), j.Name, next, could)
	}
}

// wholeNeeded fails when a whole job could stay.
func (s *simulation) wholeNeeded(t failer, p *planner, id JobID) {
	var left room
	left.copyOf(&p.soon)
	for w := range s.Jobs[id].Workers {
		worker := &s.Jobs[id].Workers[w]
		if p.goesWhole(id, w) {
			left.apply(worker.Node, worker.Shape, -1)
		}
	}
	for w := range s.Jobs[id].Workers {
		worker := &s.Jobs[id].Workers[w]
		short := worker.Node >= 0 && left.free[int(worker.Node)*len(p.c.Resources)+gpu] < 0
		for _, q := range p.c.Shapes[worker.Shape].Quotas {
			short = short || left.quota[int(q)*len(p.c.Counts)] < 0
		}
		if short && p.goesWhole(id, w) {
			return
		}
	}
	t.Fatalf("%s ends for %s, and nobody needs its room", s.Jobs[id].Name, s.Jobs[p.out[id].For].Name)
}

// stay is how many workers a job has when those have left who are to.
func (s *simulation) stay(id JobID, d *Decision) (count int32) {
	for w := range s.Jobs[id].Workers {
		worker := &s.Jobs[id].Workers[w]
		if !worker.Ending && !worker.Leaving && !slices.ContainsFunc(d.Leave, func(l Leave) bool { return l.Worker == w }) {
			count++
		}
	}
	return count
}

// takes are the gangs for which anybody leaves.
func (s *simulation) takes(plan Plan) map[JobID]bool {
	takes := map[JobID]bool{}
	for id := range s.Jobs {
		d := &plan.Decisions[id]
		if d.Evict && s.Jobs[d.For].Stage == Queued {
			takes[d.For] = true
		}
		for _, l := range d.Leave {
			if l.For != None && l.Rule == RuleGangsFirst && s.Jobs[l.For].Stage == Queued {
				takes[l.For] = true
			}
		}
	}
	return takes
}

// promisesHold fails when the gangs that were promised room do not have it all at once when all have left who are to: somebody
// would leave in vain.
func (s *simulation) promisesHold(t failer, plan Plan) {
	if len(s.takes(plan)) == 0 {
		return
	}
	p := s.gangsServed()
	for i := range p.reservations {
		p.hold(&p.reservations[i], false)
	}
	for n := range s.Nodes {
		if left := p.soon.free[n*len(s.Resources)+gpu]; left < 0 {
			t.Fatalf("%d devices of %s are promised that will not be there", -left, s.Nodes[n].Name)
		}
	}
	for q := range s.Quotas {
		if left := p.soon.quota[q*len(s.Counts)]; left < 0 {
			t.Fatalf("%d devices of quota %s are promised that will not be there", -left, s.Quotas[q].Name)
		}
	}
}

// notHeldUp fails when a gang would start, or take what it needs, if none of lower priority waited.
func (s *simulation) notHeldUp(t failer, plan Plan) {
	for id := range s.Jobs {
		j := &s.Jobs[id]
		if j.Stage != Queued || plan.Decisions[id].Start {
			continue
		}
		alone := *s.Cluster
		alone.Jobs = slices.Clone(s.Jobs)
		lower := false
		for other := range alone.Jobs {
			if o := &alone.Jobs[other]; o.Stage == Queued && o.Priority < j.Priority {
				o.Stage, lower = Held, true
			}
		}
		if !lower {
			continue
		}
		if without := NewPlan(&alone); without.of(JobID(id)).Start {
			t.Fatalf("%s would start if none of lower priority waited: %s", j.Name, plan.Decisions[id].Why.Text)
		}
	}
}

// notPutOff fails when the gang that is before all others would start once all have left who are to by a plan without those, and does
// not by this one.
func (s *simulation) notPutOff(t failer, plan Plan) {
	first, alone := JobID(None), *s.Cluster
	alone.Jobs = slices.Clone(s.Jobs)
	for id := range alone.Jobs {
		if j := &alone.Jobs[id]; j.Stage == Queued && (first == None || j.Priority > s.Jobs[first].Priority) {
			first = JobID(id)
		}
	}
	if first == None || plan.of(first).Start {
		return
	}
	for id := range alone.Jobs {
		if j := &alone.Jobs[id]; j.Stage == Queued && JobID(id) != first {
			if j.Priority == s.Jobs[first].Priority {
				return
			}
			j.Stage = Held
		}
	}
	without := simulate(&alone)
	if !NewPlan(without.carriedOut(NewPlan(&alone))).of(first).Start {
		return
	}
	if after := NewPlan(s.carriedOut(plan)).of(first); !after.Start {
		t.Fatalf("%s would start if none of lower priority waited: %s", s.Jobs[first].Name, after.Why.Text)
	}
}

// startsBeside fails when a gang fits what is free even if all of as high a priority who wait have had their room there first, and
// it does not start.
func (s *simulation) startsBeside(t failer, plan Plan) {
	for id := range s.Jobs {
		j := &s.Jobs[id]
		if j.Stage != Queued || plan.Decisions[id].Start {
			continue
		}
		if s.fitsBeside(JobID(id), plan) {
			t.Fatalf("%s does not start, and fits what is free beside all others: %s", j.Name, plan.Decisions[id].Why.Text)
		}
	}
}

// fitsBeside says whether a gang fits so. A worker of others costs it at most as many places as its own workers go into one of those,
// rounded up.
func (s *simulation) fitsBeside(id JobID, plan Plan) bool {
	j := &s.Jobs[id]
	shape := &s.Shapes[j.Gang]
	fits := int64(0)
	for n := range s.Nodes {
		fits += max(s.Nodes[n].Free[gpu], 0) / shape.Request[gpu]
	}
	admits := int64(1) << 40
	for _, q := range shape.Quotas {
		admits = min(admits, s.Quotas[q].Free[0])
	}
	for other := range s.Jobs {
		o := &s.Jobs[other]
		if JobID(other) == id || o.Stage == Held {
			continue
		}
		needs := int64(0)
		if o.Priority >= j.Priority {
			needs = int64(max(o.Min-s.live(o), 0))
		}
		needs = max(needs, int64(plan.Decisions[other].Own), s.moved(JobID(other), plan))
		devices := s.Shapes[o.Gang].Request[gpu]
		fits -= needs * ((devices + shape.Request[gpu] - 1) / shape.Request[gpu])
		if len(shape.Quotas) > 0 && len(s.Shapes[o.Gang].Quotas) > 0 {
			admits -= needs * devices
		}
	}
	return fits >= int64(j.Min) && admits >= int64(j.Min)*shape.Demand[0]
}

// moved is how many workers a job is given while it trains: among them may be replacements of those that move for others.
func (s *simulation) moved(id JobID, plan Plan) int64 {
	if s.Jobs[id].Stage != Training {
		return 0
	}
	return int64(len(plan.Decisions[id].Places))
}

// live is how many workers of a job stay as far as is known.
func (s *simulation) live(j *Job) (count int32) {
	for _, w := range j.Workers {
		if !w.Ending && !w.Leaving {
			count++
		}
	}
	return count
}
