package allocation

import "testing"

// TestWhoWaitsForTheScheduler has what it fits on before all that are no more important, and before growth.
func TestWhoWaitsForTheScheduler(t *testing.T) {
	for name, c := range map[string]struct {
		claim, gang int32
		never       bool
		unasked     bool
		starts      bool
	}{
		"less important": {0, 10, false, false, true},
		"as important":   {10, 10, false, false, false},
		"more important": {20, 10, false, false, false},
		"less important, but to one that takes nothing":     {0, 10, true, false, false},
		"less important, but to one that takes nothing yet": {0, 10, true, true, true},
		"as important as one that takes nothing yet":        {10, 10, true, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster().withNodes(1, 2)
			n := &cluster.Nodes[0]
			n.Claims = []Claim{{Priority: c.claim, Request: Amounts{1000, 1, 1}}}
			for i, amount := range n.Claims[0].Request {
				n.Free[i] -= amount
			}
			gang := cluster.queued("gang", 2, 2, priority(c.gang), func(j *Job) { j.Preempts, j.Unasked = !c.never, c.unasked })
			if got := NewPlan(cluster).of(gang); got.Start != c.starts {
				t.Errorf("it starts: %v, %v", got.Start, got.Why)
			}
		})
	}
}

// TestWhoTakesNothingLeavesRoomToWhoWaitsForItselfAlone: it is not the gangs behind it that take nothing.
func TestWhoTakesNothingLeavesRoomToWhoWaitsForItselfAlone(t *testing.T) {
	for name, c := range map[string]struct {
		claim, first, behind int32
		starts               bool
	}{
		"less important":                {0, 20, 10, true},
		"less important, one as both":   {0, 10, 10, true},
		"as important as who is behind": {10, 20, 10, false},
		"more important than that":      {15, 20, 10, false},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster().withNodes(1, 2)
			n := &cluster.Nodes[0]
			n.Claims = []Claim{{Priority: c.claim, Request: Amounts{1000, 1, 1}}}
			for i, amount := range n.Claims[0].Request {
				n.Free[i] -= amount
			}
			cluster.queued("never", 9, 9, priority(c.first), func(j *Job) { j.Preempts = false })
			gang := cluster.queued("gang", 2, 2, priority(c.behind))
			patient := cluster.queued("patient", 2, 2, priority(c.behind), func(j *Job) { j.Preempts = false })
			plan := NewPlan(cluster)
			if got := plan.of(gang); got.Start != c.starts {
				t.Errorf("it starts: %v, %v", got.Start, got.Why)
			}
			if got := plan.of(patient); got.Start {
				t.Errorf("one that takes nothing starts: %v", got.Why)
			}
		})
	}
}

func TestGrowthLeavesRoomToWhoWaits(t *testing.T) {
	c := newCluster().withNodes(1, 4)
	grows := c.training("grows", 1, 4, []NodeID{0}, priority(10))
	n := &c.Nodes[0]
	n.Claims = []Claim{{Priority: 0, Request: Amounts{1000, 1, 1}}}
	for i, amount := range n.Claims[0].Request {
		n.Free[i] -= amount
	}
	if got := NewPlan(c).of(grows); got.Count != 3 {
		t.Errorf("it has %d workers: one of four devices is somebody else's", got.Count)
	}
}
