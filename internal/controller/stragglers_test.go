package controller

import (
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// A process that keeps the others waiting stands in the status and is told once, by rank, pod and node, also when it has
// another rank in the next world. It stays there until a leader that has looked for long enough says otherwise, or the workers
// are gone.
func TestStragglersAreTold(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)...)
	state.World.Progress.Step = 41
	words := "rank 1, in digits-1-1 on node n2, works 1.80 times as long in a step as most ranks do (90ms, they 50ms)"
	told := func() (int, []v1alpha1.Straggler) {
		state.Memory.ReportedAt = time.Time{}
		plan, n := look(state), 0
		for _, note := range plan.Notes {
			if note.Reason == v1alpha1.EventStraggler {
				expectNote(t, plan, v1alpha1.EventStraggler, words)
				n++
			}
		}
		state.Job.Status.Stragglers = plan.Status.Stragglers
		return n, plan.Status.Stragglers
	}
	if n, seen := told(); n != 0 || len(seen) != 0 {
		t.Fatalf("nobody is slow, and told are %d, %+v", n, seen)
	}
	state.World.Stragglers = []rendezvous.Straggler{
		{Name: "digits-1-1", Node: "n2", Rank: 1, Own: 90 * time.Millisecond, Median: 50 * time.Millisecond, Since: state.Now},
	}
	n, seen := told()
	if n != 1 || len(seen) != 1 || value(seen[0].Rank) != 1 || seen[0].Pod != "digits-1-1" || seen[0].Node != "n2" || seen[0].Factor != "1.80" || !seen[0].Since.Time.Equal(state.Now) {
		t.Fatalf("told %d times, the status has %+v", n, seen)
	}
	state.World.Stragglers[0].Rank, state.World.Stragglers[0].Own = 0, 100*time.Millisecond
	if n, seen := told(); n != 0 || value(seen[0].Rank) != 0 || seen[0].Factor != "2.00" {
		t.Errorf("told again %d times, the status has %+v", n, seen)
	}
	state.World.Stragglers = nil
	if _, seen := told(); len(seen) != 1 {
		t.Error("a leader that has only begun to look knows better than the one before")
	}
	state.World.Watched = true
	if _, seen := told(); len(seen) != 0 {
		t.Errorf("the status still has %+v", seen)
	}
	state.Job.Status.Stragglers, state.World.Watched = []v1alpha1.Straggler{{Rank: ptr.To[int32](1)}}, false
	state.Job.Spec.Suspend = ptr.To(true)
	if plan := look(state); len(plan.Status.Stragglers) != 0 {
		t.Errorf("without workers there are %+v", plan.Status.Stragglers)
	}
}
