package fleet

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
)

// plans is a planner that counts, and gives each job as many workers as it was told last.
type plans struct {
	made  atomic.Int32
	count atomic.Int32
	next  atomic.Pointer[time.Time]
	// place grants each job a place of its own class on the first node.
	place atomic.Bool
	// during is what happens while the next plan is made.
	during atomic.Pointer[func()]
}

// whilePlanning has something happen while the next plan is made, once.
func (p *plans) whilePlanning(do func()) { p.during.Store(&do) }

func (p *plans) plan(cluster *allocation.Cluster) allocation.Plan {
	p.made.Add(1)
	if during := p.during.Swap(nil); during != nil {
		(*during)()
	}
	plan := allocation.Plan{}
	for range cluster.Jobs {
		decision := allocation.Decision{Count: p.count.Load(), For: allocation.None}
		if p.place.Load() {
			decision.Places, decision.Own = []allocation.NodeID{0}, 1
		}
		plan.Decisions = append(plan.Decisions, decision)
	}
	if next := p.next.Load(); next != nil {
		plan.Next = *next
	}
	return plan
}

// runs has a cluster plan in a bubble until the test ends.
func runs(t *testing.T, p *plans, changes ...func(*Options)) *Cluster {
	t.Helper()
	c := New(optionsOf(append(changes, func(o *Options) { o.Plan, o.Now = p.plan, time.Now })...))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return c
}

// delivered takes what has changed by now.
func delivered(c *Cluster) map[string]int {
	names := map[string]int{}
	for {
		synctest.Wait()
		select {
		case name := <-c.Changed():
			names[name.Name]++
		default:
			return names
		}
	}
}

// Events, reports and questions do not wait for a plan that is being made, which in a large cluster takes long. What was
// granted before cannot be taken meanwhile: the plan may give it to another job.
func TestAPlanHoldsNobodyUp(t *testing.T) {
	p := &plans{}
	p.place.Store(true)
	c := New(optionsOf(func(o *Options) { o.Plan = p.plan }))
	c.SetNode(nodeOf("n0"))
	job := jobOf("j", starts)
	c.SetJob(job)
	c.Report(job, Facts{})
	c.PlanNow()
	if !c.Grant(job.UID).Known {
		t.Fatal("nothing is granted")
	}
	taken := make(chan bool, 1)
	c.options.Plan = func(cluster *allocation.Cluster) allocation.Plan {
		c.SetPod(podOf("other", "1", func(pod *corev1.Pod) { pod.Spec.NodeName = "n0" }))
		c.SetNode(nodeOf("n1"))
		c.SetJob(jobOf("late"))
		c.Grant(job.UID)
		go func() { taken <- c.Take(job.UID, []*corev1.Pod{workerOf(job, 0, onto("n0"))}) }()
		for range 1000 {
			runtime.Gosched()
		}
		p.place.Store(false) // another job has the room by now
		return p.plan(cluster)
	}
	c.PlanNow()
	if <-taken {
		t.Error("what the plan gives to another job was taken while it was made")
	}
	c.options.Plan = p.plan
	c.PlanNow()
	seen, _ := c.Last()
	if len(seen.Jobs) != 2 || len(seen.Nodes) != 2 {
		t.Errorf("the next plan sees %d jobs and %d nodes, want 2 of each", len(seen.Jobs), len(seen.Nodes))
	}
}

// A job of which something is reported while a plan is made is not granted what that plan knew nothing of.
func TestAReportDuringAPlanIsForTheNext(t *testing.T) {
	p := &plans{}
	c := New(optionsOf(func(o *Options) { o.Plan = p.plan }))
	job := jobOf("j", trains)
	c.SetJob(job)
	c.Report(job, Facts{Elastic: true})
	c.options.Plan = func(cluster *allocation.Cluster) allocation.Plan {
		c.Report(job, Facts{Elastic: true, Finishing: true})
		return p.plan(cluster)
	}
	c.PlanNow()
	if c.Grant(job.UID).Known {
		t.Error("it is granted what follows from an older report")
	}
	c.options.Plan = p.plan
	if c.PlanNow(); !c.Grant(job.UID).Known {
		t.Error("the next plan grants nothing")
	}
}

// Nor is a job granted what the last plan said before it was looked at as it is now, whoever told of the change first: what
// the reconciler writes comes back as an event, which may overtake its report.
func TestAGrantIsNotForAnOlderJob(t *testing.T) {
	job := jobOf("j", trains, version(1))
	written := jobOf("j", trains, version(2), func(j *v1alpha1.TrainingJob) { j.Status.Workers.Target = ptr.To[int32](3) })
	worker := workerOf(job, 0, on("n0"))
	for name, step := range map[string]struct {
		before, during func(*Cluster)
	}{
		"the event comes after the report":  {before: func(c *Cluster) { c.Report(written, Facts{}); c.SetJob(written) }},
		"the event comes before the report": {before: func(c *Cluster) { c.SetJob(written); c.Report(written, Facts{}) }},
		"the event comes alone":             {before: func(c *Cluster) { c.SetJob(written) }},
		"a plan that is under way has seen it": {
			before: func(c *Cluster) { c.DeletePod(worker) }, during: func(c *Cluster) { c.Report(job, Facts{}) }},
	} {
		t.Run(name, func(t *testing.T) {
			p := &plans{}
			c := New(optionsOf(func(o *Options) { o.Plan = p.plan }))
			c.SetJob(job)
			c.SetPod(worker)
			c.Report(job, Facts{})
			if c.PlanNow(); !c.Grant(job.UID).Known {
				t.Fatal("nothing is granted")
			}
			step.before(c)
			known := step.during == nil && c.Grant(job.UID).Known
			p.whilePlanning(func() {
				if step.during != nil {
					step.during(c)
				}
				known = known || c.Grant(job.UID).Known
			})
			c.PlanNow()
			if known {
				t.Error("it is granted what was said of an older one")
			}
			if !c.Grant(job.UID).Known {
				t.Error("the plan that has seen it is not enough")
			}
		})
	}
}

func TestPlansBeginWhenAllIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plans{}
		c := runs(t, p)
		c.SetJob(jobOf("big"))
		time.Sleep(time.Hour)
		if n := p.made.Load(); n != 0 {
			t.Fatalf("%d plans were made of half a cluster", n)
		}
		c.Synced()
		c.Synced()
		synctest.Wait()
		if p.made.Load() != 1 {
			t.Errorf("%d plans", p.made.Load())
		}
	})
}

func TestPlansComeAtOnceAndNotTooOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plans{}
		c := runs(t, p)
		c.Synced()
		time.Sleep(hearsFor + time.Second)
		before := p.made.Load()
		c.SetNode(nodeOf("n0"))
		synctest.Wait() // it has begun
		if p.made.Load() != before+1 {
			t.Fatal("a change is not looked at although nothing else is to do")
		}
		for i := range 1000 {
			c.SetNode(nodeOf("n0", offers(corev1.ResourceCPU, []string{"1", "2"}[i%2])))
			time.Sleep(time.Millisecond)
		}
		time.Sleep(mostRest)
		if n := p.made.Load() - before; n < 80 || n > 101 {
			t.Errorf("%d plans that take no time within a second of changes", n)
		}
		before = p.made.Load()
		time.Sleep(planAnyway - time.Second)
		if p.made.Load() != before {
			t.Error("plans are made although nothing has changed")
		}
		time.Sleep(2 * time.Second)
		if p.made.Load() != before+1 {
			t.Error("nobody looks again, whatever the clock does")
		}
	})
}

// TestANewLeaderEndsNobodyAtOnce: it does not know yet which worlds can change.
func TestANewLeaderEndsNobodyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := runs(t, &plans{})
		c.options.Now = time.Now
		c.Synced()
		synctest.Wait()
		if !c.Snapshot().NoEviction {
			t.Error("whole jobs may go at once")
		}
		time.Sleep(hearsFor)
		synctest.Wait()
		if c.Snapshot().NoEviction {
			t.Error("whole jobs may not go although all is known")
		}
		if FromObjects(Objects{}, optionsOf()).Snapshot().NoEviction {
			t.Error("who asks from outside hears of no eviction")
		}
	})
}

func TestDearPlansRest(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0: leastRest, 100 * time.Microsecond: leastRest, 5 * time.Millisecond: 100 * time.Millisecond, time.Second: mostRest,
	} {
		if got := restAfter(took); got != want {
			t.Errorf("after a plan of %s the next one waits for %s, want %s", took, got, want)
		}
	}
}

func TestHeartbeatsOfNodesChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plans{}
		c := runs(t, p)
		c.SetNode(nodeOf("n0"))
		c.Synced()
		time.Sleep(time.Second)
		before := p.made.Load()
		node := nodeOf("n0")
		node.ResourceVersion = "17"
		c.SetNode(node)
		time.Sleep(time.Second)
		if p.made.Load() != before {
			t.Error("a heartbeat has a plan made")
		}
		if c.Nodes([]string{"n0", "n1"})["n0"].ResourceVersion != "17" || len(c.Nodes([]string{"n1"})) != 0 {
			t.Error("the newest version is not what is told")
		}
	})
}

func TestPlansAreMadeWhenTheySay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plans{}
		c := runs(t, p)
		at := time.Now().Add(10 * time.Second)
		p.next.Store(&at)
		c.Synced()
		time.Sleep(9 * time.Second)
		if p.made.Load() != 1 {
			t.Fatalf("%d plans before the time", p.made.Load())
		}
		time.Sleep(1100 * time.Millisecond)
		if p.made.Load() != 2 {
			t.Errorf("%d plans, want one more", p.made.Load())
		}
	})
}

// TestAGrantIsKnownOnceThePlanHasSeenTheReport: one from before it, or one that was under way, is not enough. A planner
// that has nothing to do answers at once, so the test asks while there can be no plan: before all is known, and while
// the planner rests.
func TestAGrantIsKnownOnceThePlanHasSeenTheReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plans{}
		c := runs(t, p)
		job := jobOf("big")
		c.SetJob(job)
		p.count.Store(2)
		if c.Grant(job.UID).Known {
			t.Fatal("nothing was planned yet")
		}
		c.Synced()
		c.Report(job, Facts{})
		time.Sleep(time.Second)
		if g := c.Grant(job.UID); !g.Known || g.Count != 2 {
			t.Fatalf("grant is %+v", g)
		}
		delivered(c)

		c.Report(job, Facts{})
		time.Sleep(time.Second)
		if got := delivered(c); !c.Grant(job.UID).Known || len(got) != 0 {
			t.Fatalf("the same report again is news: %v", got)
		}

		c.SetNode(nodeOf("n0"))
		synctest.Wait() // a plan was made, and the next one is not before the test sleeps
		c.Report(job, Facts{Finishing: true})
		if c.Grant(job.UID).Known {
			t.Fatal("a plan from before the report is taken for its answer")
		}
		answered(t, c, job.UID)

		known := true
		p.whilePlanning(func() {
			c.Report(job, Facts{})
			known = c.Grant(job.UID).Known
		})
		c.SetNode(nodeOf("n1"))
		synctest.Wait()
		if known || c.Grant(job.UID).Known || len(delivered(c)) != 0 {
			t.Fatal("a plan that was under way is taken for the answer")
		}
		answered(t, c, job.UID)
	})
}

// answered waits until who asked in vain for the grant of the only job is called.
func answered(t *testing.T, c *Cluster, job types.UID) {
	t.Helper()
	time.Sleep(time.Second)
	if !c.Grant(job).Known {
		t.Fatal("the report is never answered")
	}
	if len(delivered(c)) == 0 {
		t.Fatal("who asked in vain is not called, since the answer is the same as before")
	}
}

func TestPodsThatWereMadeAreNotGrantedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plans{}
		c := runs(t, p)
		job := jobOf("big", starts)
		c.Report(job, Facts{})
		c.Synced()
		time.Sleep(time.Second)
		if !c.Grant(job.UID).Known {
			t.Fatal("no grant")
		}
		made := []*corev1.Pod{workerOf(job, 0, onto("n0"))}
		if c.Take(job.UID, made) {
			t.Fatal("what was not granted can be taken")
		}
		p.place.Store(true)
		c.SetNode(nodeOf("n0"))
		time.Sleep(time.Second)
		if c.Take(job.UID, []*corev1.Pod{made[0], workerOf(job, 1, onto("n0"))}) {
			t.Fatal("one place is taken twice")
		}
		if got := delivered(c); got["big"] == 0 {
			t.Error("who could not take what was granted is not called")
		}
		if !c.Take(job.UID, made) {
			t.Fatal("what was granted cannot be taken")
		}
		if c.Grant(job.UID).Known || c.Take(job.UID, made) {
			t.Error("the grant may be taken once more")
		}
		if charged := c.Snapshot().Jobs[0].Workers; len(charged) != 1 {
			t.Errorf("%d workers are charged", len(charged))
		}
		time.Sleep(time.Second)
		if !c.Grant(job.UID).Known {
			t.Error("no new grant")
		}
	})
}

// TestNoChangeIsLost: whoever reads slowly hears of every job that has changed, once more after each time
// that it was read.
func TestNoChangeIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plans{}
		c := runs(t, p)
		names := []string{"a", "b", "c", "d"}
		for _, name := range names {
			c.Report(jobOf(name), Facts{})
		}
		c.Synced()
		time.Sleep(time.Second)
		for round := range int32(5) {
			p.count.Store(round + 1)
			c.SetNode(nodeOf("n0", offers(corev1.ResourceCPU, string('1'+round))))
			time.Sleep(time.Second)
			if round < 3 {
				continue // nobody reads
			}
			got := delivered(c)
			for _, name := range names {
				if got[name] < 1 || got[name] > 2 {
					t.Errorf("round %d: %s was delivered %d times", round, name, got[name])
				}
			}
		}
	})
}

func TestNodesWakeTheirWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plans{}
		c := runs(t, p)
		here, there := jobOf("here", trains), jobOf("there", trains)
		for _, name := range []string{"n0", "n1"} {
			c.SetNode(nodeOf(name))
		}
		c.Report(here, Facts{Elastic: true})
		c.Report(there, Facts{Elastic: true})
		c.SetPod(workerOf(here, 0, on("n0")))
		c.SetPod(workerOf(there, 0, on("n1")))
		c.Synced()
		time.Sleep(time.Second)
		delivered(c)
		for _, step := range []struct {
			name string
			do   func()
			want int
		}{
			{"a label", func() { c.SetNode(nodeOf("n0", func(n *corev1.Node) { n.Labels["a"] = "b" })) }, 0},
			{"a taint", func() { c.SetNode(nodeOf("n0", tainted("going", corev1.TaintEffectNoSchedule))) }, 1},
			{"not ready", func() {
				c.SetNode(nodeOf("n0", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }))
			}, 1},
			{"gone", func() { c.DeleteNode("n0") }, 1},
			{"gone twice", func() { c.DeleteNode("n0") }, 0},
			{"back", func() { c.SetNode(nodeOf("n0")) }, 1},
		} {
			step.do()
			time.Sleep(time.Second)
			if got := delivered(c); got["here"] != step.want || got["there"] != 0 {
				t.Errorf("%s: %v, want %d of here", step.name, got, step.want)
			}
		}
	})
}

func TestDecisionsBecomeGrants(t *testing.T) {
	lender, gang := jobOf("lender", trains), jobOf("gang")
	objects := Objects{Nodes: nodesOf(2), Jobs: []*v1alpha1.TrainingJob{lender, gang},
		Pods: []*corev1.Pod{workerOf(lender, 0, on("n0")), workerOf(lender, 1, on("n1"), growthRole)}}
	decide := func(cluster *allocation.Cluster) allocation.Plan {
		node := func(name string) allocation.NodeID {
			for id, n := range cluster.Nodes {
				if n.Name == name {
					return allocation.NodeID(id)
				}
			}
			return allocation.None
		}
		// By name the gang comes first.
		return allocation.Plan{Decisions: []allocation.Decision{
			{Count: 2, Start: true, Places: []allocation.NodeID{node("n1"), allocation.None}, Own: 1, For: allocation.None, Queue: 1, Expected: start,
				Why: allocation.Why{Reason: "Word", Text: "a sentence"}},
			{Count: 1, Leave: []allocation.Leave{{Worker: 1, For: 0}, {Worker: 7}}, Evict: true, For: 0},
		}}
	}
	c := FromObjects(objects, optionsOf(func(o *Options) { o.Plan = decide }))
	c.PlanNow()
	got := c.Grant(gang.UID)
	if !got.Known || got.Count != 2 || !got.Start || len(got.Places) != 2 || got.Places[0] != (Place{Node: "n1", Own: true}) || got.Places[1] != (Place{}) ||
		got.Queue != (Queue{Position: 1, Start: start}) || got.Reason != "Word" || got.Why != "a sentence" || got.Evict != "" || got.Leave != nil {
		t.Errorf("the gang is granted %+v", got)
	}
	got = c.Grant(lender.UID)
	leave := got.Leave["uid-lender-1-1"]
	if len(got.Leave) != 1 || leave.For != "team/gang" || leave.Why == "" || got.Evict != "team/gang" || got.Count != 1 {
		t.Errorf("the lender is granted %+v", got)
	}
	if seen, plan := c.Last(); len(seen.Jobs) != 2 || len(plan.Decisions) != 2 {
		t.Error("the last plan is not kept")
	}
	c.Forget(gang.UID)
	if c.Grant(gang.UID).Known || c.Grant(types.UID("nobody")).Known {
		t.Error("a job that is gone has a grant")
	}

	scaled := FromObjects(objects, optionsOf(func(o *Options) { o.Plan, o.Settings.Capacity = decide, Autoscaled }))
	scaled.PlanNow()
	if places := scaled.Grant(gang.UID).Places; places[0].Node != "" {
		t.Errorf("a pinned pod makes no node: %+v", places)
	}
}
