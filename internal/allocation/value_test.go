package allocation

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// between is a program that has less of each worker more.
var between = truth{0.2, 1}

// A size that is not better by a tenth is no reason for a change: what is measured is off by that much.
func TestASizeIsChangedForATenth(t *testing.T) {
	for _, test := range []struct {
		name    string
		program truth
		want    int32
	}{{"a fifteenth faster", truth{1, 2}, 4}, {"a fifth faster", linear, 5}} {
		c := newCluster().withNodes(1, 8)
		id := c.training("a", 1, 5, []NodeID{0, 0, 0, 0}, withPace(test.program.pace(1e6, exactly)))
		if got := NewPlan(c).of(id).Wish; got != test.want {
			t.Errorf("%s: it wishes for %d workers, want %d", test.name, got, test.want)
		}
	}
}

// Who is to have fewer workers ends with as many whether it gives them at once or one after the other, and then does not wish for more.
func TestWhoGivesOneAfterTheOtherEndsAtTheSameSize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		known := truth{rapid.Float64Range(0, 1).Draw(t, "serial"), 1}.pace(rapid.Float64Range(10, 1e5).Draw(t, "left"), exactly)
		pause := time.Duration(rapid.IntRange(0, 30).Draw(t, "pause")) * time.Second
		behind := rapid.IntRange(0, 8).Draw(t, "behind")
		wish := func(has int) int {
			c := newCluster().withNodes(1, 64)
			other := c.training("other", 1, 64, []NodeID{0}, withPace(linear.pace(1e9, exactly))) // it takes what is left
			c.Jobs[other].Pace.Tried = 64
			id := c.training("a", 1, int32(has), make([]NodeID, has), withPace(known), func(j *Job) { j.Pause = pause })
			for range behind {
				c.queued("waits", 99, 99)
			}
			return int(NewPlan(c).of(id).Wish)
		}
		has := rapid.IntRange(2, 16).Draw(t, "has")
		for to, want := has-1, wish(has); to >= want; to-- {
			if got := wish(to); got != want {
				t.Fatalf("of %d workers it keeps %d, and once it has %d of them it keeps %d", has, want, to, got)
			}
		}
	})
}

// What a change saves has to be more than it costs: with half a minute left a pause of half a minute is not worth it.
func TestAPauseCostsWhatItTakes(t *testing.T) {
	for pause, want := range map[time.Duration]int32{time.Second: 8, 30 * time.Second: 4} {
		c := newCluster().withNodes(1, 8)
		id := c.training("a", 1, 8, []NodeID{0, 0, 0, 0}, withPace(linear.pace(120, exactly)), func(j *Job) { j.Pause = pause })
		if got := NewPlan(c).of(id).Wish; got != want {
			t.Errorf("a pause of %s: it wishes for %d workers, want %d", pause, got, want)
		}
	}
}

// Gangs that wait count among those behind a job, if they are of its namespace and priority: it is dearer for it to have much.
func TestGangsThatWaitMakeDevicesDearer(t *testing.T) {
	for _, test := range []struct {
		name        string
		set         func(*Job)
		least, most int32
	}{
		{"of another namespace", in(1), 4, 6},
		{"of another priority", priority(-1), 4, 6},
		{"of its own", func(*Job) {}, 1, 3},
	} {
		c := newCluster().withNodes(4, 4)
		c.Namespaces = append(c.Namespaces, Namespace{Name: "other", Weight: 1})
		first := c.training("first", 1, 16, span(0, 1), withPace(between.pace(1e3, exactly)))
		c.training("second", 1, 16, span(1, 2), withPace(linear.pace(1e6, exactly)))
		for range 6 {
			c.queued("waits", 99, 99, test.set)
		}
		if got := NewPlan(c).of(first).Wish; got < test.least || got > test.most {
			t.Errorf("%s: it wishes for %d workers, want %d to %d", test.name, got, test.least, test.most)
		}
	}
}

// What nobody wants for its price is had for less of it, as long as it is worth anything.
func TestWhatIsLeftOverIsHadForLess(t *testing.T) {
	for _, test := range []struct {
		name    string
		program truth
		want    int32
	}{{"a program that makes something of each", between, 8}, {"one that makes nothing of them", flat, 1}} {
		c := newCluster().withNodes(2, 4)
		id := c.training("a", 1, 8, span(0, 1), withPace(test.program.pace(1e6, exactly)))
		for range 4 {
			c.queued("waits", 99, 99)
		}
		if got := NewPlan(c).of(id).Wish; got != test.want {
			t.Errorf("%s: it wishes for %d workers, want %d", test.name, got, test.want)
		}
	}
}

// What a namespace makes no use of goes to the others.
func TestWhatANamespaceDoesNotUseGoesToOthers(t *testing.T) {
	for _, test := range []struct {
		program truth
		want    int
	}{{linear, 4}, {flat, 7}} {
		c := newCluster().withNodes(2, 4)
		c.Namespaces = append(c.Namespaces, Namespace{Name: "other", Weight: 1})
		c.training("theirs", 1, 8, span(0, 1), in(1), withPace(test.program.pace(1e6, exactly)))
		id := c.training("ours", 1, 8, span(1, 2), withPace(linear.pace(1e6, exactly)))
		if got := simulate(c).run(20).counts(); got[id] != test.want {
			t.Errorf("beside %+v it has %d, want %d", test.program, got[id], test.want)
		}
	}
}

// Of jobs that have about as much to do the older one is first, and one that has twice as much is behind both.
func TestWorkCountsInPowersOfTwo(t *testing.T) {
	for _, test := range []struct {
		left       float64
		olderFirst bool
	}{{1100, true}, {1900, true}, {2200, false}} {
		c := newCluster().withNodes(2, 4)
		older := c.training("older", 1, 8, span(0, 1), withPace(linear.pace(test.left, exactly)))
		younger := c.training("younger", 1, 8, span(1, 2), withPace(linear.pace(1300, exactly)))
		plan := NewPlan(c)
		if first := plan.of(older).Wish > plan.of(younger).Wish; first != test.olderFirst {
			t.Errorf("%g steps are left of the older one, 1300 of the younger: they wish for %d and %d", test.left, plan.of(older).Wish, plan.of(younger).Wish)
		}
	}
}

// Who gave to an equal takes nothing that is free for a minute, or for coolDown where that is shorter, and the plan is made anew then.
func TestWhoGaveTakesNothingForAMinute(t *testing.T) {
	for _, test := range []struct {
		coolDown, ago time.Duration
		waits         time.Duration
	}{
		{5 * time.Minute, 59 * time.Second, time.Second},
		{5 * time.Minute, time.Minute, 0},
		{30 * time.Second, 29 * time.Second, time.Second},
		{30 * time.Second, 30 * time.Second, 0},
		{0, time.Second, 0},
	} {
		c := newCluster().withNodes(1, 4)
		c.Settings.CoolDown = test.coolDown
		id := c.training("a", 1, 4, span(0, 1), withPace(linear.pace(1e6, exactly)), func(j *Job) { j.EvenedAt = noon.Add(-test.ago) })
		plan := NewPlan(c)
		if grows := plan.of(id).Count > 1; grows != (test.waits == 0) {
			t.Errorf("%+v: it has %d workers", test, plan.of(id).Count)
		}
		if test.waits > 0 && !plan.Next.Equal(noon.Add(test.waits)) {
			t.Errorf("%+v: the next plan is made at %s", test, plan.Next)
		}
	}
}

// To be in time is to be so by a tenth of what is left before it is widened to a size, by a twentieth once it has it, and with the
// pause that a change costs.
func TestADeadlineIsMetWithSomeToSpare(t *testing.T) {
	five, one := []NodeID{0, 0, 0, 0, 0}, []NodeID{0}
	for _, test := range []struct {
		on    []NodeID
		in    time.Duration
		pause time.Duration
		want  int32
	}{
		{one, 1250 * time.Second, time.Millisecond, 6}, // with five it takes 1200 s
		{one, 1340 * time.Second, time.Millisecond, 5},
		{five, 1250 * time.Second, time.Millisecond, 6},
		{five, 1270 * time.Second, time.Millisecond, 5},
		{one, 1340 * time.Second, 200 * time.Second, 6},
		{five, 1270 * time.Second, 200 * time.Second, 5},
		{five, 1590 * time.Second, time.Millisecond, 4}, // 1500 s with four
		{five, 1590 * time.Second, 100 * time.Second, 5},
	} {
		c := newCluster().withNodes(1, 8)
		id := c.training("a", 1, 8, test.on, withPace(linear.pace(6000, exactly)), deadline(test.in), func(j *Job) { j.Pause = test.pause })
		if got := NewPlan(c).of(id).Needs; got != test.want {
			t.Errorf("with %d workers, %s before its deadline, and pauses of %s it needs %d, want %d", len(test.on), test.in, test.pause, got, test.want)
		}
	}
}

// Where there is not enough for all deadlines, the earliest one is met.
func TestTheEarliestDeadlineIsFirst(t *testing.T) {
	for _, soonest := range []int{0, 1} {
		c := newCluster().withNodes(2, 4)
		in := []time.Duration{600 * time.Second, 600 * time.Second}
		in[soonest] = 500 * time.Second
		for i, name := range []string{"older", "younger"} {
			c.training(name, 1, 8, span(i, i+1), withPace(linear.pace(2900, exactly)), deadline(in[i]))
		}
		plan := NewPlan(c)
		if got := plan.of(JobID(soonest)); got.Wish < 7 || got.Needs != got.Wish {
			t.Errorf("the %d. has the earliest deadline, needs %d and wishes for %d", soonest+1, got.Needs, got.Wish)
		}
	}
}
