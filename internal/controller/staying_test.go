package controller

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// fallen is a job of three workers, of at least two, whose world goes on without the last one: its program has failed, and
// its agent stays.
func fallen() (*State, *corev1.Pod) {
	job := trains(3)
	job.Spec.Workers.Min, job.Spec.Workers.Max = ptr.To[int32](2), ptr.To[int32](3)
	state := elasticState(job, crewOf(job)...)
	pod := state.Pods[2]
	state.World.Losses = []rendezvous.Loss{{
		UID: string(pod.UID), Name: pod.Name, Program: true, Round: 2, Rank: 2, At: now.Add(-time.Second), Message: "its program exited with code 137",
	}}
	observed(state, pod, func(m *rendezvous.MemberObservation) {
		m.WorkerRank, m.Stays, m.FellAt = -1, true, now.Add(-time.Second)
	})
	return state, pod
}

func observed(state *State, pod *corev1.Pod, change func(*rendezvous.MemberObservation)) {
	found := state.World.Members[string(pod.UID)]
	change(&found)
	state.World.Members[string(pod.UID)] = found
}

func memberOf(t *testing.T, plan Plan, pod *corev1.Pod) rendezvous.Member {
	t.Helper()
	if plan.Actions.Expect != nil {
		for _, member := range plan.Actions.Expect.Members {
			if member.UID == string(pod.UID) {
				return member
			}
		}
	}
	t.Fatalf("the rendezvous is not told of %s: %+v", pod.Name, plan.Actions.Expect)
	return rendezvous.Member{}
}

// Nobody takes the place of a worker whose program is started anew, and its pod stays.
func TestAWorkerWhoseProgramIsStartedAnewIsWaitedFor(t *testing.T) {
	state, pod := fallen()
	giveRoom(state, 1)
	plan := look(state)
	expectTarget(t, plan, 3)
	if member := memberOf(t, plan, pod); member.Lost != "" || !member.Starting || member.Leaving != "" {
		t.Errorf("the rendezvous is told %+v", member)
	}
	if len(plan.Actions.Grow)+len(plan.Actions.Refill)+len(plan.Actions.Delete) > 0 || len(state.Memory.Elastic.Reserved) > 0 {
		t.Errorf("pods are made or deleted: %+v, reserved %v", plan.Actions, state.Memory.Elastic.Reserved)
	}
	if got := value(plan.Status.Workers.Running); got != 3 {
		t.Errorf("%d workers run, want 3", got)
	}
	expectNote(t, plan, v1alpha1.EventWorkerRestarted, pod.Name, pod.Spec.NodeName)
	told := func(n Note) bool { return n.Reason == v1alpha1.EventWorkerRestarted }
	if slices.ContainsFunc(look(state).Notes, told) {
		t.Error("it is told of twice")
	}
	// A plan that decides on another size tells nothing, and forgets nothing.
	state.Job.Spec.Workers.Max = ptr.To[int32](4)
	giveRoom(state, 2)
	if plan := look(state); !plan.Decided {
		t.Fatalf("nothing is decided: the target is %d", value(plan.Status.Workers.Target))
	}
	if slices.ContainsFunc(look(state).Notes, told) {
		t.Error("it is told of again after another size was decided on")
	}

	observed(state, pod, func(m *rendezvous.MemberObservation) { m.Standby, m.FellAt = true, time.Time{} })
	state.Now = now.Add(time.Hour)
	plan = look(state)
	if member := memberOf(t, plan, pod); member.Lost != "" || member.Starting {
		t.Errorf("it is a standby, and the rendezvous is told %+v", member)
	}
}

// It may be back before anybody has looked: its loss is told of then, and once.
func TestAProgramThatIsBackAtOnceIsToldOf(t *testing.T) {
	state, pod := fallen()
	observed(state, pod, func(m *rendezvous.MemberObservation) { m.WorkerRank, m.Stays, m.FellAt = 2, false, time.Time{} })
	told := func(n Note) bool { return n.Reason == v1alpha1.EventWorkerRestarted }
	for n := range 3 {
		plan := look(state)
		if slices.ContainsFunc(plan.Notes, told) != (n == 0) {
			t.Errorf("look %d: %v", n, plan.Notes)
		}
	}
	// And once more when it fails again, which is seen before its loss is.
	observed(state, pod, func(m *rendezvous.MemberObservation) { m.WorkerRank, m.Stays, m.FellAt = -1, true, state.Now })
	state.World.Round += 2
	expectNote(t, look(state), v1alpha1.EventWorkerRestarted, pod.Name)
	again := state.World.Losses[0]
	again.Round = state.World.Round
	state.World.Losses = append(state.World.Losses, again)
	if plan := look(state); slices.ContainsFunc(plan.Notes, told) {
		t.Errorf("it is told of twice: %v", plan.Notes)
	}
}

// One that does not come back in time is lost like any other.
func TestAWorkerWhoseProgramDoesNotComeBackIsReplaced(t *testing.T) {
	state, pod := fallen()
	if plan := look(state); plan.After == 0 || plan.After > value(state.Job.Spec.Failure.RegroupTimeout).Duration {
		t.Errorf("it is looked at again in %s", plan.After)
	}
	state.Now = now.Add(value(state.Job.Spec.Failure.RegroupTimeout).Duration)
	giveRoom(state, 1)
	if plan := look(state); value(plan.Status.NextOrdinal) != 4 {
		t.Errorf("no name is reserved for another: the next ordinal is %d", value(plan.Status.NextOrdinal))
	}
	if plan := look(state); len(plan.Actions.Grow) != 1 || memberOf(t, plan, pod).Lost == "" {
		t.Errorf("nobody takes its place: %+v", plan.Actions)
	}
}

// An agent that does not stay leaves a worker behind that is lost.
func TestAWorkerWhoseAgentEndsIsReplaced(t *testing.T) {
	state, pod := fallen()
	observed(state, pod, func(m *rendezvous.MemberObservation) { m.Stays = false })
	giveRoom(state, 1)
	look(state)
	if plan := look(state); len(plan.Actions.Grow) != 1 || memberOf(t, plan, pod).Lost == "" {
		t.Errorf("nobody takes its place: %+v", plan.Actions)
	}
}

// The program may fail as often as its job outlives it.
func TestTheProgramMayFailAsLongAsTheJobOutlivesIt(t *testing.T) {
	for failures, may := range map[int32]bool{0: true, 2: true, 3: false, 4: false} {
		state, _ := fallen()
		state.Job.Spec.Failure.MaxRestarts, state.Job.Status.Restarts.Program = ptr.To[int32](3), ptr.To(failures)
		if got := look(state).Actions.Expect.MayRestart; got != may {
			t.Errorf("after %d failures of 3: it may fail: %v", failures, got)
		}
	}
}
