package allocation

import "math"

// With thousands of gangs in the queue most are looked at in vain. In the course of a plan room only becomes
// less, and demands are served by falling priority: what has been found out about one of them holds for those
// that come after it.

// vain is what is known of demands for which there is no room.
type vain struct {
	// ceilings say for a class how many places could be had at most with all that may be taken, for demands
	// that leave reservations alone, and for those that do not.
	ceilings [2]map[classID]int64
	// failed says for a shape how small a gang was that found no room.
	failed map[ShapeID]int32
	// moved says for demands that are alike what attempts to move workers together came to nothing.
	moved map[likeness]moved
}

// moved are attempts for one class that came to nothing: how few places the smallest was for, and how many there were.
type moved struct {
	least int32
	times int
}

// carefully is how many attempts are made for ever smaller gangs, before each has to be for half as many.
const carefully = 4

// worthwhile says whether to try it for a gang of so many.
func (m moved) worthwhile(places int32) bool {
	return m.times == 0 || places < m.least && (m.times < carefully || places <= m.least/2)
}

// after counts one more attempt.
func (m moved) after(places int32) moved {
	if m.times > 0 {
		places = min(places, m.least)
	}
	return moved{places, m.times + 1}
}

// likeness is what demands have in common of which one attempt tells for all: a class, or, where another one stands for it and others,
// that and the nodes that they may use. On other nodes there are other workers to move.
type likeness struct {
	class classID
	wide  int32
	nodes int32
}

// likenessOf is that of a class and all that are like it.
func (p *planner) likenessOf(k classID) likeness {
	if w := p.classes.wideOf(k); w != 0 {
		return likeness{wide: w, nodes: p.classes.nodesOf(k)}
	}
	return likeness{class: k}
}

func newVain() vain {
	return vain{
		ceilings: [2]map[classID]int64{{}, {}}, failed: map[ShapeID]int32{}, moved: map[likeness]moved{},
	}
}

// beside says whether a demand may have what is reserved for others.
func (d *demand) beside() int {
	if d.queues() && !d.intime {
		return 0
	}
	return 1
}

// inVain says whether it is known that a demand cannot be met.
func (p *planner) inVain(d *demand) bool {
	if ceiling, ok := p.vain.ceilings[d.beside()][d.class]; ok && int64(d.places) > ceiling {
		return true
	}
	least, ok := p.vain.failed[p.c.Jobs[d.job].Gang]
	return ok && d.beside() == 0 && d.places >= least
}

// forget notes that such a gang found nothing, so that none of its shape and size is looked for again.
func (p *planner) forget(d *demand) {
	in := &p.c.Jobs[d.job]
	if least, ok := p.vain.failed[in.Gang]; in.Preempts && !p.isApart(d) && d.beside() == 0 && (!ok || d.places < least) {
		p.vain.failed[in.Gang] = d.places
	}
}

// stint notes how many pods of a gang's shape the quotas admit at most, where no whole job may go.
func (p *planner) stint(d *demand, s *search) {
	gang := p.c.Jobs[d.job].Gang
	if least, ok := p.vain.failed[gang]; d.beside() == 0 && s.admits < d.made && !p.isApart(d) && !p.mayEvict(d) && (!ok || s.admits < least-1) {
		p.vain.failed[gang] = s.admits + 1
	}
}

// lower notes how many places a class can have at most. What the replacement of a loss finds says nothing: no
// workers are moved for it.
func (p *planner) lower(d *demand, most int64) {
	known := p.vain.ceilings[d.beside()]
	if ceiling, ok := known[d.class]; d.kind != replace && !p.isApart(d) && most < int64(d.places) && (!ok || most < ceiling) {
		known[d.class] = most
	}
}

// unknown is the number of places where nothing bounds them.
const unknown = int64(math.MaxInt64)

// utmost is what there would be if every whole job went that may go for a priority.
type utmost struct {
	valid    bool
	priority int32
	evicted  int
	// free and quota are what these jobs hold beyond what is within reach, one row a node or quota; nodes are
	// those where they hold something.
	free, quota []int64
	nodes       []NodeID
}

// withAll brings the sums up to date for a priority.
func (p *planner) withAll(priority int32) *utmost {
	u := &p.most
	if u.valid && u.priority == priority && u.evicted == p.evicted {
		return u
	}
	width, counts := len(p.c.Resources), len(p.c.Counts)
	if u.free == nil {
		u.free, u.quota = make([]int64, len(p.c.Nodes)*width), make([]int64, len(p.c.Quotas)*counts)
	}
	for _, n := range u.nodes {
		clear(u.free[int(n)*width : (int(n)+1)*width])
	}
	clear(u.quota)
	u.nodes = u.nodes[:0]
	u.valid, u.priority, u.evicted = true, priority, p.evicted
	for _, id := range p.evictables() {
		in, j := &p.c.Jobs[id], &p.jobs[id]
		if in.Priority >= priority {
			break
		}
		if j.evicted {
			continue
		}
		for w := range in.Workers {
			if p.goesWhole(id, w) && !p.takeable(id, w) {
				u.add(p.c, &in.Workers[w])
			}
		}
	}
	return u
}

func (u *utmost) add(c *Cluster, w *Worker) {
	shape, width := &c.Shapes[w.Shape], len(c.Resources)
	if w.Node >= 0 {
		row, known := u.free[int(w.Node)*width:], false
		for i, amount := range shape.Request {
			known = known || row[i] != 0
			row[i] += amount
		}
		if !known {
			u.nodes = append(u.nodes, w.Node)
		}
	}
	for _, q := range shape.Quotas {
		for i, amount := range shape.Demand {
			u.quota[int(q)*len(c.Counts)+i] += amount
		}
	}
}

// placesWithAll is how many places a class could have at most if every job went that may go for a priority.
func (p *planner) placesWithAll(k classID, priority int32) int64 {
	u, at, width := p.withAll(priority), p.reach.of(k), len(p.c.Resources)
	total, row := at.total, make([]int64, width)
	for _, n := range u.nodes {
		if !at.class.nodes.Has(int(n)) {
			continue
		}
		for i := range row {
			row[i] = p.reach.free[int(n)*width+i] + u.free[int(n)*width+i]
		}
		total += int64(at.class.times(row) - at.at[n])
	}
	return total
}

// admitsWithAll says whether quotas would admit so many pods if every job went that may go for a priority.
func (p *planner) admitsWithAll(s ShapeID, made, priority int32) bool {
	u, shape := p.withAll(priority), &p.c.Shapes[s]
	for _, q := range shape.Quotas {
		for i, amount := range shape.Demand {
			at := int(q)*len(p.c.Counts) + i
			if left := p.reach.quota[at]; amount > 0 && left < Unbounded/2 && max(left+u.quota[at], 0)/amount < int64(made) {
				return false
			}
		}
	}
	return true
}
