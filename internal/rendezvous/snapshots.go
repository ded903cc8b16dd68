package rendezvous

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
)

// held counts who holds which snapshot of the history of the world. Members that are in an older world
// count with what they held when it ended.
func (m *Machine) held() map[Snapshot]int {
	counts := map[Snapshot]int{}
	made := m.mostMade()
	for _, mem := range m.keepers() {
		for _, s := range mem.report.Snapshots {
			if m.inHistory(mem, s, made) {
				counts[s]++
			}
		}
	}
	return counts
}

// inHistory says whether a snapshot of a member belongs to the history of the world, whose last step that can have
// been made is given.
func (m *Machine) inHistory(mem *member, s Snapshot, made uint64) bool {
	if mem.report.Round != m.world.record.Round {
		return s.Step <= m.world.record.FromStep
	}
	return s.Step <= made
}

// keepers are the members that others can fetch snapshots of the world's history from. One that was lost
// may end at any moment, with whatever it has that is newer: it counts only if nobody else has any.
func (m *Machine) keepers() []*member {
	var left, lost []*member
	made := m.mostMade()
	for _, mem := range m.members {
		if !m.serving(mem) || !slices.ContainsFunc(mem.report.Snapshots, func(s Snapshot) bool { return m.inHistory(mem, s, made) }) {
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
func (m *Machine) serving(mem *member) bool {
	if !mem.connected || mem.report.Round == 0 || mem.failed() {
		return false
	}
	return mem.report.Round == m.world.record.Round || mem.report.Round == m.world.record.Parent
}

// newestSnapshot is the one with the most steps; of several, the one that most hold.
func (m *Machine) newestSnapshot() (Snapshot, bool) {
	return best(m.held(), func(Snapshot) bool { return true })
}

// snapshotAfter is a snapshot of the state after a step.
func (m *Machine) snapshotAfter(step uint64) (Snapshot, bool) {
	return best(m.held(), func(s Snapshot) bool { return s.Step == step })
}

// onlyOthersHold says whether there are snapshots of the world's history, and none of these members has
// one: a loss soon after would find nothing to go on from.
func (m *Machine) onlyOthersHold(stay map[string]bool) bool {
	held := m.held()
	if len(held) == 0 {
		return false
	}
	for uid := range stay {
		if slices.ContainsFunc(m.members[uid].report.Snapshots, func(s Snapshot) bool { return held[s] > 0 }) {
			return false
		}
	}
	return true
}

func best(counts map[Snapshot]int, fits func(Snapshot) bool) (Snapshot, bool) {
	var found Snapshot
	ok := false
	for s, n := range counts {
		if !fits(s) {
			continue
		}
		if !ok || cmp.Or(
			cmp.Compare(s.Step, found.Step), cmp.Compare(n, counts[found]), cmp.Compare(s.Round, found.Round),
			bytes.Compare(s.Hash[:], found.Hash[:]), cmp.Compare(s.Bytes, found.Bytes),
		) > 0 {
			found, ok = s, true
		}
	}
	return found, ok
}

// holdersOf are those who serve a snapshot now.
func (m *Machine) holdersOf(s Snapshot) []holder {
	if m.world == nil {
		return m.broughtBy()
	}
	var holders []holder
	for _, mem := range m.keepers() {
		if mem.serves.Port > 0 && slices.Contains(mem.report.Snapshots, s) {
			holders = append(holders, holder{mem.endpoint.Address, mem.serves})
		}
	}
	slices.SortFunc(holders, func(a, b holder) int {
		return cmp.Or(strings.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port))
	})
	return holders
}

// supplies says whether a member holds the snapshot that the world begins with, and others may be fetching
// it: an agent has entered its world before it has what its programs load, but a step takes all of them.
func (m *Machine) supplies(mem *member) bool {
	return !m.world.finishing && !m.hasBegun() && m.isHolder(mem)
}

// isHolder says whether a member was named as a holder of the snapshot that the world begins with.
func (m *Machine) isHolder(mem *member) bool {
	return slices.Contains(m.world.holders, holder{mem.endpoint.Address, mem.serves})
}

// writes says whether a rank takes snapshots as it trains: the lowest of each node does. When all are on
// one node the second does too, so that no single loss takes every snapshot along.
func (w *world) writes(node string, rank int32) bool {
	return w.writers[node] == rank || rank == 1 && w.whole() && len(w.writers) == 1
}

// furthest is how far the world that there is was seen to come.
func (m *Machine) furthest() uint64 {
	if m.stepRound == m.world.record.Round {
		return max(m.step, m.world.record.FromStep)
	}
	return m.world.record.FromStep
}
