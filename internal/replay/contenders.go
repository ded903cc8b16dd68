package replay

import (
	"slices"
	"time"
)

// What others would make of nodes that come and go, for a job that scales linearly and makes a step a second with each
// device. All of them take as long as our workers do until they can join.

// Clairvoyant is the most that anybody can make who knows beforehand when each node goes: all nodes are used from when a
// worker there can join, by a job that never stands still and loses nothing.
func (c *Churn) Clairvoyant(perNode int, join time.Duration) float64 {
	sum := 0.0
	came := map[int]time.Duration{}
	uses := func(node int, until time.Duration) {
		sum += max(0, (until-came[node]-join).Seconds()) * float64(perNode)
	}
	for _, change := range c.Changes {
		switch at := min(change.At, c.Until); {
		case change.Gone:
			uses(change.Node, at)
			delete(came, change.Node)
		default:
			came[change.Node] = at
		}
	}
	for node := range came {
		uses(node, c.Until)
	}
	return sum
}

// Restarting is a job that takes all nodes there are and is started anew, from what it saved, whenever they change. When
// nodes come it saves first; when one goes it loses what it made since it saved last.
func (c *Churn) Restarting(perNode int, join time.Duration) float64 {
	return c.restarts(perNode, join, func(there []int) []int { return there })
}

// Rigid is a gang of a fixed number of nodes, which runs while there are as many, and is started anew from what it saved
// when it has lost one: with the number that is best for it in hindsight, which is returned as well.
func (c *Churn) Rigid(perNode int, join time.Duration) (steps float64, nodes int) {
	for n := 1; n <= c.Nodes(); n++ {
		running := []int{}
		made := c.restarts(perNode, join, func(there []int) []int {
			gone := func(node int) bool { return !slices.Contains(there, node) }
			if len(running) == 0 || slices.ContainsFunc(running, gone) {
				running = nil
				if len(there) >= n {
					running = slices.Clone(there[:n])
				}
			}
			return running
		})
		if made > steps {
			steps, nodes = made, n
		}
	}
	return steps, nodes
}

// restarts is what a job makes that is started anew whenever the nodes that it uses, of those that are there, change.
func (c *Churn) restarts(perNode int, join time.Duration, use func(there []int) []int) float64 {
	var there, uses []int
	made, began := 0.0, time.Duration(0)
	for i := 0; i <= len(c.Changes); {
		at := c.Until
		if i < len(c.Changes) {
			at = min(at, c.Changes[i].At)
		}
		lost := false // also where the node comes again at once
		for ; i < len(c.Changes) && c.Changes[i].At == at; i++ {
			if node := c.Changes[i].Node; c.Changes[i].Gone {
				lost = lost || at < c.Until && slices.Contains(uses, node)
				there = slices.DeleteFunc(there, func(n int) bool { return n == node })
			} else {
				there = append(there, node)
			}
		}
		next := slices.Clone(use(slices.Clone(there)))
		if at >= c.Until {
			next = nil
		}
		if lost || !slices.Equal(next, uses) {
			ran := max(0, at-began-join)
			if lost && c.Notice == 0 {
				ran -= ran % c.Saved
			}
			made += ran.Seconds() * float64(len(uses)*perNode)
			uses, began = next, at
		}
		if at >= c.Until {
			break
		}
	}
	return made
}
