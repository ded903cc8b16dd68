package allocation

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
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

// Who leaves on a node where room is kept for another gang makes no more places than that leaves over. All who are needed leave
// at once, and the gang starts after that.
func TestWhoTakesDoesNotCountWhatIsReserved(t *testing.T) {
	c := newCluster().withNodes(2, 10).withNodes(1, 11)
	c.training("busy", 10, 10, slices.Repeat([]NodeID{1}, 10))
	c.training("rest", 4, 4, slices.Repeat([]NodeID{2}, 4))
	off := func(j *Job) { j.NoGrowth = true }
	pieces := c.training("pieces", 1, 3, []NodeID{2, 0, 0}, c.devices(5), off)
	lender := c.training("lender", 1, 2, []NodeID{2, 2}, off)
	c.queued("large", 2, 2, c.devices(8), priority(10))
	small := c.queued("small", 3, 3)
	s := simulate(c.at(11 * time.Minute)).run(1)
	if a, b := s.plan.leavesFor(pieces, small), s.plan.leavesFor(lender, small); a != 1 || b != 1 {
		t.Errorf("%d and %d leave for it, and it needs one of each", a, b)
	}
	if s.run(3); !s.plan.of(small).Start && c.Jobs[small].Stage == Queued {
		t.Errorf("it does not start then: %s", s.plan.of(small).Why.Text)
	}
}

// TestWhoLeavesBesideAReservationIsOfUse: on tiny clusters a gang takes what it needs beside one that is blocked, and for which room
// is kept. Once all have left it starts, and nobody left in vain.
func TestWhoLeavesBesideAReservationIsOfUse(t *testing.T) {
	takes := 0
	rapid.Check(t, func(t *rapid.T) {
		c, gang := drawFull(t)
		c.withNodes(1, 8)
		c.training("busy", 8, 8, slices.Repeat([]NodeID{NodeID(len(c.Nodes) - 1)}, 8))
		wants := int32(rapid.IntRange(1, 4).Draw(t, "blocked wants"))
		large := c.queued("blocked", wants, wants, c.devices(int64(rapid.IntRange(2, 8).Draw(t, "blocked devices"))), priority(20))
		for id := range c.Jobs {
			c.Jobs[id].NoGrowth = true // only gangs take
			c.Jobs[id].Policy = Policy(rapid.SampledFrom([]int{int(Shrink), int(Shrink), int(Evict)}).Draw(t, "policy"))
		}
		s := simulate(c.at(11 * time.Minute))
		plan := NewPlan(c)
		s.sound(t, plan)
		s.helps(t, plan)
		if slices.ContainsFunc(plan.Decisions, func(d Decision) bool {
			return d.Evict && d.For == large || slices.ContainsFunc(d.Leave, func(l Leave) bool { return l.For == large })
		}) {
			return // it is not blocked: others leave for it
		}
		taken := 0
		for id := range c.Jobs {
			leave := plan.Decisions[id].Leave
			for i := range leave {
				if leave[i].For != gang {
					continue
				}
				taken++
				plan.Decisions[id].Leave = slices.Delete(slices.Clone(leave), i, i+1)
				if len(c.Jobs[id].Sizes) == 0 && NewPlan(s.carriedOut(plan)).of(gang).Start {
					t.Fatalf("%s need not give worker %d", c.Jobs[id].Name, leave[i].Worker)
				}
			}
			plan.Decisions[id].Leave = leave
		}
		if taken > 0 && plan.of(large).Queue > 0 {
			takes++
		}
	})
	t.Logf("%d gangs took something", takes)
}

// A whole job goes for a gang only if that makes it start, and not for room that would be kept for one before it that lacks some.
func TestNoWholeJobGoesForWhatIsKeptForAnother(t *testing.T) {
	for name, test := range map[string]struct {
		devices int64
		goes    bool
	}{"who could use it": {devices: 4}, "who could not": {devices: 8, goes: true}} {
		t.Run(name, func(t *testing.T) {
			c := newCluster().withNodes(2, 8)
			low := c.training("low", 4, 4, slices.Repeat([]NodeID{0}, 4), policy(Evict))
			c.training("here", 4, 4, slices.Repeat([]NodeID{0}, 4), priority(30))
			c.training("there", 8, 8, slices.Repeat([]NodeID{1}, 8), priority(30))
			c.queued("large", 2, 2, c.devices(test.devices), priority(20))
			small := c.queued("small", 4, 4, priority(10))
			s := simulate(c.at(11 * time.Minute)).run(1)
			if got := s.plan.of(low).Evict; got != test.goes {
				t.Fatalf("the whole job goes: %v", got)
			}
			if s.run(3); test.goes && c.Jobs[small].Stage == Queued {
				t.Errorf("and the gang does not start: %s", s.plan.of(small).Why.Text)
			}
		})
	}
}

// Nobody moves for room either that would be kept for a gang before the one that it is for: neither before nor after there is a
// replacement.
func TestNobodyMovesForWhatIsKeptForAnother(t *testing.T) {
	for name, others := range map[string]int64{"who could use it": 2, "who could not": 8} {
		for _, replaced := range []bool{false, true} {
			c := newCluster().withNodes(1, 1).withNodes(2, 8)
			c.training("fixed", 5, 5, slices.Repeat([]NodeID{1}, 5), policy(Never))
			c.training("busy", 8, 8, slices.Repeat([]NodeID{2}, 8), policy(Never))
			moves := c.training("moves", 2, 2, []NodeID{1, 1})
			c.queued("blocked", 2, 2, c.devices(others))
			gang := c.queued("gang", 1, 1, c.devices(2))
			if replaced {
				w := c.Jobs[moves].Workers[1]
				w.Node, w.World, w.Rank, w.Ordinal = 0, false, -1, 2
				c.take(w)
				c.Jobs[moves].Workers = append(c.Jobs[moves].Workers, w)
			}
			plan := NewPlan(c.at(11 * time.Minute))
			if got := len(plan.of(moves).Places)+plan.leavesFor(moves, gang) > 0; got != (others == 8) {
				t.Errorf("%s, replaced %v: it moves: %v", name, replaced, got)
			}
		}
	}
}

// TestWhatIsKeptOfAQuotaComesOutOfWhatIsLent: who needs no more of it than is free beside that starts on it, and nobody shrinks.
func TestWhatIsKeptOfAQuotaComesOutOfWhatIsLent(t *testing.T) {
	c := newCluster().withNodes(1, 6).withNodes(1, 2)
	c.Quotas = []Quota{{Name: "q", Hard: Amounts{8}, Free: Amounts{8}}}
	on := func(n NodeID) func(*Job) {
		return func(j *Job) {
			j.Gang = c.shape(1, 0)
			c.Shapes[j.Gang].Nodes = make(Bits, 1)
			c.Shapes[j.Gang].Nodes.Set(int(n))
		}
	}
	lender := c.training("lender", 2, 6, []NodeID{0, 0, 0, 0, 0, 0}, on(0))
	waits := c.queued("waits", 5, 5, on(0), priority(10))
	small := c.queued("small", 2, 2, on(1))
	plan := NewPlan(c.at(11 * time.Minute))
	if !plan.of(small).Start || plan.leaves(lender) > 0 || plan.of(waits).Start {
		t.Errorf("it does not start, or %d leave: %s", plan.leaves(lender), plan.of(small).Why.Text)
	}
}

// TestNoMoreIsKeptThanTheQuotasAdmit: a gang that waits is kept no node for which its quota does not admit a pod, and no quota that is not
// there. Otherwise a whole job would end so that a small one can start.
func TestNoMoreIsKeptThanTheQuotasAdmit(t *testing.T) {
	c := newCluster().withNodes(1, 1).withNodes(2, 3)
	c.Namespaces = append(c.Namespaces, Namespace{Name: "other", Weight: 1, EvictAllowed: true})
	c.Quotas = []Quota{{Name: "q", Namespace: 1, Hard: Amounts{3}, Free: Amounts{3}}}
	c.training("lender", 1, 2, []NodeID{1, 1})
	whole := c.training("whole", 1, 1, []NodeID{2}, in(1), c.inNamespace(1, 2), policy(Evict))
	c.queued("waits", 1, 1, in(1), c.inNamespace(1, 2), priority(10))
	small := c.queued("small", 1, 1, in(1), c.inNamespace(1, 1), priority(5))
	c.queued("first", 2, 2, c.devices(3), priority(20))
	if plan := NewPlan(c.at(11 * time.Minute)); plan.of(whole).Evict || !plan.of(small).Start {
		t.Errorf("it does not start, or a whole job ends for it: %s", plan.of(small).Why.Text)
	}
}
