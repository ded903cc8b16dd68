package allocation

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// tell shows what a simulation did when its test failed.
func (s *simulation) tell(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("\n" + strings.Join(s.log, "\n"))
		}
	})
}

func TestAGangTakesBackExactlyWhatItNeeds(t *testing.T) {
	c := newCluster().withNodes(3, 4)
	low := c.training("low", 2, 12, []NodeID{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2})
	high := c.queued("high", 4, 4, priority(1000))
	s := simulate(c)
	s.tell(t)
	s.step()
	if got := s.plan.leavesFor(low, high); got != 4 || s.plan.leaves(low) != 4 || s.plan.of(low).Count != 8 {
		t.Fatalf("%d of %d leave for it, count %d; want 4 of 4, 8", got, s.plan.leaves(low), s.plan.of(low).Count)
	}
	if want := "waits for 4 places of 1 example.com/gpu: 0 are free, 4 can be taken back from ns/low (being reclaimed)"; s.plan.of(high).Why.Text != want {
		t.Errorf("got %q, want %q", s.plan.of(high).Why.Text, want)
	}
	for _, w := range c.Jobs[low].Workers[:2] {
		if w.Marked {
			t.Error("a worker of the gang leaves")
		}
	}
	nodes := map[NodeID]bool{}
	for _, l := range s.plan.of(low).Leave {
		nodes[c.Jobs[low].Workers[l.Worker].Node] = true
	}
	if len(nodes) != 1 {
		t.Errorf("workers leave on %d nodes, one whole node would do", len(nodes))
	}
	s.run(5)
	if diff := cmp.Diff([]int{8, 4}, s.counts()); diff != "" {
		t.Error(diff)
	}
	if s.plan.leaves(low) != 0 {
		t.Error("more leave once the gang is bound")
	}
}

func TestAWaitingGangLendsItsRoomAndGetsItBack(t *testing.T) {
	c := newCluster().withNodes(8, 8)
	busy := c.training("busy", 4, 4, []NodeID{0, 0, 0, 0})
	grower := c.queued("grower", 2, 64)
	c.Jobs[grower].Submitted = noon.Add(-time.Hour)
	s := simulate(c)
	s.tell(t)
	s.run(3)
	big := c.queued("big", 62, 64)
	s.run(20)
	if diff := cmp.Diff([]int{4, 60, 0}, s.counts()); diff != "" {
		t.Fatal(diff)
	}
	s.finish(busy)
	s.run(4)
	if s.plan.leavesFor(grower, big) == 0 && c.Jobs[big].Stage == Queued {
		t.Error("nothing is handed over")
	}
	s.run(10)
	if diff := cmp.Diff([]int{0, 2, 62}, s.counts()); diff != "" {
		t.Error(diff)
	}
}

func TestAGangTakesWhatIsUsedByOneElasticJob(t *testing.T) {
	c := newCluster().withNodes(3, 4)
	c.training("elastic", 2, 12, []NodeID{0, 0})
	gang := c.queued("gang", 12, 12)
	plan := NewPlan(c.at(time.Hour))
	if plan.of(gang).Start || plan.of(0).Evict || plan.leaves(0) > 0 {
		t.Error("a min was taken")
	}
	if plan.of(0).Count != 12 {
		t.Errorf("the elastic job has %d, it may use what waits", plan.of(0).Count)
	}
}

func TestEqualsSettleAndStay(t *testing.T) {
	c := newCluster().withNodes(6, 1)
	c.queued("a", 2, 4)
	c.queued("b", 2, 4)
	s := simulate(c)
	s.tell(t)
	s.run(8)
	if diff := cmp.Diff([]int{3, 3}, s.counts()); diff != "" {
		t.Error(diff)
	}
	lines := len(s.log)
	s.run(200)
	if len(s.log) != lines {
		t.Error("they do not stay")
	}
	for name, nodes := range map[string][2][]NodeID{"3,3": {span(0, 3), span(3, 6)}, "4,2": {span(0, 4), span(4, 6)}} {
		t.Run(name, func(t *testing.T) {
			c := newCluster().withNodes(6, 1)
			c.training("a", 2, 4, nodes[0])
			c.training("b", 2, 4, nodes[1])
			s := simulate(c).run(200)
			if len(s.log) > 0 {
				t.Errorf("it is not at rest:\n%s", strings.Join(s.log, "\n"))
			}
		})
	}
}

func TestWorkersMoveSoThatAGangHasWholeNodes(t *testing.T) {
	c := newCluster().withNodes(3, 4)
	spread := c.training("spread", 2, 2, []NodeID{0, 1})
	c.training("fixed", 2, 2, []NodeID{2, 2})
	whole := c.queued("whole", 1, 1, c.devices(4))
	s := simulate(c)
	s.tell(t)
	s.step()
	if got := s.plan.of(spread); len(got.Places) != 1 || got.Own != 1 || got.Count != 2 || len(got.Leave) > 0 {
		t.Fatalf("the replacement does not come first: %+v", got)
	}
	s.check = func(Plan) {
		bound := 0
		for _, w := range c.Jobs[spread].Workers {
			if w.Bound && !w.Ending {
				bound++
			}
		}
		if bound < 2 {
			t.Error("it has less than its min meanwhile")
		}
	}
	s.run(8)
	if diff := cmp.Diff([]int{2, 2, 1}, s.counts()); diff != "" {
		t.Error(diff)
	}
	lines := len(s.log)
	if s.run(100); len(s.log) != lines || c.Jobs[whole].Stage != Training {
		t.Error("it does not come to rest")
	}
}

// Who has a replacement on its way moves, and nobody else in its place: not one either who may move only now, and whose move would
// do as well.
func TestAMoveThatHasBegunIsFinished(t *testing.T) {
	c := newCluster().withNodes(3, 4)
	late := c.training("late", 1, 1, span(0, 1), func(j *Job) { j.GrowAfter = noon.Add(time.Second) })
	first := c.training("first", 1, 1, span(1, 2))
	c.training("fixed", 2, 2, []NodeID{2, 2})
	gang := c.queued("gang", 1, 1, c.devices(4))
	s := simulate(c)
	plan := NewPlan(c)
	s.carryOut(first, &plan.Decisions[first])
	if len(c.Jobs[first].Workers) != 2 {
		t.Fatalf("no replacement is made: %s", plan.of(first).Why.Text)
	}
	for _, bound := range []bool{false, true} {
		c.Jobs[first].Workers[1].Bound = bound
		plan := NewPlan(c.at(2 * time.Second))
		if got := plan.of(late); len(got.Places) > 0 || len(got.Leave) > 0 || plan.leaves(first) > 0 != bound {
			t.Errorf("while the replacement has a node %v, another one moves as well: %+v, and %d of the first one leave", bound, got, plan.leaves(first))
		}
	}
	if s.run(20); c.Jobs[gang].Stage != Training {
		t.Errorf("the gang never starts: %s", s.plan.of(gang).Why.Text)
	}
}

// Moving workers costs those who move a pause, and the gang waits for their replacements; shrinking costs the lenders two,
// since they grow back, and what they lack meanwhile. The cheaper of the two is done.
func TestWorkersMoveOnlyWhereThatIsCheaperThanShrinking(t *testing.T) {
	for name, row := range map[string]struct {
		lender, spread func(*Job)
		moves          bool
	}{
		"the lender pauses for a moment":          {func(*Job) {}, func(*Job) {}, false},
		"the lender pauses for long":              {func(j *Job) { j.Pause = time.Minute }, func(*Job) {}, true},
		"the lender's programs start anew":        {func(j *Job) { j.Restarts = true }, func(*Job) {}, true},
		"who moves pauses for longer still":       {func(j *Job) { j.Pause = time.Minute }, func(j *Job) { j.Pause = 6 * time.Minute }, false},
		"it was taken from again and again":       {func(j *Job) { j.Reclaims, j.ReclaimedAt = 20, noon.Add(-time.Second) }, func(*Job) {}, true},
		"those who would leave are in no world":   {func(j *Job) { j.Pause = time.Minute; j.idle() }, func(*Job) {}, false},
		"they leave for the gang by the plan yet": {func(j *Job) { j.Pause = time.Minute; j.leaveFor(2) }, func(*Job) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster().withNodes(3, 4)
			c.Settings.FirstRegrow = time.Second
			lender := c.training("lender", 1, 5, []NodeID{0, 2, 2, 2, 2})
			spread := c.training("spread", 2, 2, []NodeID{0, 1}, row.spread)
			gang := c.queued("gang", 1, 1, c.devices(4))
			row.lender(&c.Jobs[lender])
			plan := NewPlan(c)
			if moves := len(plan.of(spread).Places) == 1 && plan.leaves(lender) == 0; moves != row.moves {
				t.Errorf("it moves: %v, want %v; %d leave the lender: %s", moves, row.moves, plan.leaves(lender), plan.of(gang).Why.Text)
			}
			s := simulate(c)
			s.tell(t)
			if s.run(60); c.Jobs[gang].Stage != Training {
				t.Errorf("the gang never starts: %s", s.plan.of(gang).Why.Text)
			}
			if !s.settles(20) {
				t.Error("it does not come to rest")
			}
		})
	}
}

// idle takes the surplus of a job out of its world.
func (j *Job) idle() {
	for w := range j.Workers {
		j.Workers[w].World = j.Workers[w].Own
	}
}

// leaveFor has the surplus of a job leave for another one.
func (j *Job) leaveFor(id JobID) {
	for w := range j.Workers {
		if !j.Workers[w].Own {
			j.Workers[w].Marked, j.Workers[w].For = true, id
		}
	}
	j.Target = j.Min
}

// Lenders carry a plan out one after the other. The mark of the first one stays where moving workers of the other would be cheaper
// from then on.
func TestTheFirstOfTwoLendersKeepsItsMark(t *testing.T) {
	c := newCluster().withNodes(3, 4)
	c.Settings.FirstRegrow = 0
	first := c.training("first", 1, 2, []NodeID{0, 1})
	second := c.training("second", 3, 5, []NodeID{0, 0, 0, 1, 1}, func(j *Job) { j.Pause = time.Minute })
	gang := c.queued("gang", 2, 2, c.devices(3))
	s := simulate(c)
	plan := NewPlan(c)
	if plan.leavesFor(first, gang) != 1 || plan.leavesFor(second, gang) != 1 {
		t.Fatalf("%d and %d leave", plan.leavesFor(first, gang), plan.leavesFor(second, gang))
	}
	s.carryOut(first, &plan.Decisions[first])
	if plan := NewPlan(c); plan.leavesFor(first, gang) != 1 || plan.leavesFor(second, gang) != 1 || len(plan.of(second).Places) > 0 {
		t.Errorf("%d and %d leave then, and %d replacements are made", plan.leavesFor(first, gang), plan.leavesFor(second, gang), len(plan.of(second).Places))
	}
}

// TestWorkersMoveForASmallerGangThanTheFirst: that too few workers can be moved for one gang says nothing of another
// one that needs less.
func TestWorkersMoveForASmallerGangThanTheFirst(t *testing.T) {
	build := func() (*Cluster, JobID) {
		c := newCluster().withNodes(6, 4)
		c.Namespaces = append(c.Namespaces, Namespace{Name: "other", Weight: 1})
		c.Quotas = []Quota{{Name: "q", Namespace: 1, Hard: Amounts{7}, Free: Amounts{7}}}
		spread := c.training("spread", 4, 4, span(0, 4), in(1)) // its quota has 3 replacements
		c.training("fixed", 4, 4, []NodeID{4, 4, 5, 5}, policy(Never))
		return c, spread
	}
	for name, more := range map[string]int32{"alone": 0, "behind one": 1, "behind two": 2} {
		t.Run(name, func(t *testing.T) {
			c, spread := build()
			whole := c.shape(4, 0)
			for i := range more {
				c.queued(fmt.Sprintf("large%d", i), 4, 4, func(j *Job) { j.Gang = whole })
			}
			small := c.queued("small", 3, 3, func(j *Job) { j.Gang = whole })
			plan := NewPlan(c)
			if got := plan.of(spread); len(got.Places) != 3 {
				t.Errorf("%d workers are moved: %s", len(got.Places), plan.of(small).Why.Text)
			}
		})
	}
}

func TestAWholeJobEndsOnlyWhereThatStartsTheGang(t *testing.T) {
	build := func() (*Cluster, [3]JobID) {
		c := newCluster().withNodes(3, 4)
		cheap := c.training("cheap", 4, 8, []NodeID{0, 0, 0, 0}, policy(Evict), func(j *Job) { j.Lost = time.Minute })
		dear := c.training("dear", 4, 8, []NodeID{1, 1, 1, 1}, policy(Evict), func(j *Job) { j.Lost = time.Hour })
		keeps := c.training("keeps", 2, 8, []NodeID{2, 2, 2, 2})
		return c, [3]JobID{cheap, dear, keeps}
	}
	for name, row := range map[string]struct {
		wants          int32
		priority       int32
		evicts, leaves []int
	}{
		"surplus does":                    {2, 10, []int{0, 0, 0}, []int{0, 0, 2}},
		"one is enough":                   {4, 10, []int{1, 0, 0}, []int{0, 0, 0}},
		"one and surplus":                 {6, 10, []int{1, 0, 0}, []int{0, 0, 2}},
		"both":                            {8, 10, []int{1, 1, 0}, []int{0, 0, 0}},
		"all would not do, so none":       {11, 10, []int{0, 0, 0}, []int{0, 0, 0}},
		"equal priority ends nobody":      {6, 0, []int{0, 0, 0}, []int{0, 0, 0}},
		"equal priority still takes lent": {2, 0, []int{0, 0, 0}, []int{0, 0, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			c, ids := build()
			c.queued("gang", row.wants, row.wants, priority(row.priority))
			plan := NewPlan(c)
			evicts, leaves := make([]int, 3), make([]int, 3)
			for i, id := range ids {
				leaves[i] = plan.leaves(id)
				if plan.of(id).Evict {
					evicts[i] = 1
				}
			}
			if diff := cmp.Diff([2][]int{row.evicts, row.leaves}, [2][]int{evicts, leaves}); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A job whose state outlives its workers is ended for others as one that allows it is, and before those that lose work;
// never where its namespace, or the job itself, forbids that.
func TestAWholeJobThatLosesNothingEndsFirst(t *testing.T) {
	durable := func(j *Job) { j.Durable, j.Lost = true, time.Hour }
	for name, row := range map[string]struct {
		policy Policy
		set    func(*Job)
		bars   bool
		want   bool
	}{
		"its state is durable":          {Shrink, durable, false, true},
		"its state dies with it":        {Shrink, func(*Job) {}, false, false},
		"it gives nothing":              {Never, durable, false, false},
		"its namespace allows no Evict": {Shrink, durable, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster().withNodes(2, 4)
			stored := c.training("stored", 4, 8, []NodeID{0, 0, 0, 0}, policy(row.policy), row.set)
			loses := c.training("loses", 4, 8, []NodeID{1, 1, 1, 1}, policy(Evict), func(j *Job) { j.Lost = time.Minute })
			if row.bars {
				c.Namespaces[0].EvictAllowed = false
			}
			c.queued("gang", 4, 4, priority(10))
			plan := NewPlan(c)
			if got := plan.of(stored).Evict; got != row.want {
				t.Errorf("it is ended: %v, want %v", got, row.want)
			}
			if got, want := plan.of(loses).Evict, !row.want && !row.bars; got != want {
				t.Errorf("the job that loses work is ended: %v, want %v", got, want)
			}
		})
	}
}

func TestAJobBelowItsMinIsRefilledFromSurplus(t *testing.T) {
	c := newCluster().withNodes(2, 4)
	hurt := c.training("hurt", 4, 4, []NodeID{0, 0, 0})
	c.Jobs[hurt].Regrouping, c.Jobs[hurt].Target = true, 4
	c.Jobs[hurt].GrowAfter, c.Jobs[hurt].Avoid = noon.Add(time.Hour), []NodeID{0}
	lender := c.training("lender", 2, 5, []NodeID{0, 1, 1, 1, 1})
	waits := c.queued("waits", 2, 2)
	s := simulate(c)
	s.tell(t)
	s.step()
	if s.plan.leavesFor(lender, hurt) != 1 || s.plan.leavesFor(lender, waits) != 2 {
		t.Errorf("%d leave for the hurt one, %d for the other", s.plan.leavesFor(lender, hurt), s.plan.leavesFor(lender, waits))
	}
	s.run(6)
	if diff := cmp.Diff([]int{4, 2, 2}, s.counts()); diff != "" {
		t.Error(diff)
	}
}

func TestAStreamOfShortGangsDoesNotMakeTheLenderFlap(t *testing.T) {
	c := newCluster().withNodes(3, 4)
	lender := c.training("lender", 2, 12, []NodeID{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2})
	s := simulate(c)
	changes, last := 0, int32(12)
	for i := range 40 {
		short := c.queued("short"+string(rune('A'+i)), 4, 4, priority(10), func(j *Job) { j.NoGrowth = true })
		s.left[short] = 6
		for range 15 {
			if s.step(); c.Jobs[lender].Target != last {
				changes, last = changes+1, c.Jobs[lender].Target
			}
		}
	}
	if changes > 20 {
		t.Errorf("40 short gangs changed the lender %d times", changes)
	}
}

func TestAThousandJobsOfOnePriority(t *testing.T) {
	c := newCluster().withNodes(100, 8)
	for range 1000 {
		c.queued("job", 1, 4, func(j *Job) { j.Name, j.UID = j.Name+string(rune('0'+len(c.Jobs))), "" })
	}
	s := simulate(c).run(6)
	started := 0
	for i := range c.Jobs {
		if c.Jobs[i].Stage == Training {
			started++
			if i >= 800 {
				t.Errorf("%d started before one that was submitted earlier", i)
			}
		}
	}
	if started != 800 || s.plan.of(999).Queue != 200 {
		t.Errorf("%d started, the last is %d. in the queue", started, s.plan.of(999).Queue)
	}
}

func TestWhatAWaitingJobIsTold(t *testing.T) {
	for name, row := range map[string]struct {
		build func(c *Cluster) JobID
		want  string
	}{
		"larger than the cluster": {
			func(c *Cluster) JobID { return c.queued("big", 64, 64) },
			"the job is larger than the cluster: 64 workers are wanted and 8 would fit an empty cluster",
		},
		"no node has it": {
			func(c *Cluster) JobID {
				for i := range c.Nodes {
					c.Nodes[i].Capacity[gpu], c.Nodes[i].Free[gpu] = 0, 0
				}
				return c.queued("job", 1, 1)
			},
			"no node that it may use offers example.com/gpu",
		},
		"no node is allowed": {
			func(c *Cluster) JobID {
				id := c.queued("job", 1, 1)
				c.Shapes[c.Jobs[id].Gang].Nodes = nil
				return id
			},
			"no node that is open matches its selectors, affinity and tolerations",
		},
		"workers larger than nodes": {
			func(c *Cluster) JobID { return c.queued("job", 1, 1, c.devices(16)) },
			"no node is large enough for one of its workers: 16 example.com/gpu are wanted and the largest has 4",
		},
		"a quota that can never admit it": {
			func(c *Cluster) JobID {
				c.Quotas = []Quota{{Name: "devices", Hard: Amounts{2}, Free: Amounts{2}}}
				return c.queued("job", 4, 4)
			},
			"quota devices allows 2 of its 4 workers (requests.example.com/gpu)",
		},
		"a quota that is used up": {
			func(c *Cluster) JobID {
				c.Quotas = []Quota{{Name: "devices", Hard: Amounts{6}, Free: Amounts{3}}}
				return c.queued("job", 4, 4)
			},
			"quota devices is used up: it admits 3 more of its 4 workers (requests.example.com/gpu)",
		},
		"nothing can be taken": {
			func(c *Cluster) JobID {
				c.training("other", 6, 6, []NodeID{0, 0, 0, 0, 1, 1})
				return c.queued("job", 4, 4)
			},
			"waits for 4 places of 1 example.com/gpu: 2 are free, and what others have cannot be taken",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster().withNodes(2, 4)
			id := row.build(c)
			got := NewPlan(c).of(id)
			if got.Why.Text != row.want || got.Start || got.Why.Rule == RuleNone || got.Why.Reason == "" {
				t.Errorf("got %q (%s), want %q", got.Why.Text, got.Why.Reason, row.want)
			}
		})
	}
}

func TestNobodyLeavesInVain(t *testing.T) {
	t.Run("where one lender's share makes no place", func(t *testing.T) {
		c := newCluster().withNodes(2, 4)
		c.training("stays", 3, 3, []NodeID{0, 0, 0})
		cheap := c.training("cheap", 1, 2, []NodeID{1, 0}, func(j *Job) { j.Pause = time.Millisecond })
		dear := c.training("dear", 1, 4, []NodeID{1, 1, 1}, func(j *Job) { j.Pause = time.Minute })
		c.withNodes(1, 4)
		more := c.training("more", 1, 5, []NodeID{1, 2, 2, 2, 2}[1:], func(j *Job) { j.Pause = time.Minute })
		c.Jobs[more].Workers[0].Own = false
		c.Jobs[more].Min = 0
		gang := c.queued("gang", 1, 1, c.devices(4))
		plan := NewPlan(c)
		if diff := cmp.Diff([]int{0, 0, 4}, []int{plan.leavesFor(cheap, gang), plan.leavesFor(dear, gang), plan.leavesFor(more, gang)}); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("but to a legal size", func(t *testing.T) {
		c := newCluster().withNodes(1, 8)
		lender := c.training("lender", 2, 8, []NodeID{0, 0, 0, 0, 0, 0, 0, 0}, sizes(2, 4, 8))
		gang := c.queued("gang", 1, 1)
		if plan := NewPlan(c); plan.leavesFor(lender, gang) != 4 || plan.of(lender).Count != 4 {
			t.Errorf("%d leave, %d stay", plan.leavesFor(lender, gang), plan.of(lender).Count)
		}
	})
}

func TestARunningJobIsRefilledBesideAReservation(t *testing.T) {
	c := newCluster().withNodes(1, 8)
	c.training("busy", 4, 4, []NodeID{0, 0, 0, 0})
	hurt := c.training("hurt", 2, 2, []NodeID{0})
	c.Jobs[hurt].Regrouping, c.Jobs[hurt].Target = true, 2
	large := c.queued("large", 8, 8, priority(10))
	plan := NewPlan(c.at(time.Hour))
	if len(plan.of(hurt).Places) != 1 || plan.of(large).Start {
		t.Error("a job that runs is not refilled because another one waits for more than there is")
	}
}

func TestAMoveIsFinishedThoughTheReplacementTookTheLastRoom(t *testing.T) {
	c := newCluster().withNodes(2, 4)
	c.training("stays", 3, 3, []NodeID{1, 1, 1})
	c.training("moves", 1, 1, []NodeID{0})
	whole := c.queued("whole", 1, 1, c.devices(4))
	s := simulate(c)
	s.tell(t)
	s.run(10)
	if c.Jobs[whole].Stage != Training {
		t.Error("the gang never starts: " + s.plan.of(whole).Why.Text)
	}
}
