package speed

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// at is what was seen of one size, so many seconds after noon.
func at(second, workers int, pace float64, steps int64) Seen {
	return Seen{Workers: workers, Nodes: 1, StepsPerSecond: pace, Steps: steps, At: noon.Add(time.Duration(second) * time.Second)}
}

func TestWhatIsSeenOfAJob(t *testing.T) {
	for name, test := range map[string]struct {
		told []Seen
		want []Seen
	}{
		"nothing":                 {},
		"one size":                {[]Seen{at(0, 2, 3, 30)}, []Seen{at(0, 2, 3, 30)}},
		"again":                   {[]Seen{at(0, 2, 3, 30), at(0, 2, 3, 15)}, []Seen{at(0, 2, 3, 45)}},
		"sizes in order":          {[]Seen{at(0, 4, 5, 30), at(1, 2, 3, 30)}, []Seen{at(1, 2, 3, 30), at(0, 4, 5, 30)}},
		"by seconds":              {[]Seen{at(0, 2, 3, 30), at(0, 2, 1, 10)}, []Seen{at(0, 2, 2, 40)}},
		"the old counts for less": {[]Seen{at(0, 2, 3, 60), at(300, 2, 1, 10)}, []Seen{at(300, 2, 2, 70)}},
		"and for a minute at most": {[]Seen{at(0, 2, 3, 1e9), at(0, 2, 1, 60)},
			[]Seen{{Workers: 2, Nodes: 1, StepsPerSecond: 2, Steps: 1e9 + 60, Settled: 3, At: noon}}},
		"absurd paces":               {[]Seen{at(0, 2, math.NaN(), 30), at(0, 2, math.Inf(1), 30), at(0, 2, -3, 30), at(0, 2, 0, 30), at(0, 2, 1e12, 30)}, nil},
		"absurd sizes":               {[]Seen{at(0, 0, 3, 30), at(0, -2, 3, 30), at(0, 1<<30, 3, 30), {Workers: 1, Nodes: 2, StepsPerSecond: 1, Steps: 9}}, nil},
		"no steps":                   {[]Seen{at(0, 2, 3, 0), at(0, 2, 3, -30)}, nil},
		"a clock that went back":     {[]Seen{at(600, 2, 3, 30), at(0, 2, 1, 10)}, []Seen{at(0, 2, 2, 40)}},
		"more steps than one counts": {[]Seen{at(0, 2, 3, math.MaxInt64), at(0, 2, 3, math.MaxInt64)}, []Seen{at(0, 2, 3, math.MaxInt64)}},
	} {
		var all []Seen
		for _, more := range test.told {
			all = Add(all, more)
		}
		if !slices.Equal(all, test.want) {
			t.Errorf("%s: %v, want %v", name, all, test.want)
		}
	}
}

// What was read from somewhere and cannot be true, or is in no order, does no harm.
func TestWhatCannotBeTrueIsLeftOut(t *testing.T) {
	all := Add([]Seen{at(0, 4, 5, 20), at(0, 2, math.NaN(), 30), at(0, 3, -1, 1), at(0, 0, 1, 30)}, at(9, 2, 3, 30))
	if want := []Seen{at(9, 2, 3, 30), at(0, 4, 5, 20)}; !slices.Equal(all, want) {
		t.Errorf("%v, want %v", all, want)
	}
	if some := Observations(append(all, at(0, 8, math.NaN(), 30)), noon); len(some) != 1 || some[0].StepsPerSecond != 3 || some[0].Age != 0 {
		t.Errorf("%v", some)
	}
}

func TestSixteenSizesAreRemembered(t *testing.T) {
	var all []Seen
	for n := 1; n <= MostSizes; n++ {
		all = Add(all, at(100-n, n, 1, 30))
	}
	before := slices.Clone(all)
	after := Add(all, at(200, 99, 1, 30))
	if len(after) != MostSizes || after[0].Workers != 1 || after[MostSizes-1].Workers != 99 || after[MostSizes-2].Workers != MostSizes-1 {
		t.Errorf("%v", after)
	}
	if !slices.Equal(all, before) {
		t.Error("what was there before has changed")
	}
}

// Where all that is known is from the time to come, a size that is seen now is not the one that is forgotten.
func TestTheNewestSizeIsRemembered(t *testing.T) {
	var all []Seen
	for n := 1; n <= MostSizes; n++ {
		all = Add(all, at(1e7+n, n, 1, 30))
	}
	for n := 50; n < 53; n++ {
		all = Add(all, at(n, n, 1, 30))
		if last := all[len(all)-1]; len(all) != MostSizes || last.Workers != n {
			t.Errorf("%d are remembered, the largest is %d, want %d", len(all), last.Workers, n)
		}
	}
}

func TestSizesOfWhichEnoughWasSeen(t *testing.T) {
	all := []Seen{at(0, 1, 1, 4), at(0, 2, 1, 5), at(0, 4, 0.001, 1)}
	some := Observations(all, noon.Add(time.Minute))
	if len(some) != 2 || some[0].Workers != 2 || some[0].Age != time.Minute || some[1].Workers != 4 {
		t.Errorf("%v", some)
	}
}

// A program that takes twice as long from now on is as slow as that after two minutes, noise and stragglers move it
// little: of what agents say of each refresh a part is off, and some by a lot.
func TestThePaceFollowsTheProgram(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pace := math.Pow(10, rapid.Float64Range(-1, 3).Draw(t, "log pace"))
		var all []Seen
		second, done := 0, 0.0
		look := func(until int, pace float64, straggles bool) {
			for ; second < until; second += 2 {
				off := rapid.Float64Range(-0.05, 0.05).Draw(t, "noise")
				if straggles && second%60 == 0 {
					off = -0.8
				}
				before := math.Floor(done)
				done += 2 * pace
				all = Add(all, at(second, 4, pace*(1+off), int64(math.Floor(done)-before)))
			}
		}
		look(600, pace, true)
		least := 0.85
		if pace < 0.3 {
			least = 0.77 // with a step in eight seconds one of eight is slow, and counts by the time that it took
		}
		if ratio := all[0].StepsPerSecond / pace; ratio < least || ratio > 1.06 {
			t.Fatalf("with stragglers the pace is %.3f of what it is", ratio)
		}
		look(840, pace/2, false)
		if ratio := all[0].StepsPerSecond / pace; ratio < 0.47 || ratio > 0.55 {
			t.Fatalf("four minutes after it became half as fast the pace is %.3f of what it was", ratio)
		}
	})
}

// A job that was away for weeks is still known: it is as fast as it was, until more is seen.
func TestWhatIsOldIsStillKnown(t *testing.T) {
	all := []Seen{at(0, 2, 3, 1000)}
	m := Fit(Observations(all, noon.Add(90*24*time.Hour)), 1)
	if pace := m.Speed(2, 1); pace < 2.5 || pace > 3.5 {
		t.Errorf("%g steps a second with 2 workers, 3 were seen", pace)
	}
}

// A job that has been at one size for a day is known at the others as it was seen there, not as any job is expected to be.
func TestOtherSizesAreNotForgotten(t *testing.T) {
	day := 24 * time.Hour
	all := []Seen{at(0, 1, 1, 60), at(int(day.Seconds()), 4, 1.1, 1e5)}
	m := Fit(Observations(all, noon.Add(day)), 1)
	if pace := m.Speed(1, 1); math.Abs(pace-1) > 0.1 {
		t.Errorf("%g steps a second with one worker, 1 was seen", pace)
	}
}
