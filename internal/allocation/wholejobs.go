package allocation

import (
	"cmp"
	"slices"
	"time"
)

// evictables are the jobs that may be ended for others, those of which least is lost first.
func (p *planner) evictables() []JobID {
	if p.asked {
		return p.evictable
	}
	p.asked = true
	if p.c.NoEviction || p.barred.all {
		return nil
	}
	for id := range p.c.Jobs {
		in, j := &p.c.Jobs[id], &p.jobs[id]
		if in.Name != "" && j.policy == Evict && (in.Stage == Starting || in.Stage == Training || in.Stage == Fixed) && j.live > 0 {
			p.evictable = append(p.evictable, JobID(id))
		}
	}
	slices.SortFunc(p.evictable, func(a, b JobID) int {
		x, y := &p.c.Jobs[a], &p.c.Jobs[b]
		return cmp.Or(cmp.Compare(x.Priority, y.Priority), cmp.Compare(x.loses(), y.loses()), p.before(b, a))
	})
	return p.evictable
}

// loses is how much work is lost if all of a job's workers go.
func (j *Job) loses() time.Duration {
	if j.Durable {
		return 0
	}
	return j.Lost
}

// vainStarts is how often whole jobs may be ended for a gang that does not train then.
const vainStarts = 3

// mayEvict says whether there is a job that could be ended for a demand: for none that a job trains without, and
// none of a gang that has had its room in vain again and again, or would not start then.
func (p *planner) mayEvict(d *demand) bool {
	in := &p.c.Jobs[d.job]
	if d.kind == replace || in.Starts >= vainStarts || p.isBarred(d) {
		return false
	}
	all := p.evictables()
	return in.Preempts && len(all) > 0 && p.c.Jobs[all[0]].Priority < in.Priority
}

// wholeJobs ends jobs of lower priority, beside all surplus that helps. It changes nothing when the room
// would still not be enough.
func (s *search) wholeJobs(d *demand) bool {
	p := s.p
	within := func() bool {
		return p.reach.of(s.class).total >= int64(s.places) && p.reach.bounds(s.shape, s.headRoom) >= s.made
	}
	s.end(within)
	if within() {
		s.pardonAll(within)
		if s.starved = !s.enoughQuota(); s.starved {
			s.from(p.quotaLenders(s.shape), s.enoughQuota)
		}
		s.fromNodes()
		if !s.enough() {
			// Not all that is within reach may be taken at once.
			s.end(s.enough)
			s.pardonAll(s.enough)
		}
	}
	if s.enough() {
		s.prune()
		if p.lasts(d, true, nil) {
			return true
		}
	}
	s.note()
	s.pardonAll(func() bool { return true })
	s.abandon()
	return false
}

// end ends jobs until there is enough, but for those of which workers move: what these leave was promised before they were asked.
func (s *search) end(enough func() bool) {
	for _, id := range s.p.evictables() {
		if enough() || s.p.c.Jobs[id].Priority >= s.p.c.Jobs[s.job].Priority {
			return
		}
		if j := &s.p.jobs[id]; id != s.job && !j.evicted && j.moves == 0 && s.helpsWhole(id) {
			s.evict(id)
		}
	}
}

// pardonAll lets those jobs stay without which there is enough.
func (s *search) pardonAll(enough func() bool) {
	for i := len(s.whole) - 1; i >= 0; i-- {
		id := s.whole[i]
		if s.pardon(id); enough() {
			s.whole = slices.Delete(s.whole, i, i+1)
		} else {
			s.evictAgain(id)
		}
	}
}

// helpsWhole says whether any worker of a job holds something that is needed.
func (s *search) helpsWhole(id JobID) bool {
	for w := range s.p.c.Jobs[id].Workers {
		if worker := &s.p.c.Jobs[id].Workers[w]; !worker.Ending && !worker.Leaving && s.helps(worker) {
			return true
		}
	}
	return false
}

// evict has all of a job go.
func (s *search) evict(id JobID) {
	s.chosen = slices.DeleteFunc(s.chosen, func(v victim) bool {
		if v.job == id {
			s.p.spare(id, v.worker)
		}
		return v.job == id
	})
	s.evictAgain(id)
	s.whole = append(s.whole, id)
}

func (s *search) evictAgain(id JobID) {
	s.p.evict(id, 1)
	s.p.jobs[id].evicted = true
	s.p.evicted++
}

// pardon takes that back.
func (s *search) pardon(id JobID) {
	s.p.jobs[id].evicted = false
	s.p.evicted--
	s.p.evict(id, -1)
}

// evict gives the room of a job, as far as it does not come free anyway, or takes it back.
func (p *planner) evict(id JobID, times int32) {
	in := &p.c.Jobs[id]
	for w := range in.Workers {
		if !p.goesWhole(id, w) {
			continue
		}
		worker := &in.Workers[w]
		p.soon.add(worker.Node, worker.Shape, times)
		if !p.takeable(id, w) {
			p.reach.add(worker.Node, worker.Shape, times)
		}
	}
}

// goesWhole says whether a worker would leave because its whole job goes.
func (p *planner) goesWhole(id JobID, w int) bool {
	worker, l := &p.c.Jobs[id].Workers[w], &p.leaving[p.jobs[id].first+w]
	return !worker.Ending && !worker.Leaving && !l.chosen && !l.held
}

// helps says whether a worker holds something that is needed.
func (s *search) helps(w *Worker) bool {
	if w.Node >= 0 && s.p.classes.all[s.class].nodes.Has(int(w.Node)) && !s.enoughPlaces() {
		return true
	}
	return !s.enoughQuota() && s.countsAgainst(w.Shape)
}

// countsAgainst says whether workers of a shape count against a quota that is needed.
func (s *search) countsAgainst(shape ShapeID) bool {
	for _, q := range s.p.c.Shapes[shape].Quotas {
		if slices.Contains(s.p.c.Shapes[s.shape].Quotas, q) {
			return true
		}
	}
	return false
}
