package allocation

import (
	"cmp"
	"math"
	"slices"
)

// A pod of somebody else that waits for the scheduler has what it fits on, since it is placed sooner than one that is made now. But
// nobody gives way to what is less important: a gang would wait for it, or have others leave in its stead, and the pod may have a reason
// never to start.

// claim is what one such pod has on a node.
type claim struct {
	node NodeID
	Claim
}

// setClaimsAside counts what such pods would have as free, before anybody looks at room.
func (p *planner) setClaimsAside() {
	p.claims = p.claims[:0]
	for n := range p.c.Nodes {
		for _, one := range p.c.Nodes[n].Claims {
			p.now.give(NodeID(n), one.Request, 1)
			p.claims = append(p.claims, claim{NodeID(n), one})
		}
	}
	slices.SortStableFunc(p.claims, func(a, b claim) int { return cmp.Compare(b.Priority, a.Priority) })
}

// heedFor has a gang leave such pods what is theirs that are as important, or more so. Who takes nothing from others leaves it to all.
func (p *planner) heedFor(in *Job) {
	if in.Preempts {
		p.heed(in.Priority)
	} else {
		p.heed(math.MinInt32)
	}
}

// heed takes what such pods have of at least a priority out of all that look at room. No mark of a room may be in use.
func (p *planner) heed(priority int32) {
	for len(p.claims) > 0 && p.claims[0].Priority >= priority {
		for _, r := range []*room{&p.now, &p.soon, &p.reach} {
			r.give(p.claims[0].node, p.claims[0].Request, -1)
		}
		p.claims = p.claims[1:]
	}
}
