package fleet

import (
	"testing"

	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/api/v1alpha1"
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
		job := jobOf("j", trains, func(job *v1alpha1.TrainingJob) {
			w := &job.Spec.Workers
			w.Min, w.Max, w.Spares, w.Sizes = ptr.To(least), ptr.To(most), ptr.To(spares), sizes
		})
		c := New(optionsOf())
		c.SetJob(job)
		snapshot := c.Snapshot()
		in := &snapshot.Jobs[0]
		w := &job.Spec.Workers
		if in.Min != least || in.Max != most+spares {
			t.Fatalf("it may have %d to %d workers", in.Min, in.Max)
		}
		for n := least; n <= in.Max; n++ {
			if w.Most(n) == n && in.World(n) != w.World(n) {
				t.Fatalf("of %d workers %d train, the planner reckons with %d", n, w.World(n), in.World(n))
			}
		}
	})
}
