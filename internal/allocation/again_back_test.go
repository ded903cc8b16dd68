package allocation

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/speed"
)

// inVain is a job with some workers on nodes of four devices that was tried again with them, who had fewer before, and made nothing of it.
func inVain(nodes int, from int32, on []NodeID, also ...func(*Job)) (*simulation, JobID) {
	c := newCluster().withNodes(nodes, 4)
	id := c.training("a", 1, int32(4*nodes), on, withPace(&Pace{Speed: linear.pace(1e6, exactly).Speed, Tried: 16, Done: 100, Left: 1e6, Seen: []speed.Seen{
		{Workers: int(from), Nodes: 1, StepsPerSecond: 1, Steps: 100, At: noon.Add(-time.Hour)},
		{Workers: len(on), Nodes: 2, StepsPerSecond: 1, Steps: 100, At: noon},
	}}))
	c.Jobs[id].Pause = time.Second
	c.Jobs[id].Again = Again{From: from, At: noon.Add(-time.Hour), Here: int32(len(on)), Since: noon.Add(-time.Minute * 5)}
	for _, set := range also {
		set(&c.Jobs[id])
	}
	return simulate(c), id
}

// Who was tried again in vain gives back what it was tried with, but not what is its own for another reason: half of its share, or what
// it needs for its deadline. Though it wishes for more it is not given any while it goes back, it is over with that then, and it may be
// tried again.
func TestWhoGoesBackIsGivenNothingMeanwhile(t *testing.T) {
	for _, test := range []struct {
		name string
		set  func(*Job)
		back int
	}{
		{"to what it had", func(*Job) {}, 4},
		{"to half of its share", func(j *Job) { j.ShortSince = noon.Add(-2 * time.Hour); j.Pace.Speed = flat.pace(1, exactly).Speed }, 8},
		{"to what it needs", func(j *Job) { j.Deadline = noon.Add(time.Duration(1.2e6 / 6 * float64(time.Second))) }, 6},
	} {
		s, id := inVain(4, 4, []NodeID{0, 0, 0, 0, 1, 1, 1, 1, 2, 2}, test.set)
		s.tick = 5 * time.Second
		least, made := 10, 0
		s.check = func(plan Plan) {
			notToAndFro(t, s.Cluster, plan, id)
			made += len(plan.of(id).Places)
		}
		for range 60 {
			s.step()
			least = min(least, s.counts()[id])
		}
		if least != test.back || made > 12 {
			t.Errorf("%s: of 10 workers it went back to %d, want %d, and %d pods were made in five minutes: %v", test.name, least, test.back, made, s.log)
		}
		if a := s.Jobs[id].Again; a.From != 0 || a.Vain != 1 {
			t.Errorf("%s: it is still tried: %+v", test.name, a)
		}
	}
}

// However many devices another job leaves to one that is tried again just then, and however its workers join, it comes to rest.
func TestARivalThatEndsWhileAJobIsTriedAgain(t *testing.T) {
	for _, rival := range []int32{12, 20} {
		w := watch(uint64(rival), func(int, time.Duration) float64 { return 1 })
		var on []NodeID
		for i := range rival {
			on = append(on, NodeID(15-i/4))
		}
		b := w.training("b", rival, rival, on)
		w.tick = 10 * time.Second
		w.check = func(plan Plan) { notToAndFro(t, w.Cluster, plan, w.id) }
		for w.Jobs[w.id].Again.From == 0 {
			w.watchFor(10 * time.Second)
		}
		w.finish(b)
		w.watchFor(time.Hour)
		if a := w.Jobs[w.id].Again; a.From != 0 || a.At.IsZero() {
			t.Errorf("beside %d workers that end: an hour later it is still tried: %+v, %v", rival, a, w.sizes)
		}
		w.sizes = nil
		if w.watchFor(2 * time.Hour); len(w.sizes) == 0 || len(w.sizes) > 8 {
			t.Errorf("beside %d workers that ended: in two hours it had the worlds %v", rival, w.sizes)
		}
	}
}

// What has joined is judged, whoever is yet to come: one whose image is not to be had does not take the others with it. But that all is in
// vain is said once they have had their time.
func TestThoseWhoHaveJoinedAreJudged(t *testing.T) {
	for _, test := range []struct {
		name  string
		here  int
		pace  float64
		began time.Duration
		want  int32
	}{
		{"all but one, and they are of use", 7, 1.7, 5 * time.Minute, 8},
		{"all but one, and so far they are of none", 7, 1, 5 * time.Minute, 8},
		{"all but one, and they are of none", 7, 1, 10 * time.Minute, 4},
		{"all, and it is faster by no more than worlds differ", 8, 1.19, 5 * time.Minute, 4},
		{"few, and they are of use", 5, 1.22, 5 * time.Minute, 8},
		{"nobody", 4, 1, 5 * time.Minute, 8},
		{"nobody in time", 4, 1, 10 * time.Minute, 4},
	} {
		c := newCluster().withNodes(2, 4)
		id := c.training("a", 1, 8, []NodeID{0, 0, 0, 0, 1, 1, 1, 1}, withPace(&Pace{Speed: flat.pace(1e6, exactly).Speed, Tried: 16, Done: 100, Left: 1e6, Seen: []speed.Seen{
			{Workers: 4, Nodes: 1, StepsPerSecond: 1, Steps: 100, At: noon.Add(-test.began)},
			{Workers: test.here, Nodes: 2, StepsPerSecond: test.pace, Steps: 100, At: noon},
		}}))
		j := &c.Jobs[id]
		j.Pause, j.Again = time.Second, Again{From: 4, At: noon.Add(-test.began)}
		if test.here > 4 {
			j.Again.Here, j.Again.Since = int32(test.here), noon.Add(-2*time.Minute)
		}
		plan := NewPlan(c)
		d := plan.of(id)
		if kept := d.Again.From == 0; d.Count != test.want || kept != (test.pace > 1.2) {
			t.Errorf("%s: it is to have %d, want %d: %+v", test.name, d.Count, test.want, d.Again)
		}
	}
}

// Since when a job has less than half of its share goes on while it is tried with more, which it may give back.
func TestATrialIsNotTheEndOfBeingShort(t *testing.T) {
	short := noon.Add(-5 * time.Minute)
	for from, want := range map[int32]time.Time{4: short, 0: {}} {
		s, id := inVain(4, 4, []NodeID{0, 0, 0, 0, 1, 1, 1, 1, 2, 2}, func(j *Job) { j.ShortSince = short })
		j := &s.Jobs[id]
		j.Again.From, j.Again.At, j.Again.Since = from, noon.Add(-time.Minute), noon
		plan := NewPlan(s.Cluster)
		if got := plan.of(id).ShortSince; !got.Equal(want) {
			t.Errorf("tried from %d: it is short since %s, want %s", from, got, want)
		}
	}
}

// Of drawn clusters with deadlines, in which jobs end, gangs come and paces change, each trial is over within twenty minutes, and no plan
// makes workers of a job and drops others of it for nobody. AGAIN_CLUSTERS draws more.
func TestEachTrialEnds(t *testing.T) {
	tried := 0
	for seed := range int64(numberFrom(t, "AGAIN_CLUSTERS", 40)) {
		dice := rand.New(rand.NewSource(seed))
		c := valued(dice)
		for i := range 4 { // so that some devices are left over
			has := Amounts{64, 16}
			c.Nodes = append(c.Nodes, Node{Name: fmt.Sprint("more", i), Capacity: has, Free: slices.Clone(has)})
			c.Shapes[0].Nodes.Set(len(c.Nodes) - 1) // all have the same
		}
		for id := range c.Jobs {
			j := &c.Jobs[id]
			if j.Max *= 4; len(j.Sizes) > 0 {
				j.Sizes = append(j.Sizes, 16, j.Max)
			}
			if j.Pace != nil {
				j.Pace.Left *= 100
				j.Pace.Seen = speed.Add(nil, speed.Seen{Workers: 99, Nodes: 1, StepsPerSecond: j.Pace.Speed.Speed(99, 1), Steps: 1000, At: c.Now})
			}
			if dice.Intn(3) == 0 {
				j.Deadline = c.Now.Add(time.Duration(dice.Intn(40)) * time.Hour)
			}
		}
		useful := map[int]bool{}
		for minute := range 8 * 60 {
			for id := range c.Jobs {
				if j := &c.Jobs[id]; j.Pace != nil && dice.Intn(4) > 0 {
					n := len(j.Workers)
					if dice.Intn(100) == 0 {
						useful[id] = !useful[id]
					}
					pace := j.Pace.Speed.Speed(n, 1)
					if useful[id] {
						pace = float64(n)
					}
					j.Pace.Seen = speed.Add(j.Pace.Seen, speed.Seen{Workers: n, Nodes: 1, StepsPerSecond: pace, Steps: int64(60*pace) + 1, At: c.Now})
				}
			}
			if dice.Intn(90) == 0 { // a rival ends
				j := &c.Jobs[dice.Intn(len(c.Jobs))]
				for _, w := range j.Workers {
					free(c, w.Node, w.Shape, 1)
				}
				*j = Job{}
			}
			if dice.Intn(60) == 0 {
				c.Jobs = append(c.Jobs, Job{
					Name: fmt.Sprint("x/gang", minute), UID: fmt.Sprint(minute), Stage: Queued, Min: int32(1 + dice.Intn(20)), Max: 20,
					Preempts: dice.Intn(2) == 0, Submitted: c.Now, Queued: c.Now,
				})
			}
			plan := NewPlan(c)
			for id := range c.Jobs {
				notToAndFro(t, c, plan, JobID(id))
			}
			carry(c, &plan)
			for id := range c.Jobs {
				j := &c.Jobs[id]
				if plan.of(JobID(id)).Start { // it is there for a moment
					for _, w := range j.Workers {
						free(c, w.Node, w.Shape, 1)
					}
					*j = Job{}
				}
				if j.Again.From > 0 && j.Again.At.Equal(c.Now) {
					tried++
				}
				if j.Again.From > 0 && c.Now.Sub(j.Again.At) > 20*time.Minute {
					t.Fatalf("seed %d, minute %d: %s is still tried, wishes for %d and needs %d: %+v", seed, minute, j.Name, plan.of(JobID(id)).Wish, plan.of(JobID(id)).Needs, j.Again)
				}
			}
			c.Now = c.Now.Add(time.Minute)
		}
	}
	if tried == 0 {
		t.Error("nobody was tried again")
	}
	t.Logf("%d trials", tried)
}
