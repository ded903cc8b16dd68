package rendezvous

import "slices"

// Glance is what of a job is measured all the time.
type Glance struct {
	// Known is false when no gang was expected for the job.
	Known bool
	Phase Phase
	Round uint64
	// Step is the number of steps done by every process.
	Step uint64
}

// Glance returns what is measured all the time. It makes nothing of its own for each member.
func (m *Machine) Glance() Glance {
	g := Glance{Known: len(m.gang.Members) > 0}
	g.Phase, _ = m.doing()
	if m.world != nil {
		g.Round, g.Step = m.world.record.Round, m.progress().Step
	}
	return g
}

// Awaits says whether a member of the world should be heard: it is not lost, and its programs have not ended.
func (m *Machine) Awaits(uid string) bool {
	mem := m.members[uid]
	if mem == nil || m.over() || m.world == nil || m.world.ranks.rank(uid) < 0 || m.isLost(mem) {
		return false
	}
	exited, _ := mem.exited()
	return !exited
}

// AtBarrier says whether any process has been given this attempt of a barrier.
func (r *Report) AtBarrier(attempt uint64) bool {
	return slices.ContainsFunc(r.Processes, func(p Process) bool { return p.Barrier >= attempt })
}
