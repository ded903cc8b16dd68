package controller

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// deletionBegun is a pod that was deleted then, and has half a minute to end.
func deletionBegun(at time.Time) podChange {
	return func(pod *corev1.Pod) {
		deletedAt(at.Add(30 * time.Second))(pod)
		pod.DeletionGracePeriodSeconds = ptr.To[int64](30)
	}
}

// TestWhatCountsAsGrowthThatFailed: promise 9.
func TestWhatCountsAsGrowthThatFailed(t *testing.T) {
	fails := exited(143, now, "")
	cases := []struct {
		name   string
		change podChange
		nodes  func(*Nodes)
		failed bool
	}{
		{name: "its program fails", change: exited(1, now, "ImportError"), failed: true},
		{name: "evicted", change: func(pod *corev1.Pod) {
			fails(pod)
			deletionBegun(now.Add(-time.Second))(pod)
			withCondition(corev1.DisruptionTarget, "EvictionByEvictionAPI", "drained")(pod)
		}},
		{name: "preempted", change: func(pod *corev1.Pod) {
			fails(pod)
			withCondition(corev1.DisruptionTarget, corev1.PodReasonPreemptionByScheduler, "somebody has a higher priority")(pod)
		}},
		{name: "its node shuts down", change: func(pod *corev1.Pod) {
			fails(pod)
			withCondition(corev1.DisruptionTarget, corev1.PodReasonTerminationByKubelet, "shutting down")(pod)
		}},
		{name: "deleted", change: func(pod *corev1.Pod) { fails(pod); deletionBegun(now.Add(-time.Second))(pod) }},
		{name: "deleted in the second in which it ends", change: func(pod *corev1.Pod) {
			exited(143, now.Add(300*time.Millisecond), "")(pod)
			deletionBegun(now)(pod)
		}},
		{name: "deleted once it had failed", failed: true,
			change: func(pod *corev1.Pod) { fails(pod); deletionBegun(now.Add(time.Second))(pod) }},
		{name: "its node was deleted", change: func(pod *corev1.Pod) { trainerRuns(pod); pod.Spec.NodeName = "n9" },
			nodes: func(n *Nodes) { n.Gone = map[string]bool{"n9": true} }},
		{name: "refused by its kubelet", failed: true, change: func(pod *corev1.Pod) {
			onNode("n1")(pod)
			pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, "OutOfcpu"
		}},
	}
	for _, c := range cases {
		for _, refill := range []bool{false, true} {
			name := c.name
			if refill {
				name += ", in a refill"
			}
			t.Run(name, func(t *testing.T) {
				job := trains(2)
				state := elasticState(job, crewOf(job)...)
				if refill {
					state.Job.Spec.Workers.Min = ptr.To[int32](3)
					state.World.Phase = rendezvous.PhaseRegrouping
				}
				state.Job.Status.Workers.Target, state.Job.Status.NextOrdinal = ptr.To[int32](3), ptr.To[int32](3)
				pod := growthPod(state, 2, c.change)
				if refill {
					pod.Annotations[annotationRefill] = "2-1"
					delete(pod.Labels, v1alpha1.LabelRole)
				}
				if c.nodes != nil {
					c.nodes(&state.Nodes)
				}
				giveRoom(state, 1)
				look(state)
				plan := look(state)
				made := names(slices.Concat(plan.Actions.Grow, plan.Actions.Refill))
				if growth := state.Memory.Elastic.Growth; (growth.Count > 0) != c.failed || (len(made) == 0) != c.failed {
					t.Errorf("failed %d times (%s), and makes %v", growth.Count, growth.Why, made)
				}
				if restarts := plan.Status.Restarts; restarts != (v1alpha1.RestartsStatus{}) {
					t.Errorf("restarts are %+v: a newcomer is no loss of the world", restarts)
				}
			})
		}
	}
}

// Who was in a world and left it is no newcomer: it was ended, and no growth has failed.
func TestWhoHasLeftAWorldIsNoNewcomerThatFails(t *testing.T) {
	job := trains(2)
	for _, wasIn := range []bool{true, false} {
		state := elasticState(job, crewOf(job)...)
		state.Job.Status.Workers.Target, state.Job.Status.NextOrdinal = ptr.To[int32](2), ptr.To[int32](3)
		pod := growthPod(state, 2, trainerRuns)
		state.World.Members[string(pod.UID)] = rendezvous.MemberObservation{Joined: true, WorkerRank: -1, WasIn: wasIn, Exited: true, ExitCode: 143}
		exited(143, now, "")(pod)
		plan := look(state)
		paused := slices.ContainsFunc(plan.Notes, func(n Note) bool { return n.Reason == v1alpha1.EventGrowthWithdrawn })
		if paused == wasIn {
			t.Errorf("it was in a world: %v, and growth pauses: %v: %v", wasIn, paused, plan.Notes)
		}
	}
}

// TestANewcomerThatFailsIsCountedBeforeItsPodIsDeleted: its agent tells of the failure first, and the
// deletion that follows does not hide it.
func TestANewcomerThatFailsIsCountedBeforeItsPodIsDeleted(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)...)
	state.Job.Status.Workers.Target, state.Job.Status.NextOrdinal = ptr.To[int32](3), ptr.To[int32](3)
	giveRoom(state, 1)
	pod := growthPod(state, 2, trainerRuns)
	state.World.Losses = []rendezvous.Loss{{UID: string(pod.UID), Name: pod.Name, Program: true, Rank: -1, At: now,
		Message: "its program exited with code 1 before it was in a world"}}
	plan := look(state)
	expectNote(t, plan, v1alpha1.EventGrowthWithdrawn, "exited with code 1")
	if got := names(look(state).Actions.Delete); !slices.Equal(got, []string{"digits-1-2"}) {
		t.Fatalf("deletes %v", got)
	}
	deletionBegun(now)(pod)
	exited(1, now.Add(time.Second), "")(pod)
	for range 3 {
		if plan = look(state); len(plan.Actions.Grow) > 0 || state.Memory.Elastic.Growth.Count != 1 {
			t.Fatalf("failed %d times, and grows %v", state.Memory.Elastic.Growth.Count, names(plan.Actions.Grow))
		}
	}
}

func TestEventsAreNotLongerThanTheAPIServerTakes(t *testing.T) {
	recorder := events.NewFakeRecorder(1)
	r := &Reconciler{Events: recorder}
	r.tell(trains(2), Note{Type: corev1.EventTypeWarning, Reason: v1alpha1.EventRecovered, Message: strings.Repeat("x", 5000) + "the end"})
	said := <-recorder.Events
	if message := strings.TrimPrefix(said, "Warning Recovered "); len(message) > 1024 || !strings.HasSuffix(message, "the end") {
		t.Errorf("%d bytes: %s", len(message), message)
	}
}

func TestARefusalOfGrowthBlamesNobodyTwice(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)...)
	state.Job.Status.Workers.Target, state.Job.Status.NextOrdinal = ptr.To[int32](3), ptr.To[int32](3)
	growthPod(state, 2, exited(1, now, "ImportError"))
	look(state)
	r := &Reconciler{Events: events.NewFakeRecorder(1)}
	r.memory.update(job.UID, func(m *Memory) { *m = state.Memory })
	full := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "digits-1-3", errors.New("exceeded quota"))
	r.growthRefused(t.Context(), state, "pod digits-1-3", full)
	state.Memory = r.memory.of(job.UID)
	look(state)
	if growth := state.Memory.Elastic.Growth; growth.Count != 2 {
		t.Errorf("a crash and a refusal are counted as %d failures: %s", growth.Count, growth.Why)
	}
}
