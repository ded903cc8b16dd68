package allocation

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The first gang in the queue cannot start, and what is kept for it must not grow by the replacement that is made for
// a move: it would be the second gang's move that came to nothing then, again and again.
func TestAMoveForTheSecondInTheQueueComesToAnEnd(t *testing.T) {
	c := newCluster().withNodes(1, 4).withNodes(1, 8).withNodes(1, 1)
	moves := c.training("moves", 3, 3, []NodeID{0, 0, 0})
	c.training("stays", 2, 2, []NodeID{1, 1})
	never := c.queued("never", 3, 3, c.devices(4))
	small := c.queued("small", 2, 2, c.devices(2))
	c.Settings.Backfill = 0
	s := simulate(c)
	s.tell(t)
	s.run(8)
	if diff := cmp.Diff([]int{3, 2, 0, 2}, s.counts()); diff != "" {
		t.Error(diff)
	}
	if c.Jobs[small].Stage != Training || c.Jobs[never].Stage != Queued || len(c.Jobs[moves].Workers) != 3 {
		t.Errorf("the gang that fits is at stage %v, the other at %v", c.Jobs[small].Stage, c.Jobs[never].Stage)
	}
	if !s.settles(60) {
		t.Error("it does not come to rest")
	}
}

// A step of six can be had of one donor alone, which would have less than the other then: it would grow back first.
func TestNobodyIsEvenedOutBelowTheOther(t *testing.T) {
	c := newCluster().withNodes(2, 8)
	c.Namespaces = append(c.Namespaces, Namespace{Name: "other", Weight: 2})
	c.training("steps", 3, 12, []NodeID{0, 0, 0, 1, 1, 0}, sizes(3, 6, 12), in(1))
	c.training("donor", 4, 12, []NodeID{0, 0, 0, 0, 1, 1, 1, 1, 1, 1})
	s := simulate(c)
	s.tell(t)
	s.tick = 15 * time.Second
	if !s.settles(130) {
		t.Error("it does not rest")
	}
	if diff := cmp.Diff([]int{6, 10}, s.counts()); diff != "" {
		t.Error(diff)
	}
}

// A small gang waits for pods to end beside the room that is kept for a large one. Were growth lent of that meanwhile, too
// little would be left for the small one, which took it back at once, as often as a pod ended.
func TestNobodyGrowsWhereAGangWaitsForPodsToEnd(t *testing.T) {
	c := newCluster().withNodes(1, 6).withNodes(1, 2).withNodes(2, 4)
	c.training("others", 5, 5, []NodeID{2, 2, 2, 2, 3}, priority(100), policy(Never))
	lender := c.training("lender", 3, 9, []NodeID{3, 3, 3, 0, 0, 0, 0, 0, 0}, priority(100))
	c.queued("large", 3, 3, c.devices(4), priority(100))
	small := c.queued("small", 4, 4)
	c.Settings.Backfill = 0
	s := simulate(c)
	s.tell(t)
	one := 0
	s.ends = func() int { one++; return one * 3 }
	for range 60 {
		s.step()
		if d := s.plan.of(lender); c.Jobs[small].Stage == Queued && len(d.Places) > 0 {
			t.Fatalf("it grows by %d while a gang waits for pods to end", len(d.Places))
		}
	}
	if c.Jobs[small].Stage != Training {
		t.Errorf("the small gang is at stage %v", c.Jobs[small].Stage)
	}
}
