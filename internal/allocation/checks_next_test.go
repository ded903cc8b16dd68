package allocation

import "slices"

// These checks carry a plan out, or have it marked, and look at the next one.

// wholeHelps fails when a gang for which a whole job ends would not start once all have left who are to.
func (s *simulation) wholeHelps(t failer, plan Plan) {
	var next Plan
	for id := range s.Jobs {
		d := &plan.Decisions[id]
		if !d.Evict || s.Jobs[d.For].Stage != Queued {
			continue
		}
		if next.Decisions == nil {
			next = NewPlan(s.carriedOut(plan))
		}
		if whom := next.of(d.For); !whom.Start {
			t.Fatalf("all of %s ends for %s, which does not start then: %s", s.Jobs[id].Name, s.Jobs[d.For].Name, whom.Why.Text)
		}
	}
}

// allStart fails when a gang for which anybody leaves would not start once all have left who are to, unless workers move for one of
// higher priority then: that had none to take, and has the room of those who left to move others into. Where workers move already, or
// some may not leave yet, more than one plan is needed; where whole jobs end, one that waits before may be kept more.
func (s *simulation) allStart(t failer, plan Plan) {
	takes := s.takes(plan)
	young := func(j Job) bool { return !until(j.GrewAt, s.Settings.MinRuntime, s.Now).IsZero() }
	if len(takes) == 0 || plan.moves() || plan.ends() || slices.ContainsFunc(s.Jobs, young) {
		return
	}
	next := NewPlan(s.carriedOut(plan))
	for id := range takes {
		if next.of(id).Start {
			continue
		}
		j := &s.Jobs[id]
		higher := slices.ContainsFunc(s.Jobs, func(other Job) bool { return other.Stage == Queued && other.Priority > j.Priority })
		if !next.moves() || !higher {
			t.Fatalf("%s does not start when all have left who are to: %s", j.Name, next.of(id).Why.Text)
		}
	}
}

// marked is the cluster when the lenders among some jobs have their marks.
func (s *simulation) marked(plan Plan, which func(JobID) bool) *Cluster {
	partly := *s.Cluster
	partly.Jobs, partly.Foresight = slices.Clone(s.Jobs), plan.Foresight
	then := simulate(&partly)
	for id := range partly.Jobs {
		j, d := &partly.Jobs[id], &plan.Decisions[id]
		if j.Promised, j.InVain = d.Promised, d.InVain; j.Stage != Training || d.Evict || !which(JobID(id)) {
			continue
		}
		j.Workers = slices.Clone(j.Workers)
		then.mark(JobID(id), d)
		j.Target = d.Count
	}
	return &partly
}

// ends says whether any whole job ends.
func (p Plan) ends() bool {
	return slices.ContainsFunc(p.Decisions, func(d Decision) bool { return d.Evict })
}

// sameEnd fails when the next plan has other whole jobs end, though nothing has happened but that lenders have their marks: one of them,
// since they carry a plan out one after the other, or all.
func (s *simulation) sameEnd(t failer, plan Plan) {
	if !plan.ends() {
		return
	}
	compare := func(who string, marked func(JobID) bool) {
		next := NewPlan(s.marked(plan, marked))
		for id := range s.Jobs {
			if was, is := plan.of(JobID(id)), next.of(JobID(id)); was.Evict != is.Evict || was.For != is.For {
				t.Fatalf("with the marks of %s all of %s ends: %v, for %d; before: %v, for %d", who, s.Jobs[id].Name, is.Evict, is.For, was.Evict, was.For)
			}
		}
	}
	compare("all", func(JobID) bool { return true })
	for id := range s.Jobs {
		if d := &plan.Decisions[id]; len(d.Leave) > 0 && !d.Evict {
			compare(s.Jobs[id].Name, func(other JobID) bool { return int(other) == id })
		}
	}
}
