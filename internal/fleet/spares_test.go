package fleet

import (
	"testing"

	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
)

// The planner takes so many of a job's workers for those that train as the controller has train, and plans no other numbers than are legal.
func TestThePlannerKnowsWhichWorkersAreSpares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		least, spares := rapid.Int32Range(1, 10).Draw(t, "min"), rapid.Int32Range(0, 4).Draw(t, "spares")
		most := rapid.Int32Range(least, 20).Draw(t, "max")
		var sizes []int32
		if rapid.Bool().Draw(t, "sizes") {
			sizes = []int32{least, (least + most + 1) / 2}
		}
		made, attempt := rapid.Int32Range(0, 30).Draw(t, "workers of its world"), rapid.Int32Range(1, 2).Draw(t, "attempt")
		job := jobOf("j", trains, func(job *v1alpha1.TrainingJob) {
			w := &job.Spec.Workers
			w.Min, w.Max, w.Spares, w.Sizes = ptr.To(least), ptr.To(most), ptr.To(spares), sizes
			job.Status.World.Workers, job.Status.Attempt = &made, &attempt
		})
		c := New(optionsOf())
		c.SetJob(job)
		snapshot := c.Snapshot()
		in := &snapshot.Jobs[0]
		w := &job.Spec.Workers
		members := made
		if attempt != *job.Status.World.Attempt {
			members = 0
		}
		if in.Min != least || in.Max != most+spares {
			t.Fatalf("it may have %d to %d workers", in.Min, in.Max)
		}
		for n := least; n <= in.Max; n++ {
			// By that the controller has the next world made.
			if want := w.Trains(n, members); w.Most(n) == n && in.World(n) != want {
				t.Fatalf("of %d workers %d train, the planner reckons with %d", n, want, in.World(n))
			}
		}
	})
}

// A job hears that it gets no spares, and is looked at once that changes: its condition FullSize follows it.
func TestAJobHearsThatItGetsNoSpares(t *testing.T) {
	none := false
	c := New(optionsOf(func(o *Options) {
		o.Plan = func(*allocation.Cluster) allocation.Plan {
			return allocation.Plan{Decisions: []allocation.Decision{{For: allocation.None, Count: 2, NoSpares: none}}}
		}
	}))
	job := jobOf("j", trains)
	c.SetJob(job)
	c.PlanNow()
	for range c.changes.order {
		c.changes.take()
	}
	for _, none = range []bool{true, true, false, false} {
		was := c.Grant(job.UID).NoSpares
		c.PlanNow()
		if got := c.Grant(job.UID).NoSpares; got != none {
			t.Errorf("it gets no spares: %v, the plan says %v", got, none)
		}
		if _, changed := c.changes.take(); changed != (was != none) {
			t.Errorf("from %v to %v: it is looked at: %v", was, none, changed)
		}
	}
}
