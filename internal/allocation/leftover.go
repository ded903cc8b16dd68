package allocation

import "slices"

// What is free in sum is not always room for a pod: who wishes for more may find no place for it, since processors are used up
// where devices are left, or since it may not use these nodes. Others have such devices then, as far as they make anything of them.
// Nobody gives anything for that. It is offered once a plan: who could not take it this time either leaves it.

// resell has equals wish for what is left over, and says whether anybody does.
func (l *level) resell() bool {
	raised := false
	for _, m := range l.p.markets {
		raised = m.priority == l.priority && m.resell() || raised
	}
	if raised {
		l.groups, l.over, l.ranked, l.donors = nil, nil, false, nil // they were found by other wishes
	}
	return raised
}

func (m *market) resell() bool {
	p := m.p
	if !slices.ContainsFunc(m.jobs, p.stuck) {
		return false
	}
	left := m.places()
	if left <= 0 {
		return false
	}
	total := float64(left)
	has, caps, weights := make([]float64, len(m.stalls)), make([]float64, len(m.stalls)), make([]float64, len(m.stalls))
	for i, s := range m.stalls {
		for _, id := range s.jobs {
			has[i] += float64(p.surplus(id))
			if p.stuck(id) {
				caps[i] += float64(p.surplus(id))
			} else {
				caps[i] += float64(p.room(id))
			}
		}
		total += has[i]
		weights[i] = float64(p.weight(s.namespace))
	}
	raised := false
	for i, share := range waterFill(total, caps, weights) {
		raised = m.stalls[i].resell(p, &left, min(left, int64(share-has[i]+rounding))) || raised
	}
	for _, s := range m.stalls {
		raised = s.resell(p, &left, left) || raised // what one namespace has no use for is the others'
	}
	return raised
}

// stuck says whether a job wishes for more than could be found for it.
func (p *planner) stuck(id JobID) bool { return p.size(id) < p.jobs[id].wish && p.mayGrow(id) }

// resell has the jobs of a namespace take so many devices of those that are left, beyond what they have or wish for. It says whether
// any wishes for more.
func (s *stall) resell(p *planner, left *int64, more int64) bool {
	if more <= 0 {
		return false
	}
	var bids []*bid
	free := more
	p.offers = p.offers[:0]
	for _, id := range s.jobs {
		// Sizes are listed of those only that could have more: in a large cluster there are many others.
		if p.c.Jobs[id].Pace == nil || p.stuck(id) || !p.mayGrow(id) || !p.kept(id) || !p.tried(id) {
			continue
		}
		b := p.bid(id, 0)
		for b.floor < len(b.offers)-1 && b.offers[b.floor].size < max(p.size(id), p.jobs[id].wish) {
			b.floor++
		}
		if b.most <= b.floor {
			continue
		}
		free += b.offers[b.floor].devices - int64(p.c.Jobs[id].Min)*p.devices(id)
		bids = append(bids, b)
	}
	slices.SortStableFunc(bids, (*bid).before)
	rest, raised := p.sell(bids, pool{all: free, untaken: free}, p.queued(s.namespace, p.c.Jobs[s.jobs[0]].Priority)).all, false
	for _, b := range bids {
		if b.taken > b.floor {
			p.jobs[b.id].wish, p.out[b.id].Wish = b.offers[b.taken].size, b.offers[b.taken].size
			raised = true
		}
	}
	*left -= more - rest
	for _, id := range s.jobs {
		if j := &p.jobs[id]; p.c.Jobs[id].Pace == nil && rest > 0 && j.wish > 0 && p.mayGrow(id) {
			j.wish = 0 // nothing bounds it
			raised = true
		}
	}
	return raised
}
