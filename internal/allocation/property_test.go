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

// sound fails when a plan breaks a promise that holds always.
func (s *simulation) sound(t *rapid.T, plan Plan) {
	free := make([]Amounts, len(s.Nodes))
	for n := range s.Nodes {
		free[n] = append(Amounts{}, s.Nodes[n].Free...)
	}
	quota := make([]Amounts, len(s.Quotas))
	for q := range s.Quotas {
		quota[q] = append(Amounts{}, s.Quotas[q].Free...)
	}
	for id := range s.Jobs {
		j, d := &s.Jobs[id], &plan.Decisions[id]
		s.soundDecision(t, JobID(id), d)
		for i, n := range d.Places {
			shape := &s.Shapes[j.Growth]
			if int32(i) < d.Own {
				shape = &s.Shapes[j.Gang]
			}
			for r, amount := range shape.Request {
				if free[n][r] -= amount; free[n][r] < 0 {
					t.Fatalf("%s: too little on %s", j.Name, s.Nodes[n].Name)
				}
			}
			for _, q := range shape.Quotas {
				for r, amount := range shape.Demand {
					if quota[q][r] -= amount; quota[q][r] < 0 {
						t.Fatalf("%s: beyond its quota", j.Name)
					}
				}
			}
		}
	}
}

func (s *simulation) soundDecision(t *rapid.T, id JobID, d *Decision) {
	j := &s.Jobs[id]
	live, own := int32(0), int32(0)
	for _, w := range j.Workers {
		if !w.Ending && !w.Leaving {
			live++
			if w.Own && w.Bound {
				own++
			}
		}
	}
	leave := int32(0)
	for _, l := range d.Leave {
		w := &j.Workers[l.Worker]
		if w.Ending || w.Leaving {
			continue
		}
		leave++
		if w.Own && w.Bound {
			own--
		}
	}
	switch {
	case d.Evict:
		if s.Jobs[d.For].Priority <= j.Priority || j.policy(s) != Evict {
			t.Fatalf("%s is evicted for %s", j.Name, s.Jobs[d.For].Name)
		}
	case j.Stage == Queued:
		if d.Start && (len(d.Places) != int(j.Min) || d.Own != j.Min) || !d.Start && (d.Count != 0 || len(d.Places) > 0) {
			t.Fatalf("%s starts partly: %+v", j.Name, d)
		}
		if !d.Start && d.Why.Text == "" {
			t.Fatalf("%s waits and nobody says why", j.Name)
		}
	case j.Stage == Training:
		if d.Count < j.Min || d.Count > j.Max || !j.legal(d.Count) {
			t.Fatalf("%s has %d: not legal", j.Name, d.Count)
		}
		if leave > 0 && (own < j.Min || live-leave < j.Min) {
			t.Fatalf("%s is left with %d, %d of its own class", j.Name, live-leave, own)
		}
		if j.policy(s) == Never && leave > 0 {
			t.Fatalf("%s gives though its policy is Never", j.Name)
		}
	}
}

// avoiding fails when a job grows on a node that it avoids, or has somebody leave for its growth there who is not to leave for a
// quota, or for a legal number of workers.
func (s *simulation) avoiding(t *rapid.T, plan Plan) {
	for id := range s.Jobs {
		j, d := &s.Jobs[id], &plan.Decisions[id]
		for _, n := range d.Places[d.Own:] {
			if slices.Contains(j.Avoid, n) {
				t.Fatalf("%s grows on %s, which it avoids", j.Name, s.Nodes[n].Name)
			}
		}
		for _, l := range d.Leave {
			w := &j.Workers[l.Worker]
			if l.For == None || l.Rule != RuleGrowth && l.Rule != RuleGangClass || w.Marked || len(j.Sizes) > 0 || len(s.Shapes[w.Shape].Quotas) > 0 {
				continue
			}
			if whom := &s.Jobs[l.For]; slices.Contains(whom.Avoid, w.Node) {
				t.Fatalf("one of %s leaves %s for %s, which avoids that", j.Name, s.Nodes[w.Node].Name, whom.Name)
			}
		}
	}
}

// needed fails when a gang that takes from others could start without one of those who leave for it.
func (s *simulation) needed(t *rapid.T, plan Plan) {
	for whom := range s.Jobs {
		j, takers := &s.Jobs[whom], 0
		free, victims := s.afterwards(), []Worker{}
		for id := range s.Jobs {
			for _, l := range plan.Decisions[id].Leave {
				w := s.Jobs[id].Workers[l.Worker]
				if w.Ending || w.Leaving {
					continue
				}
				if len(s.Jobs[id].Sizes) > 0 {
					takers = -1000
				}
				if l.For == JobID(whom) && l.Rule == RuleGangsFirst {
					takers++
					victims = append(victims, w)
				}
			}
			if plan.Decisions[id].Evict {
				takers = -1000
			}
		}
		if takers <= 0 || j.Stage != Queued {
			continue
		}
		// Others that wait may have been promised what is free: only one gang that takes can be judged.
		if s.takers(plan) > 1 {
			continue
		}
		for _, spared := range victims {
			fits := int64(0)
			for n := range s.Nodes {
				left := free[n]
				for _, w := range victims {
					if w != spared && int(w.Node) == n {
						left += s.Shapes[w.Shape].Request[gpu]
					}
				}
				fits += left / s.Shapes[j.Gang].Request[gpu]
			}
			if fits >= int64(j.Min) && len(s.Shapes[j.Gang].Quotas) == 0 {
				t.Fatalf("%s does not need all %d that leave for it", j.Name, len(victims))
			}
		}
	}
}

// helps fails when a gang that has others leave for it would not start once all have ended who are to: somebody would have left in
// vain. What is kept for others, and what these are promised, counts here as well.
func (s *simulation) helps(t *rapid.T, plan Plan) {
	takes, young := map[JobID]bool{}, false
	for id := range s.Jobs {
		d := &plan.Decisions[id]
		young = young || !s.Jobs[id].Preempts && s.Jobs[id].Stage == Queued || !until(s.Jobs[id].GrewAt, s.Settings.MinRuntime, s.Now).IsZero()
		if d.Evict && s.Jobs[d.For].Stage == Queued {
			takes[d.For] = true
		}
		for _, l := range d.Leave {
			if l.For != None && l.Rule == RuleGangsFirst && s.Jobs[l.For].Stage == Queued {
				takes[l.For] = true
			}
		}
	}
	if len(takes) != 1 || young {
		return // of two that take at once the first may choose other nodes once all is free
	}
	after := NewPlan(s.carriedOut(plan))
	for id := range s.Jobs {
		if !takes[JobID(id)] && after.Decisions[id].Own > plan.Decisions[id].Own {
			return // one before them could not ask for this itself, and has it now
		}
	}
	for id := range takes {
		if !after.of(id).Start {
			t.Fatalf("%s does not start when all have left who are to: %s", s.Jobs[id].Name, after.of(id).Why.Text)
		}
	}
}

// carriedOut is the cluster once a plan was carried out, and all have ended who are to.
func (s *simulation) carriedOut(plan Plan) *Cluster {
	after := *s.Cluster
	after.Nodes, after.Quotas, after.Jobs = slices.Clone(s.Nodes), slices.Clone(s.Quotas), slices.Clone(s.Jobs)
	for n := range after.Nodes {
		after.Nodes[n].Free = slices.Clone(after.Nodes[n].Free)
	}
	for q := range after.Quotas {
		after.Quotas[q].Free = slices.Clone(after.Quotas[q].Free)
	}
	then := simulate(&after)
	for id := range after.Jobs {
		j := &after.Jobs[id]
		j.Workers = slices.Clone(j.Workers)
		then.carryOut(JobID(id), &plan.Decisions[id])
		j.Workers = slices.DeleteFunc(j.Workers, func(w Worker) bool {
			if w.Ending || w.Marked {
				after.put(w)
			}
			return w.Ending || w.Marked
		})
	}
	return &after
}

// afterwards are the devices that are free on each node once all has ended that ends.
func (s *simulation) afterwards() []int64 {
	free := make([]int64, len(s.Nodes))
	for n := range s.Nodes {
		free[n] = s.Nodes[n].Free[gpu]
	}
	for id := range s.Jobs {
		for _, w := range s.Jobs[id].Workers {
			if w.Ending {
				free[w.Node] += s.Shapes[w.Shape].Request[gpu]
			}
		}
	}
	return free
}

// takers are the jobs that wait for room or begin, or have others leave for them.
func (s *simulation) takers(plan Plan) (count int) {
	for id := range s.Jobs {
		if j := &s.Jobs[id]; j.Stage == Queued || j.Stage == Starting || len(plan.Decisions[id].Places) > 0 {
			count++
		}
	}
	return count
}

// inOrder fails when a gang starts while one of higher priority waits that could have had its room.
func (s *simulation) inOrder(t *rapid.T, plan Plan) {
	free := make([]int64, len(s.Nodes))
	for n := range s.Nodes {
		free[n] = s.Nodes[n].Free[gpu]
	}
	for id := range s.Jobs {
		j := &s.Jobs[id]
		if j.Stage != Queued || plan.Decisions[id].Start || len(s.Shapes[j.Gang].Quotas) > 0 || s.othersWait(JobID(id), plan) {
			continue
		}
		fits := int64(0)
		for n := range free {
			// What is given to others of higher or the same priority is not counted.
			left := free[n]
			for other := range s.Jobs {
				if s.Jobs[other].Priority >= j.Priority {
					for _, place := range plan.Decisions[other].Places {
						if int(place) == n {
							left -= s.Shapes[s.Jobs[other].Gang].Request[gpu]
						}
					}
				}
			}
			fits += max(left, 0) / s.Shapes[j.Gang].Request[gpu]
		}
		if fits < int64(j.Min) {
			continue
		}
		for other := range s.Jobs {
			if s.Jobs[other].Priority < j.Priority && plan.Decisions[other].Start {
				t.Fatalf("%s starts before %s", s.Jobs[other].Name, j.Name)
			}
		}
	}
}

// othersWait says whether what is free may have been promised to others of the same or a higher priority.
func (s *simulation) othersWait(id JobID, plan Plan) bool {
	for other := range s.Jobs {
		j := &s.Jobs[other]
		if JobID(other) != id && j.Stage != Held && j.Priority >= s.Jobs[id].Priority && (j.Stage == Queued && !plan.Decisions[other].Start || j.Stage == Starting || int32(len(j.Workers)) < j.Min) {
			return true
		}
	}
	return false
}

func (j *Job) policy(s *simulation) Policy {
	return (&planner{c: s.Cluster}).policy(j)
}

// digest is what of a plan matters to a cluster at rest.
func (p Plan) quiet() bool {
	for i := range p.Decisions {
		d := &p.Decisions[i]
		if d.Start || d.Evict || len(d.Places) > 0 || len(d.Leave) > 0 {
			return false
		}
	}
	return true
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
