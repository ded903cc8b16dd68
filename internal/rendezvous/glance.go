package rendezvous

import "time"

// Glance is what of a job is measured all the time.
type Glance struct {
	// Known is false when no gang was expected for the job.
	Known bool
	Phase Phase
	Round uint64
	// Step is the number of steps done by every process.
	Step uint64
	// Memory is what it could go back to. Stored is true when it has a storage; Durable is the step of the newest checkpoint there
	// that this leader has heard of, and UploadTook how long the last one took that it has asked for, 0 for none.
	Memory     Memory
	Stored     bool
	Durable    uint64
	UploadTook time.Duration
}

// Glance returns what is measured all the time. Of what it makes the most is what members hold.
func (m *Machine) Glance() Glance {
	g := Glance{Known: len(m.gang.Members) > 0}
	g.Phase, _ = m.doing()
	g.Stored, g.Durable, g.UploadTook, g.Memory = m.gang.Storage != nil, m.durable.Snapshot.Step, m.uploadTook, m.memory()
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
	return r.any(func(p *Process) bool { return p.Barrier >= attempt })
}
