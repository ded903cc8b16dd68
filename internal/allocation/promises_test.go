package allocation

import (
	"slices"
	"testing"
)

// Several gangs take at once, and each has the nodes that it was promised once all is free: the first does not take what was freed
// for the second.
func TestWhoTakesAtOnceHasWhatItWasPromised(t *testing.T) {
	c := newCluster().withNodes(1, 2).withNodes(1, 4).withNodes(1, 3)
	two := func(j *Job) { j.Gang, j.NoGrowth = c.shape(2, 0), true }
	c.training("lender", 1, 4, []NodeID{0, 1, 1, 2}, two)
	second := c.queued("second", 1, 1, two, priority(5))
	first := c.queued("first", 3, 3, priority(20))
	s := simulate(c)
	plan := NewPlan(c)
	if plan.leaves(0) != 2 || len(plan.of(first).Promised) != 3 || len(plan.of(second).Promised) != 1 {
		t.Fatalf("%+v", plan.Decisions)
	}
	after := NewPlan(s.carriedOut(plan))
	for _, id := range []JobID{first, second} {
		want, got := plan.of(id).Promised, slices.Clone(after.of(id).Places)
		slices.Sort(want)
		slices.Sort(got)
		if !after.of(id).Start || !slices.Equal(want, got) {
			t.Errorf("%s has %v, and was promised %v: %s", c.Jobs[id].Name, got, want, after.of(id).Why.Text)
		}
	}
}

// A gang that could take nothing has no workers move into what others left to one of its priority.
func TestNobodyMovesIntoWhatWasLeftToAnEqual(t *testing.T) {
	c := newCluster().withNodes(1, 3).withNodes(1, 2)
	still := func(j *Job) { j.NoGrowth = true }
	lender := c.training("lender", 2, 3, []NodeID{0, 0, 0}, still)
	c.training("other", 1, 1, []NodeID{1}, still)
	waits := c.queued("waits", 1, 1, c.devices(2), priority(10))
	takes := c.queued("takes", 2, 2, priority(10))
	plan := NewPlan(c)
	if plan.leavesFor(lender, takes) != 1 || len(plan.of(waits).Promised) != 0 {
		t.Fatalf("%+v", plan.Decisions)
	}
	if after := NewPlan(simulate(c).carriedOut(plan)); !after.of(takes).Start {
		t.Errorf("it does not start when the lender has shrunk: %s", after.of(takes).Why.Text)
	}
}

// A move that has begun is finished, whatever an equal was promised since, also where the gang was promised places for another number
// of pods.
func TestAMoveThatHasBegunIsFinishedBesideAnEqual(t *testing.T) {
	for _, row := range []struct {
		promised []NodeID
		moves    bool
	}{
		{[]NodeID{1}, true},
		{[]NodeID{1, 1}, true},
		{nil, false},
	} {
		c := newCluster().withNodes(1, 3).withNodes(1, 2)
		still := func(j *Job) { j.NoGrowth = true }
		c.training("full", 2, 2, []NodeID{0, 0}, still)
		moves := c.training("moves", 1, 1, []NodeID{1, 0}, still)
		waits := c.queued("waits", 1, 1, c.devices(2), priority(10), func(j *Job) { j.Promised = row.promised })
		c.queued("equal", 1, 1, priority(10), func(j *Job) { j.Promised = []NodeID{1} })
		j := &c.Jobs[moves]
		j.Target, j.Workers[1].Own, j.Workers[1].Bound, j.Workers[1].World = 1, true, false, false
		plan := NewPlan(c)
		if got := plan.of(moves).Why.Reason == "Moving"; got != row.moves || slices.Equal(plan.of(waits).Promised, []NodeID{1}) != row.moves {
			t.Errorf("promised %v, workers move: %v, want %v: %s", row.promised, got, row.moves, plan.of(waits).Why.Text)
		}
	}
}

// ending is a pod that ends, of a job that has no other.
func (c *Cluster) ending(on NodeID) JobID {
	id := c.training("gone", 1, 1, []NodeID{on})
	j := &c.Jobs[id]
	j.Stage, j.Target, j.Workers[0].Ending = Held, 0, true
	return id
}

// What is free and was promised to an equal is left to it by a gang whose own places come free as soon as pods have ended; not to one
// of lower priority, and not when these should have ended long ago.
func TestWhatIsFreeIsLeftToTheOneThatWasPromisedIt(t *testing.T) {
	for name, drawn := range map[string]struct {
		overdue bool
		lower   int32
		start   bool
	}{
		"its own comes soon":            {false, 0, false},
		"its own is overdue":            {true, 0, true},
		"the other is of less priority": {false, 5, true},
	} {
		c := newCluster().withNodes(3, 1)
		own := c.ending(0)
		c.ending(2)
		c.Jobs[own].Workers[0].Overdue = drawn.overdue
		first := c.queued("first", 1, 1, priority(10), func(j *Job) { j.Promised = []NodeID{0} })
		second := c.queued("second", 2, 2, priority(10-drawn.lower), func(j *Job) { j.Promised = []NodeID{1, 2} })
		plan := NewPlan(c)
		if plan.of(first).Start != drawn.start || plan.of(second).Start {
			t.Errorf("%s: the first one starts: %v, the second one: %v: %s", name, plan.of(first).Start, plan.of(second).Start, plan.of(first).Why.Text)
		}
		if promised := plan.of(second).Promised; !drawn.start && !slices.Equal(promised, []NodeID{1, 2}) {
			t.Errorf("%s: the second one is promised %v", name, promised)
		}
	}
}

// What was promised on nodes that are gone, or for another number of pods, holds nobody up.
func TestAPromiseThatSaysNothing(t *testing.T) {
	for _, promised := range [][]NodeID{{7, -1}, {0}, {0, 0, 0}} {
		c := newCluster().withNodes(2, 1)
		gang := c.queued("gang", 2, 2, func(j *Job) { j.Promised = promised })
		other := c.queued("other", 1, 1, func(j *Job) { j.Promised = promised })
		if plan := NewPlan(c); !plan.of(gang).Start || plan.of(other).Start {
			t.Errorf("promised %v: %+v", promised, plan.Decisions)
		}
	}
}

// A gang has its places free: that workers move for one before it, which needs more on the same node and was promised nothing, does not
// hold it up. There is room for both once they have moved.
func TestWhoHasItsPlacesFreeDoesNotWaitForMoves(t *testing.T) {
	c := newCluster().withNodes(1, 4).withNodes(1, 2)
	moves := c.training("moves", 1, 1, []NodeID{0}, c.devices(2), func(j *Job) { j.NoGrowth = true })
	large := c.queued("large", 1, 1, c.devices(3), priority(20))
	small := c.queued("small", 1, 1, priority(20), func(j *Job) { j.Promised = []NodeID{0} })
	plan := NewPlan(c)
	if plan.of(moves).Why.Reason != "Moving" || plan.of(large).Start {
		t.Fatalf("nobody moves: %+v", plan.Decisions)
	}
	if d := plan.of(small); !d.Start || !slices.Equal(d.Places, []NodeID{0}) {
		t.Errorf("it waits: %s", d.Why.Text)
	}
	lesser := c.queued("lesser", 2, 2, priority(10))
	if plan := NewPlan(c); plan.of(lesser).Start {
		t.Error("one of lower priority has what is left")
	}
	s := simulate(c)
	s.run(6)
	if s.Jobs[large].Stage != Training || s.Jobs[small].Stage != Training {
		t.Errorf("both are to train: %+v", NewPlan(c).Decisions)
	}
}
