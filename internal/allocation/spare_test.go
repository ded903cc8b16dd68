package allocation

import (
	"slices"
	"testing"
	"time"
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

// Where only pairs may leave, or stay, a pair stays.
func TestPairsStayWhereOthersLeaveEnough(t *testing.T) {
	for wants, leave := range map[int32]int{2: 0, 3: 2, 4: 2} {
		c := newCluster().withNodes(1, 4).withNodes(1, 8)
		sized := c.training("sized", 4, 8, []NodeID{0, 0, 0, 0, 1, 1, 1, 1}, sizes(4, 8))
		small := c.training("small", 2, 4, []NodeID{1, 1, 1, 1}, sizes(2, 4))
		c.queued("first", 2, 2, priority(20))
		c.queued("second", wants, wants, priority(10))
		plan := NewPlan(c)
		if a, b := plan.leaves(small), plan.leaves(sized); a != leave || b != 4 {
			t.Errorf("two gangs want 2 and %d: %d and %d leave, want %d and 4", wants, a, b, leave)
		}
	}
}

// Room that comes much later has nobody stay who leaves for a gang of higher priority: it would wait for what one behind it is promised.
func TestNobodyStaysForRoomThatComesMuchLater(t *testing.T) {
	first := func(c *Cluster, set ...func(*Job)) JobID {
		return c.queued("first", 1, 1, append(set, priority(20))...)
	}
	for name, drawn := range map[string]func(c *Cluster) (first JobID){
		"of workers that may not leave yet": func(c *Cluster) JobID {
			c.withNodes(1, 4).withNodes(1, 8)
			c.training("sized", 4, 8, []NodeID{0, 0, 0, 0, 1, 1, 1, 1}, sizes(4, 8), func(j *Job) { j.GrewAt = noon })
			c.training("small", 2, 4, []NodeID{1, 1, 1, 1})
			gang := first(c, func(j *Job) { j.Min, j.Max = 2, 2 })
			c.queued("second", 2, 2, priority(10))
			return gang
		},
		"of a whole job that ends when others may leave": func(c *Cluster) JobID {
			c.withNodes(1, 4).withNodes(1, 5)
			c.training("whole", 1, 1, []NodeID{0}, policy(Evict), c.devices(3))
			c.training("young", 1, 2, []NodeID{1, 1}, c.devices(2), func(j *Job) { j.GrewAt = noon })
			c.training("small", 1, 2, []NodeID{1, 0})
			gang := first(c)
			c.queued("second", 2, 2, priority(10), c.devices(2))
			return gang
		},
		"of workers that have replacements made": func(c *Cluster) JobID {
			c.withNodes(1, 8).withNodes(1, 4).withNodes(1, 3)
			three, one, on0 := c.shape(3, 0), c.shape(1, 0), c.shape(1, 0)
			c.Shapes[on0].Nodes = Bits{1}
			of := func(shape ShapeID, pause time.Duration) func(*Job) {
				return func(j *Job) { j.Gang, j.Growth, j.NoGrowth, j.Pause = shape, shape, true, pause }
			}
			c.training("moves", 2, 2, []NodeID{0, 0}, of(three, time.Second))
			c.training("filler", 1, 1, []NodeID{0}, of(one, time.Second), policy(Never))
			c.training("small", 1, 2, []NodeID{1, 0}, of(one, time.Millisecond))
			gang := first(c, of(on0, 0))
			c.queued("second", 1, 1, priority(10), c.devices(5))
			return gang
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			c.Settings.MinRuntime = 10 * time.Minute
			gang := drawn(c)
			small := JobID(slices.IndexFunc(c.Jobs, func(j Job) bool { return j.Name == "ns/small" }))
			s := simulate(c).run(1)
			if want := int(c.Jobs[gang].Min); s.plan.leavesFor(small, gang) != want {
				t.Errorf("%d leave, want %d: %s", s.plan.leavesFor(small, gang), want, s.plan.of(gang).Why.Text)
			}
			if s.run(3); c.Jobs[gang].Stage == Queued {
				t.Errorf("it waits: %s", s.plan.of(gang).Why.Text)
			}
		})
	}
}
