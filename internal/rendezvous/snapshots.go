package rendezvous

import (
	"bytes"
	"cmp"
	"time"
)

// inHistory says whether a snapshot of a member belongs to the history of the world, whose last step that can have
// been made is given.
func (m *Machine) inHistory(mem *member, s Snapshot, made uint64) bool {
	if mem.report.Round != m.world.record.Round {
		return s.Step <= m.world.record.FromStep
	}
	return s.Step <= made
}

// states are what the world could go back to, of what members hold of its history. Members that are in an older world
// count with what they held when it ended. One that was lost may end at any moment, with whatever it has that is newer: it
// counts only if the others have nothing.
func (m *Machine) states() []state {
	left, lost := m.keepers()
	if states := m.statesOf(left); len(states) > 0 || len(lost) == 0 {
		return states
	}
	return m.statesOf(append(left, lost...))
}

// keepers are the members that others can fetch snapshots of the world's history from: those that are left, and those that
// were lost.
func (m *Machine) keepers() (left, lost []*member) {
	for _, mem := range m.members {
		switch {
		case !m.serving(mem) || len(mem.report.Snapshots)+len(m.broughtFor(mem)) == 0:
		case m.mayEnd(mem):
			lost = append(lost, mem)
		default:
			left = append(left, mem)
		}
	}
	return left, lost
}

// serving says whether others can fetch snapshots of the world's history from a member. One whose node has lost its power hangs up
// no session: that it has ended is known before that breaks.
func (m *Machine) serving(mem *member) bool {
	return mem.connected && !mem.want.Ended && !mem.isAside() && m.hasHistory(mem)
}

// hasHistory says whether a member holds what it has reported of the world's history. The agent of a program that has failed
// ends, unless it says that it stays.
func (m *Machine) hasHistory(mem *member) bool {
	if mem.failed() && !mem.report.Stays {
		return false
	}
	if len(m.broughtFor(mem)) > 0 {
		return true // newcomers as well
	}
	if mem.report.Round == 0 {
		return false
	}
	return mem.report.Round == m.world.record.Round || mem.report.Round == m.world.record.Parent
}

// away are the members of the world that are not in touch, and are not lost. They hold what they held: nobody can fetch from them
// now, and what differs by their ranks is theirs when the world goes back to it, as they are in touch again by then.
func (m *Machine) away() []*member {
	if m.world == nil {
		return nil
	}
	var away []*member
	for _, uid := range m.world.ranks.uids {
		if mem := m.members[uid]; m.outOfTouch(mem) && !mem.isAside() && m.hasHistory(mem) {
			away = append(away, mem)
		}
	}
	return away
}

// isAwaited says whether a member that is not in touch is waited for before something is done without what it has: as long as its
// agent may take to find the operator again.
func (m *Machine) isAwaited(now time.Time, mem *member) bool {
	return m.outOfTouch(mem) && now.Sub(mem.hungUp) < m.gang.HeartbeatTimeout+m.reconnectGrace
}

// outOfTouch says whether a member is not connected, and nothing says that it has ended.
func (m *Machine) outOfTouch(mem *member) bool {
	return mem != nil && mem.joined && !mem.connected && !m.isLost(mem) && mem.want.Lost == "" && !mem.want.Ended && !mem.want.Gone
}

// newestSnapshot is the one with the most steps; of several, the one that most hold.
func (m *Machine) newestSnapshot() (Snapshot, bool) {
	return best(m.states(), func(*state) bool { return true })
}

// snapshotAfter is a snapshot of the state after a step.
func (m *Machine) snapshotAfter(step uint64) (Snapshot, bool) {
	return best(m.states(), func(s *state) bool { return s.Step == step })
}

// onlyOthersHold says whether there are snapshots of the world's history, and these members have none: a loss soon after
// would find nothing to go on from.
func (m *Machine) onlyOthersHold(stay map[string]bool) bool {
	if len(m.states()) == 0 {
		return false
	}
	var staying []*member
	for uid := range stay {
		if mem := m.members[uid]; m.serving(mem) {
			staying = append(staying, mem)
		}
	}
	return len(m.statesOf(staying)) == 0
}

func best(states []state, fits func(*state) bool) (Snapshot, bool) {
	var found *state
	for i := range states {
		s := &states[i]
		if fits(s) && (found == nil || cmp.Or(
			cmp.Compare(s.Step, found.Step), cmp.Compare(s.copies, found.copies), cmp.Compare(s.Round, found.Round),
			bytes.Compare(s.Hash[:], found.Hash[:]), cmp.Compare(s.Bytes, found.Bytes),
		) > 0) {
			found = s
		}
	}
	if found == nil {
		return Snapshot{}, false
	}
	return found.Snapshot, true
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
