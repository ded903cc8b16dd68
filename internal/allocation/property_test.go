package allocation

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// drawn is a small random cluster with jobs that arrive while it is simulated.
func drawCluster(t *rapid.T) *Cluster {
	c := newCluster()
	for range rapid.IntRange(1, 4).Draw(t, "nodes") {
		c.withNodes(1, int64(rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(t, "devices")))
	}
	c.Settings.MinRuntime = time.Duration(rapid.SampledFrom([]int{0, 20}).Draw(t, "minRuntime")) * time.Second
	c.Settings.Backfill = time.Duration(rapid.SampledFrom([]int{0, 30, 600}).Draw(t, "backfill")) * time.Second
	c.Namespaces = append(c.Namespaces, Namespace{Name: "other", Weight: 2, EvictAllowed: true})
	if rapid.Bool().Draw(t, "quota") {
		hard := Amounts{int64(rapid.IntRange(1, 12).Draw(t, "hard"))}
		c.Quotas = append(c.Quotas, Quota{Name: "q", Namespace: 1, Hard: hard, Free: append(Amounts{}, hard...)})
	}
	return c
}

// arrive adds a random job that waits.
func (c *Cluster) arrive(t *rapid.T) JobID {
	least := int32(rapid.IntRange(1, 5).Draw(t, "min"))
	set := func(j *Job) {
		j.Namespace = NamespaceID(rapid.IntRange(0, 1).Draw(t, "namespace"))
		j.Priority = int32(rapid.SampledFrom([]int{0, 0, 0, 10, 20}).Draw(t, "priority"))
		j.Policy = Policy(rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "policy"))
		j.Preempts = rapid.IntRange(0, 9).Draw(t, "preempts") > 0
		j.Durable = rapid.IntRange(0, 3).Draw(t, "durable") == 0
		j.NoGrowth = rapid.IntRange(0, 5).Draw(t, "growth") == 0
		j.Submitted, j.Queued = c.Now, c.Now
		j.Gang = c.shape(int64(rapid.SampledFrom([]int{1, 1, 1, 2, 4}).Draw(t, "workerDevices")), j.Namespace)
		j.Pause = time.Duration(rapid.IntRange(0, 3).Draw(t, "pause")) * time.Second
		if rapid.IntRange(0, 4).Draw(t, "sized") == 0 {
			j.Sizes = []int32{least, 2 * least, 4 * least}
		}
		if rapid.IntRange(0, 2).Draw(t, "avoids") == 0 {
			j.Avoid = rapid.SliceOfNDistinct(rapid.Map(rapid.IntRange(0, len(c.Nodes)-1), func(n int) NodeID { return NodeID(n) }), 1, 2, rapid.ID).Draw(t, "avoid")
		}
	}
	return c.queued(fmt.Sprintf("j%d", len(c.Jobs)), least, least*int32(rapid.IntRange(1, 4).Draw(t, "times")), set)
}

func TestRandomClusters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := simulate(drawCluster(t))
		s.check = func(plan Plan) {
			s.sound(t, plan)
			s.avoiding(t, plan)
			s.needed(t, plan)
			s.helps(t, plan)
			s.inOrder(t, plan)
			s.eachNeeded(t, plan)
			s.promisesHold(t, plan)
			s.notHeldUp(t, plan)
			s.startsBeside(t, plan)
			if s.Now.Sub(noon)%(100*time.Second) != 0 {
				return
			}
			before := fmt.Sprint(s.Cluster)
			if diff := cmp.Diff(plan, NewPlan(s.Cluster)); diff != "" {
				t.Fatalf("the same cluster has two plans: %s", diff)
			}
			if fmt.Sprint(s.Cluster) != before {
				t.Fatal("the cluster was changed")
			}
		}
		s.ends = func() int { return rapid.IntRange(0, 2).Draw(t, "ends") }
		defer func() {
			if t.Failed() {
				for _, line := range s.log {
					t.Log(line)
				}
			}
		}()
		jobs := rapid.IntRange(1, 7).Draw(t, "jobs")
		for range jobs {
			id := s.arrive(t)
			if rapid.Bool().Draw(t, "finite") {
				s.left[id] = rapid.IntRange(1, 20).Draw(t, "work")
			}
			s.run(rapid.IntRange(0, 8).Draw(t, "pause"))
		}
		s.tick = 15 * time.Second
		s.run(130)
		if s.ends = nil; !s.settles(60) {
			t.Fatalf("it does not come to rest: %s", cmp.Diff(Plan{}, s.plan))
		}
	})
}

// settles says whether nothing is to be done any more, for a while.
func (s *simulation) settles(ticks int) bool {
	for range ticks {
		if s.step(); !s.plan.quiet() {
			return false
		}
	}
	return true
}

// TestEverythingThatFitsStartsInTheEnd: all jobs are finite, so none may starve.
func TestEverythingThatFitsStartsInTheEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := simulate(drawCluster(t))
		s.Settings.Backfill = 30 * time.Second
		defer func() {
			if t.Failed() {
				for _, line := range s.log {
					t.Log(line)
				}
			}
		}()
		for range rapid.IntRange(1, 12).Draw(t, "jobs") {
			s.left[s.arrive(t)] = rapid.IntRange(1, 10).Draw(t, "work")
			s.run(rapid.IntRange(0, 3).Draw(t, "pause"))
		}
		s.run(500)
		for id := range s.Jobs {
			j := &s.Jobs[id]
			if s.left[JobID(id)] < 0 {
				continue
			}
			room := simulate(s.Cluster).empty(JobID(id))
			if room >= j.Min {
				t.Fatalf("%s never started, and %d of its %d workers fit an empty cluster: %s", j.Name, room, j.Min, s.plan.of(JobID(id)).Why.Text)
			}
		}
	})
}

// empty is how many workers of a job would fit if nothing else were there.
func (s *simulation) empty(id JobID) int32 {
	shape, fits := &s.Shapes[s.Jobs[id].Gang], int64(0)
	for n := range s.Nodes {
		fits += s.Nodes[n].Capacity[gpu] / shape.Request[gpu]
	}
	for _, q := range shape.Quotas {
		fits = min(fits, s.Quotas[q].Hard[0]/shape.Demand[0])
	}
	return int32(fits)
}

// kept are the tallies of jobs, made anew for those whose workers changed: what internal/fleet does.
type kept struct {
	workers map[JobID][]Worker
	tallies map[JobID]*Tally
}

// with is the cluster with these tallies.
func (k *kept) with(c *Cluster) *Cluster {
	copied := *c
	copied.Jobs = slices.Clone(c.Jobs)
	for i := range copied.Jobs {
		id, j := JobID(i), &copied.Jobs[i]
		if k.tallies[id] == nil || !slices.EqualFunc(k.workers[id], j.Workers, sameTally) {
			k.workers[id], k.tallies[id] = slices.Clone(j.Workers), TallyOf(j.Workers)
		}
		j.Tally = k.tallies[id]
	}
	return &copied
}

// sameTally says whether two workers are the same but for what a tally leaves out.
func sameTally(a, b Worker) bool {
	b.For, b.Overdue = a.For, a.Overdue
	return a == b
}

// TestKeptTalliesChangeNoPlan: whatever happened since a tally was made, the plan is that of a cluster without any.
func TestKeptTalliesChangeNoPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := simulate(drawCluster(t))
		var used Planner
		k := kept{workers: map[JobID][]Worker{}, tallies: map[JobID]*Tally{}}
		s.check = func(plan Plan) {
			if diff := cmp.Diff(plan, used.Plan(k.with(s.Cluster))); diff != "" {
				t.Fatalf("tallies that were kept give another plan: %s", diff)
			}
		}
		s.ends = func() int { return rapid.IntRange(0, 2).Draw(t, "ends") }
		for range rapid.IntRange(5, 120).Draw(t, "steps") {
			if rapid.IntRange(0, 4).Draw(t, "arrives") == 0 {
				s.left[s.arrive(t)] = rapid.IntRange(1, 20).Draw(t, "work")
			}
			if len(s.Jobs) > 0 {
				s.disturb(t, &s.Jobs[rapid.IntRange(0, len(s.Jobs)-1).Draw(t, "whom")])
			}
			s.step()
		}
	})
}

// disturb has something happen to a job that no plan brought about.
func (s *simulation) disturb(t *rapid.T, j *Job) {
	if len(j.Workers) == 0 {
		return
	}
	w := &j.Workers[rapid.IntRange(0, len(j.Workers)-1).Draw(t, "worker")]
	switch rapid.IntRange(0, 19).Draw(t, "disturbance") {
	case 0:
		w.Leaving = true
	case 1:
		w.Overdue = w.Ending
	case 2:
		w.For = JobID(rapid.IntRange(None, len(s.Jobs)-1).Draw(t, "for"))
	case 3:
		w.World = !w.World
	case 4:
		j.Armed = !j.Armed
	case 5:
		j.Finishing = !j.Finishing
	case 6:
		j.Min = int32(rapid.IntRange(1, int(j.Max)).Draw(t, "new min"))
		j.Sizes = nil
	case 7:
		if j.Stage == Training || j.Stage == Fixed {
			j.Stage = Training + Fixed - j.Stage
		}
	case 8:
		j.Regrouping = !j.Regrouping
	}
}

// TestAPlannerRemembersNothing: whatever it planned before, and for which cluster, the plan is that of a new one.
func TestAPlannerRemembersNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var used Planner
		clusters := []*simulation{simulate(drawCluster(t)), simulate(drawCluster(t))}
		for range rapid.IntRange(5, 60).Draw(t, "steps") {
			s := clusters[rapid.IntRange(0, 1).Draw(t, "which")]
			s.check = func(plan Plan) {
				if diff := cmp.Diff(plan, used.Plan(s.Cluster)); diff != "" {
					t.Fatalf("a planner that was used gives another plan: %s", diff)
				}
			}
			if rapid.IntRange(0, 4).Draw(t, "arrives") == 0 {
				s.left[s.arrive(t)] = rapid.IntRange(1, 20).Draw(t, "work")
			}
			s.step()
		}
	})
}
