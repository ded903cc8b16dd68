package replay

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	estimate "github.com/concertina-dev/concertina/internal/speed"
)

// scaling are two jobs on four devices: the first scales, the second does not.
func scaling() []Job {
	return []Job{
		{Name: "scales", Workers: 1, Program: &Scaling{Steps: 10000, Parallel: 1, Most: 4}},
		{Name: "does not", Workers: 1, Program: &Scaling{Steps: 10000, Serial: 0.9, Parallel: 0.1, Near: 0.5, Most: 4}},
	}
}

// With speeds the job that scales has what the other one makes nothing of, by both rules; and nothing is random but by
// the seed.
func TestSpeedsHelp(t *testing.T) {
	c := Cluster{Nodes: 1, DevicesPerNode: 4}
	rules := map[string]func(Sight) (*Result, error){
		"ticks": func(s Sight) (*Result, error) {
			return PublishedTicks.Run(scaling(), c, NewPlanned(c, shipped, 30*time.Second, s))
		},
		"events": func(s Sight) (*Result, error) {
			return Events{Join: 30 * time.Second, Pause: time.Second, Settings: shipped, Sight: s}.Run(scaling(), c)
		},
	}
	for name, run := range rules {
		for _, hidden := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " hidden ", hidden), func(t *testing.T) {
				without, err := run(Sight{})
				if err != nil {
					t.Fatal(err)
				}
				sees := Sight{Speeds: true, Hidden: hidden, Noise: 0.05, Seed: 1}
				with, err := run(sees)
				if err != nil {
					t.Fatal(err)
				}
				if with.Average > 0.9*without.Average {
					t.Errorf("the average is %g s with speeds, %g without", with.Average, without.Average)
				}
				again, err := run(sees)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(with.Jobs, again.Jobs, cmp.AllowUnexported(JobResult{})); diff != "" {
					t.Error("the same seed has two results:", diff)
				}
			})
		}
	}
}

// What is watched for too short a time counts for nothing, and the first step of a world neither; then its pace is what it was, the
// noise aside, and what is left the total without what was done.
func TestWatch(t *testing.T) {
	j := &Job{Name: "a", Program: &Scaling{Steps: 1000, Parallel: 1, Most: 4}}
	w := Sight{Speeds: true, Seed: 7}.watch(j)
	w.look(5*time.Second, Placement{2}, 10, 5)
	if p := w.pace(5 * time.Second); p != nil {
		t.Errorf("after 5 seconds it is %+v", p)
	}
	w.look(12*time.Second, Placement{2}, 24, 12)
	p := w.pace(12 * time.Second)
	if p == nil || p.Tried != 2 || p.Done != 24 || p.Left != 976 {
		t.Fatalf("after 12 seconds it is %+v", p)
	}
	if got := p.Speed.Speed(2, 1); math.Abs(got-2) > 0.1 {
		t.Errorf("2 workers make %g steps a second, 2 were seen", got)
	}
	if w := (Sight{}).watch(j); w.pace(time.Hour) != nil {
		t.Error("who sees nothing knows a pace")
	}
}

// However often a job is looked at while it makes its first step, what it makes after that counts.
func TestTheFirstStepIsLookedAtOften(t *testing.T) {
	for _, looks := range []float64{1, 2, 7} {
		w := Sight{Speeds: true}.watch(&Job{Name: "a", Program: &Scaling{Steps: 1000, Parallel: 30, Most: 4}})
		for n := 1.0; n <= looks; n++ {
			w.look(time.Duration(n/looks*float64(30*time.Second)), Placement{1}, n/looks, 30*n/looks)
		}
		w.look(90*time.Second, Placement{1}, 3, 90)
		if pace := w.pace(90 * time.Second); pace == nil || math.Abs(pace.Speed.Speed(1, 1)*30-1) > 1e-3 {
			t.Errorf("after %g looks at its first step and one later its pace is %+v, want a step in half a minute", looks, pace)
		}
	}
}

// Who warms up, and who has a slow worker, is seen to be slower for so long, and not for longer.
func TestWhatHindersPasses(t *testing.T) {
	for name, test := range map[string]struct {
		sight Sight
		first float64 // how fast it is seen to be after half a minute
	}{
		"nothing":             {Sight{}, 2},
		"it warms up":         {Sight{WarmUp: time.Minute}, 1},
		"for a while":         {Sight{WarmUp: 15 * time.Second}, 1.5},
		"a worker is slow":    {Sight{Stragglers: 1}, 4. / 3},
		"both":                {Sight{Stragglers: 1, WarmUp: time.Minute}, 2. / 3},
		"of others it is one": {Sight{Stragglers: 1e-9}, 2},
	} {
		test.sight.Speeds = true
		w := test.sight.watch(&Job{Name: "a", Program: &Scaling{Steps: 1000, Parallel: 1, Most: 4}})
		w.look(30500*time.Millisecond, Placement{2}, 61, 30.5)
		if got := w.pace(30500*time.Millisecond).Speed.Speed(2, 1); math.Abs(got/test.first-1) > 0.05 {
			t.Errorf("%s: it is seen to make %g steps a second, want %g", name, got, test.first)
		}
		for n := 2; n <= 20; n++ {
			at := time.Duration(n) * 30 * time.Second
			w.look(at, Placement{2}, 2*at.Seconds(), at.Seconds())
		}
		if got := w.pace(10*time.Minute).Speed.Speed(2, 1); math.Abs(got-2) > 0.1 {
			t.Errorf("%s: after ten minutes it is seen to make %g steps a second, want 2", name, got)
		}
	}
}

// Of a job that had very many sizes those seen longest ago are forgotten.
func TestFewSizesAreRemembered(t *testing.T) {
	w := Sight{Speeds: true}.watch(&Job{Name: "a", Program: &Scaling{Steps: 1000, Parallel: 1, Most: 40}})
	for n := 1; n <= 40; n++ {
		at := time.Duration(n) * time.Minute
		w.look(at, Placement{n}, 10*float64(n), 60*float64(n))
	}
	if len(w.seen) != estimate.MostSizes || w.seen[0].Workers != 40-estimate.MostSizes+1 || w.seen[estimate.MostSizes-1].Workers != 40 {
		t.Errorf("%d sizes are remembered: %v", len(w.seen), w.seen)
	}
}

// A job is watched at its first size before it grows, as the operator has it: else it would have had the larger one since its newcomers
// were ready, half a minute after it began.
func TestTheFirstSizeIsWatched(t *testing.T) {
	c := Cluster{Nodes: 1, DevicesPerNode: 4}
	jobs := []Job{{Name: "a", Workers: 1, Program: &Scaling{Steps: 1000, Parallel: 1, Most: 4}}}
	result, err := Events{Join: 30 * time.Second, Pause: time.Second, Settings: shipped, Sight: Sight{Speeds: true}}.Run(jobs, c)
	if err != nil {
		t.Fatal(err)
	}
	if sizes := result.Jobs[0].Sizes; len(sizes) < 2 || sizes[0].At != 30 || sizes[1].At < 65 || sizes[1].At > 90 {
		t.Errorf("its sizes are %+v", sizes)
	}
}
