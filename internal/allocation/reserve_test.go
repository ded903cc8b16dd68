package allocation

import (
	"slices"
	"testing"
	"time"
)

// besideAReservation has a gang wait for two whole nodes of ten devices, of which it needs eight each. One is used by a job
// that gives nothing; on the other four are free, and six are lent in pieces. A smaller gang waits behind it.
func besideAReservation(places int32, pieces ...int64) (c *Cluster, lender, small JobID) {
	c = newCluster().withNodes(3, 10)
	c.training("busy", 10, 10, []NodeID{1, 1, 1, 1, 1, 1, 1, 1, 1, 1})
	lender = c.training("lender", 2, 8, []NodeID{2, 2})
	for i, devices := range pieces {
		w := Worker{Node: 0, Shape: c.shape(devices, 0), Bound: true, World: true, For: None, Rank: int32(i + 2), Ordinal: int32(i + 2)}
		c.take(w)
		c.Jobs[lender].Workers = append(c.Jobs[lender].Workers, w)
		c.Jobs[lender].Target++
	}
	c.training("rest", 8, 8, []NodeID{2, 2, 2, 2, 2, 2, 2, 2})
	c.queued("large", 2, 2, c.devices(8), priority(10))
	return c.at(11 * time.Minute), lender, c.queued("small", places, places)
}

// What is kept for one gang comes out of what is lent before it comes out of what is free: who starts beside it on what is
// free takes nothing from anybody.
func TestWhoStartsBesideAReservationTakesNothingThatItNeedsNot(t *testing.T) {
	c, lender, small := besideAReservation(2, 1, 1, 1, 1, 1, 1)
	plan := NewPlan(c)
	if got := plan.of(small); !got.Start || len(got.Places) != 2 || got.Places[0] != 0 {
		t.Errorf("it is decided: %+v", got)
	}
	if n := plan.leaves(lender); n > 0 {
		t.Errorf("%d leave, and enough is free", n)
	}
}

// It is kept all the same: of the ten devices of the node two are for others.
func TestWhatIsReservedIsKeptWhoeverLeaves(t *testing.T) {
	for name, pieces := range map[string][]int64{"one by one": {1, 1, 1, 1, 1, 1}, "in large pieces": {3, 3}} {
		c, lender, small := besideAReservation(3, pieces...)
		plan := NewPlan(c)
		if got := plan.of(small); got.Start || plan.leaves(lender) > 0 {
			t.Errorf("%s: it is decided: %+v, and %d leave", name, got, plan.leaves(lender))
		}
	}
}

// Nobody is moved for a gang onto what is kept for another one: the gang would not start there.
func TestNobodyMovesForRoomThatIsReserved(t *testing.T) {
	c := newCluster().withNodes(4, 10)
	fixed := func(j *Job) { j.Policy = Never }
	c.training("busy", 9, 9, slices.Repeat([]NodeID{1}, 9), fixed)
	c.training("here", 9, 9, slices.Repeat([]NodeID{2}, 9), fixed)
	c.training("there", 9, 9, slices.Repeat([]NodeID{3}, 9), fixed)
	c.training("two", 2, 2, []NodeID{0, 0}, fixed)
	lender := c.training("lender", 1, 7, append([]NodeID{1}, slices.Repeat([]NodeID{0}, 6)...))
	c.queued("large", 2, 2, c.devices(8), priority(10))
	pair := c.queued("pair", 1, 1, c.devices(2))
	plan := NewPlan(c.at(11 * time.Minute))
	if got := plan.of(pair); got.Start || plan.leaves(lender) > 0 || len(plan.of(lender).Places) > 0 {
		t.Errorf("of the pair it is decided: %+v; of the lender, of which %d leave: %+v", got, plan.leaves(lender), plan.of(lender))
	}
}
