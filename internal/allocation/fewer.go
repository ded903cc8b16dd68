package allocation

import "slices"

// Taking node by node what a job misses least is not always taking as few as possible: where a place needs
// several workers, another node may lack only one.

// The search for fewer is bounded, so that a plan remains a matter of milliseconds.
const (
	fewerAmong = 32
	fewerTried = 64
	// fewerLooked bounds how many workers of others are looked at.
	fewerLooked = 512
)

// fewer has one worker more leave where that lets two others stay, as often as that is possible. Only those
// who give in any case are asked: nobody else pauses for it.
func (s *search) fewer() {
	if int64(len(s.chosen)) > fewerAmong {
		return
	}
	tried := 0
	for again := true; again && len(s.chosen) > 1; {
		again = false
		for _, v := range s.candidates() {
			if tried++; tried > fewerTried {
				return
			}
			if again = s.instead(v); again {
				break
			}
		}
	}
	s.fromAnother(tried)
}

// fromAnother has one worker of a job that gives nothing so far leave instead of several, where less is lost then: of which jobs most
// could be taken says nothing of where one is enough.
func (s *search) fromAnother(tried int) {
	if len(s.chosen) < 2 || !s.enough() {
		return
	}
	all, seen := s.p.lendersTo(s.class), 0
	for i := range all.all {
		l := &all.all[i]
		in, j := &s.p.c.Jobs[l.job], &s.p.jobs[l.job]
		if l.job == s.job || j.evicted || j.moves > 0 || j.gone > 0 || j.limit < 1 || !j.young.IsZero() || len(in.Sizes) > 0 || s.givenAway(l.job) > 0 {
			continue
		}
		for _, w := range all.inOrder(l, in.Workers) {
			if seen++; seen > fewerLooked {
				return
			}
			one := victim{l.job, int(w)}
			if in.Workers[w].Own || !s.p.takeable(l.job, int(w)) || !s.makesPlace(one) {
				continue
			}
			if tried++; tried > fewerTried || s.cheaper(one) {
				return
			}
			break // others of it do no more
		}
	}
}

// cheaper says whether less is lost when a worker leaves instead of several others, and has it leave then.
func (s *search) cheaper(v victim) bool {
	before, loss := slices.Clone(s.chosen), s.loses()
	if !s.instead(v) {
		return false
	}
	if s.loses() < loss {
		return true
	}
	for i := len(s.chosen) - 1; i >= 0; i-- {
		s.p.spare(s.chosen[i].job, s.chosen[i].worker)
	}
	s.chosen = s.chosen[:0]
	for _, was := range before {
		s.choose(was.job, was.worker)
	}
	return false
}

// candidates are workers of the lenders that would make a place at once.
func (s *search) candidates() []victim {
	var all []victim
	var seen []JobID
	for _, v := range s.chosen {
		in, j := &s.p.c.Jobs[v.job], &s.p.jobs[v.job]
		if slices.Contains(seen, v.job) || j.evicted || len(in.Sizes) > 0 {
			continue
		}
		seen = append(seen, v.job)
		for _, l := range j.lendables {
			one := victim{v.job, int(l.worker)}
			if s.p.takeable(one.job, one.worker) && s.makesPlace(one) {
				all = append(all, one)
			}
		}
	}
	return all
}

// makesPlace says whether there is a place more when a worker leaves.
func (s *search) makesPlace(v victim) bool {
	soon, worker := &s.p.soon, &s.p.c.Jobs[v.job].Workers[v.worker]
	at := soon.of(s.class)
	if !s.mayUse(worker.Node) {
		return false
	}
	row, request := soon.free[int(worker.Node)*len(s.p.c.Resources):], s.p.c.Shapes[worker.Shape].Request
	for i, amount := range at.class.request {
		if amount > 0 && (row[i]+request[i])/amount <= int64(at.at[worker.Node]) {
			return false
		}
	}
	return true
}

// instead says whether a worker could leave instead of several others, and has it leave then.
func (s *search) instead(v victim) bool {
	in, j := &s.p.c.Jobs[v.job], &s.p.jobs[v.job]
	before := slices.Clone(s.chosen)
	s.chosen = append([]victim{v}, s.chosen...)
	s.p.choose(v.job, v.worker, s.job, s.rule)
	s.spareAll(false)
	tooMany := j.gone > j.limit || in.Workers[v.worker].Own && j.ownBound-j.ownGone < in.Min
	if len(s.chosen) < len(before) && !tooMany {
		return true
	}
	for _, was := range before {
		if !slices.Contains(s.chosen, was) {
			s.p.choose(was.job, was.worker, s.job, s.rule)
		}
	}
	if slices.Contains(s.chosen, v) {
		s.p.spare(v.job, v.worker)
	}
	s.chosen = before
	return false
}
