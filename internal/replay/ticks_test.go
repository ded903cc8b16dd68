package replay

import (
	"slices"
	"testing"
)

// two are jobs on one node with two devices. By hand, in seconds:
//
// Tiresias: at 60 a has both devices and starts to step at 90, one step a second: it is done at 190, its devices are
// free at 240. There b starts to step at 270 and is done at 320.
//
// Optimus: at 60 each has one; a makes a step in 2 s, b is done at 140 and frees its device at 180, when a has made 45.
// It has both then, steps from 210 on, and makes the other 55 until 265.
func two() []Job {
	return []Job{
		{Name: "a", Submitted: 0, Workers: 2, Program: &Scaling{Steps: 100, Parallel: 2, Most: 2}},
		{Name: "b", Submitted: 30, Workers: 1, Program: &Scaling{Steps: 50, Parallel: 1, Most: 1}},
	}
}

func TestTwoJobsByHand(t *testing.T) {
	node := Cluster{Nodes: 1, DevicesPerNode: 2}
	for _, c := range []struct {
		name                 string
		policy               Policy
		want                 []float64
		resizes, ticks       int
		makespan, held, done float64
	}{
		{"tiresias", NewTiresias(node), []float64{190, 290}, 0, 6, 320, 2*180 + 120, 2*100 + 50},
		{"optimus", NewOptimus(node), []float64{265, 110}, 1, 5, 265, 120 + 2*120 + 120, 90 + 2*55 + 50},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := PublishedTicks.Run(two(), node, c.policy)
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range c.want {
				if got.Jobs[i].JCT != want {
					t.Errorf("job %s took %g s, want %g", got.Jobs[i].Name, got.Jobs[i].JCT, want)
				}
			}
			if got.Resizes != c.resizes || got.Ticks != c.ticks || got.Makespan != c.makespan {
				t.Errorf("%d resizes, %d ticks, makespan %g; want %d, %d, %g", got.Resizes, got.Ticks, got.Makespan, c.resizes, c.ticks, c.makespan)
			}
			if used := min(1, c.held/(2*c.makespan)); got.Utilisation != used || got.Goodput != c.done/c.held {
				t.Errorf("utilisation %g, goodput %g; want %g, %g", got.Utilisation, got.Goodput, used, c.done/c.held)
			}
		})
	}
}

// Tiresias lets a job with much service wait behind new ones: with 2 devices that is after 8 hours.
func TestTiresiasServesNewJobsFirst(t *testing.T) {
	node := Cluster{Nodes: 1, DevicesPerNode: 2}
	jobs := []Job{
		{Name: "long", Submitted: 0, Workers: 2, Program: &Scaling{Steps: 10 * 3600, Parallel: 2, Most: 2}},
		{Name: "late", Submitted: 7 * 3600, Workers: 1, Program: &Scaling{Steps: 50, Parallel: 1, Most: 1}},
	}
	got, err := PublishedTicks.Run(jobs, node, NewTiresias(node))
	if err != nil {
		t.Fatal(err)
	}
	// It is given its devices at 60, and 8 hours later they are those of the other one, which steps from 28890 on.
	if got.Jobs[1].Completed != 60+8*3600+30+50 {
		t.Errorf("late is done at %g", got.Jobs[1].Completed)
	}
	// The long one stood still for two intervals, and waits twice for its restart.
	if got.Jobs[0].Completed != 60+30+10*3600+120+30 {
		t.Errorf("long is done at %g", got.Jobs[0].Completed)
	}
}

// An epoch ends at the nearest whole second, at the even one of two.
func TestEpochsEndAtWholeSeconds(t *testing.T) {
	node := Cluster{Nodes: 1, DevicesPerNode: 1}
	for step, want := range map[float64]float64{2.25: 2, 2.5: 2, 2.75: 3, 3.5: 4} {
		jobs := []Job{{Name: "a", Workers: 1, Program: &Scaling{Steps: 1, Parallel: step, Most: 1}}}
		got, err := PublishedTicks.Run(jobs, node, NewTiresias(node))
		if err != nil {
			t.Fatal(err)
		}
		if got.Jobs[0].JCT != 60+30+want {
			t.Errorf("a step of %g s ends after %g s, want %g", step, got.Jobs[0].JCT-90, want)
		}
	}
}

func TestDevicesComeFromTheEmptiestNode(t *testing.T) {
	free := room{2, 4, 4, 1}
	if got := free.place(6); !slices.Equal(got, []int{1, 1, 1, 1, 2, 2}) {
		t.Errorf("6 devices are on nodes %v", got)
	}
	if got := free.place(3); !slices.Equal(got, []int{0, 0, 2}) {
		t.Errorf("3 devices more are on nodes %v", got)
	}
	if got := placementOn([]int{1, 1, 1, 1, 2, 2}); !slices.Equal(got, Placement{4, 2}) {
		t.Errorf("placement is %v", got)
	}
}

func TestPlacementsAreRotatedNotSorted(t *testing.T) {
	for want, p := range map[string]Placement{"244": {4, 4, 2}, "132": {3, 2, 1}, "2243": {4, 3, 2, 2}, "4": {4}} {
		if got := canonical(p); got != want {
			t.Errorf("%v is %s, want %s", p, got, want)
		}
	}
}

func TestBatchIsSplitEvenly(t *testing.T) {
	limits := Limits{InitBatch: 128, MaxBatch: 4096, MinLocal: 32, MaxLocal: 1024}
	for _, c := range []struct {
		batch, workers int
		want           Split
		total          int
	}{
		{4096, 1, Split{Local: 1024, Accumulated: 3}, 4096},
		{4096, 4, Split{Local: 1024}, 4096},
		// 1366 each, in two passes of 683, would be 4098 in total.
		{4096, 3, Split{Local: 682, Accumulated: 1}, 4092},
		// One worker takes two passes above the first batch, and one up to it.
		{1000, 1, Split{Local: 500, Accumulated: 1}, 1000},
		{128, 1, Split{Local: 128}, 128},
		{2048, 3, Split{Local: 683}, 2049},
	} {
		if got := limits.Split(c.batch, c.workers); got != c.want || got.Batch(c.workers) != c.total {
			t.Errorf("%d by %d: %+v in total %d, want %+v, %d", c.batch, c.workers, got, got.Batch(c.workers), c.want, c.total)
		}
	}
}

func TestPercentilesAreTimesOfJobs(t *testing.T) {
	times := []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for p, want := range map[int]float64{50: 5, 90: 9, 99: 10} {
		if got := percentile(times, p); got != want {
			t.Errorf("p%d is %g, want %g", p, got, want)
		}
	}
}

func TestJobsThatCannotRunAreRefused(t *testing.T) {
	node := Cluster{Nodes: 1, DevicesPerNode: 2}
	program := &Scaling{Steps: 1, Parallel: 1, Most: 3}
	for name, jobs := range map[string][]Job{
		"no jobs":          nil,
		"early":            {{Name: "a", Submitted: -1, Workers: 1, Program: program}},
		"no workers":       {{Name: "a", Workers: 0, Program: program}},
		"more than useful": {{Name: "a", Workers: 4, Program: program}},
		"more than there":  {{Name: "a", Workers: 3, Program: program}},
	} {
		if _, err := PublishedTicks.Run(jobs, node, NewOptimus(node)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
