package share

import (
	"cmp"
	"slices"
)

// Place is where a worker is. Rack names what its node shares with others that may be lost along with it; empty where nobody
// says.
type Place struct{ Node, Rack string }

// Assign says which shares each worker writes, by its rank: it has the state anyway, so copies cost no transfer. places are
// where the workers are, by rank; copies, at least 1, is on how many nodes each share should be. There are as many shares as
// workers, at most Most.
//
// Every share is with min(copies, workers) workers, on min(copies, different nodes) nodes. Workers have as many shares as
// others, or one more, as far as their nodes let that be: where few nodes have many workers the others have more.
//
// Every share is in several racks as well, where no worker needs more than half again as many shares for that as workers
// have in the mean. Otherwise, as with a single worker in another rack than all others, racks do not count: as long as one
// share is in one rack only, that takes the state along when it is lost, wherever the other shares are.
func Assign(places []Place, copies int) (of int, shares [][]int) {
	if a := newAssignment(places, copies); a.complete() {
		return a.of, a.shares
	}
	nodes := slices.Clone(places)
	for rank := range nodes {
		nodes[rank].Rack = ""
	}
	a := newAssignment(nodes, copies)
	a.complete()
	return a.of, a.shares
}

// assignment is how far Assign has come.
type assignment struct {
	of, copies int
	// shares are those of each rank.
	shares [][]int
	// node and rack are those of each rank, nodes and racks how many there are.
	node, rack   []*crew
	nodes, racks int
	// most is how many shares a worker has at most for the sake of racks.
	most int
}

// crew are the workers of a node, or of a rack, and how many shares they have.
type crew struct{ workers, shares int }

func newAssignment(places []Place, copies int) *assignment {
	a := &assignment{of: min(len(places), Most), copies: max(1, min(copies, len(places))), shares: make([][]int, len(places))}
	if workers := len(places); workers > 0 {
		a.most = (3*a.of*a.copies + 2*workers - 1) / (2 * workers)
	}
	a.node, a.nodes = crews(places, func(at Place) string { return at.Node })
	a.rack, a.racks = crews(places, func(at Place) string { return at.Rack })
	return a
}

// crews are those of each rank, and how many there are.
func crews(places []Place, name func(Place) string) (of []*crew, different int) {
	named := map[string]*crew{}
	of = make([]*crew, len(places))
	for rank, at := range places {
		if named[name(at)] == nil {
			named[name(at)] = &crew{}
		}
		of[rank] = named[name(at)]
		of[rank].workers++
	}
	return of, len(named)
}

// complete gives every share its workers. It is false, and not all have theirs, when there are several racks, and one would
// be in a single rack only.
func (a *assignment) complete() bool {
	if a.of < 2 {
		return true
	}
	for share := range a.of {
		var nodes, racks []*crew
		for copy := range a.copies {
			best := a.lightest(share, func(rank int) bool {
				return !slices.Contains(nodes, a.node[rank]) && !slices.Contains(racks, a.rack[rank]) && len(a.shares[rank]) < a.most
			})
			if best < 0 && copy == 1 && a.racks > 1 {
				return false
			}
			if best < 0 {
				best = a.lightest(share, func(rank int) bool {
					return !slices.Contains(nodes, a.node[rank]) || copy >= a.nodes && !slices.Contains(a.shares[rank], share)
				})
			}
			nodes, racks = append(nodes, a.node[best]), append(racks, a.rack[best])
			a.node[best].shares++
			a.rack[best].shares++
			a.shares[best] = append(a.shares[best], share)
		}
	}
	return true
}

// lightest is who should rather have the share than all others that may; -1 when nobody may. Each share begins at another
// worker.
func (a *assignment) lightest(share int, may func(rank int) bool) int {
	best, first := -1, share*len(a.shares)/a.of
	for i := range a.shares {
		rank := (first + i) % len(a.shares)
		if may(rank) && (best < 0 || a.compare(rank, best) < 0) {
			best = rank
		}
	}
	return best
}

// compare compares the loads of two workers: who has fewer shares, then whose node has fewer for each of its workers, and
// then whose rack.
func (a *assignment) compare(one, other int) int {
	if c := cmp.Compare(len(a.shares[one]), len(a.shares[other])); c != 0 {
		return c
	}
	return cmp.Or(a.node[one].compare(a.node[other]), a.rack[one].compare(a.rack[other]))
}

func (c *crew) compare(other *crew) int {
	return cmp.Compare(c.shares*other.workers, other.shares*c.workers)
}
