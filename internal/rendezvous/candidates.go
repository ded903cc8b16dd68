package rendezvous

import (
	"cmp"
	"slices"

	"github.com/concertina-dev/concertina/internal/share"
)

// isStandby says whether a member that is not in the world could enter the next one at once.
func (m *Machine) isStandby(uid string, mem *member) bool {
	if !mem.mayTakePart() {
		return false
	}
	if m.world == nil {
		return mem.report.Standby
	}
	if mem.anew() && !mem.waits() {
		return false // they have yet to say that they want a world
	}
	round := m.world.record.Round
	switch {
	case mem.report.Round == 0:
		// In place a program that has been started says itself that it wants a world.
		return mem.report.Standby && m.world.ranks.rank(uid) < 0 &&
			(m.gang.Strategy == Restart || mem.report.has(waitingJoin))
	case mem.report.Round < round:
		// It was left out of a world, or was away: its programs stand still and wait.
		return m.world.ranks.rank(uid) < 0 && (mem.report.Out || mem.report.Standby || mem.waits())
	case mem.report.Round > round:
		// It was told of a round that was burned, and has left it.
		return mem.report.Out && (m.gang.Strategy == Restart || mem.waits())
	}
	// It was taken for lost, and is back.
	return mem.report.Round == round && mem.lostIn == round && mem.report.Out &&
		(m.gang.Strategy == Restart || mem.waits())
}

// standbys are the members that could enter the next world at once, and stay in the gang.
func (m *Machine) standbys() []Member {
	var ready []Member
	for i := range m.gang.Members {
		want := &m.gang.Members[i]
		mem := m.members[want.UID]
		if mem.leaving() || !m.isStandby(want.UID, mem) || m.isLeftOut(mem) {
			continue
		}
		ready = append(ready, *want)
	}
	return ready
}

// legalSize is the largest number of workers that a world may have when so many could be in it; 0 when
// there is none.
func (m *Machine) legalSize(available int32) int32 {
	limit := min(available, m.gang.Target, m.mostWorkers())
	if len(m.gang.Sizes) == 0 {
		return max(limit, 0)
	}
	var best int32
	for _, size := range m.gang.Sizes {
		if size <= limit {
			best = max(best, size)
		}
	}
	return best
}

// nextSize is the largest number of workers of the world that follows on this one when so many could be in it. It grows only by who is
// there beside the spares that are to be kept: the smallest legal size that leaves no more of them over. It has as many as this one
// with spares, too.
func (m *Machine) nextSize(available int32) int32 {
	spares := m.gang.Spares
	if spares <= 0 {
		return m.legalSize(available)
	}
	grown := max(available-spares, m.gang.Minimum)
	for _, size := range m.gang.Sizes {
		if size >= grown {
			grown = size
			break
		}
	}
	return m.legalSize(min(available, max(grown, m.world.record.Workers)))
}

// mostWorkers bounds a world. Of a state in shards nobody could write a snapshot in a larger one than that; where it may not be so
// small, it is as small as it may be.
func (m *Machine) mostWorkers() int32 {
	if cut := m.cut || m.gang.Sharded && !m.cutKnown; !cut && !m.sharded() {
		return MaxWorkers
	}
	most := max(share.MostShards/max(m.gang.ProcessesPerWorker, 1), m.gang.Minimum, 1)
	if len(m.gang.Sizes) > 0 {
		most = max(most, slices.Min(m.gang.Sizes))
	}
	return min(most, MaxWorkers)
}

// choose picks the members of the next world: those that stay come first, and newcomers by ordinal. When
// not all can stay, those go first whose node has the fewest of them, and of these the highest rank.
func choose(rank map[string]int32, stay, fresh []Member, size int32) []Member {
	stay = thinned(rank, stay, int(size))
	fresh = slices.Clone(fresh)
	slices.SortFunc(fresh, func(a, b Member) int {
		return cmp.Or(cmp.Compare(a.Ordinal, b.Ordinal), cmp.Compare(a.UID, b.UID))
	})
	return append(stay, fresh[:min(int(size)-len(stay), len(fresh))]...)
}

// thinned are as many of the members as there may be, in the order in which they come. Whoever goes leaves its
// node with still fewer, so nodes are emptied one after the other: it takes one sort, and no count for each.
func thinned(rank map[string]int32, stay []Member, size int) []Member {
	if len(stay) <= size {
		return slices.Clone(stay)
	}
	higher := func(a, b int) int {
		return cmp.Or(cmp.Compare(rank[stay[b].UID], rank[stay[a].UID]), cmp.Compare(a, b))
	}
	type node struct{ members, highest int }
	nodes := map[string]node{}
	for i := range stay {
		of, known := nodes[stay[i].Node]
		if !known || higher(i, of.highest) < 0 {
			of.highest = i
		}
		of.members++
		nodes[stay[i].Node] = of
	}
	order := make([]int, len(stay))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		of, other := nodes[stay[a].Node], nodes[stay[b].Node]
		return cmp.Or(cmp.Compare(of.members, other.members), higher(of.highest, other.highest), higher(a, b))
	})
	kept := order[len(stay)-size:]
	slices.Sort(kept)
	left := make([]Member, 0, size)
	for _, i := range kept {
		left = append(left, stay[i])
	}
	return left
}
