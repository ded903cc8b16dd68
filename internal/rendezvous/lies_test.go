package rendezvous

import "testing"

// A worker that waits to join says that it is in the world, under a term that nobody has led yet. It has no rank there.
func TestAFalseTermGivesNobodyARank(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target = 1, 2
	l := f.training(2)
	f.addPod()
	f.turns(l, 2)
	m := l.machine
	why := m.Handle(f.now, AgentReported{UID: "p02", Report: Report{Term: m.term + 1, Round: 1, Digest: m.world.record.MembersDigest}}).Refuse
	if why == nil || why.Kind != RefusedNonsense {
		t.Errorf("it is answered %v", why)
	}
	if m.world.entered != 2 || m.world.writers[""] < 0 {
		t.Errorf("%d of 2 are in the world, and rank %d takes its snapshots", m.world.entered, m.world.writers[""])
	}
	m.Observe(f.now)
}
