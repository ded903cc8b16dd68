package allocation

import (
	"slices"
	"strings"
	"testing"
)

// TestANodeThatIsAvoidedComesLast: a gang starts for all that, and as little of it as can be is placed there.
func TestANodeThatIsAvoidedComesLast(t *testing.T) {
	for _, devices := range []int64{0, 1} {
		for gang, want := range map[int32]int{1: 0, 4: 0, 5: 1, 6: 2, 8: 4} {
			c := newCluster().withNodes(3, 2)
			c.Nodes[0].Capacity[cpu], c.Nodes[0].Capacity[2] = 128_000, 4 // the emptiest, and the one that holds most together
			c.Nodes[0].Free = slices.Clone(c.Nodes[0].Capacity)
			id := c.queued("job", gang, 8, func(j *Job) { j.Avoid = []NodeID{0} })
			shape := c.shape(devices, 0)
			if devices == 0 {
				c.Shapes[shape].Request[cpu] = 32_000
			}
			c.Jobs[id].Gang = shape
			got := NewPlan(c).of(id)
			there := 0
			for _, n := range got.Places {
				if n == 0 {
					there++
				}
			}
			if !got.Start || len(got.Places) != int(gang) || there != want {
				t.Errorf("with %d devices each, a gang of %d: starts %v on %v, want %d of it on node 0", devices, gang, got.Start, got.Places, want)
			}
		}
	}
}

// TestOnlyWhoHasFewerThanMinIsPlacedWhereNothingElseIs: a loss of the gang is made good on a node that is avoided when too few are
// left, and not while others have its place.
func TestOnlyWhoHasFewerThanMinIsPlacedWhereNothingElseIs(t *testing.T) {
	for live, want := range map[int]int{2: 1, 3: 0} {
		for _, elsewhere := range []bool{false, true} {
			c := newCluster().withNodes(3, 4)
			id := c.training("job", 3, 6, []NodeID{0, 0, 0, 0}, func(j *Job) { j.Avoid = []NodeID{1} })
			for _, w := range append([]Worker{c.Jobs[id].Workers[0]}, c.Jobs[id].Workers[live+1:]...) {
				c.put(w)
			}
			c.Jobs[id].Workers = c.Jobs[id].Workers[1 : live+1]
			c.training("lender", 2, 8, []NodeID{2, 2, 1, 1})
			c.Nodes[0].Closed = "it is being drained"
			if !elsewhere {
				c.training("other", 2, 2, []NodeID{2, 2})
			}
			got := NewPlan(c)
			if elsewhere {
				want = 1
			}
			if own := int(got.of(id).Own); own != want || elsewhere && own > 0 && got.of(id).Places[0] != 2 || got.leaves(1) > 0 {
				t.Errorf("with %d of 3, and room elsewhere %v: %d are made, on %v, and the lender loses %d", live, elsewhere, own, got.of(id).Places, got.leaves(1))
			}
		}
	}
}

// TestALossIsMadeGoodWithWhatOthersGiveElsewhere: one who has min workers all the same takes room for the one that it lacks where
// it may use that, and leaves alone who is on nodes that it avoids.
func TestALossIsMadeGoodWithWhatOthersGiveElsewhere(t *testing.T) {
	c := newCluster().withNodes(3, 4)
	id := c.training("job", 3, 6, []NodeID{0, 0, 0, 0}, func(j *Job) { j.Avoid = []NodeID{1} })
	c.put(c.Jobs[id].Workers[0])
	c.Jobs[id].Workers = c.Jobs[id].Workers[1:]
	lender := c.training("lender", 2, 8, []NodeID{2, 2, 2, 2, 1, 1, 1, 1})
	c.Nodes[0].Closed = "it is being drained"
	if got := NewPlan(c); got.leavesFor(lender, id) != 1 || c.Jobs[lender].Workers[got.of(lender).Leave[0].Worker].Node != 2 {
		t.Errorf("%+v leave for it, want one on node 2", got.of(lender).Leave)
	}
}

// TestGrowthTakesFromOthersBesideWhatIsAvoided: what others gave on a node that a job avoids would be of no use to it, and keeps
// it from nothing elsewhere.
func TestGrowthTakesFromOthersBesideWhatIsAvoided(t *testing.T) {
	for name, row := range map[string]struct {
		most  int32
		avoid []NodeID
		want  int
	}{
		"nothing is avoided":                  {6, nil, 4},
		"one of the lender's nodes":           {6, []NodeID{1}, 4},
		"and it could have more than is left": {10, []NodeID{1}, 4},
		"both of them":                        {6, []NodeID{2, 1}, 0},
		"where nothing is to be":              {6, []NodeID{3}, 4},
	} {
		c := newCluster().withNodes(4, 4)
		lender := c.training("lender", 2, 10, []NodeID{0, 0, 1, 1, 1, 1, 2, 2, 2, 2})
		high := c.training("high", 2, row.most, []NodeID{0, 0}, priority(100), func(j *Job) { j.Avoid = row.avoid })
		c.Nodes[3].Closed = "it is being drained"
		got := NewPlan(c)
		if n := got.leavesFor(lender, high); n != row.want {
			t.Errorf("%s: %d leave for it, want %d", name, n, row.want)
		}
		for _, l := range got.of(lender).Leave {
			if n := c.Jobs[lender].Workers[l.Worker].Node; slices.Contains(row.avoid, n) {
				t.Errorf("%s: one leaves for it on node %d", name, n)
			}
		}
	}
}

// TestWhoIsAvoidedGivesToOthers: that one has nothing to give to a job which avoids its node says nothing of other jobs.
func TestWhoIsAvoidedGivesToOthers(t *testing.T) {
	c := newCluster().withNodes(3, 4)
	lender := c.training("lender", 2, 4, []NodeID{1, 1, 1, 1})
	c.training("one", 1, 2, []NodeID{2, 2})
	c.training("another", 1, 2, []NodeID{2, 2})
	choosy := c.training("choosy", 2, 4, []NodeID{0, 0}, priority(100), sizes(2, 4), func(j *Job) { j.Avoid = []NodeID{1} })
	other := c.training("other", 2, 4, []NodeID{0, 0}, priority(100), sizes(2, 4))
	if got := NewPlan(c); got.leaves(lender) != 2 || got.leavesFor(lender, other) != 2 {
		t.Errorf("%+v leave for %d and %d, want 2 for the latter", got.of(lender).Leave, choosy, other)
	}
}

// TestGrowthGoesElsewhere: a node that is avoided keeps a job from growing there alone.
func TestGrowthGoesElsewhere(t *testing.T) {
	c := newCluster().withNodes(3, 4)
	id := c.training("job", 2, 12, []NodeID{0, 0}, func(j *Job) { j.Avoid = []NodeID{0, 2} })
	got := NewPlan(c).of(id)
	if got.Count != 6 || slices.ContainsFunc(got.Places, func(n NodeID) bool { return n != 1 }) {
		t.Errorf("it grows to %d, on %v; want 4 more on node 1", got.Count, got.Places)
	}
	c.Jobs[id].Avoid = []NodeID{0, 1, 2}
	if got := NewPlan(c).of(id); got.Count != 2 || got.Why.Reason != "GrowthBackingOff" || !strings.Contains(got.Why.Text, "nodes where its workers") {
		t.Errorf("where all that is free is avoided it has %d workers: %+v", got.Count, got.Why)
	}
	c.Jobs[id].Avoid = nil
	if got := NewPlan(c).of(id); got.Count != 12 {
		t.Errorf("when nothing is avoided it grows to %d", got.Count)
	}
}
