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

// claims are all of them, the most important first.
type claims struct {
	all []claim
	// heeded is how many of the first are out of all that look at room.
	heeded int
}

// setClaimsAside counts what such pods would have as free, before anybody looks at room.
func (p *planner) setClaimsAside() {
	p.claims = claims{all: p.claims.all[:0]}
	for n := range p.c.Nodes {
		for _, one := range p.c.Nodes[n].Claims {
			p.now.give(NodeID(n), one.Request, 1)
			p.claims.all = append(p.claims.all, claim{NodeID(n), one})
		}
	}
	slices.SortStableFunc(p.claims.all, func(a, b claim) int { return cmp.Compare(b.Priority, a.Priority) })
}

// heedFor has a gang leave such pods what is theirs that are as important, or more so. Who takes nothing from others leaves it to all;
// the gangs behind it do not for that.
func (p *planner) heedFor(in *Job) {
	if in.Preempts || in.Unasked {
		p.heed(in.Priority)
	} else {
		p.heed(math.MinInt32)
	}
}

// heed has what such pods have out of all that look at room if they are of at least a priority, and in it if not. No mark of a room may
// be in use.
func (p *planner) heed(priority int32) {
	c := &p.claims
	for c.heeded < len(c.all) && c.all[c.heeded].Priority >= priority {
		p.grantClaim(&c.all[c.heeded], -1)
		c.heeded++
	}
	for c.heeded > 0 && c.all[c.heeded-1].Priority < priority {
		c.heeded--
		p.grantClaim(&c.all[c.heeded], 1)
	}
}

// grantClaim adds what a pod has to all that look at room, so many times.
func (p *planner) grantClaim(c *claim, times int64) {
	for _, r := range []*room{&p.now, &p.soon, &p.reach} {
		r.give(c.node, c.Request, times)
	}
}
