package rendezvous

import (
	"slices"
	"time"
)

// tally is what looking at all members of the world has shown, for questions that one decision asks about each of them:
// how long a step takes, whether somebody is busy, who is heard. It holds for one world, until something happens.
type tally struct {
	of *world
	// stepTime and busy are nil as long as nobody has asked.
	stepTime *time.Duration
	busy     *bool
	// sharded is whether a process has its own shard of the state; nil as long as nobody has asked.
	sharded *bool
	// awaits is whether somebody has not got yet what the world begins with; nil as long as nobody has asked.
	awaits *bool
	// unheard is how many of the first ranks are not heard at a time, or lost.
	unheard int
	at      time.Time
}

// tallied is what is known of the world that there is.
func (m *Machine) tallied() *tally {
	if m.tally.of != m.world {
		m.tally = tally{of: m.world}
	}
	return &m.tally
}

// stepTime is how long a step of the world takes, by most of those who say so; 0 when nobody does.
func (m *Machine) stepTime() time.Duration {
	t := m.tallied()
	if t.stepTime == nil {
		took := m.findStepTime()
		t.stepTime = &took
	}
	return *t.stepTime
}

func (m *Machine) findStepTime() time.Duration {
	var all []time.Duration
	for _, uid := range m.world.ranks.uids {
		if mem := m.members[uid]; mem != nil && mem.in(&m.world.record) && mem.report.StepTime > 0 {
			all = append(all, mem.report.StepTime)
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[(len(all)-1)/2]
}

// isBusy says whether somebody who is heard does what takes longer than a step.
func (m *Machine) isBusy() bool {
	t := m.tallied()
	if t.busy == nil {
		busy := slices.ContainsFunc(m.world.ranks.uids, func(uid string) bool {
			mem := m.members[uid]
			return mem != nil && mem.connected && mem.in(&m.world.record) && mem.isBusy()
		})
		t.busy = &busy
	}
	return *t.busy
}

func (mem *member) isBusy() bool {
	return mem.report.any(func(p *Process) bool {
		return p.ProgramPhase == phaseForming || p.ProgramPhase == phaseEval || p.ProgramPhase == phaseSaving
	})
}

// hearsWorld says whether this operator hears a member of the world. When it hears none, it may be its own link to them that
// is bad, as when all are in one rack, and that it hears others, who wait to join, says nothing of that.
func (m *Machine) hearsWorld(now time.Time) bool {
	t := m.tallied()
	if !t.at.Equal(now) {
		t.at, t.unheard = now, 0
	}
	for ; t.unheard < len(m.world.ranks.uids); t.unheard++ {
		mem := m.members[m.world.ranks.uids[t.unheard]]
		if mem != nil && mem.joined && !m.isLost(mem) && now.Sub(mem.lastSeen) <= m.gang.HeartbeatTimeout {
			return true
		}
	}
	return false
}
