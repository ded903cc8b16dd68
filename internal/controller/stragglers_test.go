package controller

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// What a leader before has found stays only of workers that live: not of an attempt before, nor of pods that are gone, end or
// are about to, whether there is progress to write or not.
func TestStragglersOfWorkersThatAreGoneAreForgotten(t *testing.T) {
	job := trains(3)
	pods := crewOf(job)
	pods[1].DeletionTimestamp = ptr.To(metav1.NewTime(now))
	ended := podOf(job, 1, 3, func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded })
	other := podOf(job, 2, 0, trainerRuns)
	for _, progress := range []bool{true, false} {
		state := elasticState(job.DeepCopy(), append(slices.Clone(pods), ended, other)...)
		if state.World.Progress.Step = 41; !progress {
			state.Memory.ReportedAt, state.Memory.ReportedRound = state.Now, state.World.Round
			state.Job.Status.Progress.Since = ptr.To(metav1.NewTime(now))
		}
		for rank, pod := range []string{"digits-0-1", pods[0].Name, pods[1].Name, ended.Name, other.Name} {
			state.Job.Status.Stragglers = append(state.Job.Status.Stragglers, v1alpha1.Straggler{Rank: ptr.To(int32(rank)), Pod: pod})
		}
		plan := look(state)
		if got := plan.Status.Stragglers; plan.Progress != progress || len(got) != 1 || got[0].Pod != pods[0].Name {
			t.Errorf("progress %v: the status has %+v", plan.Progress, got)
		}
	}
}

// Where the API server drops status.stragglers, since its CRD is older, a process is told of once all the same, and again when
// it is named anew or in another attempt.
func TestStragglersAreToldOnceWhereTheStatusHasNone(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)...)
	state.World.Progress.Step, state.World.Watched = 41, true
	slow := []rendezvous.Straggler{
		{Name: "digits-1-1", Node: "n2", Rank: 1, Own: 90 * time.Millisecond, Median: 50 * time.Millisecond, Since: state.Now},
	}
	told := func(named []rendezvous.Straggler, reported bool) (n int) {
		state.World.Stragglers = named
		if state.Memory.ReportedAt = (time.Time{}); reported {
			state.Memory.ReportedAt, state.Memory.ReportedRound = state.Now, state.World.Round
		}
		for _, note := range look(state).Notes {
			if note.Reason == v1alpha1.EventStraggler {
				n++
			}
		}
		state.Job.Status.Stragglers = nil
		return n
	}
	if n := told(slow, false); n != 1 {
		t.Fatalf("told %d times", n)
	}
	for range 3 {
		if n := told(slow, true) + told(slow, false); n != 0 {
			t.Fatalf("told again %d times", n)
		}
	}
	if n := told(nil, false); n != 0 {
		t.Errorf("told %d times of nobody", n)
	}
	if n := told(slow, false); n != 1 {
		t.Errorf("named anew, told %d times", n)
	}
	state.Memory.Elastic.Attempt = 0
	if n := told(slow, false); n != 1 {
		t.Errorf("in another attempt, told %d times", n)
	}
}

// The factor fits into the status, however short others work.
func TestTheFactorOfAStragglerIsBounded(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)...)
	state.World.Progress.Step = 41
	state.World.Stragglers = []rendezvous.Straggler{
		{Name: "digits-1-1", Node: "n2", Rank: 1, Own: 30 * 24 * time.Hour, Median: 1, Since: state.Now},
	}
	if got := look(state).Status.Stragglers; len(got) != 1 || got[0].Factor != "9999.99" {
		t.Errorf("the status has %+v", got)
	}
}
