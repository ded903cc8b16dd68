package rendezvous

import (
	"math"
	"slices"
)

// A step takes all ranks: whoever has made it could only because every process had begun it. So a process that
// stands says of everybody that no step after the one that it has begun was made, and a member that says otherwise
// is not believed. Only those that stand count: what the others have begun was said a while ago. When members say
// different things most of them are believed, and of two the one that says less.

// mostMade is the last step of the world that can have been made, as far as those say who stand in it; the largest
// number when nobody does. A member whose processes have not all begun a step of this world says nothing: they may
// have been started anew.
func (m *Machine) mostMade() uint64 {
	var begun []uint64
	for _, uid := range m.world.ranks.uids {
		mem := m.members[uid]
		if mem == nil || m.isLost(mem) || !mem.in(&m.world.record) || !mem.report.Begun {
			continue
		}
		if step, stands := mem.standsAfter(); stands && step > m.world.record.FromStep {
			begun = append(begun, step)
		}
	}
	if len(begun) == 0 {
		return math.MaxUint64
	}
	slices.Sort(begun)
	return begun[(len(begun)-1)/2]
}

// standsAfter is the last step that all processes of the member have begun; false unless all of them stand.
func (mem *member) standsAfter() (uint64, bool) {
	begun := uint64(math.MaxUint64)
	for i := range mem.report.Processes {
		p := &mem.report.Processes[i]
		if !p.Elastic || p.Exited || p.Waiting != waitingParked && !p.Waiting.left() {
			return 0, false
		}
		begun = min(begun, p.Entered)
	}
	return begun, len(mem.report.Processes) > 0
}

// tooFarAhead are the members of a world that makes no step who say that they have begun one that the others, by what
// they have begun, could not let them begin: all are within one step. They are fewer than the others; when they are
// not, it is nobody.
func (m *Machine) tooFarAhead(lowest uint64) []*member {
	var ahead []*member
	for _, uid := range m.world.ranks.uids {
		if mem := m.members[uid]; mem != nil && mem.furthestBegun() > lowest+1 {
			ahead = append(ahead, mem)
		}
	}
	if 2*len(ahead) >= len(m.world.ranks.uids) {
		return nil
	}
	return ahead
}

// furthestBegun is the furthest step that any process of the member has begun.
func (mem *member) furthestBegun() uint64 {
	var begun uint64
	for i := range mem.report.Processes {
		begun = max(begun, mem.report.Processes[i].Entered)
	}
	return begun
}

// doubtClaims names the members that say that they have made, or hold, a step of the world that cannot have been
// made.
func (m *Machine) doubtClaims() {
	made := m.mostMade()
	for _, uid := range m.world.ranks.uids {
		mem := m.members[uid]
		if mem == nil || !mem.in(&m.world.record) {
			continue
		}
		claimed := mem.report.furthest()
		for _, s := range mem.report.Snapshots {
			claimed = max(claimed, s.Step)
		}
		if claimed > made {
			m.doubt(mem, "it says that it has step %d of round %d, and others stand who have begun none after %d: that is ignored",
				claimed, m.world.record.Round, made)
		}
	}
}

// doubt notes that what a member says cannot be, once for each record.
func (m *Machine) doubt(mem *member, format string, args ...any) {
	if at := m.base.Round + 1; mem.doubtedIn < at {
		mem.doubtedIn = at
		m.note(notedDoubted, "%s: "+format, append([]any{mem.want.Name}, args...)...)
	}
}
