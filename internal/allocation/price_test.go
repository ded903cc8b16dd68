package allocation

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/internal/speed"
)

// truth says how long a step of a job takes: serial + parallel/n seconds.
type truth struct{ serial, parallel float64 }

func (p truth) step(n int) float64 { return p.serial + p.parallel/float64(n) }

// pace is what is known of a job that was seen at all sizes from 1 to 16 on nodes with four devices, each off by a part.
func (p truth) pace(left float64, off func() float64) *Pace {
	return &Pace{Speed: speed.Fit(p.seen(off), 1), Tried: 16, Done: 100, Left: left}
}

func (p truth) seen(off func() float64) (seen []speed.Observation) {
	for n := 1; n <= 16; n++ {
		seen = append(seen, speed.Observation{
			Workers: n, Nodes: (n + 3) / 4, StepsPerSecond: (1 + off()) / p.step(n), Steps: int64(60/p.step(n)) + 1,
		})
	}
	return seen
}

func exactly() float64 { return 0 }

func withPace(p *Pace) func(*Job) { return func(j *Job) { j.Pace = p } }

var (
	linear = truth{0, 1}
	flat   = truth{1, 0.0001}
)

// Devices go to the job that makes something of them; without paces, or where they do not count, the two have as many each.
func TestDevicesGoWhereTheyAreWorthMost(t *testing.T) {
	for _, test := range []struct {
		paced, byValue       bool
		wantLinear, wantFlat int
	}{{false, true, 4, 4}, {true, false, 4, 4}, {true, true, 7, 1}} {
		c := newCluster().withNodes(2, 4)
		c.Settings.ByValue = test.byValue
		a := c.training("linear", 1, 8, span(0, 1))
		b := c.training("flat", 1, 8, span(1, 2))
		if test.paced {
			c.Jobs[a].Pace, c.Jobs[b].Pace = linear.pace(1e6, exactly), flat.pace(1e6, exactly)
		}
		if got := simulate(c).run(20).counts(); got[a] != test.wantLinear || got[b] != test.wantFlat {
			t.Errorf("%+v: linear has %d, flat %d", test, got[a], got[b])
		}
	}
}

// A job that has more than it makes use of gives to one that makes something of it, though they have as much.
func TestWhoGainsNothingGivesToWhoDoes(t *testing.T) {
	c := newCluster().withNodes(2, 4)
	a := c.training("linear", 1, 8, []NodeID{0, 0, 0, 0}, withPace(linear.pace(1e6, exactly)))
	b := c.training("flat", 1, 8, []NodeID{1, 1, 1, 1}, withPace(flat.pace(1e6, exactly)))
	if got := simulate(c).run(100).counts(); got[a] != 7 || got[b] != 1 {
		t.Errorf("linear has %d, flat %d", got[a], got[b])
	}
}

// Who gave to another one lately may give more at once, and takes nothing back for as long as coolDown.
func TestWhoGaveMayGiveMore(t *testing.T) {
	for _, test := range []struct {
		name    string
		gave    JobID
		gives   bool
		wakesUp bool
	}{{"nobody", None, true, false}, {"who gives", 1, true, false}, {"who takes", 0, false, true}} {
		c := newCluster().withNodes(2, 4)
		c.training("linear", 1, 8, []NodeID{0, 0, 0, 0}, withPace(linear.pace(1e6, exactly)))
		flat := c.training("flat", 1, 8, []NodeID{1, 1, 1, 1}, withPace(flat.pace(1e6, exactly)))
		if test.gave != None {
			// So long ago that it may grow into what is free.
			c.Jobs[test.gave].EvenedAt = c.Now.Add(-keeping)
		}
		plan := NewPlan(c)
		if gives := plan.leaves(flat) > 0; gives != test.gives {
			t.Errorf("%s gave: %d workers leave", test.name, plan.leaves(flat))
		}
		if test.wakesUp && !plan.Next.Equal(c.Now.Add(c.Settings.CoolDown-keeping)) {
			t.Errorf("%s gave: the next plan is made at %s", test.name, plan.Next)
		}
	}
}

// Of two alike the one that has less to do is the larger one, with so many behind it that both cannot be.
func TestWhoHasLessToDoIsFirst(t *testing.T) {
	c := newCluster().withNodes(2, 4)
	long := c.training("long", 1, 8, span(0, 1), withPace(linear.pace(1e6, exactly)))
	short := c.training("short", 1, 8, span(1, 2), withPace(linear.pace(1e3, exactly)))
	if got := simulate(c).run(20).counts(); got[short] <= got[long] {
		t.Errorf("short has %d, long %d", got[short], got[long])
	}
}

// Nobody is sized beyond twice what was tried, and beyond twice that where it is no more than its even share: of sixteen devices it has
// all where it is alone, and four where three others are beside it.
func TestTrialsAreBounded(t *testing.T) {
	for _, test := range []struct {
		tried        int32
		alone, among int
	}{{1, 4, 4}, {2, 8, 4}, {3, 12, 6}, {4, 16, 8}} {
		for others, want := range map[int]int{0: test.alone, 3: test.among} {
			c := newCluster().withNodes(4, 4)
			pace := linear.pace(1e5, exactly)
			pace.Tried = test.tried
			a := c.training("a", 1, 16, span(0, 1), withPace(pace))
			for i := range others {
				c.training(fmt.Sprint("flat-", i), 1, 16, span(i+1, i+2), withPace(flat.pace(1e6, exactly)))
			}
			if got := simulate(c).run(1).counts(); got[a] != want {
				t.Errorf("tried %d beside %d others: has %d, want %d", test.tried, others, got[a], want)
			}
		}
	}
}

// What a program says of itself moves nothing between namespaces: each has its half, whatever it makes of it.
func TestNamespacesShareFirst(t *testing.T) {
	c := newCluster().withNodes(4, 4)
	c.Namespaces = append(c.Namespaces, Namespace{Name: "other", Weight: 1})
	a := c.training("a", 1, 16, span(0, 1), withPace(linear.pace(1e3, exactly)))
	c.training("b", 1, 16, span(1, 2), in(1), withPace(truth{0.5, 1}.pace(1e9, exactly)))
	c.training("c", 1, 16, span(2, 3), in(1), withPace(truth{0.5, 1}.pace(1e9, exactly)))
	got := simulate(c).run(50).counts()
	if surplus := got[a] - 1; surplus != 6 && surplus != 7 {
		t.Errorf("the first namespace has %d devices beyond min of 13: %v", surplus, got)
	}
}

// Beside a job of which nothing is known: it has its share, the others share theirs by value.
func TestJobsWithoutAPaceKeepTheirShare(t *testing.T) {
	c := newCluster().withNodes(3, 4)
	a := c.training("linear", 1, 12, span(0, 1), withPace(linear.pace(1e6, exactly)))
	b := c.training("flat", 1, 12, span(1, 2), withPace(flat.pace(1e6, exactly)))
	unknown := c.training("unknown", 1, 12, span(2, 3))
	if got := simulate(c).run(50).counts(); got[unknown] != 4 || got[a] <= got[b] {
		t.Errorf("unknown has %d, linear %d, flat %d", got[unknown], got[a], got[b])
	}
}

// What is left of a job that does not say so is what it has done, in powers of two.
func TestLeftOfTheBlind(t *testing.T) {
	for done, want := range map[float64]float64{0: 1, 1: 1, 3: 4, 100: 128, 128: 128} {
		if got := (&Pace{Done: done}).left(); got != want {
			t.Errorf("%g done: %g left, want %g", done, got, want)
		}
	}
	if got := (&Pace{Done: 100, Left: 7}).left(); got != 7 {
		t.Errorf("%g left, 7 reported", got)
	}
}

// A program that is slow at small sizes has less than all of what others are worth: for longer than backfill nobody has
// less than half its share.
func TestHalfShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster().withNodes(4, 4)
		c.Settings.Backfill = time.Duration(rapid.SampledFrom([]int{0, 60, 300}).Draw(t, "backfill")) * time.Second
		jobs := rapid.IntRange(2, 4).Draw(t, "jobs")
		for i := range jobs {
			p := truth{rapid.Float64Range(0, 2).Draw(t, "serial"), rapid.Float64Range(0.01, 2).Draw(t, "parallel")}
			left := math.Pow(10, rapid.Float64Range(0, 7).Draw(t, "left"))
			c.training(fmt.Sprint(i), 1, 16, span(i, i+1), withPace(p.pace(left, exactly)))
		}
		s := simulate(c)
		s.tick = 15 * time.Second
		s.run(200)
		// What is given on the way to another one is with neither: it is looked at for long enough.
		most := s.counts()
		for range 40 {
			s.step()
			for id, n := range s.counts() {
				most[id] = max(most[id], n)
			}
		}
		half := (16 - jobs) / jobs / 2
		for id, n := range most {
			if n < 1+half {
				for _, l := range s.log {
					t.Log(l)
				}
				t.Fatalf("%s has %d, half its share is %d beyond min: %v", s.Jobs[id].Name, n, half, s.counts())
			}
		}
	})
}

// What is seen is off by 5%, and at the size that a job has otherwise each time: nobody trades workers back and forth. A
// few changes there are, of what is worth nearly the same: of six jobs one in a minute and a half at most.
func TestNoiseMakesNobodyTrade(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster().withNodes(4, 4)
		off := func() float64 { return rapid.Float64Range(-0.05, 0.05).Draw(t, "off") }
		var truths []truth
		seen := [][]speed.Observation{}
		for i := range rapid.IntRange(2, 6).Draw(t, "jobs") {
			truths = append(truths, truth{rapid.Float64Range(0, 1).Draw(t, "serial"), rapid.Float64Range(0.01, 2).Draw(t, "parallel")})
			left := math.Pow(10, rapid.Float64Range(2, 7).Draw(t, "left"))
			seen = append(seen, truths[i].seen(off))
			c.training(fmt.Sprint(i), 1, int32(rapid.IntRange(2, 16).Draw(t, "max")), span(i%4, i%4+1), withPace(&Pace{Tried: 16, Left: left}))
		}
		s := simulate(c)
		s.tick = 15 * time.Second
		changes := 0
		for turn := range 60 {
			before := s.counts()
			for id := range s.Jobs {
				now := &seen[id][before[id]-1]
				now.StepsPerSecond = (1 + off()) / truths[id].step(before[id])
				s.Jobs[id].Pace.Speed = speed.Fit(seen[id], 1)
			}
			s.step()
			for id, n := range s.counts() {
				if turn >= 30 && n < before[id] {
					changes++
				}
			}
		}
		if changes > 5 {
			for _, l := range s.log {
				t.Log(l)
			}
			t.Fatalf("jobs became smaller %d times in the second half", changes)
		}
	})
}

// Who has about as much to do as a power of two stands before others or behind them by what it is seen at, each time: nobody trades workers
// back and forth for that, nor takes what was given for another one.
func TestNoiseTurnsNoOrderRound(t *testing.T) {
	c := newCluster().withNodes(4, 4)
	c.Settings.Backfill = 24 * time.Hour // no half of a share is kept for anybody
	noisy := c.training("noisy", 1, 8, span(0, 1))
	for i, left := range []float64{1e4, 100, 1e4, 320} {
		c.training(fmt.Sprint("other-", i), 1, []int32{8, 14, 3, 9}[i], span((i+1)%4, (i+1)%4+1), withPace(linear.pace(left, exactly)))
	}
	s := simulate(c)
	s.tick = 15 * time.Second
	for turn := range 120 {
		off := 0.01 * float64(2*(turn%2)-1)
		s.Jobs[noisy].Pace = linear.pace(512, func() float64 { return off })
		before := s.counts()
		s.step()
		for id, n := range s.counts() {
			if n < before[id] {
				t.Errorf("after %s %s has %d workers, it had %d", s.Now.Sub(noon), s.Jobs[id].Name, n, before[id])
			}
		}
	}
	if t.Failed() {
		t.Log(strings.Join(s.log, "\n"))
	}
}

// Work is a power of two, and changes only where it is another one for more than noise. What stood before by chance says nothing.
func TestWorkInPowersOfTwo(t *testing.T) {
	for _, test := range []struct{ deviceSeconds, stood, want float64 }{
		{0, 0, 0}, {0.3, 0, 0.25}, {1, 0, 1}, {511, 0, 256}, {512, 0, 512}, {1023, 0, 512},
		{480, 512, 512}, {450, 512, 256}, {1100, 512, 512}, {1130, 512, 1024}, {700, 512, 512},
		{511, 256, 256}, {520, 256, 256}, {570, 256, 512}, {700, 16, 512}, {0, 512, 0},
	} {
		if got := workOf(test.deviceSeconds, test.stood, 0.1); got != test.want {
			t.Errorf("%g device-seconds of one that stood at %g: %g, want %g", test.deviceSeconds, test.stood, got, test.want)
		}
	}
}

// Whatever is said of them: jobs stay from min to max, what is planned fits, and all comes to rest.
func TestRandomClustersWithPaces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := simulate(drawCluster(t))
		s.check = func(plan Plan) { s.sound(t, plan) }
		for range rapid.IntRange(1, 7).Draw(t, "jobs") {
			id := s.arrive(t)
			if rapid.IntRange(0, 3).Draw(t, "paced") > 0 {
				p := truth{rapid.Float64Range(0, 2).Draw(t, "serial"), rapid.Float64Range(0.01, 2).Draw(t, "parallel")}
				s.Jobs[id].Pace = p.pace(rapid.SampledFrom([]float64{0, 1, 1e3, 1e9}).Draw(t, "left"), exactly)
				s.Jobs[id].Pace.Tried = rapid.Int32Range(0, 20).Draw(t, "tried")
			}
			if rapid.Bool().Draw(t, "finite") {
				s.left[id] = rapid.IntRange(1, 20).Draw(t, "work")
			}
			s.run(rapid.IntRange(0, 8).Draw(t, "pause"))
		}
		s.tick = 15 * time.Second
		s.run(130)
		if !s.settles(60) {
			t.Fatalf("it does not come to rest: %v", s.log[max(0, len(s.log)-20):])
		}
	})
}

// A job is watched at its first size before it grows, where sizes go by value: otherwise nobody would ever see that it does not
// scale. Where it tells nothing, or sizes go by devices, it grows like others.
func TestTheFirstSizeIsWatched(t *testing.T) {
	for _, test := range []struct {
		name    string
		byValue bool
		after   time.Duration
		grows   bool
	}{
		{"by value, at once", true, time.Second, false},
		{"by value, while its program starts", true, 40 * time.Second, false},
		{"by value, after a while", true, firstLook, true},
		{"by devices", false, time.Second, true},
	} {
		c := newCluster().withNodes(2, 4)
		c.Settings.ByValue = test.byValue
		a := c.training("a", 1, 8, span(0, 1))
		c.Jobs[a].Began = c.Now.Add(-test.after)
		plan := NewPlan(c)
		if got := plan.of(a).Count > 1; got != test.grows {
			t.Errorf("%s: it is to have %d workers", test.name, plan.of(a).Count)
		}
		if !test.grows && !plan.Next.Equal(c.Now.Add(firstLook-test.after)) {
			t.Errorf("%s: the next plan is made at %s", test.name, plan.Next)
		}
	}
}
