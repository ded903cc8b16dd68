package allocation

import (
	"cmp"
	"math/bits"
	"slices"
)

// Pods that ask for devices stand close together, so that whole nodes stay whole. All others stand apart: what
// a job loses with a node should be little.

// spread names nodes for a demand that fits, without taking the room. Nodes on which pods of the job have
// failed come last, or not at all where they are of no use to the demand.
func (p *planner) spread(r *room, d *demand, avoid []NodeID) []NodeID {
	shape, mark := p.c.Jobs[d.job].Gang, r.mark()
	defer r.undo(mark)
	if !p.asksForDevices(shape) {
		nodes := p.apart(r, d.job, d.class, d.places, avoid)
		if rest := d.places - int32(len(nodes)); rest > 0 && len(avoid) > 0 && len(d.avoid) == 0 {
			for _, n := range nodes {
				r.add(n, shape, -1)
			}
			nodes = append(nodes, p.apart(r, d.job, d.class, rest, nil)...)
		}
		return nodes
	}
	nodes := make([]NodeID, 0, d.places)
	for rest := d.places; rest > 0; {
		n := r.of(d.class).together(rest, avoid)
		if n == None && len(avoid) > 0 && len(d.avoid) == 0 {
			avoid = nil
			continue
		}
		if n == None {
			break
		}
		times := min(rest, r.of(d.class).at[n])
		r.add(n, shape, -times)
		for range times {
			nodes = append(nodes, n)
		}
		rest -= times
	}
	return nodes
}

// apart names nodes for pods of a job, as far apart as can be: those first where the fewest of it are, and of
// these the emptiest.
func (p *planner) apart(r *room, id JobID, k classID, places int32, avoid []NodeID) []NodeID {
	there, nodesOf := p.there(id)
	at := r.of(k)
	order := at.emptiest(int(places)+nodesOf, avoid)
	slices.SortStableFunc(order, func(a, b NodeID) int { return cmp.Compare(there[a], there[b]) })
	nodes := make([]NodeID, 0, places)
	taken := make([]int32, len(order))
	for level := int32(0); int32(len(nodes)) < places; level++ {
		left := false
		for i, n := range order {
			if taken[i] == at.at[n] {
				continue
			}
			left = true
			if there[n] <= level && int32(len(nodes)) < places {
				nodes = append(nodes, n)
				taken[i]++
				there[n]++
			}
		}
		if !left {
			break
		}
	}
	return nodes
}

// there is how many workers of a job each node has, and how many nodes have any. It is memory that is used again
// by the next job.
func (p *planner) there(id JobID) (at []int32, nodes int) {
	p.beside = sized(p.beside, len(p.c.Nodes))
	for w := range p.c.Jobs[id].Workers {
		if worker := &p.c.Jobs[id].Workers[w]; worker.Node >= 0 && !worker.Ending && !worker.Leaving {
			if p.beside[worker.Node]++; p.beside[worker.Node] == 1 {
				nodes++
			}
		}
	}
	return p.beside, nodes
}

// emptiest are nodes with a place, those with the most first; so many at most.
func (p *places) emptiest(limit int, avoid []NodeID) []NodeID {
	nodes := make([]NodeID, 0, limit)
	for b := brim; b > 0 && len(nodes) < limit; b-- {
		begin := len(nodes)
		for w := p.skip(b); w < len(p.buckets[b]); w++ {
			for word := p.buckets[b][w]; word != 0; word &= word - 1 {
				n := NodeID(w*64 + bits.TrailingZeros64(word))
				if len(nodes) == limit && (b < brim || p.at[n] <= p.at[nodes[limit-1]]) || slices.Contains(avoid, n) {
					continue
				}
				// Only the last bucket has nodes that differ.
				at := len(nodes)
				for at > begin && p.at[n] > p.at[nodes[at-1]] {
					at--
				}
				nodes = slices.Insert(nodes[:min(len(nodes), limit-1)], at, n)
			}
			if b < brim && len(nodes) == limit {
				break
			}
		}
	}
	return nodes
}
