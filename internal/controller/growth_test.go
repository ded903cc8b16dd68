package controller

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
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
		// failed is true when growth has failed, node when the node is to blame and growth goes on elsewhere.
		failed, node bool
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
		{name: "refused by its kubelet", failed: true, node: true, change: func(pod *corev1.Pod) {
			onNode("n1")(pod)
			pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, "OutOfcpu"
		}},
		{name: "its init container fails", failed: true, node: true, change: func(pod *corev1.Pod) {
			onNode("n1")(pod)
			pod.Status.Phase = corev1.PodFailed
		}},
		{name: "its container cannot be started", failed: true, node: true, change: func(pod *corev1.Pod) {
			exited(128, now, "no such device")(pod)
			pod.Status.ContainerStatuses[0].State.Terminated.Reason = "StartError"
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
				if growth := state.Memory.Elastic.Growth; (growth.Count > 0) != (c.failed && !c.node) || (len(made) == 0) != c.failed {
					t.Errorf("failed %d times (%s), and makes %v", growth.Count, growth.Why, made)
				}
				if got := avoided(plan); slices.Contains(got, "n1") != c.node {
					t.Errorf("avoids %v", got)
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

// Who was told to leave its world has left when its programs have ended by that, also once the rendezvous says nothing of it
// any more and its pod is still there, which the operator deletes only then.
func TestWhoWasToldToLeaveIsNoNewcomerThatFails(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)...)
	state.Job.Spec.Workers.Max, state.Job.Status.Workers.Target = ptr.To[int32](2), ptr.To[int32](2)
	state.Job.Status.NextOrdinal = ptr.To[int32](3)
	pod := growthPod(state, 2, trainerRuns)
	uid := string(pod.UID)
	state.World.Members[uid] = rendezvous.MemberObservation{Joined: true, Connected: true, WorkerRank: -1, WasIn: true, Out: true}
	if plan := look(state); !state.Memory.Elastic.Told[uid] {
		t.Fatalf("it was not told to leave: %v", plan.Notes)
	}
	exited(143, now.Add(time.Second), "")(pod)
	for second, change := range []func(){
		func() {},
		func() { delete(state.World.Members, uid) },
		func() { deletionBegun(now.Add(3 * time.Second))(pod) },
		func() {},
	} {
		change()
		state.Now = now.Add(time.Duration(second+1) * time.Second)
		for _, note := range look(state).Notes {
			if note.Reason == v1alpha1.EventGrowthWithdrawn {
				t.Errorf("%d s after it went: %s", second, note.Message)
			}
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

// noImage is a pod whose container cannot be made on its node.
func noImage(node string) podChange {
	return func(pod *corev1.Pod) {
		pod.CreationTimestamp = metav1.NewTime(start)
		onNode(node)(pod)
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}}}
	}
}

// TestGrowthThatFailsOnANodeGoesOnElsewhere: a newcomer that cannot start is its node's matter.
func TestGrowthThatFailsOnANodeGoesOnElsewhere(t *testing.T) {
	unplaced := func(pod *corev1.Pod) {
		pod.CreationTimestamp = metav1.NewTime(start)
		fleet.Pin(pod, "n2")
	}
	for name, row := range map[string]struct {
		change podChange
		says   string
		gone   func(Plan) []*corev1.Pod
	}{
		"its image cannot be pulled there": {noImage("n2"), "no such image", func(p Plan) []*corev1.Pod { return p.Actions.Delete }},
		"the scheduler does not place it there": {unplaced, "has no node after spec.growth.stabilization",
			func(p Plan) []*corev1.Pod { return p.Actions.Withdraw }},
	} {
		t.Run(name, func(t *testing.T) {
			job := trains(2)
			state := elasticState(job, crewOf(job)...)
			state.Job.Status.Workers.Target, state.Job.Status.NextOrdinal = ptr.To[int32](3), ptr.To[int32](3)
			pod := growthPod(state, 2, row.change)
			giveRoom(state, 1)
			plan := look(state)
			expectNote(t, plan, v1alpha1.EventGrowthWithdrawn, "digits-1-2", row.says, "not on node n2 until 2030-01-01T12:01:30Z")
			if !plan.Facts.GrowAfter.IsZero() || len(plan.Status.AvoidedNodes) != 1 || plan.Status.AvoidedNodes[0].Name != "n2" {
				t.Fatalf("the job's growth waits until %s, and avoids %+v", plan.Facts.GrowAfter, plan.Status.AvoidedNodes)
			}
			if !NewPlan(state, settings).Facts.Lost[pod.UID] {
				t.Error("the planner of all jobs counts on it")
			}
			// The plan from before it failed has a place for another on the same node, the next one elsewhere.
			gone := false
			for _, node := range []string{"n2", "n2", "n3", "n3"} {
				state.Grant.Count, state.Grant.Places = 3, []fleet.Place{{Node: node}}
				state.Grant.Reason, state.Grant.Why = "Growing", "room for more workers is free"
				plan = look(state)
				gone = gone || slices.Equal(names(row.gone(plan)), []string{"digits-1-2"})
				if node == "n2" && len(plan.Actions.Grow) > 0 {
					t.Fatalf("%v is made on the node that is avoided", names(plan.Actions.Grow))
				}
			}
			expectTarget(t, plan, 3)
			if got := names(plan.Actions.Grow); !gone || !slices.Equal(got, []string{"digits-1-3"}) {
				t.Errorf("it is let go: %v, and %v is made", gone, got)
			}
			expectCondition(t, plan, v1alpha1.ConditionFullSize, metav1.ConditionFalse, "Growing", "; not on node n2 until 2030-01-01T12:01:30Z: ", row.says)
			if growth := state.Memory.Elastic.Growth; growth.Count != 0 || value(plan.Status.AvoidedNodes[0].Failures) != 1 {
				t.Errorf("one failure is counted as %d of the job and %d of the node", growth.Count, value(plan.Status.AvoidedNodes[0].Failures))
			}
		})
	}
}

// Where newcomers fail on one node after the other it is hardly the nodes: the job waits.
func TestGrowthThatFailsOnManyNodesPauses(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)...)
	for failures := range int32(fewNodes + 1) {
		ordinal := 2 + failures
		state.Job.Status.Workers.Target, state.Job.Status.NextOrdinal = ptr.To[int32](3), ptr.To(ordinal+1)
		pod := growthPod(state, ordinal, noImage(fmt.Sprintf("n%d", 10+failures)))
		giveRoom(state, 1)
		plan := look(state)
		if paused := !plan.Facts.GrowAfter.IsZero(); paused != (failures == fewNodes) {
			t.Fatalf("after it failed on %d nodes growth pauses: %v", failures+1, paused)
		}
		state.Pods = slices.DeleteFunc(state.Pods, func(one *corev1.Pod) bool { return one == pod })
	}
}

// Nodes on which the gang was lost say nothing of newcomers: growth goes on beside them.
func TestNodesThatFailedForAGangPauseNoGrowth(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)...)
	for i := range fewNodes + 1 {
		state.Job.Status.AvoidedNodes = append(state.Job.Status.AvoidedNodes, v1alpha1.AvoidedNode{
			Name: fmt.Sprintf("n%d", 20+i), Failures: ptr.To[int32](4), Until: ptr.To(metav1.NewTime(now.Add(time.Hour)))})
	}
	state.Job.Status.Workers.Target, state.Job.Status.NextOrdinal = ptr.To[int32](3), ptr.To[int32](3)
	growthPod(state, 2, noImage("n10"))
	giveRoom(state, 1)
	if plan := look(state); !plan.Facts.GrowAfter.IsZero() || !slices.Contains(avoided(plan), "n10") {
		t.Errorf("growth waits until %s, and avoids %v", plan.Facts.GrowAfter, avoided(plan))
	}
}

// The leader that is next, which remembers nothing, does not count once more what is counted: nor does this one count another
// newcomer that was there by then.
func TestAFailureOfANodeIsCountedOnce(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)...)
	state.Job.Status.Workers.Target, state.Job.Status.NextOrdinal = ptr.To[int32](4), ptr.To[int32](4)
	growthPod(state, 2, noImage("n10"))
	giveRoom(state, 2)
	look(state)
	for _, what := range []string{"a new leader", "another newcomer"} {
		if what == "a new leader" {
			state.Memory.Elastic.Growth = GrowthBackOff{}
		} else {
			growthPod(state, 3, noImage("n10"))
		}
		state.Now = state.Now.Add(time.Second)
		plan := look(state)
		if all := plan.Status.AvoidedNodes; len(all) != 1 || value(all[0].Failures) != 1 || !all[0].Until.Time.Equal(now.Add(nodeBackOff)) {
			t.Errorf("%s: %+v", what, all)
		}
		if slices.ContainsFunc(plan.Notes, func(n Note) bool { return n.Reason == v1alpha1.EventGrowthWithdrawn }) {
			t.Errorf("%s: it is told again: %v", what, plan.Notes)
		}
	}
	// One that is made there later says so anew.
	state.Now, state.Pods = now.Add(10*time.Minute), state.Pods[:2]
	growthPod(state, 4, noImage("n10"), func(pod *corev1.Pod) { pod.CreationTimestamp = metav1.NewTime(now.Add(9 * time.Minute)) })
	if all := look(state).Status.AvoidedNodes; len(all) != 1 || value(all[0].Failures) != 2 {
		t.Errorf("it failed again: %+v", all)
	}
}

// Who has failed leaves, also where another leader, or another newcomer, has told of the node before.
func TestEachNewcomerThatFailedLeaves(t *testing.T) {
	for _, leader := range []bool{false, true} {
		job := trains(2)
		state := elasticState(job, crewOf(job)...)
		state.Job.Status.Workers.Target, state.Job.Status.NextOrdinal = ptr.To[int32](4), ptr.To[int32](4)
		giveRoom(state, 2)
		made := func(at time.Duration) podChange {
			return func(pod *corev1.Pod) { pod.CreationTimestamp = metav1.NewTime(now.Add(at)) }
		}
		growthPod(state, 2, noImage("n10"), made(0))
		want := 1
		if leader {
			state.Now = now.Add(31 * time.Second)
			look(state)
			state.Memory.Elastic = ElasticMemory{}
		} else {
			growthPod(state, 3, noImage("n10"), made(time.Second))
			want = 2
		}
		gone, failures := map[string]bool{}, int32(0)
		for second := range 120 {
			state.Now = now.Add(time.Duration(31+second) * time.Second)
			plan := look(state)
			for _, node := range plan.Status.AvoidedNodes {
				failures = max(failures, value(node.Failures))
			}
			for _, name := range names(plan.Actions.Delete) {
				gone[name] = true
				state.Pods = slices.DeleteFunc(state.Pods, func(pod *corev1.Pod) bool { return pod.Name == name })
			}
		}
		if len(gone) != want || failures != 1 {
			t.Errorf("another leader: %v: %v are gone, %d failures are counted", leader, gone, failures)
		}
	}
}
