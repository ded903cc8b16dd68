package allocation

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestAGangThatTakesNothingStartsBesideEndlessLenders: what comes free by itself is kept for it, and not grown
// into, and those behind it start after it.
func TestAGangThatTakesNothingStartsBesideEndlessLenders(t *testing.T) {
	for name, others := range map[string]int{"alone": 0, "with others behind it": 3} {
		t.Run(name, func(t *testing.T) {
			c := newCluster().withNodes(3, 4)
			lender := c.training("lender", 2, 12, []NodeID{0, 0, 0, 0, 2, 2, 2, 2})
			first := c.training("first", 2, 2, []NodeID{1, 1})
			second := c.training("second", 2, 2, []NodeID{1, 1})
			patient := c.queued("patient", 4, 4, func(j *Job) { j.Preempts = false })
			for i := range others {
				c.queued("behind"+string(rune('a'+i)), 1, 1)
			}
			s := simulate(c.at(11 * time.Minute))
			s.tell(t)
			s.run(8)
			s.finish(first)
			s.run(8)
			if len(c.Jobs[lender].Workers) > 8 {
				t.Error("what came free was grown into")
			}
			s.finish(second)
			s.run(20)
			for id := patient; int(id) < len(c.Jobs); id++ {
				if c.Jobs[id].Stage != Training {
					t.Errorf("%s does not start: %s", c.Jobs[id].Name, s.plan.of(id).Why.Text)
				}
			}
		})
	}
}

// Half of what it needs is held by a job that never ends. The other half does not stand idle for ever, and is kept again later
// as far as it comes free by itself.
func TestWhatIsKeptForAGangThatTakesNothingIsLentInTurns(t *testing.T) {
	plan := func(since time.Duration, changes ...func(*Cluster)) Plan {
		c := newCluster().withNodes(2, 4)
		c.training("endless", 4, 4, []NodeID{0, 0, 0, 0})
		c.training("grows", 2, 6, []NodeID{1, 1})
		c.queued("patient", 6, 6, func(j *Job) { j.Preempts = false })
		for _, change := range changes {
			change(c)
		}
		return NewPlan(c.at(since))
	}
	const grows = 1
	for since, want := range map[time.Duration]int32{
		9 * time.Minute: 4, 11 * time.Minute: 2, 19 * time.Minute: 2, 21 * time.Minute: 4, 29 * time.Minute: 4, 31 * time.Minute: 2, 41 * time.Minute: 4,
	} {
		got := plan(since)
		if got.Decisions[grows].Count != want {
			t.Errorf("after %s the other job has %d workers, want %d", since, got.Decisions[grows].Count, want)
		}
		if left := got.Next.Sub(noon.Add(since)); left <= 0 || left > 10*time.Minute {
			t.Errorf("after %s the next plan is due in %s", since, left)
		}
	}
	ends := plan(25*time.Minute, func(c *Cluster) { c.Jobs[0].Ends, c.Jobs[1].Ends = noon.Add(time.Hour), noon.Add(time.Hour) })
	if ends.Decisions[grows].Count != 2 {
		t.Error("it is known when it can start, and what is kept for it is lent")
	}
}

// TestAGrantedGangThatLostItsRoomIsServedFirst: it has no pods, so nothing but the plan keeps room for it.
func TestAGrantedGangThatLostItsRoomIsServedFirst(t *testing.T) {
	c := newCluster().withNodes(1, 4)
	busy := c.training("busy", 2, 2, []NodeID{0, 0})
	lost := c.queued("lost", 4, 4)
	c.Jobs[lost].Stage, c.Jobs[lost].Target, c.Jobs[lost].Queued = Starting, 4, time.Time{}
	s := simulate(c)
	s.tell(t)
	for range 5 {
		s.left[c.queued("small"+string(rune('a'+len(c.Jobs))), 1, 1)] = 5
		s.run(2)
	}
	if len(c.Jobs[lost].Workers) > 0 {
		t.Fatal("there is no room for it yet")
	}
	for id := lost + 1; int(id) < len(c.Jobs); id++ {
		if c.Jobs[id].Stage != Queued {
			t.Errorf("%s started on what it waits for", c.Jobs[id].Name)
		}
	}
	high := c.queued("high", 1, 1, priority(10))
	s.left[high] = 5
	s.run(3)
	if c.Jobs[high].Stage != Training {
		t.Error("one of higher priority does not start before it: " + s.plan.of(high).Why.Text)
	}
	s.run(5)
	s.finish(busy)
	if s.run(5); c.Jobs[lost].Stage != Training {
		t.Error("it does not start: " + s.plan.of(lost).Why.Text)
	}
}

// TestOneEvictionDoesNotSetOffTheNext: those who leave are not gone for a while; nobody else goes for the same
// room meanwhile.
func TestOneEvictionDoesNotSetOffTheNext(t *testing.T) {
	for name, wants := range map[string]int32{"whole jobs": 4, "and surplus": 6} {
		for _, stage := range []Stage{Held, Queued} {
			t.Run(name, func(t *testing.T) {
				c := newCluster().withNodes(3, 4)
				for i, pause := range []time.Duration{time.Minute, 2 * time.Minute} {
					n := NodeID(i)
					c.training("victim"+string(rune('a'+i)), 4, 8, []NodeID{n, n, n, n}, policy(Evict), func(j *Job) { j.Lost = pause })
				}
				lender := c.training("lender", 2, 8, []NodeID{2, 2, 2, 2})
				gang := c.queued("gang", wants, wants, priority(10))
				plan := NewPlan(c)
				if !plan.of(0).Evict || plan.of(1).Evict {
					t.Fatal("the first of them is to go")
				}
				leaves := plan.leavesFor(lender, gang)
				for _, l := range plan.of(lender).Leave {
					w := &c.Jobs[lender].Workers[l.Worker]
					w.Marked, w.For = true, gang
				}
				c.Jobs[0].Stage, c.Jobs[0].Target, c.Jobs[0].Queued = stage, 0, noon
				for w := range c.Jobs[0].Workers {
					c.Jobs[0].Workers[w].Leaving = true
				}
				for range 2 {
					plan = NewPlan(c)
					if plan.of(1).Evict || plan.leavesFor(lender, gang) != leaves || plan.of(0).Start || plan.of(gang).Start {
						t.Errorf("%+v", plan.Decisions)
					}
					// Half of them have ended.
					for _, w := range c.Jobs[0].Workers[:2] {
						c.put(w)
					}
					c.Jobs[0].Workers = c.Jobs[0].Workers[2:]
				}
			})
		}
	}
}

func TestNoEviction(t *testing.T) {
	c := newCluster().withNodes(2, 4)
	victim := c.training("victim", 4, 8, []NodeID{0, 0, 0, 0}, policy(Evict))
	fixed := c.training("fixed", 1, 4, []NodeID{1, 1})
	c.Jobs[fixed].Stage = Fixed
	for i := range 2 {
		// Pods that wait for the scheduler, the first of them marked already.
		w := Worker{Node: 1, Shape: c.Jobs[fixed].Gang, For: None, Rank: -1, Ordinal: int32(2 + i)}
		c.take(w)
		c.Jobs[fixed].Workers = append(c.Jobs[fixed].Workers, w)
	}
	large := c.queued("large", 4, 4, priority(10))
	small := c.queued("small", 2, 2, priority(5))
	c.Jobs[fixed].Workers[2].Marked, c.Jobs[fixed].Workers[2].For = true, small
	if plan := NewPlan(c); !plan.of(victim).Evict || plan.leavesFor(fixed, small) != 2 {
		t.Fatalf("nothing is taken: %+v", plan.Decisions)
	}
	c.NoEviction = true
	plan := NewPlan(c)
	if plan.of(victim).Evict || plan.of(large).Start {
		t.Error("a whole job goes")
	}
	if plan.leaves(fixed) != 0 {
		t.Error("a worker of a fixed job is newly chosen, or one leaves that is of no use")
	}
	one := c.queued("one", 1, 1, priority(7))
	c.Jobs[fixed].Workers[2].For = one
	if plan := NewPlan(c); plan.leavesFor(fixed, one) != 1 || plan.leaves(fixed) != 1 {
		t.Errorf("who was marked leaves, and nobody else: %+v", plan.of(fixed))
	}
	c.withNodes(1, 4)
	id := c.training("shrinks", 1, 4, []NodeID{2, 2, 2, 2})
	if plan := NewPlan(c); plan.leaves(id) == 0 {
		t.Error("surplus of jobs whose world is known is taken as usual")
	}
}

// The workers of its own class that a job has beyond a min that was lowered leave in a change that takes its time: the
// plan for them stays the same while they have yet to go.
func TestAReclaimOfTheOwnClassIsKeptUntilItIsDone(t *testing.T) {
	c := newCluster().withNodes(8, 1)
	lowered := c.training("lowered", 8, 8, span(0, 8))
	c.Jobs[lowered].Min, c.Jobs[lowered].Restarts = 4, true
	gang := c.queued("gang", 4, 4)
	first := NewPlan(c)
	if first.leavesFor(lowered, gang) != 4 || first.of(lowered).Count != 4 {
		t.Fatalf("%d leave, count %d; want 4, 4", first.leavesFor(lowered, gang), first.of(lowered).Count)
	}
	simulate(c).mark(lowered, &first.Decisions[lowered])
	c.Jobs[lowered].Target = first.of(lowered).Count
	if diff := cmp.Diff(first, NewPlan(c)); diff != "" {
		t.Errorf("the plan in force is another one: %s", diff)
	}
}

// What of a quota is free by itself is kept for a gang that takes nothing, whether or not what others claim is lent.
// A gang behind it used to have a lender shrink, and got nothing, because more was kept then; the lender grew again.
func TestNobodyShrinksForAGangThatWouldNotGetTheQuota(t *testing.T) {
	c := newCluster().withNodes(1, 20)
	c.Settings.Backfill = 0
	c.Quotas = append(c.Quotas, Quota{Name: "q", Hard: Amounts{9}, Free: Amounts{9}})
	c.training("lender", 1, 2, []NodeID{0, 0}, c.devices(4))
	first := c.queued("first", 2, 2, c.devices(4), priority(20))
	patient := c.queued("patient", 3, 3, func(j *Job) { j.Preempts = false })
	behind := c.queued("behind", 1, 1)
	s := simulate(c)
	s.tell(t)
	if !s.settles(20) {
		t.Error("somebody shrinks")
	}
	for _, id := range []JobID{first, patient, behind} {
		if c.Jobs[id].Stage != Queued {
			t.Errorf("%s has started", c.Jobs[id].Name)
		}
	}
}

// While what comes free is kept for a gang that takes nothing, nobody takes what would be kept for it then, neither to grow nor to
// start: a lender would shrink in vain, and grow again when it is the others' turn.
func TestNobodyTakesWhatIsKeptForAGangThatTakesNothing(t *testing.T) {
	for name, gang := range map[string]bool{"to grow": false, "to start": true} {
		for since, want := range map[time.Duration]int{11 * time.Minute: 0, 21 * time.Minute: 1} {
			c := newCluster().withNodes(2, 4)
			c.training("endless", 4, 4, []NodeID{0, 0, 0, 0})
			lender := c.training("lender", 3, 4, []NodeID{1, 1, 1, 1})
			c.queued("patient", 5, 5, func(j *Job) { j.Preempts = false })
			var taker JobID
			if gang {
				taker = c.queued("gang", 1, 1)
			} else {
				taker = c.training("high", 1, 2, []NodeID{0}, priority(10))
				c.Nodes[0].Free[gpu], c.Nodes[0].Capacity[gpu] = 0, 5
			}
			if got := NewPlan(c.at(since)).leavesFor(lender, taker); got != want {
				t.Errorf("%s, after %s: %d leave, want %d", name, since, got, want)
			}
		}
	}
}

// While a replacement is there for a worker that moves, any worker of its job may leave, but only one: the quota does not
// admit a gang for that, which would be kept the room that the move is for, so that the replacement leaves and comes again.
func TestAReplacementDoesNotHaveTheQuotaAdmitAGang(t *testing.T) {
	c := newCluster().withNodes(1, 8).withNodes(1, 1).withNodes(1, 8)
	c.Settings.Backfill = 0
	c.Namespaces = append(c.Namespaces, Namespace{Name: "other", Weight: 1})
	c.Quotas = []Quota{{Name: "q", Namespace: 1, Hard: Amounts{10}, Free: Amounts{10}}}
	c.training("moves", 5, 5, []NodeID{0, 0, 0, 0, 0}, in(1))
	c.queued("bounded", 2, 2, in(1), c.devices(4), func(j *Job) { j.Gang = c.shape(4, 1) })
	gang := c.queued("gang", 3, 3, c.devices(4))
	s := simulate(c)
	s.tell(t)
	if s.run(20); c.Jobs[gang].Stage != Training {
		t.Errorf("the gang never starts: %s", s.plan.of(gang).Why.Text)
	}
	if !s.settles(20) {
		t.Error("it does not come to rest")
	}
}

func TestNobodyEndsForQuotaThatAGangBeforeIsKept(t *testing.T) {
	c := newCluster().withNodes(1, 4)
	c.Settings.Backfill = 0
	c.Quotas = []Quota{{Name: "devices", Hard: Amounts{4}, Free: Amounts{4}}}
	saved := c.training("saved", 1, 1, span(0, 1), policy(Evict))
	c.training("stays", 1, 1, span(0, 1), policy(Shrink))
	large := c.queued("large", 4, 4, priority(10))
	small := c.queued("small", 1, 1, priority(10))
	if plan := NewPlan(c); plan.of(saved).Evict {
		t.Errorf("saved ends for small, and large, which waits for quota, would be kept what it leaves: %s; %s",
			plan.of(large).Why.Text, plan.of(small).Why.Text)
	}
	// Without the one before, it ends.
	c.Jobs[large].Stage = Held
	c.training("more", 2, 2, []NodeID{0, 0})
	if plan := NewPlan(c); !plan.of(saved).Evict || plan.of(saved).For != small {
		t.Errorf("saved does not end for small: %s", plan.of(small).Why.Text)
	}
}

// A gang whose move comes to nothing waits for no pods: what is kept for another may be lent, and who leaves for growth
// by the plan in force goes on doing so.
func TestAMoveThatComesToNothingIsForgotten(t *testing.T) {
	c := newCluster().withNodes(1, 8)
	c.Settings.Backfill = 0
	donor := c.training("donor", 1, 3, []NodeID{0, 0, 0}, c.devices(2))
	c.training("fixed", 1, 1, span(0, 1), func(j *Job) { j.NoGrowth = true })
	poor := c.training("poor", 1, 2, span(0, 1))
	c.queued("whole", 2, 2, c.devices(4))
	c.queued("small", 1, 1)
	c.Jobs[donor].Target, c.Jobs[donor].EvenedAt = 2, noon
	last := &c.Jobs[donor].Workers[2]
	last.Marked, last.For = true, poor
	if plan := NewPlan(c.at(time.Second)); plan.leavesFor(donor, poor) != 1 {
		t.Errorf("donor no longer gives to poor: %s; %s", plan.of(donor).Why.Text, plan.of(poor).Why.Text)
	}
}
