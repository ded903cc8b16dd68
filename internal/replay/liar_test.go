package replay

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// sleeper is a program that sleeps where it has few workers, so that more of them look worth far more than they are.
type sleeper struct {
	*Scaling
	below int
	extra float64
}

func (s *sleeper) StepTime(p Placement) float64 {
	t := s.Scaling.StepTime(p)
	if p.Workers() < s.below {
		t += s.extra
	}
	return t
}

// liars are programs that lie, each in the place of an honest one of which three others are.
func liars() map[string]Program {
	honest := func() *Scaling { return &Scaling{Steps: 20000, Parallel: 1, Near: 0.02, Most: 16} }
	never := honest()
	never.Steps = 1_000_000
	return map[string]Program{
		"sleeps below 8":            &sleeper{honest(), 8, 10},
		"sleeps below 16":           &sleeper{honest(), 16, 3},
		"sleeps with one":           &sleeper{honest(), 2, 100},
		"says that it is done soon": &boaster{never, 20},
		"says that it never is":     &boaster{honest(), 1e12},
		"says nothing":              &boaster{honest(), 0},
		"says what cannot be":       &boaster{honest(), -5},
	}
}

// boaster is a program that says how many steps it takes without knowing.
type boaster struct {
	*Scaling
	total float64
}

func (b *boaster) Total() float64 { return b.total }

// Whatever one program says or pretends, the others have half of their share by devices, but for backfill and the time in
// which workers come: 4 of 16 devices are the share of each of four jobs. So an honest job is never done later than twice
// as late as with that share alone, and what it waits for.
func TestAProgramThatLiesTakesNoHalfShare(t *testing.T) {
	const others, half = 3, 2
	c := Cluster{Nodes: 4, DevicesPerNode: 4}
	for name, program := range liars() {
		for _, hidden := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " hidden ", hidden), func(t *testing.T) {
				jobs := []Job{{Name: "liar", Workers: 1, Program: program}}
				for i := range others {
					jobs = append(jobs, Job{Name: fmt.Sprint("honest ", i), Workers: 1, Program: &Scaling{Steps: 20000, Parallel: 1, Near: 0.02, Most: 16}})
				}
				rules := Events{Join: 30 * time.Second, Pause: time.Second, Settings: shipped, Sight: Sight{Speeds: true, Hidden: hidden, Noise: 0.05, Seed: 3}}
				result, err := rules.Run(jobs, c)
				if err != nil {
					t.Fatal(err)
				}
				patience := shipped.Backfill.Seconds() + shipped.CoolDown.Seconds() + 120
				for i := range result.Jobs[1:] {
					one := &result.Jobs[1+i]
					if short := longestBelow(one, half); short > patience {
						t.Errorf("%s has less than half its share for %.0f s on end, at most %.0f are meant to be: %+v", one.Name, short, patience, one.Sizes)
					}
					alone := 20000 * jobs[1].Program.StepTime(Placement{half})
					if one.JCT > alone+patience {
						t.Errorf("%s took %.0f s, with half its share it takes %.0f", one.Name, one.JCT, alone)
					}
				}
			})
		}
	}
}

// longestBelow is for how long a job had fewer workers without a break, once it had been given some.
func longestBelow(r *JobResult, workers int) float64 {
	longest, since := 0.0, -1.0
	for _, s := range slices.Clone(r.Sizes) {
		below := s.Workers < workers && s.At < r.Completed
		if since >= 0 {
			longest = max(longest, s.At-since)
		}
		switch {
		case !below:
			since = -1
		case since < 0:
			since = s.At
		}
	}
	return longest
}
