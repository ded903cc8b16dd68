package replay

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/internal/allocation"
)

// shipped are the settings that the operator comes with.
var shipped = allocation.Settings{
	MinRuntime: 10 * time.Second, ReclaimTimeout: time.Minute, Backfill: 10 * time.Minute, CoolDown: 2 * time.Minute,
	FirstRegrow: time.Second, LastRegrow: 5 * time.Minute,
}

// The jobs of two, under the operator's planner, in seconds.
//
// At events: a starts at 0, and as nobody else is there it is given the other device as soon as it trains, at 30. At 30
// b comes: the worker that has yet to join a is taken back at once, before it has cost anything. a makes a step in 2 s,
// and b, which steps from 60 on, is done at 110. a is given its device then, the worker joins at 140 when 55 steps are
// made, and after a pause of 1 s the other 45 take 45 s.
//
// In intervals: each has one from 60 on as under Optimus, and the rest is the same.
func TestTwoJobsUnderTheOperatorByHand(t *testing.T) {
	node := Cluster{Nodes: 1, DevicesPerNode: 2}
	events, err := Events{Join: 30 * time.Second, Pause: time.Second, Settings: shipped}.Run(two(), node)
	if err != nil {
		t.Fatal(err)
	}
	ticks, err := PublishedTicks.Run(two(), node, NewPlanned(node, shipped, 30*time.Second, Sight{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		got  *Result
		want [2]float64
	}{{"events", events, [2]float64{186, 80}}, {"ticks", ticks, [2]float64{265, 110}}} {
		for i, want := range c.want {
			if got := c.got.Jobs[i]; math.Abs(got.JCT-want) > 1e-6 {
				t.Errorf("%s: job %s took %g s, want %g", c.name, got.Name, got.JCT, want)
			}
		}
		if c.got.Jobs[0].Resizes != 1 || c.got.Jobs[1].Resizes != 0 {
			t.Errorf("%s: a was resized %d times, b %d, want once and never", c.name, c.got.Jobs[0].Resizes, c.got.Jobs[1].Resizes)
		}
	}
	// a holds one device for 186 s and another for 76 s; b one for 80 s. The pause, the starts and the joiner's are lost.
	if held := 186.0 + 76 + 80; math.Abs(events.Utilisation-held/(2*186)) > 1e-6 || math.Abs(events.Goodput-(110+2*45+50)/held) > 1e-6 {
		t.Errorf("utilisation %g, goodput %g", events.Utilisation, events.Goodput)
	}
}

// workloads are small random ones, and clusters on which they can run.
func workloads(t *rapid.T) ([]Job, Cluster) {
	c := Cluster{Nodes: rapid.IntRange(1, 4).Draw(t, "nodes"), DevicesPerNode: rapid.IntRange(1, 4).Draw(t, "devices")}
	jobs := make([]Job, rapid.IntRange(1, 12).Draw(t, "jobs"))
	for i := range jobs {
		p := &Scaling{
			Steps: rapid.Int64Range(1, 1000).Draw(t, "steps"), Most: rapid.IntRange(1, 8).Draw(t, "most"),
			Serial: rapid.Float64Range(0, 1).Draw(t, "serial"), Parallel: rapid.Float64Range(0.1, 10).Draw(t, "parallel"),
			Near: rapid.Float64Range(0, 1).Draw(t, "near"), Far: rapid.Float64Range(0, 1).Draw(t, "far"),
		}
		jobs[i] = Job{
			Name: fmt.Sprint("job-", i), Submitted: rapid.Int64Range(0, 2000).Draw(t, "submitted"),
			Workers: rapid.IntRange(1, min(p.Most, c.Devices())).Draw(t, "workers"), Program: p,
		}
	}
	return jobs, c
}

// Whatever the jobs: all of them are done, none faster than is possible, no more devices are held than there are, and
// the same jobs give the same result.
func TestAnyWorkloadIsDone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		jobs, c := workloads(t)
		join := time.Duration(rapid.IntRange(0, 60).Draw(t, "join")) * time.Second
		pause := time.Duration(rapid.IntRange(0, 5000).Draw(t, "pause")) * time.Millisecond
		events := Events{Join: join, Pause: pause, Settings: shipped}
		for name, run := range map[string]func() (*Result, error){
			"tiresias": func() (*Result, error) { return PublishedTicks.Run(jobs, c, NewTiresias(c)) },
			"optimus":  func() (*Result, error) { return PublishedTicks.Run(jobs, c, NewOptimus(c)) },
			"planned": func() (*Result, error) {
				return PublishedTicks.Run(jobs, c, NewPlanned(c, shipped, 30*time.Second, Sight{}))
			},
			"events": func() (*Result, error) { return events.Run(jobs, c) },
		} {
			result, err := run()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if again, _ := run(); fmt.Sprint(again) != fmt.Sprint(result) {
				t.Fatalf("%s: two runs differ:\n%v\n%v", name, result, again)
			}
			if result.Utilisation > 1+1e-9 || result.Goodput > 1+1e-9 || result.Goodput < 0 {
				t.Fatalf("%s: utilisation %g, goodput %g", name, result.Utilisation, result.Goodput)
			}
			for i, j := range result.Jobs {
				// Seconds are rounded to the nearest in intervals.
				if least := shortest(jobs[i].Program, c) - 0.5; name != "events" && j.JCT < least || name == "events" && j.JCT < least+0.5+join.Seconds()-1e-6 {
					t.Fatalf("%s: %s took %g s, which is impossible", name, j.Name, j.JCT)
				}
			}
		}
	})
}

// shortest is the time of a job alone, with the best number of workers on as few nodes as possible.
func shortest(p Program, c Cluster) float64 {
	least := math.Inf(1)
	for n := 1; n <= min(p.Max(), c.Devices()); n++ {
		least = min(least, p.Until(0)/speed(p, filled(n, c.DevicesPerNode), 0))
	}
	return least
}

func TestJobsWithoutEndAreGivenUp(t *testing.T) {
	node := Cluster{Nodes: 1, DevicesPerNode: 1}
	jobs := []Job{{Name: "a", Workers: 1, Program: &Scaling{Steps: 1_000_000_000, Parallel: 1e9, Most: 1}}}
	if _, err := (Events{Settings: shipped}).Run(jobs, node); !errors.Is(err, errEndless) {
		t.Errorf("by events: %v", err)
	}
	if _, err := PublishedTicks.Run(jobs, node, NewTiresias(node)); !errors.Is(err, errEndless) {
		t.Errorf("in intervals: %v", err)
	}
}
