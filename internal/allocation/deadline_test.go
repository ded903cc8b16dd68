package allocation

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/internal/speed"
)

func deadline(in time.Duration) func(*Job) { return func(j *Job) { j.Deadline = noon.Add(in) } }

// Of two jobs that are alike the older one takes what there is. With a step of a second on one worker and so many steps
// left, the one with a deadline gets what it needs to meet it, and no more than that; what cannot help it it does not get.
func TestWhoHasADeadlineIsWidenedFirst(t *testing.T) {
	for _, test := range []struct {
		name        string
		in          time.Duration
		least, most int
	}{
		{"none", 0, 1, 1},
		{"soon", 1200 * time.Second, 6, 7},
		{"late anyway", 60 * time.Second, 1, 1},
		{"far", 100 * time.Hour, 1, 1},
		{"passed", -time.Second, 1, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCluster().withNodes(2, 4)
			other := c.training("other", 1, 8, span(0, 1), withPace(linear.pace(6000, exactly)))
			due := c.training("due", 1, 8, span(1, 2), withPace(linear.pace(6000, exactly)))
			if test.in != 0 {
				deadline(test.in)(&c.Jobs[due])
			}
			s := simulate(c)
			s.tell(t)
			if got := s.run(20).counts(); got[due] < test.least || got[due] > test.most || got[due]+got[other] != 8 {
				t.Errorf("it has %d, the other one %d; want %d to %d of 8", got[due], got[other], test.least, test.most)
			}
		})
	}
}

// It takes what it needs from one that has grown, and not the other one's min, nor in another namespace, nor below half of
// the share of one that was short for long.
func TestADeadlineTakesSurplusOnly(t *testing.T) {
	c := newCluster().withNodes(2, 4)
	c.Namespaces = append(c.Namespaces, Namespace{Name: "other", Weight: 1, NeverAllowed: true, EvictAllowed: true})
	other := c.training("other", 2, 8, []NodeID{0, 0, 0, 0}, withPace(linear.pace(1e6, exactly)))
	due := c.training("due", 1, 8, []NodeID{1}, withPace(linear.pace(5000, exactly)), deadline(1000*time.Second))
	theirs := c.training("theirs", 1, 3, []NodeID{1, 1, 1}, in(1), withPace(linear.pace(1e6, exactly)))
	s := simulate(c)
	s.tell(t)
	if got := s.run(20).counts(); got[other] != 2 || got[due] != 3 || got[theirs] != 3 {
		t.Errorf("they have %v, want 2, 3 and 3", got)
	}
}

// What it gave to an equal lately keeps no job from what it needs to meet its deadline.
func TestADeadlineDoesNotWaitForTheCoolDown(t *testing.T) {
	c := newCluster().withNodes(2, 4)
	c.training("other", 1, 8, []NodeID{0, 0, 0, 0, 1, 1}, withPace(linear.pace(1e6, exactly)))
	due := c.training("due", 1, 8, []NodeID{1, 1}, withPace(linear.pace(1000, exactly)), deadline(320*time.Second))
	c.Jobs[due].EvenedAt = c.Now.Add(-time.Second)
	s := simulate(c)
	s.tell(t)
	if got := s.run(20).counts(); got[due] < 4 {
		t.Errorf("it has %d workers, and needs 4", got[due])
	}
}

// Whatever a deadline needs, others have half of their share again once they were short for backfill, also where they gave
// that away less than a cool-down ago, and keep it for as long as the deadline is there.
func TestADeadlineLeavesOthersHalfOfTheirShare(t *testing.T) {
	for _, backfill := range []time.Duration{15 * time.Second, time.Minute, 5 * time.Minute} {
		t.Run(backfill.String(), func(t *testing.T) {
			c := newCluster().withNodes(3, 4)
			c.Settings.Backfill = backfill
			other := c.training("other", 1, 12, []NodeID{0, 0, 0, 0}, withPace(linear.pace(1e6, exactly)))
			due := c.training("due", 1, 12, []NodeID{1, 1, 1, 1}, withPace(linear.pace(1e5, exactly)), deadline(10000*time.Second))
			s := simulate(c)
			s.tick = 5 * time.Second
			s.tell(t)
			const half = 1 + (12-2)/2/2
			var short, longest time.Duration
			for range 600 {
				before := s.Now
				if s.step(); s.counts()[other] >= half {
					short = 0
					continue
				}
				short += s.Now.Sub(before)
				longest = max(longest, short)
			}
			if longest == 0 {
				t.Error("the deadline has taken nothing of the half: it proves nothing")
			}
			// Workers need a while to leave and to come.
			if longest > backfill+time.Minute {
				t.Errorf("short for %s at a time", longest)
			}
			if got := s.counts(); got[other] < half || got[due] < 12-half-1 {
				t.Errorf("they have %v in the end", got)
			}
		})
	}
}

// Where room comes piece by piece, a job whose newcomers are not in its world yet takes more, and pauses once for all of them. When they
// are, it is measured first; but not where it would miss its deadline meanwhile. It has no more than is believed in any case.
func TestRoomThatComesPieceByPieceIsTaken(t *testing.T) {
	for _, test := range []struct {
		name          string
		has           int
		tried         int32
		joined, urged bool
		want          int32
	}{
		{"newcomers have yet to join", 3, 2, false, false, 4},
		{"newcomers have yet to join, and it has a deadline", 3, 2, false, true, 4},
		{"newcomers have joined", 3, 2, true, false, 3},
		{"newcomers have joined, and it has a deadline", 3, 2, true, true, 4},
		{"so many are not believed", 5, 1, true, true, 5},
	} {
		c := newCluster().withNodes(1, int64(test.has)+1)
		due := c.training("due", 1, 8, make([]NodeID, test.has), withPace(linear.pace(3400, exactly)))
		c.Jobs[due].Pace.Tried = test.tried
		c.Jobs[due].Workers[2].World = test.joined
		if test.urged {
			deadline(1000 * time.Second)(&c.Jobs[due])
		}
		if d := NewPlan(c).of(due); d.Count != test.want {
			t.Errorf("%s: it has %d, want %d: %s", test.name, d.Count, test.want, d.Why.Text)
		}
	}
}

// Who cannot meet its deadline says so: with the size that would, or that none does.
func TestWhoWillBeLateSaysSo(t *testing.T) {
	c := newCluster().withNodes(1, 4)
	due := c.training("due", 1, 8, []NodeID{0, 0, 0, 0}, withPace(linear.pace(6000, exactly)), deadline(1000*time.Second))
	d := NewPlan(c).of(due)
	if d.Needs < 6 || d.Needs > 7 || d.Late || d.Why.Reason != "Late" || !strings.Contains(d.Why.Text, "with 4 workers") {
		t.Errorf("it needs %d, late %v: %+v", d.Needs, d.Late, d.Why)
	}
	c.Jobs[due].Deadline = noon.Add(10 * time.Second)
	if d := NewPlan(c).of(due); d.Needs != 0 || !d.Late || d.Why.Reason != "Late" {
		t.Errorf("it needs %d, late %v: %+v", d.Needs, d.Late, d.Why)
	}
	for name, change := range map[string]func(*Job){
		"in time":         func(j *Job) { j.Deadline = noon.Add(time.Hour) },
		"no steps known":  func(j *Job) { j.Pace.Left = 0 },
		"no pace":         func(j *Job) { j.Pace = nil },
		"deadline passed": func(j *Job) { j.Deadline = noon.Add(-time.Second) },
	} {
		c.Jobs[due].Pace, c.Jobs[due].Deadline = linear.pace(6000, exactly), noon.Add(10*time.Second)
		change(&c.Jobs[due])
		if d := NewPlan(c).of(due); d.Late || d.Why.Reason == "Late" {
			t.Errorf("%s: %+v", name, d.Why)
		}
	}
}

// What a job needs is found among all that it may have, however few it was tried with: it is no reason to call it late that it grows
// step by step. None is widened that would be late with the most that it may have if it were as fast as workers are many.
func TestWhatADeadlineNeedsIsFoundBeyondWhatWasTried(t *testing.T) {
	for _, test := range []struct {
		name    string
		program truth
		tried   int32
		most    int32
		in      time.Duration
		needs   int32
		late    bool
		widens  bool
	}{
		{"within what was tried", linear, 16, 64, 1200 * time.Second, 6, false, true},
		{"beyond it", linear, 1, 64, 600 * time.Second, 12, false, true},
		{"far beyond it", linear, 1, 64, 150 * time.Second, 47, false, true},
		{"one of many sizes", linear, 1, 3000, 20 * time.Second, 365, false, true},
		{"beyond all that it may have", linear, 1, 8, 60 * time.Second, 0, true, false},
		{"and tried with all of it", linear, 16, 8, 60 * time.Second, 0, true, false},
		{"late if it goes on so, and not if it scaled from now on", between, 2, 16, 1400 * time.Second, 0, true, true},
	} {
		c := newCluster().withNodes(200, 4)
		all := linear.pace(4096, exactly)
		all.Tried = 799
		c.training("other", 1, 799, []NodeID{0}, withPace(all), func(j *Job) { j.Pause = time.Millisecond })
		pace := test.program.pace(6000, exactly)
		pace.Tried = test.tried
		due := c.training("due", 1, test.most, []NodeID{1}, withPace(pace), deadline(test.in))
		d := NewPlan(c).of(due)
		if d.Late != test.late || math.Abs(float64(d.Needs-test.needs)) > 0.2*float64(test.needs) {
			t.Errorf("%s: it needs %d, late %v", test.name, d.Needs, d.Late)
		}
		if (d.Wish > 1) != test.widens {
			t.Errorf("%s: it wishes for %d", test.name, d.Wish)
		}
	}
}

// What a job needs is the first of all its sizes that is in time, whatever the program, also where more workers make it slower.
func TestWhatADeadlineNeedsIsTheLeastThatIsInTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster().withNodes(rapid.IntRange(1, 4).Draw(t, "nodes"), rapid.Int64Range(1, 8).Draw(t, "devices"))
		var seen []speed.Observation
		for n, seconds := 1, 1.0; n <= 16; n *= 2 {
			seen = append(seen, speed.Observation{Workers: n, Nodes: (n + 3) / 4, StepsPerSecond: 1 / seconds, Steps: 1000})
			seconds *= rapid.Float64Range(0.4, 1.3).Draw(t, "times")
		}
		pace := &Pace{Speed: speed.Fit(seen, 1), Tried: 16, Left: rapid.Float64Range(1, 1e5).Draw(t, "left")}
		least := rapid.Int32Range(1, 3).Draw(t, "min")
		due := c.training("due", least, rapid.Int32Range(least, 300).Draw(t, "max"), make([]NodeID, least), withPace(pace),
			deadline(time.Duration(pace.Left*math.Exp(-rapid.Float64Range(0, 6).Draw(t, "haste"))*float64(time.Second))+time.Second))
		if rapid.IntRange(0, 3).Draw(t, "sized") == 0 {
			c.Jobs[due].Sizes = []int32{least, 2 * least, 5 * least, 31 * least}
		}
		if n := rapid.Int32Range(0, 3).Draw(t, "spares"); n > 0 && len(c.Jobs[due].Sizes) == 0 {
			spares(n)(&c.Jobs[due])
			// Whoever trains does so whether or not the spares are there.
			for range min(rapid.IntRange(0, 8).Draw(t, "more"), int(c.Jobs[due].Max-least)) {
				more := c.Jobs[due].Workers[0]
				more.Own, more.Rank, more.Ordinal = false, int32(len(c.Jobs[due].Workers)), int32(len(c.Jobs[due].Workers))
				c.take(more)
				c.Jobs[due].Workers = append(c.Jobs[due].Workers, more)
			}
			c.Jobs[due].Members = rapid.Int32Range(least, int32(len(c.Jobs[due].Workers))).Draw(t, "members")
		}
		p := &planner{}
		p.plan(c)
		p.offers = nil
		b, want := p.bid(due, 0), int32(0)
		for n := c.Jobs[due].next(0); n != 0 && want == 0; n = c.Jobs[due].next(n) {
			if p.inTime(b, n) {
				want = n
			}
		}
		if got := p.needs(b); got != want {
			t.Fatalf("it needs %d, and the first that is in time is %d of %d, with %d", got, want, c.Jobs[due].Max, p.size(due))
		}
	})
}

// A deadline is a time of the day, and not all of that is spent in steps: of a job that lost half of its time so far it is expected
// that it needs twice as long.
func TestADeadlineCountsWhatIsNoStep(t *testing.T) {
	for kept, want := range map[float64]int32{0: 6, 1: 6, 0.5: 12, 0.75: 8} {
		c := newCluster().withNodes(8, 4)
		due := c.training("due", 1, 32, []NodeID{0}, withPace(linear.pace(6000, exactly)), deadline(1200*time.Second))
		c.Jobs[due].Pace.Kept = kept
		if d := NewPlan(c).of(due); d.Needs < want || d.Needs > want+1 {
			t.Errorf("%g of its time is kept: it needs %d, want %d", kept, d.Needs, want)
		}
	}
}

// Of 16 devices one job can be in time with 7 and another, whose deadline is earlier, could not with all of them, whatever its max says:
// it takes nothing for that, and says what it would need. It is given what it would have without a deadline.
func TestADeadlineThatCannotBeMetTakesNothingFromOneThatCan(t *testing.T) {
	for _, most := range []int32{16, 64, 1000} {
		c := newCluster().withNodes(4, 4)
		c.training("other", 1, 16, span(0, 1), withPace(linear.pace(1e6, exactly)))
		can := c.training("can", 1, 16, span(1, 2), withPace(linear.pace(6000, exactly)), deadline(1200*time.Second))
		doomed := c.training("doomed", 1, most, span(2, 3), withPace(linear.pace(30000, exactly)), deadline(1000*time.Second))
		s := simulate(c)
		s.tell(t)
		s.run(40)
		if got := s.counts(); got[can] < 6 {
			t.Errorf("max %d: they have %v, and the one that can be in time needs 6", most, got)
		}
		if d := s.plan.of(can); d.Late || d.Why.Reason == "Late" {
			t.Errorf("max %d: the one that can be in time: %+v", most, d.Why)
		}
		d := s.plan.of(doomed)
		if d.Why.Reason != "Late" {
			t.Errorf("max %d: the one that cannot: %+v", most, d.Why)
		}
		if most > 16 && (d.Late || d.Needs < 30 || !strings.Contains(d.Why.Text, "it needs") || !strings.Contains(d.Why.Text, "could have")) {
			t.Errorf("max %d: it needs %d, late %v: %s", most, d.Needs, d.Late, d.Why.Text)
		}
		without := newCluster().withNodes(4, 4)
		without.training("other", 1, 16, span(0, 1), withPace(linear.pace(1e6, exactly)))
		without.training("can", 1, 16, span(1, 2), withPace(linear.pace(6000, exactly)), deadline(1200*time.Second))
		without.training("doomed", 1, most, span(2, 3), withPace(linear.pace(30000, exactly)))
		if got, want := s.counts()[doomed], simulate(without).run(40).counts()[doomed]; got != want {
			t.Errorf("max %d: it has %d, and without a deadline %d", most, got, want)
		}
	}
}

// A program that no number of workers would bring in time is not tried with all devices that there are, however many it may have.
func TestWhatNoSizeHelpsIsNotTriedBecauseOfItsMax(t *testing.T) {
	for _, most := range []int32{16, 64, 1000} {
		counts := func(changes ...func(*Job)) []int {
			c := newCluster().withNodes(8, 4)
			c.training("other", 1, 32, span(0, 1), withPace(linear.pace(5000, exactly)))
			due := c.training("due", 1, most, span(1, 2), withPace(truth{0.5, 1}.pace(6000, exactly)))
			for _, change := range changes {
				change(&c.Jobs[due])
			}
			s := simulate(c)
			s.run(60)
			if d := s.plan.of(due); d.Late != (len(changes) > 0) {
				t.Errorf("max %d: late %v: %s", most, d.Late, d.Why.Text)
			}
			return s.counts()
		}
		if got, want := counts(deadline(1000*time.Second)), counts(); !slices.Equal(got, want) {
			t.Errorf("max %d: they have %v, and %v without a deadline", most, got, want)
		}
	}
}

// What another namespace has is out of reach as well; and who needs all that there is, or is a little late by a pace that may be off,
// takes it.
func TestADeadlineIsMeasuredByWhatItsNamespaceHas(t *testing.T) {
	for _, test := range []struct {
		name        string
		left        float64
		tenants     int
		least, most int
	}{
		{"all that there is", 13900, 1, 14, 14},
		{"a little more", 14900, 1, 14, 14},
		{"far more", 23000, 1, 1, 8},
		{"its namespace's share", 7000, 2, 6, 8},
		{"more than that", 13900, 2, 1, 5},
	} {
		c := newCluster().withNodes(4, 4)
		c.Namespaces = append(c.Namespaces, Namespace{Name: "other", Weight: 1, EvictAllowed: true})
		c.training("theirs", 1, 16, span(0, 1), in(NamespaceID(test.tenants-1)), withPace(linear.pace(1e5, exactly)))
		c.training("small", 1, 16, span(1, 2), withPace(linear.pace(1000, exactly)))
		due := c.training("due", 1, 1000, span(2, 3), withPace(linear.pace(test.left, exactly)), deadline(1050*time.Second))
		s := simulate(c)
		s.tell(t)
		if got := s.run(3).counts(); got[due] < test.least || got[due] > test.most {
			t.Errorf("%s: they have %v", test.name, got)
		}
	}
}

// Who may not grow for a while keeps what it has meanwhile: it is not known yet that it cannot be in time.
func TestADeadlineIsNotGivenUpWhileAJobMayNotGrow(t *testing.T) {
	c := newCluster().withNodes(4, 4)
	c.training("other", 1, 16, span(0, 1), withPace(linear.pace(1000, exactly)))
	due := c.training("due", 1, 16, []NodeID{1, 1, 1, 1, 2, 2, 2, 2}, withPace(linear.pace(11000, exactly)), deadline(1000*time.Second))
	c.Jobs[due].GrowAfter = noon.Add(time.Minute)
	if d := NewPlan(c).of(due); d.Count != 8 || d.Needs < 11 {
		t.Errorf("it has %d, needs %d", d.Count, d.Needs)
	}
}
