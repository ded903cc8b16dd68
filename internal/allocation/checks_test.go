package allocation

import "slices"

// failer is told of what does not hold.
type failer interface {
	Fatalf(format string, args ...any)
}

// sound fails when a plan breaks a promise that holds always.
func (s *simulation) sound(t failer, plan Plan) {
	free := make([]Amounts, len(s.Nodes))
	for n := range s.Nodes {
		free[n] = append(Amounts{}, s.Nodes[n].Free...)
	}
	quota := make([]Amounts, len(s.Quotas))
	for q := range s.Quotas {
		quota[q] = append(Amounts{}, s.Quotas[q].Free...)
	}
	for id := range s.Jobs {
		j, d := &s.Jobs[id], &plan.Decisions[id]
		s.soundDecision(t, JobID(id), d)
		notToAndFro(t, s.Cluster, plan, JobID(id))
		for i, n := range d.Places {
			shape := &s.Shapes[j.Growth]
			if int32(i) < d.Own {
				shape = &s.Shapes[j.Gang]
			}
			for r, amount := range shape.Request {
				if free[n][r] -= amount; free[n][r] < 0 {
					t.Fatalf("%s: too little on %s", j.Name, s.Nodes[n].Name)
				}
			}
			for _, q := range shape.Quotas {
				for r, amount := range shape.Demand {
					if quota[q][r] -= amount; quota[q][r] < 0 {
						t.Fatalf("%s: beyond its quota", j.Name)
					}
				}
			}
		}
	}
}

// notToAndFro fails when a plan makes surplus workers of a job and has others of it leave for nobody: that would go on for ever.
func notToAndFro(t failer, c *Cluster, plan Plan, id JobID) {
	j, d := &c.Jobs[id], &plan.Decisions[id]
	drops := slices.ContainsFunc(d.Leave, func(l Leave) bool {
		w := &j.Workers[l.Worker]
		return l.For == None && l.Rule == RuleGrowth && !w.Own && !w.Marked && !w.Ending && !w.Leaving
	})
	if drops && len(d.Places) > int(d.Own) {
		t.Fatalf("%s grows by %d, and %d of it leave, some for nobody: %+v", j.Name, len(d.Places)-int(d.Own), len(d.Leave), d)
	}
}

func (s *simulation) soundDecision(t failer, id JobID, d *Decision) {
	j := &s.Jobs[id]
	live, own := int32(0), int32(0)
	for _, w := range j.Workers {
		if !w.Ending && !w.Leaving {
			live++
			if w.Own && w.Bound {
				own++
			}
		}
	}
	leave := int32(0)
	for _, l := range d.Leave {
		w := &j.Workers[l.Worker]
		if w.Ending || w.Leaving {
			continue
		}
		leave++
		if w.Own && w.Bound {
			own--
		}
	}
	switch {
	case d.Evict:
		if s.Jobs[d.For].Priority <= j.Priority || j.policy(s) != Evict {
			t.Fatalf("%s is evicted for %s", j.Name, s.Jobs[d.For].Name)
		}
	case j.Stage == Queued:
		if d.Start && (len(d.Places) != int(j.Min) || d.Own != j.Min) || !d.Start && (d.Count != 0 || len(d.Places) > 0) {
			t.Fatalf("%s starts partly: %+v", j.Name, d)
		}
		if !d.Start && d.Why.Text == "" {
			t.Fatalf("%s waits and nobody says why", j.Name)
		}
	case j.Stage == Training:
		if d.Count < j.Min || d.Count > j.Max || !j.legal(d.Count) {
			t.Fatalf("%s has %d: not legal", j.Name, d.Count)
		}
		if leave > 0 && (own < j.Min || live-leave < j.Min) {
			t.Fatalf("%s is left with %d, %d of its own class", j.Name, live-leave, own)
		}
		if j.policy(s) == Never && leave > 0 {
			t.Fatalf("%s gives though its policy is Never", j.Name)
		}
	}
}

// avoiding fails when a job grows on a node that it avoids, or has somebody leave for its growth there who is not to leave for a
// quota, or for a legal number of workers.
func (s *simulation) avoiding(t failer, plan Plan) {
	for id := range s.Jobs {
		j, d := &s.Jobs[id], &plan.Decisions[id]
		for _, n := range d.Places[d.Own:] {
			if slices.Contains(j.Avoid, n) {
				t.Fatalf("%s grows on %s, which it avoids", j.Name, s.Nodes[n].Name)
			}
		}
		for _, l := range d.Leave {
			w := &j.Workers[l.Worker]
			if l.For == None || l.Rule != RuleGrowth && l.Rule != RuleGangClass || w.Marked || len(j.Sizes) > 0 || len(s.Shapes[w.Shape].Quotas) > 0 {
				continue
			}
			if whom := &s.Jobs[l.For]; slices.Contains(whom.Avoid, w.Node) {
				t.Fatalf("one of %s leaves %s for %s, which avoids that", j.Name, s.Nodes[w.Node].Name, whom.Name)
			}
		}
	}
}

// needed fails when a gang that takes from others could start without one of those who leave for it.
func (s *simulation) needed(t failer, plan Plan) {
	for whom := range s.Jobs {
		j, takers := &s.Jobs[whom], 0
		free, victims := s.afterwards(), []Worker{}
		for id := range s.Jobs {
			for _, l := range plan.Decisions[id].Leave {
				w := s.Jobs[id].Workers[l.Worker]
				if w.Ending || w.Leaving {
					continue
				}
				if len(s.Jobs[id].Sizes) > 0 {
					takers = -1000
				}
				if l.For == JobID(whom) && l.Rule == RuleGangsFirst {
					takers++
					victims = append(victims, w)
				}
			}
			if plan.Decisions[id].Evict {
				takers = -1000
			}
		}
		if takers <= 0 || j.Stage != Queued {
			continue
		}
		// Others that wait may have been promised what is free: only one gang that takes can be judged.
		if s.takers(plan) > 1 {
			continue
		}
		for _, spared := range victims {
			fits := int64(0)
			for n := range s.Nodes {
				left := free[n]
				for _, w := range victims {
					if w != spared && int(w.Node) == n {
						left += s.Shapes[w.Shape].Request[gpu]
					}
				}
				fits += left / s.Shapes[j.Gang].Request[gpu]
			}
			if fits >= int64(j.Min) && len(s.Shapes[j.Gang].Quotas) == 0 {
				t.Fatalf("%s does not need all %d that leave for it", j.Name, len(victims))
			}
		}
	}
}

// helps fails when a gang that has others leave for it would not start once all have ended who are to: somebody would have left in
// vain. What is kept for others, and what these are promised, counts here as well. Of several that take at once the first one is
// looked at: once all is free it may choose other nodes than it was promised, which those behind it were promised then. That the room
// of all of them is there together promisesHold sees to.
func (s *simulation) helps(t failer, plan Plan) {
	takes, young := s.takes(plan), false
	for id := range s.Jobs {
		young = young || !s.Jobs[id].Preempts && s.Jobs[id].Stage == Queued || !until(s.Jobs[id].GrewAt, s.Settings.MinRuntime, s.Now).IsZero()
	}
	if len(takes) == 0 || young {
		return
	}
	first, p := JobID(None), planner{c: s.Cluster}
	for id := range takes {
		if first == None || p.before(id, first) < 0 {
			first = id
		}
	}
	after := NewPlan(s.carriedOut(plan))
	for id := range s.Jobs {
		if !takes[JobID(id)] && after.Decisions[id].Own > plan.Decisions[id].Own {
			return // one before them could not ask for this itself, and has it now
		}
	}
	evicts := slices.ContainsFunc(plan.Decisions, func(d Decision) bool { return d.Evict })
	if evicts && len(takes) > 1 && s.waitsBefore(first, takes) {
		return // a whole job goes beside others that leave, and one before has more of that together than it could ask for
	}
	if !after.of(first).Start {
		t.Fatalf("%s does not start when all have left who are to: %s", s.Jobs[first].Name, after.of(first).Why.Text)
	}
}

// waitsBefore says whether a gang waits before another one, and takes nothing.
func (s *simulation) waitsBefore(first JobID, takes map[JobID]bool) bool {
	p := planner{c: s.Cluster}
	for id := range s.Jobs {
		if s.Jobs[id].Stage == Queued && !takes[JobID(id)] && p.before(JobID(id), first) < 0 {
			return true
		}
	}
	return false
}

// carriedOut is the cluster once a plan was carried out, and all have ended who are to.
func (s *simulation) carriedOut(plan Plan) *Cluster {
	after := *s.Cluster
	after.Nodes, after.Quotas, after.Jobs = slices.Clone(s.Nodes), slices.Clone(s.Quotas), slices.Clone(s.Jobs)
	for n := range after.Nodes {
		after.Nodes[n].Free = slices.Clone(after.Nodes[n].Free)
	}
	for q := range after.Quotas {
		after.Quotas[q].Free = slices.Clone(after.Quotas[q].Free)
	}
	then := simulate(&after)
	for id := range after.Jobs {
		j := &after.Jobs[id]
		j.Workers = slices.Clone(j.Workers)
		then.carryOut(JobID(id), &plan.Decisions[id])
		j.Workers = slices.DeleteFunc(j.Workers, func(w Worker) bool {
			if w.Ending || w.Marked {
				after.put(w)
			}
			return w.Ending || w.Marked
		})
	}
	return &after
}

// afterwards are the devices that are free on each node once all has ended that ends.
func (s *simulation) afterwards() []int64 {
	free := make([]int64, len(s.Nodes))
	for n := range s.Nodes {
		free[n] = s.Nodes[n].Free[gpu]
	}
	for id := range s.Jobs {
		for _, w := range s.Jobs[id].Workers {
			if w.Ending {
				free[w.Node] += s.Shapes[w.Shape].Request[gpu]
			}
		}
	}
	return free
}

// takers are the jobs that wait for room or begin, or have others leave for them.
func (s *simulation) takers(plan Plan) (count int) {
	for id := range s.Jobs {
		if j := &s.Jobs[id]; j.Stage == Queued || j.Stage == Starting || len(plan.Decisions[id].Places) > 0 {
			count++
		}
	}
	return count
}

// inOrder fails when a gang starts while one of higher priority waits that could have had its room.
func (s *simulation) inOrder(t failer, plan Plan) {
	free := make([]int64, len(s.Nodes))
	for n := range s.Nodes {
		free[n] = s.Nodes[n].Free[gpu]
	}
	for id := range s.Jobs {
		j := &s.Jobs[id]
		if j.Stage != Queued || plan.Decisions[id].Start || len(s.Shapes[j.Gang].Quotas) > 0 || s.othersWait(JobID(id), plan) {
			continue
		}
		fits := int64(0)
		for n := range free {
			// What is given to others of higher or the same priority is not counted.
			left := free[n]
			for other := range s.Jobs {
				if s.Jobs[other].Priority >= j.Priority {
					for _, place := range plan.Decisions[other].Places {
						if int(place) == n {
							left -= s.Shapes[s.Jobs[other].Gang].Request[gpu]
						}
					}
				}
			}
			fits += max(left, 0) / s.Shapes[j.Gang].Request[gpu]
		}
		if fits < int64(j.Min) {
			continue
		}
		for other := range s.Jobs {
			if s.Jobs[other].Priority < j.Priority && plan.Decisions[other].Start {
				t.Fatalf("%s starts before %s", s.Jobs[other].Name, j.Name)
			}
		}
	}
}

// othersWait says whether what is free may have been promised to others of the same or a higher priority.
func (s *simulation) othersWait(id JobID, plan Plan) bool {
	for other := range s.Jobs {
		j := &s.Jobs[other]
		if JobID(other) != id && j.Stage != Held && j.Priority >= s.Jobs[id].Priority && (j.Stage == Queued && !plan.Decisions[other].Start || j.Stage == Starting || int32(len(j.Workers)) < j.Min) {
			return true
		}
	}
	return false
}

func (j *Job) policy(s *simulation) Policy {
	return (&planner{c: s.Cluster}).policy(j)
}

// digest is what of a plan matters to a cluster at rest.
func (p Plan) quiet() bool {
	for i := range p.Decisions {
		d := &p.Decisions[i]
		if d.Start || d.Evict || len(d.Places) > 0 || len(d.Leave) > 0 {
			return false
		}
	}
	return true
}
