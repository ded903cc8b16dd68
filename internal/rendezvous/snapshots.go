package rendezvous

import (
	"cmp"
	"slices"
	"strings"
)

// held counts who holds which snapshot of the history of the world. Members that are in an older world
// count with what they held when it ended.
func (m *machine) held() map[snapshot]int {
	counts := map[snapshot]int{}
	for _, mem := range m.keepers() {
		for _, s := range mem.report.snapshots {
			if m.inHistory(mem, s) {
				counts[s]++
			}
		}
	}
	return counts
}

func (m *machine) inHistory(mem *member, s snapshot) bool {
	return mem.report.round == m.world.record.Round || s.step <= m.world.record.FromStep
}

// keepers are the members that others can fetch snapshots of the world's history from. One that was lost
// may end at any moment, with whatever it has that is newer: it counts only if nobody else has any.
func (m *machine) keepers() []*member {
	var left, lost []*member
	for _, mem := range m.members {
		if !m.serving(mem) || !slices.ContainsFunc(mem.report.snapshots, func(s snapshot) bool { return m.inHistory(mem, s) }) {
			continue
		}
		if m.isLost(mem) {
			lost = append(lost, mem)
		} else {
			left = append(left, mem)
		}
	}
	if len(left) > 0 {
		return left
	}
	return lost
}

// serving says whether others can fetch snapshots of the world's history from a member. The agent of a
// program that has failed ends.
func (m *machine) serving(mem *member) bool {
	if !mem.connected || mem.report.round == 0 || mem.failed() {
		return false
	}
	return mem.report.round == m.world.record.Round || mem.report.round == m.world.record.Parent
}

// newestSnapshot is the one with the most steps; of several, the one that most hold.
func (m *machine) newestSnapshot() (snapshot, bool) {
	return best(m.held(), func(snapshot) bool { return true })
}

// snapshotAfter is a snapshot of the state after a step.
func (m *machine) snapshotAfter(step uint64) (snapshot, bool) {
	return best(m.held(), func(s snapshot) bool { return s.step == step })
}

// onlyOthersHold says whether there are snapshots of the world's history, and none of these members has
// one: a loss soon after would find nothing to go on from.
func (m *machine) onlyOthersHold(stay map[string]bool) bool {
	held := m.held()
	if len(held) == 0 {
		return false
	}
	for uid := range stay {
		if slices.ContainsFunc(m.members[uid].report.snapshots, func(s snapshot) bool { return held[s] > 0 }) {
			return false
		}
	}
	return true
}

func best(counts map[snapshot]int, fits func(snapshot) bool) (snapshot, bool) {
	var found snapshot
	ok := false
	for s, n := range counts {
		if !fits(s) {
			continue
		}
		if !ok || cmp.Or(
			cmp.Compare(s.step, found.step), cmp.Compare(n, counts[found]), cmp.Compare(s.round, found.round),
			cmp.Compare(s.checksum, found.checksum), cmp.Compare(s.bytes, found.bytes),
		) > 0 {
			found, ok = s, true
		}
	}
	return found, ok
}

// holdersOf are those who serve a snapshot now.
func (m *machine) holdersOf(s snapshot) []holder {
	var holders []holder
	for _, mem := range m.keepers() {
		if mem.serves.port > 0 && slices.Contains(mem.report.snapshots, s) {
			holders = append(holders, holder{mem.endpoint.address, mem.serves})
		}
	}
	slices.SortFunc(holders, func(a, b holder) int {
		return cmp.Or(strings.Compare(a.address, b.address), cmp.Compare(a.port, b.port))
	})
	return holders
}

// supplies says whether a member holds the snapshot that the world begins with, and others may be fetching
// it: an agent has entered its world before it has what its programs load, but a step takes all of them.
func (m *machine) supplies(mem *member) bool {
	return !m.world.finishing && !m.hasBegun() && m.isHolder(mem)
}

// isHolder says whether a member was named as a holder of the snapshot that the world begins with.
func (m *machine) isHolder(mem *member) bool {
	return slices.Contains(m.world.holders, holder{mem.endpoint.address, mem.serves})
}

// writes says whether a rank takes snapshots as it trains: the lowest of each node does. When all are on
// one node the second does too, so that no single loss takes every snapshot along.
func (w *world) writes(node string, rank int32) bool {
	return w.writers[node] == rank || rank == 1 && w.whole() && len(w.writers) == 1
}

// furthest is how far the world that there is was seen to come.
func (m *machine) furthest() uint64 {
	if m.stepRound == m.world.record.Round {
		return max(m.step, m.world.record.FromStep)
	}
	return m.world.record.FromStep
}
