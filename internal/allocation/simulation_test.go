package allocation

import (
	"fmt"
	"slices"
	"time"
)

// simulation carries plans out, as the controller, the scheduler and the nodes would.
type simulation struct {
	*Cluster
	plan Plan
	// left is how many ticks of work a job still has; 0 for one that never ends.
	left map[JobID]int
	// ends says how many ticks a pod takes to its end, by job and ordinal; nil for one.
	ends  func() int
	going map[[2]int32]int
	// pauses says how many ticks a job takes to the barrier at which marked workers leave it; nil for none.
	pauses  func() int
	pausing map[JobID]int
	tick    time.Duration
	// log tells what happened, for people.
	log []string
	// check is called with each plan before it is carried out.
	check func(Plan)
}

func simulate(c *Cluster) *simulation {
	return &simulation{Cluster: c, left: map[JobID]int{}, going: map[[2]int32]int{}, pausing: map[JobID]int{}, tick: 5 * time.Second}
}

func (s *simulation) run(ticks int) *simulation {
	for range ticks {
		s.step()
	}
	return s
}

// step makes a plan, carries it out, and lets a little time pass.
func (s *simulation) step() {
	s.plan = NewPlan(s.Cluster)
	if s.check != nil {
		s.check(s.plan)
	}
	s.Foresight = s.plan.Foresight
	for id := range s.Jobs {
		s.carryOut(JobID(id), &s.plan.Decisions[id])
	}
	s.pass()
}

func (s *simulation) carryOut(id JobID, d *Decision) {
	j := &s.Jobs[id]
	if j.Name == "" {
		return
	}
	j.Promised, j.InVain = d.Promised, d.InVain
	if d.Evict {
		for w := range j.Workers {
			j.Workers[w].Ending = true
		}
		s.say("%s is evicted for %s", j.Name, s.Jobs[d.For].Name)
		j.Stage, j.Target = Held, 0
		return
	}
	if d.Start {
		s.say("%s starts", j.Name)
		j.Stage, j.Queued = Starting, time.Time{}
	}
	if j.Stage == Held {
		return
	}
	j.ShortSince, j.Again, j.Work = d.ShortSince, d.Again, d.Work
	s.mark(id, d)
	for i, n := range d.Places {
		own := int32(i) < d.Own
		shape := j.Growth
		if own {
			shape = j.Gang
		} else if d.Count > j.Target {
			j.GrewAt = s.Now
		}
		w := Worker{Node: n, Shape: shape, Own: own, For: None, Rank: -1, Ordinal: s.ordinal(j)}
		s.take(w)
		j.Workers = append(j.Workers, w)
	}
	if j.Target != d.Count {
		s.say("%s has %d, was %d: %s", j.Name, d.Count, j.Target, d.Why.Text)
	}
	j.Target = d.Count
}

// mark makes the marks of the plan those of the workers.
func (s *simulation) mark(id JobID, d *Decision) {
	j := &s.Jobs[id]
	reclaimed, evened := false, JobID(None)
	for w := range j.Workers {
		worker := &j.Workers[w]
		i := slices.IndexFunc(d.Leave, func(l Leave) bool { return l.Worker == w })
		if i < 0 {
			worker.Marked, worker.For, worker.Moves = false, None, false
			continue
		}
		if !worker.Marked && d.Leave[i].For != None && d.Leave[i].For != id {
			reclaimed = true
			if s.Jobs[d.Leave[i].For].Priority == j.Priority && d.Leave[i].Rule == RuleGrowth {
				evened = d.Leave[i].For
			}
		}
		worker.Moves = worker.Moves || !worker.Marked && d.Leave[i].Rule == RuleConsolidation // what a mark says stays as it is
		worker.Marked, worker.For = true, d.Leave[i].For
	}
	if reclaimed {
		j.Reclaims = s.Settings.Lately(j.Reclaims, s.Now.Sub(j.ReclaimedAt)) + 1
		j.ReclaimedAt = s.Now
	}
	if evened != None {
		j.EvenedAt = s.Now
	}
}

func (s *simulation) ordinal(j *Job) int32 {
	for n := int32(0); ; n++ {
		if !slices.ContainsFunc(j.Workers, func(w Worker) bool { return w.Ordinal == n }) {
			return n
		}
	}
}

// pass lets pods end that were ending, marked ones begin to end, and new ones be bound.
func (s *simulation) pass() {
	s.Now = s.Now.Add(s.tick)
	for id := range s.Jobs {
		j := &s.Jobs[id]
		s.approach(JobID(id))
		for w := len(j.Workers) - 1; w >= 0; w-- {
			s.age(JobID(id), w)
		}
		bound := int32(0)
		for _, w := range j.Workers {
			if w.Bound && !w.Ending {
				bound++
			}
		}
		switch {
		case j.Stage == Held && len(j.Workers) == 0 && s.left[JobID(id)] >= 0:
			j.Stage, j.Queued = Queued, s.Now
		case j.Stage == Starting && bound >= j.Min:
			j.Stage = Training
		}
		if s.left[JobID(id)] > 0 && j.Stage == Training {
			if s.left[JobID(id)]--; s.left[JobID(id)] == 0 {
				s.finish(JobID(id))
			}
		}
	}
}

// approach brings a job with marked workers nearer to the barrier at which they leave.
func (s *simulation) approach(id JobID) {
	marked := slices.ContainsFunc(s.Jobs[id].Workers, func(w Worker) bool { return w.Marked && !w.Ending })
	left, pausing := s.pausing[id]
	switch {
	case !marked:
		delete(s.pausing, id)
	case s.pauses == nil:
		s.pausing[id] = 0
	case !pausing:
		s.pausing[id] = s.pauses()
	default:
		s.pausing[id] = max(left-1, 0)
	}
}

// age is what one tick does to one pod.
func (s *simulation) age(id JobID, n int) {
	j := &s.Jobs[id]
	w := &j.Workers[n]
	key := [2]int32{int32(id), w.Ordinal}
	switch {
	case w.Ending && s.going[key] > 0:
		s.going[key]--
	case w.Ending:
		s.put(*w)
		j.Workers = slices.Delete(j.Workers, n, n+1)
	case w.Marked && s.pausing[id] > 0 && w.World:
	case w.Marked:
		w.Ending = true
		if s.ends != nil {
			s.going[key] = s.ends()
		}
	case !w.Bound:
		w.Bound = true
	case j.Stage == Training && !w.World:
		w.World, w.Rank = true, w.Ordinal
	}
}

// finish ends a job: its pods end, and it never comes back.
func (s *simulation) finish(id JobID) {
	j := &s.Jobs[id]
	s.left[id] = -1
	for w := range j.Workers {
		j.Workers[w].Ending = true
	}
	s.say("%s is done", j.Name)
	j.Stage, j.Target = Held, 0
}

func (s *simulation) say(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf("%4.0f s  ", s.Now.Sub(noon).Seconds())+fmt.Sprintf(format, args...))
}

// counts are how many workers each job has that do not end.
func (s *simulation) counts() []int {
	all := make([]int, len(s.Jobs))
	for id := range s.Jobs {
		for _, w := range s.Jobs[id].Workers {
			if !w.Ending {
				all[id]++
			}
		}
	}
	return all
}
