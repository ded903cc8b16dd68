package rendezvous

import (
	"fmt"
	"slices"
	"time"
)

// A program that fails in place costs its worker neither its pod nor its snapshots: the agent stays, and starts the
// programs anew when it is told so. They are a standby then. What they were in the world before is lost like any member
// that has failed; this file says who stays, and when its programs are started.

// anew says whether the programs of a member were started anew after they had failed in the newest world that it was in:
// they have no world.
func (mem *member) anew() bool {
	r := &mem.report
	return r.Restarts > 0 && r.Round > 0 && r.Failure.Round == r.Round
}

// hasFallen says whether the programs of a member have failed, or were started anew after that and are in no world.
func (mem *member) hasFallen() bool { return mem.failed() || mem.anew() }

// startedAnew notes that others have taken the place of the programs that failed.
func (mem *member) startedAnew() {
	mem.failedAt, mem.endedAt, mem.faultedAt, mem.readyAt = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	mem.stale, mem.faultText, mem.faultExit, mem.spent = 0, "", false, false
}

// restartsFor is how often the programs of a member may have been started anew after they had failed; nil when its agent
// is to end if they fail.
func (m *Machine) restartsFor(mem *member) *uint64 {
	done := mem.report.Restarts
	switch {
	case m.gang.Strategy != InPlace || m.fatal != "" || m.released || mem.unwanted():
		return nil
	case m.world != nil && m.world.finishing:
		return nil // nobody is needed any more
	case m.world == nil && !m.mayLive() || m.world != nil && m.world.record.FromStep == 0 && !m.hasBegun():
		return nil // a program that fails at once would be started for nothing
	case mem.spent && mem.failed(), mem.code() == ExitDevice:
		return nil
	case mem.failed() && mem.report.Stays && m.isAccounted(mem):
		done++
	}
	return &done
}

// isAccounted says whether the failure of a member can change no verdict any more.
func (m *Machine) isAccounted(mem *member) bool {
	switch {
	case m.world == nil:
		return false // it may be in the world that is yet to be adopted
	case m.world.ranks.rank(mem.want.UID) < 0:
		return true
	}
	return m.isLost(mem) && (m.broken == nil || m.broken.judged && m.broken.alike == "")
}

// stays says whether a member that was lost will be a standby again, or is one: its programs have failed, or are about to
// leave their world, or to be killed for not leaving it. Of one that was lost and is not heard that is not known any more: its node may
// be gone, though its session is open.
func (m *Machine) stays(uid string, mem *member) bool {
	if m.world == nil || !mem.report.Stays || m.restartsFor(mem) == nil {
		return false
	}
	lost := mem.lostIn > 0 && mem.lostIn == mem.report.Round
	return (mem.hasFallen() || lost && mem.connected && !mem.mute && !mem.isAside()) && (m.world.ranks.rank(uid) < 0 || m.isLost(mem))
}

// mayEnd says whether what a member holds may be gone before anybody has fetched it: it was lost, and its agent has not
// said that it stays.
func (m *Machine) mayEnd(mem *member) bool { return m.isLost(mem) && !mem.report.Stays }

// ranksBefore are the members of the world by rank, without those whose programs have nothing of it: no rank is theirs.
func (m *Machine) ranksBefore() []string {
	before := slices.Clone(m.world.ranks.uids)
	for rank, uid := range before {
		if mem := m.members[uid]; mem != nil && mem.anew() {
			before[rank] = ""
		}
	}
	return before
}

// failureCause says why a member is lost whose programs were started anew.
func (m *Machine) failureCause(mem *member) cause {
	f := &mem.report.Failure
	switch {
	case f.Killed:
		return m.notLeaving()
	case f.Message != "":
		return cause{!CommunicationError(f.Message), f.Message}
	}
	return cause{true, fmt.Sprintf("its program exited with code %d", f.Code)}
}

// notLeaving says why a member is lost whose program its agent has killed. That is its program's own fault where the world
// was left since no step was made: whoever hangs does not leave either. Elsewhere it may have waited for those that were lost.
func (m *Machine) notLeaving() cause {
	return cause{m.broken != nil && m.broken.hung, "its program did not leave the world in time and was killed"}
}
