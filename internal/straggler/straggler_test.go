package straggler_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/internal/straggler"
)

const (
	look = 15 * time.Second
	// looks is how many it takes to name somebody.
	looks = 12
	step  = 100 * time.Millisecond
)

// training looks at a world every 15 s, in which steps are made.
type training struct {
	watch straggler.Watch
	now   time.Time
	step  uint64
}

func begin() *training { return &training{now: time.Unix(1e9, 0)} }

// after a look at a world whose processes work so long in a step, in milliseconds; 0 for not known.
func (t *training) after(own ...float64) (changed bool) {
	t.now, t.step = t.now.Add(look), t.step+1
	return t.watch.Look(t.now, t.step, step, world(own))
}

func world(own []float64) []straggler.Process {
	var all []straggler.Process
	for i, ms := range own {
		all = append(all, straggler.Process{ID: id(i), Own: time.Duration(ms * float64(time.Millisecond))})
	}
	return all
}

func id(i int) straggler.ID { return straggler.ID{Worker: fmt.Sprintf("w%04d", i/2), Local: i % 2} }

func (t *training) named() []straggler.ID {
	var all []straggler.ID
	for _, one := range t.watch.Named() {
		all = append(all, one.ID)
	}
	return all
}

// Who is slow for three minutes is named, by how much and since when, and not any more once it has been like others for half
// of that.
func TestWhoIsSlowForMinutesIsNamed(t *testing.T) {
	l := begin()
	for n := 1; n <= looks; n++ {
		if changed := l.after(50, 51, 49, 90); changed != (n == looks) || l.watch.Knows() != (n == looks) {
			t.Fatalf("look %d: changed %v, knows %v, named %v", n, changed, l.watch.Knows(), l.named())
		}
	}
	named := l.watch.Named()
	if len(named) != 1 || named[0].ID != id(3) || named[0].Factor() != 1.8 || !named[0].Since.Equal(time.Unix(1e9, 0).Add(look)) {
		t.Fatalf("named are %+v", named)
	}
	for n := range 5 {
		if l.after(50, 51, 49, 52) || len(l.named()) != 1 {
			t.Fatalf("after %d looks named are %v", n+1, l.named())
		}
	}
	if !l.after(50, 51, 49, 52) || len(l.named()) != 0 {
		t.Errorf("in the end named are %v", l.named())
	}
}

func TestWhoIsNotNamed(t *testing.T) {
	for name, own := range map[string][]float64{
		"nobody differs":                    {50, 50, 50, 50},
		"a little more than others":         {50, 50, 50, 60},
		"what a step does not notice":       {5, 5, 5, 10},
		"most are slow":                     {50, 90, 90, 90},
		"one alone":                         {90},
		"nobody to compare with":            {0, 90},
		"less than most know their times":   {0, 0, 50, 90},
		"nobody knows":                      {0, 0, 0},
		"who has nothing to do is not slow": {50, 50, 50, 0.001},
	} {
		l := begin()
		for range 3 * looks {
			l.after(own...)
		}
		if named := l.named(); len(named) > 0 {
			t.Errorf("%s: named are %v", name, named)
		}
	}
}

// Of two the slower one is meant.
func TestOneOfTwo(t *testing.T) {
	l := begin()
	for range looks {
		l.after(70, 50)
	}
	if named := l.named(); !slices.Equal(named, []straggler.ID{id(0)}) {
		t.Errorf("named are %v", named)
	}
}

// Looks in between, and looks at a world that stands still, do not count.
func TestOnlyStepsAndTimeCount(t *testing.T) {
	l := begin()
	for range 20 * looks {
		l.now, l.step = l.now.Add(time.Second), l.step+1
		if l.watch.Look(l.now, l.step, step, world([]float64{50, 50, 90})); l.now.Sub(time.Unix(1e9, 0)) < (looks-1)*look && len(l.named()) > 0 {
			t.Fatalf("named after %s", l.now.Sub(time.Unix(1e9, 0)))
		}
	}
	if len(l.named()) != 1 {
		t.Errorf("named are %v", l.named())
	}
	still := begin()
	for range 3 * looks {
		still.after(50, 50, 90)
		still.step--
	}
	if len(still.named()) > 0 {
		t.Errorf("in a world that stands still named are %v", still.named())
	}
}

// Who says nothing for a while, as after a change of the world, is neither better nor worse; who is gone is forgotten.
func TestWhoIsGoneIsForgotten(t *testing.T) {
	l := begin()
	for range looks {
		l.after(50, 51, 49, 90)
	}
	for range looks {
		l.after(50, 51, 49, 0)
	}
	if len(l.named()) != 1 {
		t.Errorf("who says nothing is forgotten")
	}
	if !l.after(50, 51, 49) || len(l.named()) != 0 {
		t.Errorf("who is gone is still named: %v", l.named())
	}
}

// Where nobody can be compared any more, nobody stays named for ever: a look takes back what it would of who is like others. The
// first looks at another world, in which nobody knows its times yet, do not begin anew.
func TestWhoCanNotBeComparedAnyMoreIsNotNamed(t *testing.T) {
	for name, own := range map[string][]float64{
		"alone":                   {90},
		"alone, and says nothing": {0},
		"half say nothing":        {90, 50, 0, 0},
		"nobody says anything":    {0, 0, 0, 0},
	} {
		l := begin()
		for range looks {
			l.after(90, 51, 49, 50)
		}
		for n := range looks/2 - 1 {
			if l.after(own...) || !slices.Equal(l.named(), []straggler.ID{id(0)}) {
				t.Errorf("%s: after %d looks named are %v", name, n+1, l.named())
			}
		}
		if !l.after(own...) || len(l.named()) != 0 {
			t.Errorf("%s: in the end named are %v", name, l.named())
		}
	}
	l := begin()
	for range looks {
		l.after(90, 51, 49, 50)
	}
	if l.after(0, 0, 0, 0) || l.after(90, 51, 49, 50) || len(l.named()) != 1 {
		t.Errorf("in the next world named are %v", l.named())
	}
}

// That nobody is named says something after three minutes without anybody to compare with. It does not where processes only
// begin to say how long they work.
func TestLooksWithoutComparisonCount(t *testing.T) {
	l := begin()
	for n := 1; n <= looks; n++ {
		if l.after(90); l.watch.Knows() != (n == looks) {
			t.Fatalf("look %d: knows %v", n, l.watch.Knows())
		}
	}
	l = begin()
	for range looks - 1 {
		l.after(0, 0)
	}
	for n := 1; n <= looks; n++ {
		if l.after(50, 90); l.watch.Knows() != (n == looks) {
			t.Fatalf("look %d that compares: knows %v", n, l.watch.Knows())
		}
	}
}

func TestTheSlowestOfManyAreNamed(t *testing.T) {
	l, own := begin(), make([]float64, 40)
	for i := range own {
		own[i] = 50
		if i < 12 {
			own[i] = 80 + float64(i)
		}
	}
	for range looks {
		l.after(own...)
	}
	var want []straggler.ID
	for i := range straggler.Most {
		want = append(want, id(11-i))
	}
	if named := l.named(); !slices.Equal(named, want) {
		t.Errorf("named are %v, want %v", named, want)
	}
}

// Times are noisy, and now and then somebody stands still for a while: for a checkpoint, an evaluation of its own, a compiler.
// As long as that does not last for three minutes, and a minute and a half lies between two of them, nobody is named for it. Who
// is slow all the time is named with the twelfth look, whatever else happens, and nobody else is.
func TestNoiseAndPausesNameNobody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 12).Draw(t, "processes")
		var slow []straggler.ID
		times := make([]float64, n)
		for i := range times {
			times[i] = 1
			if i < n/2-1 && rapid.Bool().Draw(t, "slow") {
				times[i] = rapid.Float64Range(1.5, 10).Draw(t, "times")
				slow = append(slow, id(i))
			}
		}
		pausing := rapid.IntRange(max(0, n/2-1), n-1).Draw(t, "pausing")
		pause, rest := 0, 0
		l := begin()
		for count := 1; count <= 60; count++ {
			own := make([]float64, n)
			for i := range own {
				own[i] = 50 * times[i] * rapid.Float64Range(0.95, 1.05).Draw(t, "noise")
			}
			if pause == 0 && rest == 0 && rapid.Bool().Draw(t, "pauses") {
				pause, rest = rapid.IntRange(1, looks-1).Draw(t, "pause"), looks/2
			}
			switch {
			case pause > 0:
				own[pausing] *= 20
				pause--
			case rest > 0:
				rest--
			}
			l.after(own...)
			got := l.named()
			slices.SortFunc(got, func(a, b straggler.ID) int { return slices.Index(slow, a) - slices.Index(slow, b) })
			if want := slow; count < looks && len(got) > 0 || count >= looks && !slices.Equal(got, want) {
				t.Fatalf("after look %d named are %v, slow are %v", count, got, slow)
			}
		}
	})
}

// Who is slow in fewer than two looks of three, evenly spread, is never named, whenever the others are.
func TestNowAndThenIsNotForMinutes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := begin()
		for range 40 {
			for _, slow := range rapid.Permutation([]bool{true, true, false}).Draw(t, "looks") {
				own := []float64{50, 50, 50}
				if slow {
					own[2] = 200
				}
				if l.after(own...); len(l.named()) > 0 {
					t.Fatalf("named are %v", l.named())
				}
			}
		}
	})
}

// Whatever is said, it does not depend on the order in which it is said, and those who are named are of the world.
func TestOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one, other := begin(), begin()
		for range 40 {
			own := rapid.SliceOfN(rapid.SampledFrom([]float64{0, 1, 49, 50, 62, 64, 100, 1e9}), 0, 9).Draw(t, "own")
			all := world(own)
			one.now, one.step = one.now.Add(look), one.step+1
			changed := one.watch.Look(one.now, one.step, step, all)
			shuffled := rapid.Permutation(slices.Clone(all)).Draw(t, "shuffled")
			if got := other.watch.Look(one.now, one.step, step, shuffled); got != changed || !slices.Equal(one.named(), other.named()) {
				t.Fatalf("named are %v and %v, changed %v and %v", one.named(), other.named(), changed, got)
			}
			for _, name := range one.named() {
				if !slices.ContainsFunc(all, func(p straggler.Process) bool { return p.ID == name }) && changed {
					t.Fatalf("named are %v, of %v", one.watch.Named(), all)
				}
			}
		}
	})
}
