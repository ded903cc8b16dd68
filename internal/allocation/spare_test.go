package allocation

import (
	"slices"
	"testing"
)

// Where those who leave for one gang leave more than that needs, because their job has legal numbers of workers only, and the rest
// does for a gang before it, nobody leaves for that one besides.
func TestNobodyLeavesWhereOthersLeaveEnoughForTwo(t *testing.T) {
	for wants, leave := range map[int32]int{2: 0, 3: 1, 4: 2} {
		c := newCluster().withNodes(1, 4).withNodes(1, 8)
		sized := c.training("sized", 4, 8, []NodeID{0, 0, 0, 0, 1, 1, 1, 1}, sizes(4, 8))
		small := c.training("small", 2, 4, []NodeID{1, 1, 1, 1})
		first, second := c.queued("first", 2, 2, priority(20)), c.queued("second", wants, wants, priority(10))
		s := simulate(c).run(1)
		if a, b := s.plan.leaves(small), s.plan.leaves(sized); a != leave || b != 4 {
			t.Errorf("two gangs want 2 and %d: %d and %d leave, want %d and 4", wants, a, b, leave)
		}
		if s.run(3); c.Jobs[first].Stage == Queued || c.Jobs[second].Stage == Queued {
			t.Errorf("not both start then: %q, %q", s.plan.of(first).Why.Text, s.plan.of(second).Why.Text)
		}
	}
}

// Nor does a whole job end where another one that has to end leaves enough for two.
func TestNoWholeJobEndsWhereAnotherLeavesEnoughForTwo(t *testing.T) {
	c := newCluster().withNodes(1, 5)
	c.training("large", 4, 4, slices.Repeat([]NodeID{0}, 4), policy(Evict), func(j *Job) { j.Lost = 2 })
	one := c.training("one", 1, 1, []NodeID{0}, policy(Evict), func(j *Job) { j.Lost = 1 })
	first, second := c.queued("first", 1, 1, priority(20)), c.queued("second", 2, 2, priority(10))
	s := simulate(c).run(1)
	if s.plan.of(one).Evict {
		t.Errorf("it is decided: %+v", s.plan.of(one))
	}
	if s.run(4); c.Jobs[first].Stage == Queued || c.Jobs[second].Stage == Queued {
		t.Errorf("not both start then: %q, %q", s.plan.of(first).Why.Text, s.plan.of(second).Why.Text)
	}
}
