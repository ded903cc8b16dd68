package controller

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
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
	expectCondition(t, plan, v1alpha1.ConditionFullSize, metav1.ConditionTrue, v1alpha1.ReasonFullSize, "5 workers")
	state.Grant.Reason, state.Grant.Why = "AtMax", "it has all the workers that it may have"
	expectCondition(t, look(state), v1alpha1.ConditionFullSize, metav1.ConditionTrue, v1alpha1.ReasonFullSize, "5 workers")
	state.Job.Spec.Workers.Spares = nil
	state.Job.Status.Workers.Target = ptr.To[int32](4)
	state.Pods = state.Pods[:4]
	state.Grant.Count = 4
	if plan := look(state); plan.Status.Workers.Spares != nil || plan.Status.Workers.Summary != "4/2-4" || plan.Actions.Expect.Target != 4 {
		t.Errorf("without spares it is shown as %+v, and the next world is to have %d workers", plan.Status.Workers, plan.Actions.Expect.Target)
	}
}

// A job that does not grow gets no spares: with all those in its world that may train it has its full size. One that grows has not as long
// as a spare is missing, and says why.
func TestAJobThatGetsNoSparesHasItsFullSizeWithoutThem(t *testing.T) {
	for _, test := range []struct {
		name     string
		train    int32
		noSpares bool
		reason   string
		want     metav1.ConditionStatus
		told     string
		says     string
	}{
		{"it does not grow", 4, true, "AtMax", metav1.ConditionTrue, v1alpha1.ReasonFullSize, "the job has 4 workers, as many as it may have"},
		{"it is about to end", 4, true, "Finishing", metav1.ConditionTrue, v1alpha1.ReasonFullSize, "the job has 4 workers, as many as it may have"},
		{"it will be late", 4, true, v1alpha1.ReasonLate, metav1.ConditionTrue, v1alpha1.ReasonLate, "the job has 4 workers, as many as it may have; somebody says why"},
		{"one is on its way into the world", 3, true, "AtMax", metav1.ConditionFalse, "AtMax", "somebody says why"},
		{"it is late, and one is on its way", 3, true, v1alpha1.ReasonLate, metav1.ConditionFalse, v1alpha1.ReasonLate, "somebody says why"},
		{"its spare is on its way", 4, false, "AtMax", metav1.ConditionFalse, "AtMax", "somebody says why"},
		{"there is no room", 4, false, "NoRoom", metav1.ConditionFalse, "NoRoom", "somebody says why"},
		{"nor for the world", 3, true, "GrowthOff", metav1.ConditionFalse, "GrowthOff", "somebody says why"},
	} {
		t.Run(test.name, func(t *testing.T) {
			state := withSpare(4, test.train)
			state.Pods = state.Pods[:test.train]
			state.Grant.Reason, state.Grant.Why, state.Grant.NoSpares = test.reason, "somebody says why", test.noSpares
			state.Grant.Late = test.reason == v1alpha1.ReasonLate
			plan := look(state)
			expectCondition(t, plan, v1alpha1.ConditionFullSize, test.want, test.told, "")
			if full := meta.FindStatusCondition(plan.Status.Conditions, v1alpha1.ConditionFullSize); full != nil && full.Message != test.says {
				t.Error(full.Message)
			}
		})
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

// Where more come in after a loss than were lost, that is told.
func TestATakeoverThatGrowsIsTold(t *testing.T) {
	for _, test := range []struct {
		from, to int32
		want     string
	}{
		{4, 4, "round 4: a, b took the place of who was lost, and the world keeps its 4 workers"},
		{3, 4, "round 4: a, b came in after the loss, and the world grows from 3 to 4 workers"},
		{5, 4, ""},
	} {
		p := &planner{State: withSpare(5, 4)}
		p.tellTakeover(rendezvous.Change{Round: 4, From: test.from, To: test.to, Joined: "a, b"})
		if test.want == "" {
			if len(p.plan.Notes) > 0 {
				t.Errorf("from %d to %d: %+v", test.from, test.to, p.plan.Notes)
			}
			continue
		}
		expectNote(t, p.plan, v1alpha1.EventSpareTookOver, test.want)
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

// A spare is one until there is another: growth that has been decided on, and may come to nothing, does not take it.
func TestGrowthTakesNoSpare(t *testing.T) {
	state := withSpare(3, 2)
	state.Job.Status.Workers.Target = ptr.To[int32](4)
	plan := look(state)
	expectWorld(t, plan, 3, 1)
	if got := plan.Actions.Expect.Spares; got != 1 {
		t.Errorf("%d spares are to be kept", got)
	}
	// There is another: one is on its way into the world.
	growthPod(state, 3, trainerRuns)
	standsBy(state, state.Pods[3])
	expectWorld(t, look(state), 3, 1)
	// Nobody but the spare is there to make good a loss.
	state = withSpare(4, 3)
	exited(137, now, "")(state.Pods[2])
	deletionBegun(now.Add(-time.Second))(state.Pods[2])
	state.World.Phase = rendezvous.PhaseRecovering
	expectWorld(t, look(state), 3, 0)
}

// Where max is lowered below the number of those who train, as many of them leave as are too many, whoever else is there: a worker that
// is ready is no reason for one that trains to go on, and the job is to have no more workers than before.
func TestWhoTrainsAboveMaxLeaves(t *testing.T) {
	for _, test := range []struct {
		name                           string
		workers, train, most, target   int32
		sizes                          []int32
		world, trainers, sparesLeaving int
	}{
		{"its spares are there", 6, 4, 2, 4, nil, 2, 2, 0},
		{"its spares have left", 4, 4, 2, 4, nil, 2, 2, 0},
		{"one of them has left", 5, 4, 2, 4, nil, 2, 2, 0},
		{"more leave than are too many", 6, 4, 3, 3, nil, 3, 1, 2},
		{"nobody is too many", 6, 4, 4, 5, nil, 4, 0, 1},
		{"no size is as large as max", 6, 4, 3, 4, []int32{2, 4}, 2, 2, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			state := withSpare(test.workers, test.train)
			state.Job.Spec.Workers.Max, state.Job.Spec.Workers.Spares = ptr.To(test.most), ptr.To[int32](2)
			state.Job.Spec.Workers.Sizes = test.sizes
			state.Job.Status.Workers.Target = ptr.To(test.target)
			state.Grant.Count = test.target
			plan := look(state)
			if plan.Actions.Expect == nil {
				t.Fatalf("the rendezvous is told nothing, and the job is to have %d workers", value(plan.Status.Workers.Target))
			}
			if got := plan.Actions.Expect.Target; got != int32(test.world) {
				t.Errorf("the next world is to have %d workers, want %d", got, test.world)
			}
			trainers, spares := 0, 0
			for name, reason := range leavers(plan) {
				if reason != rendezvous.ReasonScaledDown {
					t.Errorf("%s leaves for %s", name, reason)
				}
				if slices.ContainsFunc(state.Pods[:test.train], func(pod *corev1.Pod) bool { return pod.Name == name }) {
					trainers++
				} else {
					spares++
				}
			}
			if trainers != test.trainers || spares != test.sparesLeaving {
				t.Errorf("%d who train leave and %d spares, want %d and %d", trainers, spares, test.trainers, test.sparesLeaving)
			}
		})
	}
}

// Who has left the world because max was lowered goes, although the job may have as many workers as it has: it was let go.
func TestWhoHasLeftIsNoSpare(t *testing.T) {
	state := withSpare(4, 4)
	state.Job.Spec.Workers.Max, state.Job.Spec.Workers.Spares = ptr.To[int32](2), ptr.To[int32](2)
	state.Job.Status.Workers.Target, state.Grant.Count = ptr.To[int32](4), 4
	plan := look(state)
	left := leavers(plan)
	if len(left) != 2 {
		t.Fatalf("leavers are %v", left)
	}
	state.Job.Status = plan.Status
	state.Memory.remember(&plan)
	var stay []*corev1.Pod
	for _, pod := range state.Pods {
		if left[pod.Name] == "" {
			state.World.Members[string(pod.UID)] = rendezvous.MemberObservation{Joined: true, Connected: true, InWorld: true, WorkerRank: int32(len(stay)), LastSeen: now}
			stay = append(stay, pod)
			continue
		}
		state.World.Members[string(pod.UID)] = rendezvous.MemberObservation{Joined: true, Connected: true, Out: true, WasIn: true, WorkerRank: -1, LastSeen: now}
	}
	state.Job.Status.World.Round, state.Job.Status.World.Workers = ptr.To[int64](4), ptr.To[int32](2)
	named(state.Job, stay)
	plan = look(state)
	if got := names(plan.Actions.Delete); len(got) != 2 || left[got[0]] == "" || left[got[1]] == "" {
		t.Errorf("%v are deleted, of those who have left, %v", got, left)
	}
}

// Who takes the place of a worker that moves is one too many until that is told to leave. Where it is a spare then it never trains, and
// counts like any other all the same: it goes once the job is to have fewer.
func TestASpareThatCameForAMoveCountsLikeAnyOther(t *testing.T) {
	for _, test := range []struct {
		name string
		goes func(*State, *corev1.Pod)
	}{
		{"it was told to leave", func(_ *State, pod *corev1.Pod) { fleet.Mark{Reason: fleet.Moved, For: "team/big", At: now}.Put(pod) }},
		{"its pod was deleted", func(_ *State, pod *corev1.Pod) { deletionBegun(now.Add(-time.Second))(pod) }},
		{"it is gone", func(state *State, pod *corev1.Pod) {
			state.Pods = slices.DeleteFunc(state.Pods, func(other *corev1.Pod) bool { return other == pod })
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			state := withSpare(5, 4)
			moved := state.Pods[1]
			newcomer := growthPod(state, 5, trainerRuns)
			newcomer.Annotations[annotationMoves] = "true"
			standsBy(state, newcomer)
			step := func() Plan {
				plan := NewPlan(state, settings)
				state.Job.Status = plan.Status
				state.Memory.remember(&plan)
				return plan
			}
			state.Grant.Count = 5
			if got := leavers(step()); len(got) > 0 {
				t.Fatalf("leavers are %v: one is to go for the newcomer yet", got)
			}
			test.goes(state, moved)
			step()
			// A spare is in the next world, and another one of the same number of workers goes on.
			state.Pods = slices.DeleteFunc(state.Pods, func(pod *corev1.Pod) bool { return pod == moved })
			world := slices.DeleteFunc(slices.Clone(state.Pods), func(pod *corev1.Pod) bool { return pod == newcomer })
			for rank, pod := range world {
				state.World.Members[string(pod.UID)] = rendezvous.MemberObservation{Joined: true, Connected: true, InWorld: true, WorkerRank: int32(rank), LastSeen: now}
			}
			state.World.Round, state.Job.Status.World.Round = 4, ptr.To[int64](4)
			named(state.Job, world)
			if got := leavers(step()); len(got) > 0 {
				t.Fatalf("leavers are %v of 5 workers", got)
			}
			state.Job.Status.Workers.Target, state.Grant.Count = ptr.To[int32](4), 4
			if got := leavers(step()); len(got) != 1 || got[newcomer.Name] != rendezvous.ReasonScaledDown {
				t.Errorf("the job is to have 4 of 5 workers, and leavers are %v", got)
			}
		})
	}
}
