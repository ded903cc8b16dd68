package rendezvous

import (
	"fmt"
	"time"
)

// Where programs are started anew in each world, some stop at barriers like those that live on: they were started in
// their world, ask for none, and say how far they are. A planned change stops them after the same step. When all stand
// there they are told to leave: each saves what it has done, and ends with code 0. The next world begins after that step.
//
// Saving may need all ranks, or the one that was lost. So a world that loses a member while it stands is left as in any
// other recovery, and one whose members did not all leave as they were told begins where its programs go on by
// themselves: only they know.

// leavesAtBarriers says whether every process of the world can be told to leave it at a barrier.
func (m *Machine) leavesAtBarriers() bool {
	if m.gang.Strategy != Restart {
		return false
	}
	for _, uid := range m.world.ranks.uids {
		mem := m.members[uid]
		if mem == nil || len(mem.report.Processes) != int(m.gang.ProcessesPerWorker) {
			return false
		}
		for i := range mem.report.Processes {
			if !mem.report.Processes[i].Leaves {
				return false
			}
		}
	}
	return true
}

// leaveAt has everybody save the state after a step, and leave the world, which stands there.
func (m *Machine) leaveAt(now time.Time, step uint64, reason Reason, why string) {
	m.breakWorld(now, &recovery{planned: true, stop: true, leave: step, saved: map[string]bool{}, reason: reason, why: why})
	m.note(notedBroken, "round %d: all processes are told to save the state after step %d, and to end", m.world.record.Round, step)
}

// leavingStep is the step after which processes of the world were told to leave it; 0 when none was.
func (m *Machine) leavingStep() uint64 {
	for _, uid := range m.world.ranks.uids {
		mem := m.members[uid]
		if mem == nil || !mem.in(&m.world.record) {
			continue
		}
		for i := range mem.report.Processes {
			if step := mem.report.Processes[i].Leaving; step > 0 {
				return step
			}
		}
	}
	return 0
}

// leaveOn goes on with what an earlier leader has begun: some were told to leave, and nobody can take that back. It
// returns false when there is no such thing.
func (m *Machine) leaveOn(now time.Time) bool {
	if m.gang.Strategy != Restart {
		return false
	}
	step := m.leavingStep()
	if step == 0 {
		return false
	}
	reason, why := ReasonRetried, fmt.Sprintf("another operator has told its processes to leave after step %d", step)
	if w := m.wish(); w != nil {
		reason, why = w.reason, w.why
	}
	m.leaveAt(now, step, reason, why)
	return true
}

// mayBeLeaving says whether some who are yet to be heard may have been told to leave an inherited round: others stand at
// its barrier, and are not let go before that is known.
func (m *Machine) mayBeLeaving(c *census, late bool) bool {
	if late || m.gang.Strategy != Restart || c.awaited == 0 {
		return false
	}
	for _, mem := range m.members {
		if mem.in(&m.base) && mem.report.has(waitingParked) {
			return true
		}
	}
	return false
}

// noteSaved takes note of those who have left the world with their state saved. What becomes of them afterwards does not
// matter.
func (m *Machine) noteSaved() {
	r := m.broken
	if r.leave == 0 {
		return
	}
	for _, uid := range m.world.ranks.uids {
		if mem := m.members[uid]; mem != nil && mem.in(&m.world.record) && m.hasSaved(mem, r.leave) {
			r.saved[uid] = true
		}
	}
}

// hasSaved says whether all processes of a member have said that they left with the state after a step saved.
func (m *Machine) hasSaved(mem *member, step uint64) bool {
	for i := range mem.report.Processes {
		if p := &mem.report.Processes[i]; !p.Clean || p.CleanStep != step {
			return false
		}
	}
	return len(mem.report.Processes) == int(m.gang.ProcessesPerWorker)
}

// afterLeave has the next world begin after the step that everybody has left this one after.
func (m *Machine) afterLeave(p *plan) {
	r := m.broken
	if r.leave == 0 {
		return
	}
	var without []string
	for rank, uid := range m.world.ranks.uids {
		switch mem := m.members[uid]; {
		case r.saved[uid]:
		case mem != nil:
			without = append(without, mem.want.Name)
		default:
			without = append(without, fmt.Sprintf("worker %d", rank))
		}
	}
	if len(without) == 0 {
		p.fromStep = r.leave
		return
	}
	p.why += fmt.Sprintf("; %s did not say that the state after step %d is saved, so the programs go on from what they find",
		list(without), r.leave)
}
