package allocation

import "testing"

// TestWhoMovesForOneIsNotEndedForAnother: what its workers leave is promised already, and replacements of them are on their way.
func TestWhoMovesForOneIsNotEndedForAnother(t *testing.T) {
	c := newCluster().withNodes(2, 4)
	moves := c.training("moves", 2, 2, []NodeID{0, 1}, policy(Evict))
	first := c.queued("first", 1, 1, c.devices(4), priority(10))
	second := c.queued("second", 1, 1, c.devices(3), priority(10))
	plan := NewPlan(c)
	if d := plan.of(moves); d.Evict || len(d.Places) != 1 {
		t.Errorf("one of it is to move, and all of it to stay: %+v", d)
	}
	if plan.of(first).Start || plan.of(second).Start {
		t.Error("there is no room yet")
	}
	s := simulate(c)
	s.tell(t)
	if s.run(20); c.Jobs[first].Stage != Training || c.Jobs[second].Stage != Training {
		t.Errorf("they do not start in the end: %s; %s", s.plan.of(first).Why.Text, s.plan.of(second).Why.Text)
	}
}
