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

// What is known of workers that this operator has not heard: by the record of the newest world, which names nobody who was in
// the one before it alone.
func TestWhoHasARankBeforeItIsHeard(t *testing.T) {
	made := start.Add(30 * time.Second)
	for name, c := range map[string]struct {
		change func(*State)
		// late is how long after the record was made the third pod was created; 0 for before.
		late time.Duration
		want [3]standing
	}{
		"all are named": {want: [3]standing{{rank: 0}, {rank: 1}, {rank: 2}}},
		"the others went on without it": {change: func(s *State) { named(s.Job, s.Pods[:2]) },
			want: [3]standing{{rank: 0}, {rank: 1}, {rank: -1}}},
		"ranks are not ordinals": {change: func(s *State) { named(s.Job, []*corev1.Pod{s.Pods[2], s.Pods[0]}) },
			want: [3]standing{{rank: 1}, {rank: -1}, {rank: 0}}},
		"it may be in the world before": {change: func(s *State) {
			named(s.Job, s.Pods[:2])
			s.Job.Status.World.Parent = ptr.To[int64](2)
		}, want: [3]standing{{rank: 0}, {rank: 1}, {rank: -1, open: true}}},
		"it came later": {late: clocksApart + time.Second, change: func(s *State) {
			named(s.Job, s.Pods[:2])
			s.Job.Status.World.Parent = ptr.To[int64](2)
		}, want: [3]standing{{rank: 0}, {rank: 1}, {rank: -1}}},
		"it came later, by a clock that is ahead": {late: 40 * time.Second, change: func(s *State) {
			named(s.Job, s.Pods[:2])
			s.Job.Status.World.Parent = ptr.To[int64](2)
		}, want: [3]standing{{rank: 0}, {rank: 1}, {rank: -1, open: true}}},
		"the world before makes no step any more": {change: func(s *State) {
			named(s.Job, s.Pods[:2])
			s.Job.Status.World.Parent = ptr.To[int64](2)
			s.Job.Status.Resizes = []v1alpha1.Resize{{Round: ptr.To[int64](3), Pause: &metav1.Duration{Duration: time.Second}}}
		}, want: [3]standing{{rank: 0}, {rank: 1}, {rank: -1}}},
		"this operator knows that the world lives": {change: func(s *State) {
			named(s.Job, s.Pods[:2])
			s.Job.Status.World.Parent = ptr.To[int64](2)
			s.World = rendezvous.Observation{Known: true, Attempt: 1, Round: 3}
		}, want: [3]standing{{rank: 0}, {rank: 1}, {rank: -1}}},
		"the world before was adopted": {change: func(s *State) {
			named(s.Job, s.Pods[:2])
			s.Job.Status.World.Parent = ptr.To[int64](2)
			s.World = rendezvous.Observation{Known: true, Attempt: 1, Round: 2, Members: map[string]rendezvous.MemberObservation{
				"uid-digits-1-0": {Joined: true, WorkerRank: 1}}}
		}, want: [3]standing{{rank: 1}, {rank: -1, open: true}, {rank: -1, open: true}}},
		"the record names nobody": {change: func(s *State) { s.Job.Status.World.Members = "" },
			want: [3]standing{{rank: -1, open: true}, {rank: -1, open: true}, {rank: -1, open: true}}},
		"it is that of an earlier attempt": {change: func(s *State) { s.Job.Status.World.Attempt = ptr.To[int32](0) },
			want: [3]standing{{rank: -1}, {rank: -1}, {rank: -1}}},
	} {
		t.Run(name, func(t *testing.T) {
			job := trains(3, func(j *v1alpha1.TrainingJob) { j.Status.World.StartedAt = ptr.To(metav1.NewTime(made)) })
			state := stateOf(job, crewOf(job)...)
			if c.late > 0 {
				state.Pods[2].CreationTimestamp = metav1.NewTime(made.Add(c.late))
			}
			if c.change != nil {
				c.change(state)
			}
			p := &planner{State: state}
			for i, pod := range state.Pods {
				if got := p.standing(pod); got != c.want[i] {
					t.Errorf("of %s it is known: %+v, want %+v", pod.Name, got, c.want[i])
				}
			}
		})
	}
}

// An operator has died between the record of a smaller world and its first step. Who was to leave may be in the world before:
// that it has ended shows that this makes no further step, so the rendezvous is told.
func TestTheEndOfOneWhoWasInTheWorldBeforeIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		parent int64
		// began is when the world before did, by the history of changes; 0 for not known.
		began time.Duration
		told  int
	}{
		"nobody has seen a step":                            {parent: 2, told: 3},
		"it ended in the world before":                      {parent: 2, began: 2 * time.Second, told: 3},
		"it had ended, in a world before that one":          {parent: 2, began: 3 * time.Second, told: 2},
		"there was no world before, nobody has seen a step": {told: 2},
	} {
		t.Run(name, func(t *testing.T) {
			job := trains(3, func(j *v1alpha1.TrainingJob) { j.Status.World.Parent = ptr.To(c.parent) })
			if c.began > 0 {
				job.Status.Resizes = []v1alpha1.Resize{{Round: ptr.To[int64](2), At: ptr.To(metav1.NewTime(start.Add(c.began)))}}
			}
			state := elasticState(job, crewOf(job)...)
			named(job, state.Pods[:2])
			exited(143, start.Add(2*time.Second), "")(state.Pods[2])
			state.World = rendezvous.Observation{Known: true, Attempt: 1, Adopting: true}
			told := look(state).Actions.Expect.Members
			if len(told) != c.told || c.told == 3 && !told[2].Ended {
				t.Errorf("the rendezvous is told %+v", told)
			}
		})
	}
}

// A pod that is kept for its logs has failed when another operator led: whether in a world or before one, nobody comes there.
// One that fails now has growth pause.
func TestWhatFailedBeforeThisOperatorHoldsNoGrowthUp(t *testing.T) {
	for name, c := range map[string]struct {
		at     time.Time
		pauses bool
	}{"before it first looked": {at: start}, "since": {at: now, pauses: true}} {
		t.Run(name, func(t *testing.T) {
			job := trains(2)
			state := elasticState(job, crewOf(job)...)
			growthPod(state, 2, exited(1, c.at, "ValueError"))
			state.World.Members = worldOf(3, state.Pods[:2]...).Members
			state.Memory = Memory{Since: start.Add(30 * time.Second), Elastic: state.Memory.Elastic}
			giveRoom(state, 1)
			plan := look(state)
			paused := slices.ContainsFunc(plan.Notes, func(n Note) bool { return n.Reason == v1alpha1.EventGrowthWithdrawn })
			if paused != c.pauses {
				t.Errorf("growth pauses: %v; %+v", paused, plan.Notes)
			}
		})
	}
}

// A member of the world before the newest one is missed when its pod is deleted by force, as long as that world may go on.
func TestWhoMayBeInTheWorldBeforeIsMissed(t *testing.T) {
	for name, c := range map[string]struct {
		parent int64
		missed int
	}{"it may go on": {parent: 2, missed: 1}, "there was none": {}} {
		t.Run(name, func(t *testing.T) {
			job := trains(3, func(j *v1alpha1.TrainingJob) { j.Status.World.Parent = ptr.To(c.parent) })
			state := elasticState(job, crewOf(job)...)
			named(job, state.Pods[:2])
			state.World = rendezvous.Observation{Known: true, Attempt: 1, Adopting: true}
			if vanish(state, 1); len(state.Memory.Vanished) != c.missed {
				t.Errorf("%+v are missed", state.Memory.Vanished)
			}
		})
	}
}

// An operator has died between the record of a world and its first step, and nobody is in that, nor in the one before. A pod that is
// kept for its logs had failed before that one began, which is counted: it is not what ended the attempt.
func TestWhatFailedBeforeTheWorldBeforeIsNotBlamedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		ended    time.Duration
		failures int32
	}{
		"before the world before began": {ended: 5 * time.Second},
		"in the world before":           {ended: 20 * time.Second, failures: 1},
	} {
		t.Run(name, func(t *testing.T) {
			job := trains(2, func(j *v1alpha1.TrainingJob) {
				j.Spec.Workers.Min = ptr.To[int32](2)
				j.Status.World.Parent, j.Status.World.StartedAt = ptr.To[int64](2), ptr.To(metav1.NewTime(start.Add(30*time.Second)))
				j.Status.Resizes = []v1alpha1.Resize{{Round: ptr.To[int64](2), At: ptr.To(metav1.NewTime(start.Add(10 * time.Second)))}}
			})
			crew := crewOf(job)
			failed := podOf(job, 1, 2, exited(1, start.Add(c.ended), "ValueError"))
			state := elasticState(job, append(crew, failed)...)
			state.World = rendezvous.Observation{Known: true, Attempt: 1}
			plan := look(state)
			if got := value(plan.Status.Restarts.Program); got != c.failures || (value(plan.Status.Workers.Target) == 0) != (c.failures > 0) {
				t.Errorf("%d failures of the program are counted, and the target is %d", got, value(plan.Status.Workers.Target))
			}
		})
	}
}
