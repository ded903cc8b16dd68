package allocation

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRuleGangClass(t *testing.T) {
	c := newCluster().withNodes(2, 4)
	id := c.training("job", 3, 6, []NodeID{0, 0, 0, 0, 1, 1})
	c.put(c.Jobs[id].Workers[0])
	c.Jobs[id].Workers = c.Jobs[id].Workers[1:]
	plan := NewPlan(c)
	if got := plan.of(id); got.Own != 1 || len(got.Places) != 1 || got.Count != 6 || len(got.Leave) > 0 {
		t.Errorf("a loss in the gang is not replaced in its class: %+v", got)
	}
	t.Run("by one of its own surplus where nothing is free", func(t *testing.T) {
		c := newCluster().withNodes(1, 5)
		id := c.training("job", 3, 6, []NodeID{0, 0, 0, 0, 0})
		c.Jobs[id].Workers[0].Own = false
		s := simulate(c)
		s.tell(t)
		s.run(10)
		own := 0
		for _, w := range c.Jobs[id].Workers {
			if w.Own && w.Bound {
				own++
			}
		}
		if own != 3 || len(c.Jobs[id].Workers) != 5 {
			t.Errorf("%d of its %d workers are of its own class", own, len(c.Jobs[id].Workers))
		}
	})
}

func TestRuleKeepsRunning(t *testing.T) {
	c := newCluster().withNodes(1, 4)
	id := c.training("job", 2, 4, []NodeID{0, 0, 0, 0})
	c.queued("high", 3, 3, priority(1000))
	if plan := NewPlan(c); plan.of(id).Evict || plan.leaves(id) > 0 {
		t.Error("something was taken for a gang that would not fit all the same")
	}
	c.Jobs[id].Max = 3
	if plan := NewPlan(c); plan.of(id).Count != 3 || plan.leaves(id) != 1 || plan.of(id).Leave[0].Worker != 3 {
		t.Errorf("its max was lowered: %+v", plan.of(id))
	}
}

func TestRuleGangsFirst(t *testing.T) {
	slow := func(j *Job) { j.Pause = time.Minute }
	for name, row := range map[string]struct {
		a, b func(*Job)
		min  time.Duration
		want [2]int
	}{
		"the cheap pause":        {slow, func(*Job) {}, 0, [2]int{0, 2}},
		"one pause, not two":     {func(*Job) {}, func(*Job) {}, 0, [2]int{0, 2}},
		"not who has just grown": {func(*Job) {}, func(j *Job) { j.GrewAt = noon }, time.Minute, [2]int{2, 0}},
		"nobody while all have":  {func(j *Job) { j.GrewAt = noon }, func(j *Job) { j.GrewAt = noon }, time.Minute, [2]int{0, 0}},
		"a legal size":           {slow, sizes(2, 4), 0, [2]int{0, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster().withNodes(2, 4)
			c.Settings.MinRuntime = row.min
			a := c.training("a", 2, 4, []NodeID{0, 0, 0, 0}, row.a)
			b := c.training("b", 2, 4, []NodeID{1, 1, 1, 1}, row.b)
			gang := c.queued("gang", 2, 2)
			plan := NewPlan(c)
			if diff := cmp.Diff(row.want, [2]int{plan.leavesFor(a, gang), plan.leavesFor(b, gang)}); diff != "" {
				t.Error(diff)
			}
			if row.want == [2]int{} && !plan.Next.Equal(noon.Add(row.min)) {
				t.Errorf("the next plan is at %v", plan.Next)
			}
		})
	}
	t.Run("who waits for what has just grown says so", func(t *testing.T) {
		c := newCluster().withNodes(1, 4)
		c.Settings.MinRuntime = time.Minute
		c.queued("another", 9, 9)
		young := c.training("young", 2, 4, []NodeID{0, 0, 0, 0}, func(j *Job) { j.GrewAt = noon })
		gang := c.queued("gang", 2, 2)
		plan := NewPlan(c)
		if got := plan.of(young).Why.Text; got != "gives, once it has kept what it grew by for long enough, 2 workers to ns/gang, which had been lent to it" {
			t.Error(got)
		}
		if got := plan.of(gang).Why.Text; got != "waits for 2 places of 1 example.com/gpu: 0 are free, 2 can be taken back from ns/young once it has had them for long enough" {
			t.Error(got)
		}
	})
	t.Run("a class that does not preempt takes nothing", func(t *testing.T) {
		c := newCluster().withNodes(1, 4)
		id := c.training("a", 2, 4, []NodeID{0, 0, 0, 0})
		c.queued("gang", 2, 2, func(j *Job) { j.Preempts = false })
		if plan := NewPlan(c); plan.leaves(id) > 0 {
			t.Error("it took something")
		}
	})
}

func TestRuleLendsAndBorrows(t *testing.T) {
	for name, set := range map[string]func(*Job){
		"never": policy(Never), "off": func(j *Job) { j.NoGrowth = true }, "sized by others": func(j *Job) { j.SizedBy = "Kueue" },
		"refused":   func(j *Job) { j.Fault = "the growth class is above the job's own" },
		"finishing": func(j *Job) { j.Finishing = true }, "backing off": func(j *Job) { j.GrowAfter = noon.Add(time.Minute) },
		"taken from lately": func(j *Job) { j.ReclaimedAt, j.Reclaims = noon, 1 },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster().withNodes(1, 4)
			id := c.training("job", 2, 4, []NodeID{0, 0}, set)
			if got := NewPlan(c).of(id); got.Count != 2 || got.Why.Text == "" {
				t.Errorf("it grows: %+v", got)
			}
		})
	}
	t.Run("who lends no more gives back", func(t *testing.T) {
		c := newCluster().withNodes(1, 4)
		id := c.training("job", 2, 4, []NodeID{0, 0, 0, 0}, policy(Never))
		gang := c.queued("gang", 2, 2)
		plan := NewPlan(c)
		if got := plan.of(id); got.Count != 2 || plan.leavesFor(id, None) != 2 || plan.of(gang).Why.Reason != "RoomIsEnding" {
			t.Errorf("%+v, and the gang that waits: %q", got, plan.of(gang).Why.Text)
		}
	})
	t.Run("who is sized by others lends nothing, whatever it and its namespace say", func(t *testing.T) {
		c := newCluster().withNodes(1, 4)
		c.Namespaces[0].NeverAllowed = false
		id := c.training("job", 3, 4, []NodeID{0, 0, 0, 0}, policy(Evict), func(j *Job) { j.SizedBy, j.Durable = "Kueue", true })
		c.queued("gang", 2, 2, priority(1000))
		got := NewPlan(c).of(id)
		if got.Count != 3 || got.Evict {
			t.Errorf("%+v", got)
		}
	})
	c := newCluster().withNodes(1, 4)
	c.Namespaces[0].NeverAllowed = false
	id := c.training("job", 2, 4, []NodeID{0, 0}, policy(Never))
	if got := NewPlan(c).of(id); got.Count != 4 {
		t.Error("the namespace does not allow Never, so it lends and borrows")
	}
}

func TestRuleNoHostage(t *testing.T) {
	c := newCluster().withNodes(1, 4)
	id := c.training("job", 2, 4, []NodeID{0, 0, 0, 0})
	c.Jobs[id].Workers[3].Marked = true
	if plan := NewPlan(c); plan.leaves(id) != 0 || plan.of(id).Count != 4 {
		t.Error("a mark whose beneficiary is gone stays")
	}
	c.Jobs[id].Armed = true
	if plan := NewPlan(c); plan.leaves(id) != 1 || plan.of(id).Count != 3 {
		t.Error("an armed barrier is not finished")
	}
}

func TestRuleReservation(t *testing.T) {
	build := func() (*Cluster, JobID, JobID) {
		c := newCluster().withNodes(1, 4)
		c.training("busy", 2, 2, []NodeID{0, 0}, func(j *Job) { j.Ends = noon.Add(time.Hour) })
		return c, c.queued("large", 4, 4), c.queued("small", 2, 2)
	}
	t.Run("others start on it at first", func(t *testing.T) {
		c, large, small := build()
		plan := NewPlan(c)
		if !plan.of(small).Start || plan.of(large).Start {
			t.Error("the small gang does not start")
		}
		if !plan.Next.Equal(noon.Add(c.Settings.Backfill)) || !plan.of(large).Expected.Equal(noon.Add(time.Hour)) {
			t.Errorf("next %v, expected %v", plan.Next, plan.of(large).Expected)
		}
	})
	t.Run("a grant is kept to although a gang before it waits", func(t *testing.T) {
		c, large, small := build()
		c.Jobs[large].Priority = 1
		c.Jobs[small].Ends = noon.Add(time.Hour - time.Minute)
		if plan := NewPlan(c.at(11 * time.Minute)); !plan.of(small).Start {
			t.Fatal("the small gang does not start")
		}
		c.Jobs[small].Stage, c.Jobs[small].Target, c.Jobs[small].Queued = Starting, 2, time.Time{}
		if got := NewPlan(c).of(small); len(got.Places) != 2 {
			t.Errorf("the gang that was granted has the places %v", got.Places)
		}
	})
	t.Run("none for one that can be kept nothing", func(t *testing.T) {
		c := newCluster().withNodes(2, 4)
		c.training("busy", 2, 2, []NodeID{0, 0})
		for n := range c.Nodes {
			c.Nodes[n].Free[cpu] -= 1000 // somebody else's on every node
		}
		shape := c.shape(1, 0)
		c.Shapes[shape].Request[cpu] = 64_000
		c.queued("bad", 2, 2, func(j *Job) { j.Gang, j.Growth = shape, shape })
		large, small := c.queued("large", 8, 8), c.queued("small", 2, 2)
		if plan := NewPlan(c.at(11 * time.Minute)); plan.of(small).Start || plan.of(small).Why.Reason != "BehindReservation" {
			t.Errorf("small: %+v, large: %+v", plan.of(small), plan.of(large))
		}
	})
	t.Run("of quota", func(t *testing.T) {
		c := newCluster().withNodes(2, 8)
		c.Quotas = []Quota{{Name: "q", Hard: Amounts{8}, Free: Amounts{8}}}
		c.training("busy", 4, 4, []NodeID{0, 0, 0, 0})
		high, low := c.queued("high", 8, 8, priority(10)), c.queued("low", 4, 4)
		if plan := NewPlan(c); !plan.of(low).Start {
			t.Error("at first others start on it")
		}
		if plan := NewPlan(c.at(11 * time.Minute)); plan.of(low).Start || plan.of(high).Start {
			t.Errorf("low: %+v, high: %+v", plan.of(low), plan.of(high))
		}
	})
	t.Run("at once where nobody may", func(t *testing.T) {
		c, _, small := build()
		c.Settings.Backfill = 0
		if NewPlan(c).of(small).Start {
			t.Error("the small gang starts on room that is kept")
		}
	})
	t.Run("and not later", func(t *testing.T) {
		c, _, small := build()
		plan := NewPlan(c.at(11 * time.Minute))
		if got := plan.of(small); got.Start || got.Why.Text != "waits for 2 places of 1 example.com/gpu: 0 are free, and room is kept for ns/large" {
			t.Errorf("%v %q", got.Start, got.Why.Text)
		}
	})
	t.Run("but those that end in time", func(t *testing.T) {
		c, _, small := build()
		c.Jobs[small].Ends = noon.Add(time.Hour - time.Minute)
		if plan := NewPlan(c.at(11 * time.Minute)); !plan.of(small).Start {
			t.Error("the small gang does not start")
		}
	})
	t.Run("nothing for one that never fits", func(t *testing.T) {
		c, large, small := build()
		c.Jobs[large].Min, c.Jobs[large].Max = 5, 5
		if plan := NewPlan(c.at(11 * time.Minute)); !plan.of(small).Start {
			t.Error("the small gang does not start")
		}
	})
}

func TestRuleGrowth(t *testing.T) {
	t.Run("by weight of namespaces", func(t *testing.T) {
		c := newCluster().withNodes(1, 11)
		c.Namespaces = append(c.Namespaces, Namespace{Name: "two", Weight: 2})
		c.training("a", 1, 20, []NodeID{0})
		c.training("b", 1, 20, []NodeID{0}, in(1))
		plan := NewPlan(c)
		if diff := cmp.Diff([]int32{4, 7}, []int32{plan.of(0).Count, plan.of(1).Count}); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("higher priority takes the surplus of lower", func(t *testing.T) {
		c := newCluster().withNodes(1, 6)
		c.training("low", 2, 4, []NodeID{0, 0, 0, 0})
		c.training("high", 2, 4, []NodeID{0, 0}, priority(1))
		s := simulate(c).run(10)
		if diff := cmp.Diff([]int{2, 4}, s.counts()); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("equals are evened out once per cool-down", func(t *testing.T) {
		c := newCluster().withNodes(1, 12)
		c.training("much", 2, 10, []NodeID{0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
		c.training("little", 2, 10, []NodeID{0, 0})
		c.Jobs[1].EvenedAt = noon
		if plan := NewPlan(c); plan.leaves(0) > 0 || !plan.Next.Equal(noon.Add(c.Settings.CoolDown)) {
			t.Error("the cool-down is not kept")
		}
		s := simulate(c.at(time.Hour)).run(10)
		if diff := cmp.Diff([]int{7, 5}, s.counts()); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("on the type of its gang, packed, not on what an autoscaler would remove", func(t *testing.T) {
		c := newCluster().withNodes(4, 4)
		for i, kind := range []string{"a", "b", "a", "a"} {
			c.Nodes[i].DeviceType = kind
		}
		c.Nodes[3].Autoscaled = true
		c.training("other", 3, 3, []NodeID{2, 2, 2})
		id := c.training("job", 2, 20, []NodeID{0, 0})
		if diff := cmp.Diff([]NodeID{2, 0, 0}, NewPlan(c).of(id).Places); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("by legal steps only", func(t *testing.T) {
		c := newCluster().withNodes(1, 6)
		id := c.training("job", 2, 8, []NodeID{0, 0}, sizes(2, 8))
		got := NewPlan(c).of(id)
		if got.Count != 2 || got.Why.Text != "its next size is 8: 6 workers more would be needed, and there is room for 4" {
			t.Errorf("%d: %s", got.Count, got.Why.Text)
		}
	})
	t.Run("one at a time where only the scheduler knows", func(t *testing.T) {
		c := newCluster().withNodes(1, 6)
		id := c.training("job", 2, 8, []NodeID{0, 0})
		c.Shapes[c.Jobs[id].Growth].Unmodelled = "volumes"
		if diff := cmp.Diff([]NodeID{None}, NewPlan(c).of(id).Places); diff != "" {
			t.Error(diff)
		}
	})
}

// A resource may be counted in bytes: the shares of namespaces are compared all the same.
func TestGrowthByWeightOfLargeDevices(t *testing.T) {
	const size = int64(1) << 40
	c := newCluster().withNodes(1, 13*size)
	c.Namespaces = append(c.Namespaces, Namespace{Name: "heavy", Weight: 1_000_000})
	rich := c.training("rich", 1, 20, make([]NodeID, 10), c.devices(size))
	poor := c.training("poor", 2, 20, make([]NodeID, 2), in(1), c.devices(size))
	plan := NewPlan(c)
	if len(plan.of(rich).Places) != 0 || len(plan.of(poor).Places) != 1 {
		t.Errorf("rich gets %d, poor %d of the one place", len(plan.of(rich).Places), len(plan.of(poor).Places))
	}
	if plan.leavesFor(poor, rich) > 0 || plan.leavesFor(rich, poor) == 0 {
		t.Errorf("%d leave the rich, %d the poor", plan.leavesFor(rich, poor), plan.leavesFor(poor, rich))
	}
}

func TestRuleQuota(t *testing.T) {
	c := newCluster().withNodes(1, 8)
	c.Namespaces[0].HeadRoom = 250
	c.Quotas = []Quota{{Name: "q", Hard: Amounts{8}, Free: Amounts{8}}}
	id := c.training("job", 2, 8, []NodeID{0, 0})
	if got := NewPlan(c).of(id); got.Count != 6 {
		t.Errorf("growth to %d leaves no head-room", got.Count)
	}
	t.Run("has head-room that growth leaves and a gang may use, all of it", func(t *testing.T) {
		c := newCluster().withNodes(1, 8)
		c.Namespaces[0].HeadRoom = 250
		c.Quotas = []Quota{{Name: "q", Hard: Amounts{8}, Free: Amounts{8}}}
		id := c.training("job", 6, 8, []NodeID{0, 0, 0, 0, 0, 0})
		gang := c.queued("gang", 2, 2)
		if plan := NewPlan(c); !plan.of(gang).Start || plan.of(id).Count != 6 {
			t.Errorf("the gang starts: %v (%s), and growth goes to %d", plan.of(gang).Start, plan.of(gang).Why.Text, plan.of(id).Count)
		}
	})
	t.Run("is reclaimed in its namespace", func(t *testing.T) {
		c := newCluster().withNodes(1, 20)
		c.Quotas = []Quota{{Name: "q", Hard: Amounts{6}, Free: Amounts{6}}}
		id := c.training("job", 2, 8, []NodeID{0, 0, 0, 0, 0, 0})
		gang := c.queued("gang", 3, 3)
		if plan := NewPlan(c); plan.leavesFor(id, gang) != 3 {
			t.Errorf("%d leave", plan.leavesFor(id, gang))
		}
	})
}

func TestRuleLeavingRoom(t *testing.T) {
	c := newCluster().withNodes(1, 4)
	id := c.training("lender", 1, 4, []NodeID{0, 0, 0})
	first, second := c.queued("first", 3, 3), c.queued("second", 1, 1)
	c.Jobs[id].Workers[2].Ending = true
	plan := NewPlan(c)
	if plan.of(first).Start || plan.of(second).Start || plan.of(id).Count > 1 {
		t.Error("room that is being made for one was given to another")
	}
	if plan.leavesFor(id, first) != 1 {
		t.Errorf("%d leave, one ends already and one place is free", plan.leavesFor(id, first))
	}
}

func TestAttemptsWhereOnlyTheSchedulerKnows(t *testing.T) {
	c := newCluster().withNodes(2, 4)
	first, second := c.queued("first", 2, 2), c.queued("second", 2, 2)
	for _, id := range []JobID{first, second} {
		c.Shapes[c.Jobs[id].Gang].Unmodelled = "volumes"
	}
	plan := NewPlan(c)
	if diff := cmp.Diff([]NodeID{None, None}, plan.of(first).Places); diff != "" || !plan.of(first).Start || plan.of(second).Start {
		t.Errorf("not one attempt: %s", diff)
	}
	t.Run("and on clusters that grow", func(t *testing.T) {
		c := newCluster().withNodes(1, 4)
		c.Settings.Autoscaled = true
		big := c.queued("big", 8, 8)
		if got := NewPlan(c).of(big); !got.Start || len(got.Places) != 8 || got.Places[0] != None {
			t.Errorf("no attempt: %+v", got)
		}
		c.Jobs[big].Stage, c.Jobs[big].Target, c.Jobs[big].Queued = Starting, 8, time.Time{}
		if got := NewPlan(c).of(big); len(got.Places) != 8 || got.Places[0] != None {
			t.Errorf("what was granted is not made: %+v", got)
		}
	})
	t.Run("and on clusters that grow, of those that could use the same nodes", func(t *testing.T) {
		c := newCluster().withNodes(2, 1)
		c.Settings.Autoscaled = true
		pools := []Bits{{1}, {2}, {0}} // the third has no nodes yet
		var starts [3]int
		for i := range 6 {
			id := c.queued(fmt.Sprint("gang", i), 4, 4)
			c.Shapes[c.Jobs[id].Gang].Nodes = pools[i%3]
		}
		plan := NewPlan(c)
		for i := range 6 {
			switch got := plan.of(JobID(i)); {
			case got.Start:
				starts[i%3]++
			case got.Why.Reason != "WaitingForAttempt":
				t.Errorf("%s waits, and says %v", c.Jobs[i].Name, got.Why)
			}
		}
		if diff := cmp.Diff([3]int{1, 1, 1}, starts); diff != "" {
			t.Errorf("attempts in each pool: %s", diff)
		}
	})
	t.Run("nobody waits behind one of lower priority", func(t *testing.T) {
		c := newCluster().withNodes(1, 4)
		low, high := c.queued("low", 2, 2), c.queued("high", 2, 2, priority(1))
		for _, id := range []JobID{low, high} {
			c.Shapes[c.Jobs[id].Gang].Unmodelled = "volumes"
		}
		j := &c.Jobs[low]
		j.Stage, j.Target, j.Queued = Starting, 2, time.Time{}
		for i := range int32(2) {
			j.Workers = append(j.Workers, Worker{Node: None, Shape: j.Gang, Own: true, For: None, Rank: -1, Ordinal: i})
		}
		if !NewPlan(c).of(high).Start {
			t.Error("an attempt of lower priority holds it up")
		}
	})
}

// TestAWorkerWithARankAndNoNode: whatever pods say of themselves, a plan is made.
func TestAWorkerWithARankAndNoNode(t *testing.T) {
	c := newCluster().withNodes(1, 8)
	c.Quotas = []Quota{{Name: "q", Hard: Amounts{5}, Free: Amounts{5}}}
	low := c.training("low", 2, 4, []NodeID{0, 0, 0, 0})
	c.Jobs[low].Workers[3].Node, c.Jobs[low].Workers[3].Bound = None, false
	high := c.training("high", 1, 2, []NodeID{0}, priority(10))
	if plan := NewPlan(c); plan.leavesFor(low, high) != 1 {
		t.Errorf("%+v", plan.of(low))
	}
}

// TestAWholeJobGoesOnlyWhenItHelps: its work is not thrown away for room that nobody can use yet.
func TestAWholeJobGoesOnlyWhenItHelps(t *testing.T) {
	c := newCluster().withNodes(1, 8)
	c.Settings.MinRuntime = time.Hour
	victim := c.training("victim", 4, 4, []NodeID{0, 0, 0, 0}, policy(Evict))
	lender := c.training("lender", 2, 4, []NodeID{0, 0, 0, 0}, func(j *Job) { j.GrewAt = noon.Add(-5 * time.Second) })
	gang := c.queued("gang", 6, 6, priority(10))
	plan := NewPlan(c)
	if plan.of(victim).Evict || plan.of(victim).Count != 4 || plan.leaves(lender) > 0 || !plan.Next.Equal(noon.Add(time.Hour-5*time.Second)) {
		t.Errorf("victim %+v, lender %+v, next %v", plan.of(victim), plan.of(lender), plan.Next)
	}
	c.Now = plan.Next
	if plan := NewPlan(c); !plan.of(victim).Evict || plan.leavesFor(lender, gang) != 2 {
		t.Errorf("then: victim %+v, lender %+v", plan.of(victim), plan.of(lender))
	}
}

func TestAClockThatJumpsBack(t *testing.T) {
	c := newCluster().withNodes(1, 4)
	id := c.training("job", 2, 4, []NodeID{0, 0, 0, 0}, func(j *Job) { j.GrewAt = noon.Add(time.Hour) })
	c.Settings.MinRuntime = time.Minute
	gang := c.queued("gang", 2, 2, func(j *Job) { j.Queued = noon.Add(time.Hour) })
	if plan := NewPlan(c); plan.leavesFor(id, gang) != 2 {
		t.Error("a time that lies in the future holds a gang up")
	}
}

func TestRegrowDelayDoublesAndDecays(t *testing.T) {
	s := Settings{FirstRegrow: 30 * time.Second, LastRegrow: 2 * time.Minute}
	for reclaims, want := range []time.Duration{0, 30 * time.Second, time.Minute, 2 * time.Minute, 2 * time.Minute} {
		if got := s.RegrowDelay(int32(reclaims)); got != want {
			t.Errorf("after %d: %v, want %v", reclaims, got, want)
		}
	}
	for quiet, want := range map[time.Duration]int32{0: 2, 4 * time.Minute: 1, 6 * time.Minute: 0} {
		if got := s.Lately(2, quiet); got != want {
			t.Errorf("%v later: %d, want %d", quiet, got, want)
		}
	}
}

// TestWorkersWithoutDevicesStandApart: a node that is lost takes little of a job with it; devices are packed,
// so that whole nodes stay whole.
func TestWorkersWithoutDevicesStandApart(t *testing.T) {
	for name, with := range map[string]struct {
		devices bool
		want    int
	}{"with devices": {true, 1}, "without": {false, 3}} {
		t.Run(name, func(t *testing.T) {
			c := newCluster().withNodes(3, 8)
			if !with.devices {
				c.Devices[gpu] = false
			}
			id := c.queued("job", 3, 3)
			on := map[NodeID]bool{}
			for _, n := range NewPlan(c).Decisions[id].Places {
				on[n] = true
			}
			if len(on) != with.want {
				t.Errorf("3 workers on %d nodes, want %d", len(on), with.want)
			}
		})
	}
}

// No whole job goes so that a job which trains gets back a worker of its own class.
func TestNobodyIsEndedForAReplacement(t *testing.T) {
	c := newCluster().withNodes(3, 4)
	c.Nodes[2].Closed = "not ready"
	high := c.training("high", 4, 6, []NodeID{0, 0, 0, 2, 0}, priority(100))
	j := &c.Jobs[high]
	c.put(j.Workers[3])
	j.Workers = append(j.Workers[:3], j.Workers[4])
	victim := c.training("victim", 4, 4, []NodeID{1, 1, 1, 1}, policy(Evict))
	if plan := NewPlan(c); plan.of(victim).Evict {
		t.Errorf("a whole job ends for a job that trains: %s", plan.of(victim).Why.Text)
	}
}

// A gang that cannot start for a reason of its own ends others a few times only.
func TestNobodyIsEndedInVainForEver(t *testing.T) {
	for starts, want := range []bool{true, true, true, false, false} {
		c := newCluster().withNodes(1, 4)
		victim := c.training("victim", 4, 4, []NodeID{0, 0, 0, 0}, policy(Evict))
		c.queued("high", 4, 4, priority(100), func(j *Job) { j.Starts = int32(starts) })
		if plan := NewPlan(c); plan.of(victim).Evict != want {
			t.Errorf("after %d starts in vain a whole job ends: %v", starts, !want)
		}
	}
}
