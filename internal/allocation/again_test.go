package allocation

import (
	"fmt"
	rand1 "math/rand"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/speed"
)

// watched is a job whose steps are watched, as the operator watches them, on nodes of four devices.
type watched struct {
	*simulation
	id JobID
	// pace is how many steps a second it makes with so many workers, so long after its world was made.
	pace   func(workers int, since time.Duration) float64
	dice   *rand.Rand
	fitter speed.Fitter
	all    []speed.Seen
	world  int
	// join is how long newcomers take until they are in the world, came when each is.
	join time.Duration
	came map[int32]time.Time
	made time.Time
	off  float64
	// sizes are the worlds that it had, and when.
	sizes []string
	// wide is for how long it had more workers in its world than usual, holds for how long it had more pods.
	usual       int
	wide, holds time.Duration
}

// watch has a job with one worker train on 16 nodes of four devices.
func watch(seed uint64, pace func(workers int, since time.Duration) float64) *watched {
	c := newCluster().withNodes(16, 4)
	w := &watched{simulation: simulate(c), id: c.training("a", 1, 64, span(0, 1)), pace: pace, dice: rand.New(rand.NewPCG(seed, 0)), usual: 64, join: time.Minute, came: map[int32]time.Time{}}
	c.Jobs[w.id].Pause, c.Jobs[w.id].Began = time.Second/3, noon
	w.tick = 2 * time.Second
	return w
}

// watchFor lets time pass, and has the steps seen that are made.
func (w *watched) watchFor(long time.Duration) {
	j := &w.Jobs[w.id]
	for end := w.Now.Add(long); w.Now.Before(end); {
		if n := w.members(); n != w.world {
			if w.world > 0 {
				j.Began = time.Time{}
			}
			w.world, w.made, w.off = n, w.Now, 1+0.05*w.dice.Float64()*float64(w.dice.IntN(3)-1)
			w.sizes = append(w.sizes, fmt.Sprintf("%d at %s", n, w.Now.Sub(noon)))
		}
		if since := w.Now.Sub(w.made); since > 2*time.Second {
			pace := w.pace(w.world, since) * w.off
			seen := speed.Seen{Workers: w.world, Nodes: (w.world + 3) / 4, StepsPerSecond: pace, Steps: int64(2*pace) + 1, At: w.Now}
			w.all = speed.Add(w.all, seen)
			if fitted := w.fitter.Look(w.Now, speed.Observations(w.all, w.Now), 1); fitted != nil {
				j.Pace = &Pace{Speed: fitted.Model, Tried: fitted.Tried, Done: 1e4, Left: 1e7, Seen: w.all}
			}
		}
		if w.world > w.usual {
			w.wide += w.tick
		}
		if w.counts()[w.id] > w.usual {
			w.holds += w.tick
		}
		w.step()
	}
}

// members are its workers that are in its world: those who come join a while after they were made.
func (w *watched) members() (n int) {
	j := &w.Jobs[w.id]
	for ordinal := range w.came {
		if !slices.ContainsFunc(j.Workers, func(one Worker) bool { return one.Ordinal == ordinal }) {
			delete(w.came, ordinal)
		}
	}
	for i := range j.Workers {
		one := &j.Workers[i]
		joins, known := w.came[one.Ordinal]
		if !known || one.Ending {
			joins = w.Now.Add(w.join)
		}
		if w.came[one.Ordinal] = joins; one.Own || !w.Now.Before(joins) {
			n++
		} else {
			one.World, one.Rank = false, -1
		}
	}
	return n
}

// A program that becomes slower just as it grows is thought to be slow at that size, and it is tried again whether more workers are of
// use to it where devices stay free: it has nearly all of them within half an hour.
func TestWhoBecameSlowerAsItGrewIsTriedAgain(t *testing.T) {
	for _, test := range []struct {
		from  int
		by    float64
		after time.Duration
	}{{16, 3, 0}, {16, 5, 0}, {16, 10, 10 * time.Second}, {4, 5, 0}, {4, 3, 20 * time.Second}} {
		for seed := range uint64(4) {
			slow := false
			w := watch(seed, func(workers int, since time.Duration) float64 {
				if slow = slow || workers >= test.from && since >= test.after; slow {
					return 10 * float64(workers) / test.by
				}
				return 10 * float64(workers)
			})
			w.watchFor(30 * time.Minute)
			if got := w.counts()[w.id]; got < 56 {
				t.Errorf("seed %d, %g times slower from %d workers on, after %s: after half an hour it has %d: %v", seed, test.by, test.from, test.after, got, w.sizes)
			}
		}
	}
}

// A program that makes nothing of more workers is tried again ever more seldom, and gives back what it was tried with: in a day it has
// that for less than a fiftieth of the time. So is one that is slow at first in each world, and loses nothing by it.
func TestWhoScalesBadlyIsTriedSeldom(t *testing.T) {
	for name, cold := range map[string]time.Duration{"as ever": 0, "slow for a minute in each world": time.Minute} {
		w := watch(1, func(_ int, since time.Duration) float64 {
			if since < cold {
				return 1. / 3
			}
			return 1
		})
		w.watchFor(30 * time.Minute) // it has half of its share by then
		usual := w.counts()[w.id]
		w.usual, w.wide, w.holds, w.sizes = usual, 0, 0, nil
		w.tick = 10 * time.Second
		w.watchFor(24 * time.Hour)
		if got := w.counts()[w.id]; got != usual || w.wide > 24*time.Hour/50 || w.holds > 24*time.Hour/40 || len(w.sizes) > 2*14 || len(w.sizes) < 2*8 {
			t.Errorf("%s: it had %d workers, and %d a day later; it had more for %s, and held more for %s: %v", name, usual, got, w.wide, w.holds, w.sizes)
		}
	}
}

// waitsElsewhere has a gang wait for another node, the only one that it may use.
func (c *Cluster) waitsElsewhere() JobID {
	nodes := c.everyNode()
	c.withNodes(1, 4)
	last := len(c.Nodes) - 1
	for i := range c.Shapes {
		c.Shapes[i].Nodes = nodes
	}
	other := Shape{Request: c.Shapes[0].Request, Nodes: make(Bits, len(nodes)), Demand: Amounts{1}}
	other.Nodes.Set(last)
	c.Shapes = append(c.Shapes, other)
	alone := func(j *Job) { j.Gang, j.Growth = ShapeID(len(c.Shapes)-1), ShapeID(len(c.Shapes)-1) }
	c.training("there", 4, 4, []NodeID{NodeID(last), NodeID(last), NodeID(last), NodeID(last)}, alone)
	return c.queued("waits", 4, 4, alone)
}

// again is a job with four of eight devices that was seen with them for so long, and seems to make nothing of more.
func again(long time.Duration, also ...func(*Job)) (*Cluster, JobID) {
	c := newCluster().withNodes(2, 4)
	id := c.training("a", 1, 8, []NodeID{0, 0, 0, 0}, withPace(&Pace{Speed: flat.pace(1, exactly).Speed, Tried: 16, Done: 100, Left: 1e6, Seen: []speed.Seen{
		{Workers: 1, Nodes: 1, StepsPerSecond: 1, Steps: 100, At: noon.Add(-long)}, {Workers: 4, Nodes: 1, StepsPerSecond: 1, Steps: 100, At: noon},
	}}))
	c.Jobs[id].Pause = time.Second
	for _, set := range also {
		set(&c.Jobs[id])
	}
	return c, id
}

func TestWhoIsTriedAgain(t *testing.T) {
	const hour = time.Hour
	for _, test := range []struct {
		name string
		long time.Duration
		set  func(*Cluster, *Job)
		want int32
	}{
		{"after a while", hour, nil, 8},
		{"not at once", 9 * time.Minute, nil, 4},
		{"not where it was in vain twice lately", hour / 2, func(_ *Cluster, j *Job) { j.Again = Again{At: noon.Add(-hour), Vain: 2} }, 4},
		{"but then", hour, func(_ *Cluster, j *Job) { j.Again = Again{At: noon.Add(-hour), Vain: 2} }, 8},
		{"not long after that began in vain", hour, func(_ *Cluster, j *Job) { j.Again = Again{At: noon.Add(-hour / 2), Vain: 2} }, 4},
		{"however often it was in vain", 3 * hour, func(_ *Cluster, j *Job) { j.Again = Again{At: noon.Add(-3 * hour), Vain: 1 << 30} }, 8},
		{"whatever a clock said", hour, func(_ *Cluster, j *Job) { j.Again = Again{At: noon.Add(1e6 * hour), Vain: -7} }, 8},
		{"not with dear pauses", hour, func(_ *Cluster, j *Job) { j.Pause = time.Minute }, 4},
		{"but then as well", 2 * hour, func(_ *Cluster, j *Job) { j.Pause = time.Minute }, 8},
		{"not where its program starts anew", hour, func(_ *Cluster, j *Job) { j.Restarts = true }, 4},
		{"not where it is nearly done", hour, func(_ *Cluster, j *Job) { j.Pace.Left = 500 }, 4},
		{"not where it was seen at no other size", hour, func(_ *Cluster, j *Job) { j.Pace.Seen = j.Pace.Seen[1:] }, 4},
		{"not where nothing was seen at its size", hour, func(_ *Cluster, j *Job) { j.Pace.Seen = j.Pace.Seen[:1] }, 4},
		{"not while a gang waits", hour, func(c *Cluster, _ *Job) { c.queued("large", 8, 8) }, 4},
		{"unless that is too large for an empty cluster", hour, func(c *Cluster, _ *Job) { c.queued("large", 9, 9) }, 8},
		{"or may not use its nodes", hour, func(c *Cluster, _ *Job) { c.waitsElsewhere() }, 8},
		{"and not a quota of it", hour, func(c *Cluster, j *Job) {
			growth := j.Growth
			c.Quotas = append(c.Quotas, Quota{Name: "q", Hard: Amounts{64}, Free: Amounts{16}})
			c.Shapes[c.Jobs[c.waitsElsewhere()].Gang].Quotas, c.Shapes[growth].Quotas = []QuotaID{0}, []QuotaID{0}
		}, 4},
		{"nor with one, where it avoids the others", hour, func(_ *Cluster, j *Job) { j.Avoid = []NodeID{1} }, 4},
		{"not where others have the rest", hour, func(c *Cluster, _ *Job) { c.training("b", 4, 4, []NodeID{1, 1, 1, 1}) }, 4},
		{"nor with too few", hour, func(c *Cluster, j *Job) { j.Sizes = []int32{1, 4, 12}; j.Max = 12 }, 4},
		{"with what is free", hour, func(c *Cluster, _ *Job) { c.training("b", 2, 2, []NodeID{1, 1}) }, 6},
		{"it goes on where it was of use", 9 * time.Minute, func(_ *Cluster, j *Job) {
			j.Again = Again{From: 2, At: noon.Add(-9 * time.Minute), Here: 4, Since: noon.Add(-2 * time.Minute)}
			j.Pace.Seen = append(j.Pace.Seen, speed.Seen{Workers: 2, Nodes: 1, StepsPerSecond: 0.5, Steps: 100, At: noon.Add(-8 * time.Minute)})
		}, 8},
		{"it waits until it is known", 9 * time.Minute, func(_ *Cluster, j *Job) {
			j.Again = Again{From: 2, At: noon.Add(-9 * time.Minute), Here: 4, Since: noon.Add(-119 * time.Second)}
			j.Pace.Seen = append(j.Pace.Seen, speed.Seen{Workers: 2, Nodes: 1, StepsPerSecond: 1, Steps: 100, At: noon.Add(-8 * time.Minute)})
		}, 4},
		{"also from a minute of steps", 9 * time.Minute, func(_ *Cluster, j *Job) {
			j.Again = Again{From: 2, At: noon.Add(-9 * time.Minute), Here: 4, Since: noon.Add(-150 * time.Second)}
			j.Pace.Seen[1].At = noon.Add(-91 * time.Second)
			j.Pace.Seen = append(j.Pace.Seen, speed.Seen{Workers: 2, Nodes: 1, StepsPerSecond: 1, Steps: 100, At: noon.Add(-8 * time.Minute)})
		}, 4},
		{"an operator looks itself", 9 * time.Minute, func(_ *Cluster, j *Job) {
			j.Again = Again{From: 2, At: noon.Add(-9 * time.Minute)}
			j.Pace.Seen = append(j.Pace.Seen, speed.Seen{Workers: 2, Nodes: 1, StepsPerSecond: 1, Steps: 100, At: noon.Add(-8 * time.Minute)})
		}, 4},
		{"it goes back where it was in vain", 9 * time.Minute, func(_ *Cluster, j *Job) {
			j.Again = Again{From: 2, At: noon.Add(-9 * time.Minute), Here: 4, Since: noon.Add(-2 * time.Minute)}
			j.Pace.Seen = append(j.Pace.Seen, speed.Seen{Workers: 2, Nodes: 1, StepsPerSecond: 1, Steps: 100, At: noon.Add(-8 * time.Minute)})
		}, 2},
		{"and where nothing is seen of it", hour, func(_ *Cluster, j *Job) {
			j.Again = Again{From: 2, At: noon.Add(-11 * time.Minute)}
			j.Pace.Seen = j.Pace.Seen[:1]
		}, 2},
	} {
		c, id := again(test.long)
		if test.set != nil {
			test.set(c, &c.Jobs[id])
		}
		plan := NewPlan(c)
		d := plan.of(id)
		if d.Count != test.want {
			t.Errorf("%s: it is to have %d workers, want %d: %+v", test.name, d.Count, test.want, d.Again)
		}
		if grows := test.want > 4; grows != (d.Again.From == 4) {
			t.Errorf("%s: it is to have %d workers, and says %+v", test.name, d.Count, d.Again)
		}
	}
}

// Whose devices are needed while it is tried again gives them, which does not count as in vain; and a plan that is made anew
// before its workers are there is the same.
func TestWhatIsTriedAgainIsFreeForOthers(t *testing.T) {
	c, id := again(time.Hour)
	first := NewPlan(c)
	if why := first.of(id).Why.Text; !strings.Contains(why, "it is tried again whether they are of use") {
		t.Errorf("it says %q", why)
	}
	c.Jobs[id].Again, c.Now = first.of(id).Again, c.Now.Add(time.Second)
	if anew := NewPlan(c); anew.of(id).Count != 8 || anew.of(id).Again != first.of(id).Again {
		t.Errorf("it is to have %d workers at first and %d a moment later", first.of(id).Count, anew.of(id).Count)
	}
	s := simulate(c)
	s.run(3)
	second := c.queued("b", 4, 4)
	s.run(20)
	if got := s.counts(); got[second] != 4 || got[id] != 4 {
		t.Errorf("they have %v: %v", got, s.log)
	}
	if a := c.Jobs[id].Again; a.From != 0 || a.Vain != 0 || a.At.IsZero() {
		t.Errorf("%+v", a)
	}
}

// A gang that takes nothing from others does not wait for a trial to end: it ends at once, and does not count as in vain. Where it is
// nobody else who keeps the workers from coming, it does.
func TestATrialEndsForAGangThatTakesNothing(t *testing.T) {
	c, id := again(time.Hour)
	s := simulate(c)
	s.run(3)
	if got := s.counts()[id]; got != 8 {
		t.Fatalf("it is not tried: it has %d", got)
	}
	gang := c.queued("patient", 4, 4, func(j *Job) { j.Preempts = false })
	s.run(20)
	if got := s.counts(); got[gang] != 4 || got[id] != 4 {
		t.Errorf("they have %v: %v", got, s.log)
	}
	if a := c.Jobs[id].Again; a.From != 0 || a.Vain != 0 || a.At.IsZero() {
		t.Errorf("%+v", a)
	}
	c, id = again(time.Hour, func(j *Job) { j.Again = Again{From: 4, At: noon.Add(-2 * time.Minute), Vain: 1} })
	plan := NewPlan(c)
	if a := plan.of(id).Again; a != (Again{At: noon, Vain: 2}) {
		t.Errorf("nobody came: %+v", a)
	}
}

// Of drawn clusters nobody changes for long but who is tried again, and it seldom: the others keep what they have. AGAIN_CLUSTERS draws more.
func TestTryingAgainDisturbsNobody(t *testing.T) {
	tried := 0
	for seed := range int64(numberFrom(t, "AGAIN_CLUSTERS", 40)) {
		c := valued(rand1.New(rand1.NewSource(seed)))
		for i := range 4 { // so that some devices are left over
			has := Amounts{64, 16}
			c.Nodes = append(c.Nodes, Node{Name: fmt.Sprint("more", i), Capacity: has, Free: slices.Clone(has)})
			c.Shapes[0].Nodes.Set(len(c.Nodes) - 1) // all have the same
		}
		changes := map[JobID]int{}
		for id := range c.Jobs {
			j := &c.Jobs[id]
			if j.Max *= 2; len(j.Sizes) > 0 {
				j.Sizes = append(j.Sizes, j.Max)
			}
			if j.Pace != nil { // it was at another size once
				j.Pace.Left *= 100
				j.Pace.Seen = speed.Add(nil, speed.Seen{Workers: 99, Nodes: 1, StepsPerSecond: j.Pace.Speed.Speed(99, 1), Steps: 1000, At: c.Now})
			}
		}
		for minute := range 20 * 60 {
			for id := range c.Jobs {
				if j := &c.Jobs[id]; j.Pace != nil {
					n := len(j.Workers)
					pace := j.Pace.Speed.Speed(n, 1)
					j.Pace.Seen = speed.Add(j.Pace.Seen, speed.Seen{Workers: n, Nodes: 1, StepsPerSecond: pace, Steps: int64(60*pace) + 1, At: c.Now})
				}
			}
			before := make([]int, len(c.Jobs))
			for id := range c.Jobs {
				before[id] = len(c.Jobs[id].Workers)
			}
			plan := NewPlan(c)
			for id := range c.Jobs {
				notToAndFro(t, c, plan, JobID(id))
			}
			carry(c, &plan)
			c.Now = c.Now.Add(time.Minute)
			for id := range c.Jobs {
				if len(c.Jobs[id].Workers) == before[id] || minute < 10*60 {
					continue
				}
				tried++
				if changes[JobID(id)]++; c.Jobs[id].Again == (Again{}) || changes[JobID(id)] > 10 {
					t.Fatalf("seed %d, minute %d: %s has %d workers, had %d, for the %d. time in ten hours: %+v", seed, minute, c.Jobs[id].Name, len(c.Jobs[id].Workers), before[id], changes[JobID(id)], c.Jobs[id].Again)
				}
			}
		}
	}
	if tried == 0 {
		t.Error("nobody was tried again")
	}
}
