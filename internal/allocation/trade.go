package allocation

// trade has a job that wishes for more take a step from one of the same namespace that has more than it wishes for. Who gave lately
// takes nothing back, since noise would have two trade to and fro; but it may give more at once: what it tried may be known to be of
// no use only now, and it ends at its min.
func (l *level) trade(id JobID, steps int32) bool {
	p := l.p
	if p.c.Jobs[id].Pace == nil {
		return false
	}
	for _, donor := range l.jobsOver(p.c.Jobs[id].Namespace) {
		j := &p.jobs[donor]
		if donor == id || p.size(donor) <= j.wish {
			continue
		}
		fair := func(int64) bool { return p.size(donor) >= j.wish }
		if (p.rested(id) || p.entitled(id) || p.marksFor(donor, id)) && p.takeOne(id, donor, steps, fair) {
			return true
		}
	}
	return false
}

// entitled says whether a job is to have more whatever it gave lately: it was short of half its share for too long, or would miss
// its deadline and could meet it.
func (p *planner) entitled(id JobID) bool {
	needs := p.out[id].Needs
	if p.out[id].Could > 0 {
		needs = 0 // it takes none for that
	}
	return p.size(id) < max(p.jobs[id].owed, needs)
}

// jobsOver are the jobs of this priority and a namespace that have more than they wish for.
func (l *level) jobsOver(namespace NamespaceID) []JobID {
	p := l.p
	if l.over == nil {
		l.over = map[NamespaceID][]JobID{}
		for _, id := range p.order {
			if in := &p.c.Jobs[id]; in.Priority == l.priority && in.Pace != nil && p.jobs[id].wish > 0 && p.size(id) > p.jobs[id].wish {
				l.over[in.Namespace] = append(l.over[in.Namespace], id)
			}
		}
	}
	return l.over[namespace]
}
