package controller

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// withSpare is what is gathered of a job of 2 to 4 workers and a spare that has as many workers as are given, of which so many train; the
// others are ready.
func withSpare(workers, train int32) *State {
	job := trains(workers, func(job *v1alpha1.TrainingJob) {
		job.Spec.Workers.Max, job.Spec.Workers.Spares = ptr.To[int32](4), ptr.To[int32](1)
		job.Status.World.Workers = ptr.To(train)
	})
	pods := crewOf(job)
	named(job, pods[:train])
	state := elasticState(job, pods...)
	for _, pod := range pods[train:] {
		standsBy(state, pod)
	}
	return state
}

// standsBy has a pod be a standby.
func standsBy(state *State, pod *corev1.Pod) {
	state.World.Members[string(pod.UID)] = rendezvous.MemberObservation{Joined: true, Connected: true, Standby: true, WorkerRank: -1, LastSeen: now}
}

// expectWorld checks how many workers the rendezvous is to have in the next world, and how many spares are told of.
func expectWorld(t *testing.T, plan Plan, world, spares int32) {
	t.Helper()
	if plan.Actions.Expect == nil {
		t.Fatal("the rendezvous is told nothing")
	}
	if got := plan.Actions.Expect.Target; got != world {
		t.Errorf("the next world is to have %d workers, want %d", got, world)
	}
	if got := plan.Status.Workers.Spares; got == nil || *got != spares {
		t.Errorf("there are %d spares, want %d", value(got), spares)
	}
}

func TestASpareIsMadeAndIsInNoWorld(t *testing.T) {
	state := withSpare(2, 2)
	giveRoom(state, 8)
	plan := look(state)
	expectTarget(t, plan, 5)
	state.Job.Status.Workers.Target = ptr.To[int32](3) // there may be room for less
	state.Grant.Count, state.Grant.Places = 3, nil
	growthPod(state, 2, trainerRuns)
	standsBy(state, state.Pods[2])
	expectWorld(t, look(state), 2, 1)

	state = withSpare(5, 4)
	plan = look(state)
	expectWorld(t, plan, 4, 1)
	if got := plan.Status.Workers.Summary; got != "5/2-4+1" {
		t.Errorf("it is shown as %s", got)
	}
	if full := meta.FindStatusCondition(plan.Status.Conditions, v1alpha1.ConditionFullSize); full == nil || full.Status != metav1.ConditionTrue {
		t.Errorf("it has all that it may have: %+v", full)
	}
	state.Job.Spec.Workers.Spares = nil
	state.Job.Status.Workers.Target = ptr.To[int32](4)
	state.Pods = state.Pods[:4]
	state.Grant.Count = 4
	if plan := look(state); plan.Status.Workers.Spares != nil || plan.Status.Workers.Summary != "4/2-4" || plan.Actions.Expect.Target != 4 {
		t.Errorf("without spares it is shown as %+v, and the next world is to have %d workers", plan.Status.Workers, plan.Actions.Expect.Target)
	}
}

// A worker is lost: the target stays, so the world keeps its size with the spare, and another one is made.
func TestASpareTakesOver(t *testing.T) {
	state := withSpare(5, 4)
	lost := state.Pods[3]
	expectWorld(t, look(state), 4, 1)
	exited(137, now, "")(lost)
	deletionBegun(now.Add(-time.Second))(lost)
	state.World.Phase = rendezvous.PhaseRecovering
	plan := look(state)
	expectTarget(t, plan, 5)
	expectWorld(t, plan, 4, 0) // it is on its way into the world

	after(state, rendezvous.ReasonWorkerLost, false, "it was deleted", lost)
	state.World.Phase = rendezvous.PhaseTraining
	spare := state.Pods[4]
	state.World.Changes[0].To, state.World.Changes[0].Joined = 4, spare.Name
	state.World.Members[string(spare.UID)] = rendezvous.MemberObservation{Joined: true, Connected: true, InWorld: true, WorkerRank: 3, LastSeen: now}
	state.Job.Status.World.Round = ptr.To[int64](4)
	named(state.Job, []*corev1.Pod{state.Pods[0], state.Pods[1], state.Pods[2], spare})
	giveRoom(state, 1)
	state.Grant.Reason = "Growing"
	plan = look(state)
	expectNote(t, plan, v1alpha1.EventRecovered, "round 4: 4 workers go on (WorkerLost)")
	expectNote(t, plan, v1alpha1.EventSpareTookOver, "round 4: "+spare.Name+" took the place", "keeps its 4 workers")
	look(state) // names are reserved
	plan = look(state)
	expectTarget(t, plan, 5)
	expectWorld(t, plan, 4, 0)
	if full := meta.FindStatusCondition(plan.Status.Conditions, v1alpha1.ConditionFullSize); full != nil && full.Status == metav1.ConditionTrue {
		t.Errorf("a spare is missing: %+v", full)
	}
	if len(plan.Actions.Grow) != 1 {
		t.Errorf("%d workers are made", len(plan.Actions.Grow))
	}
}

// Where a job is to have fewer workers its spares go, and nobody who trains becomes a spare for that.
func TestNobodyWhoTrainsBecomesASpare(t *testing.T) {
	for _, test := range []struct {
		name                         string
		workers, train, most, target int32
		world                        int32
	}{
		{"the spare has gone", 4, 4, 4, 4, 4},
		{"one that trains goes as well", 4, 4, 4, 3, 3},
		{"more come", 4, 3, 4, 4, 3},
		{"max was lowered", 5, 4, 3, 4, 3},
		{"more are to come", 4, 3, 4, 5, 4},
	} {
		t.Run(test.name, func(t *testing.T) {
			state := withSpare(test.workers, test.train)
			state.Job.Spec.Workers.Max = ptr.To(test.most)
			state.Job.Status.Workers.Target = ptr.To(test.target)
			p := &planner{State: state}
			if got := p.trainsWith(); got != test.world {
				t.Errorf("the next world is to have %d workers, want %d", got, test.world)
			}
		})
	}
}
