package allocation

// What is reserved is taken out of all that look at room: here is how much of it, and out of which.

// hold takes the room of a reservation, or gives it back. What is kept comes out of what is lent first, as far as there is
// enough of that, so that others who start on what is free need not take back what will do for the reservation. No mark of a
// room may be in use.
func (p *planner) hold(r *reservation, take bool) {
	times := int32(1)
	if take {
		times, r.taken = -1, r.taken[:0]
	}
	width := len(p.c.Resources)
	for i, at := range r.runs() {
		p.reach.add(at.node, r.shape, times*at.count)
		if at.node < 0 {
			continue
		}
		for which, one := range []*room{&p.now, &p.soon} {
			if take {
				r.taken = p.taking(r, at, one, r.taken)
			}
			one.give(at.node, r.taken[(2*i+which)*width:(2*i+which+1)*width], int64(times))
		}
	}
	p.holdQuotas(r, take)
	if !take {
		r.taken = r.taken[:0]
	}
}

// holdQuotas does so with quotas, once all is out of reach.
func (p *planner) holdQuotas(r *reservation, take bool) {
	if take {
		r.quotas = p.takingQuotas(r, r.quotas[:0])
	}
	times := int64(1)
	if take {
		times = -1
	}
	for which, one := range []*room{&p.now, &p.soon} {
		p.grantKept(r, which, one, times)
	}
	if !take {
		r.quotas = r.quotas[:0]
	}
}

// grantKept gives a room what was taken of its quotas for a reservation, so many times.
func (p *planner) grantKept(r *reservation, which int, one *room, times int64) {
	counts, quotas := len(p.c.Counts), p.c.Shapes[r.shape].Quotas
	if len(r.quotas) == 0 {
		return // nothing is held just now
	}
	for i, q := range quotas {
		at := (which*len(quotas) + i) * counts
		one.grant(q, r.quotas[at:at+counts], times)
	}
}

// run is some places of a reservation on one node.
type run struct {
	node  NodeID
	count int32
}

// runs are the places of a reservation, those on one node that follow each other together.
func (r *reservation) runs() []run { return runs(r.held) }

func runs(nodes []NodeID) []run {
	var all []run
	for _, n := range nodes {
		if last := len(all) - 1; last >= 0 && all[last].node == n {
			all[last].count++
		} else {
			all = append(all, run{n, 1})
		}
	}
	return all
}

// taking appends what so many places on a node take of a room: what is beyond its reach without them.
func (p *planner) taking(r *reservation, at run, from *room, to []int64) []int64 {
	row := int(at.node) * len(p.c.Resources)
	for i := range p.c.Resources {
		all := int64(0)
		if request := p.c.Shapes[r.shape].Request; i < len(request) {
			all = request[i] * int64(at.count)
		}
		if !r.patient && !r.firm { // what is within reach has lost all of it already
			all = min(all, max(from.free[row+i]-p.reach.free[row+i], 0))
		}
		to = append(to, all)
	}
	return to
}

// takingQuotas appends what all places take of the quotas of now, and of those of soon.
func (p *planner) takingQuotas(r *reservation, to []int64) []int64 {
	shape := &p.c.Shapes[r.shape]
	for _, from := range []*room{&p.now, &p.soon} {
		for _, q := range shape.Quotas {
			for i := range p.c.Counts {
				cell, all := int(q)*len(p.c.Counts)+i, int64(0)
				if i < len(shape.Demand) {
					all = shape.Demand[i] * int64(len(r.held))
				}
				if !r.patient && !r.firm {
					all = min(all, max(from.quota[cell]-p.reach.quota[cell], 0))
				}
				to = append(to, all)
			}
		}
	}
	return to
}

// keepReserved keeps what is reserved out of what comes free: who was chosen to leave may hold more than was to be had for
// others.
func (p *planner) keepReserved() {
	width := len(p.c.Resources)
	more := make(Amounts, width)
	for i := range p.reservations {
		r := &p.reservations[i]
		p.keepQuotas(r)
		if len(r.taken) == 0 {
			continue // of quota alone, or nothing is held just now
		}
		for j, at := range r.runs() {
			taken, exceeds := r.taken[(2*j+1)*width:(2*j+2)*width], false
			for i, request := range p.c.Shapes[r.shape].Request {
				cell := int(at.node)*width + i
				more[i] = max(min(p.soon.free[cell]-p.reach.free[cell], request*int64(at.count)-taken[i]), 0)
				exceeds = exceeds || more[i] > 0
			}
			if exceeds {
				p.soon.give(at.node, more, -1)
				for i := range taken {
					taken[i] += more[i]
				}
			}
		}
	}
}

// keepQuotas does so with the quotas of one reservation.
func (p *planner) keepQuotas(r *reservation) {
	if len(r.quotas) == 0 {
		return // nothing is held just now
	}
	shape, counts := &p.c.Shapes[r.shape], len(p.c.Counts)
	for j, q := range shape.Quotas {
		taken := r.quotas[(len(shape.Quotas)+j)*counts:]
		for i, amount := range shape.Demand {
			cell := int(q)*counts + i
			if more := min(p.soon.quota[cell]-p.reach.quota[cell], amount*int64(len(r.held))-taken[i]); more > 0 {
				p.soon.quota[cell] -= more
				taken[i] += more
			}
		}
	}
}
