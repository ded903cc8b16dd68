package controller

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// avoided are the names of the nodes that a plan avoids.
func avoided(plan Plan) []string {
	var nodes []string
	for _, node := range plan.Status.AvoidedNodes {
		nodes = append(nodes, node.Name)
	}
	return nodes
}

func TestANodeIsAvoidedForLongerEachTime(t *testing.T) {
	for limit, want := range map[time.Duration][]int{
		0:               {30, 60, 120, 240, 300, 300},
		time.Hour:       {30, 60, 120, 240, 480, 960, 1920, 3600, 3600},
		2 * time.Second: {2, 2},
	} {
		p := &planner{State: stateOf(jobWith())}
		if limit > 0 {
			p.Job.Spec.Failure.MaxBackOff = &metav1.Duration{Duration: limit}
		}
		for i, seconds := range want {
			p.avoid([]string{"n1", "", "n1"}, "it fails")
			all := p.plan.Status.AvoidedNodes
			if len(all) != 1 || all[0].Name != "n1" || value(all[0].Failures) != int32(i+1) || all[0].Until.Sub(p.Now) != time.Duration(seconds)*time.Second {
				t.Fatalf("with a limit of %s, after failure %d: %+v, want one node for %ds", limit, i+1, all, seconds)
			}
		}
	}
}

// Of more nodes than the status holds, those go first that may be used again, then those that failed least and may be soonest;
// never one that has just failed.
func TestOfManyNodesThoseThatFailedMostAreKept(t *testing.T) {
	p := &planner{State: stateOf(jobWith())}
	p.avoid([]string{"old"}, "long ago")
	for range 5 {
		p.avoid([]string{"old"}, "long ago")
	}
	p.Now = p.Now.Add(time.Hour)
	p.avoid([]string{"n00", "n01"}, "first")
	p.avoid([]string{"n00"}, "again")
	for i := 2; i < mostAvoided; i++ {
		p.Now = p.Now.Add(time.Second)
		p.avoid([]string{fmt.Sprintf("n%02d", i)}, "later")
	}
	if kept := avoided(p.plan); len(kept) != mostAvoided || slices.Contains(kept, "old") {
		t.Errorf("%d are kept: %v", len(kept), kept)
	}
	p.avoid([]string{"n16"}, "later")
	if kept := avoided(p.plan); len(kept) != mostAvoided || kept[0] != "n00" || kept[1] != "n02" || kept[15] != "n16" {
		t.Errorf("%d are kept: %v", len(kept), kept)
	}
	for i := range p.plan.Status.AvoidedNodes {
		p.plan.Status.AvoidedNodes[i].Failures = ptr.To[int32](2)
	}
	p.avoid([]string{"n17"}, "has failed least")
	if kept := avoided(p.plan); len(kept) != mostAvoided || !slices.Contains(kept, "n17") {
		t.Errorf("what has just failed is dropped: %v", kept)
	}
}

// What is counted of a node is forgotten once the job has trained for a minute since it may be used again, and not while a newcomer
// is on its way there.
func TestAnAvoidedNodeIsForgotten(t *testing.T) {
	job := trains(2)
	trained := now.Add(-time.Hour)
	for i := range job.Status.Conditions {
		job.Status.Conditions[i].LastTransitionTime = metav1.NewTime(trained)
	}
	state := elasticState(job, crewOf(job)...)
	job = state.Job
	job.Status.AvoidedNodes = []v1alpha1.AvoidedNode{
		{Name: "n1", Failures: ptr.To[int32](2), Until: ptr.To(metav1.NewTime(now.Add(-trainedWell)))},
		{Name: "n2", Failures: ptr.To[int32](2), Until: ptr.To(metav1.NewTime(now.Add(time.Second - trainedWell)))},
		{Name: "n3", Failures: ptr.To[int32](2), Until: ptr.To(metav1.NewTime(now.Add(-trainedWell)))},
	}
	job.Status.Workers.Target, job.Status.NextOrdinal = ptr.To[int32](3), ptr.To[int32](3)
	growthPod(state, 2, onNode("n3"))
	giveRoom(state, 0)
	plan := NewPlan(state, settings)
	if got := avoided(plan); len(got) != 2 || got[0] != "n2" || got[1] != "n3" {
		t.Errorf("%v are kept", got)
	}
	if plan.After > time.Second {
		t.Errorf("looks again after %s", plan.After)
	}
	for i := range job.Status.Conditions {
		job.Status.Conditions[i].LastTransitionTime = metav1.NewTime(now.Add(-time.Second))
	}
	if got := avoided(NewPlan(state, settings)); len(got) != 3 {
		t.Errorf("the job has trained for a second, and %v are kept", got)
	}
}

// foundEnded has a container end with what a node makes up that has not seen it.
func foundEnded(code int32, reason string) podChange {
	return func(pod *corev1.Pod) {
		exited(code, start.Add(30*time.Second), "")(pod)
		pod.Status.ContainerStatuses[0].State.Terminated.Reason = reason
		pod.Spec.NodeName = "n2"
	}
}

// TestWhichNodeIsToBlame: where the infrastructure was at fault on a node that is known, the job leaves that out and goes on soon.
func TestWhichNodeIsToBlame(t *testing.T) {
	long := start.Add(30 * time.Second)
	programs := []string{"it failed before it started", "its program failed", "a program ends with 255", "its program failed by then"}
	for name, row := range map[string]struct {
		lost podChange
		seen *rendezvous.MemberObservation
		want []string
	}{
		"its kubelet has refused it":  {func(pod *corev1.Pod) { pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, "OutOfcpu" }, nil, []string{"n2"}},
		"its node shuts down":         {withCondition(corev1.DisruptionTarget, corev1.PodReasonTerminationByKubelet, "shutting down"), nil, []string{"n2"}},
		"its node does not answer":    {withCondition(corev1.DisruptionTarget, "DeletionByTaintManager", "unreachable"), nil, []string{"n2"}},
		"it is silent":                {func(*corev1.Pod) {}, &rendezvous.MemberObservation{Joined: true, Silent: true}, []string{"n2"}},
		"it failed before it started": {func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }, nil, []string{"n2"}},
		"its node was started anew":   {foundEnded(137, "ContainerStatusUnknown"), nil, []string{"n2"}},
		"and by containerd's word":    {foundEnded(255, "Unknown"), nil, []string{"n2"}},
		"somebody deletes it, and its container is gone": {func(pod *corev1.Pod) {
			foundEnded(137, "ContainerStatusUnknown")(pod)
			deletedAt(long)(pod)
		}, nil, nil},
		"a program ends with 255": {foundEnded(255, "Error"), nil, nil},
		"its program failed by then": {foundEnded(137, "ContainerStatusUnknown"),
			&rendezvous.MemberObservation{Joined: true, WorkerRank: 1, Exited: true, ExitCode: 1, FailedAt: long}, nil},
		"its device is broken": {func(pod *corev1.Pod) {
			exited(rendezvous.ExitDevice, long, "CUDA error: uncorrectable ECC error encountered")(pod)
			pod.Spec.NodeName = "n2"
		}, nil, []string{"n2"}},
		"another needed the room": {withCondition(corev1.DisruptionTarget, corev1.PodReasonPreemptionByScheduler, "priority"), nil, nil},
		"somebody has deleted it": {deletedAt(long), nil, nil},
		"its program failed":      {func(pod *corev1.Pod) { exited(1, long, "ValueError")(pod); pod.Spec.NodeName = "n2" }, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			job := jobWith(scheduled)
			state := stateOf(job, podOf(job, 1, 0, trainerRuns), podOf(job, 1, 1, trainerRuns, onNode("n2"), row.lost))
			state.World = worldOf(1, state.Pods...)
			if row.seen != nil {
				state.World.Members[string(state.Pods[1].UID)] = *row.seen
			}
			plan := NewPlan(state, settings)
			expectTarget(t, plan, 0)
			if got := avoided(plan); !slices.Equal(got, row.want) {
				t.Fatalf("avoids %v, want %v", got, row.want)
			}
			if value(plan.Status.Restarts.Program) > 0 != slices.Contains(programs, name) {
				t.Errorf("restarts are %+v", plan.Status.Restarts)
			}
			if len(row.want) > 0 {
				expectCondition(t, plan, v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonBackOff, "; not on node n2 until 2030-01-01T12:01:30Z")
			}
		})
	}
}

// All nodes of a rack are to blame, whoever of its workers is looked at first.
func TestAllNodesThatFailedTogetherAreLeftOut(t *testing.T) {
	job := jobWith(scheduled)
	shuts := withCondition(corev1.DisruptionTarget, corev1.PodReasonTerminationByKubelet, "shutting down")
	state := stateOf(job, podOf(job, 1, 0, trainerRuns, shuts), podOf(job, 1, 1, trainerRuns, onNode("n2"), shuts))
	if got := avoided(NewPlan(state, settings)); !slices.Equal(got, []string{"n1", "n2"}) {
		t.Errorf("avoids %v", got)
	}
}

// TestTheBackOffIsTheNodes: the job's own pause is short as long as other nodes are to blame each time.
func TestTheBackOffIsTheNodes(t *testing.T) {
	job := jobWith(scheduled)
	lose := func(node string) time.Duration {
		t.Helper()
		refused := func(pod *corev1.Pod) { pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, "OutOfcpu" }
		state := stateOf(job, podOf(job, 1, 0, trainerRuns), podOf(job, 1, 1, onNode(node), refused))
		plan := NewPlan(state, settings)
		job.Status = plan.Status
		pause := job.Status.RetryTime.Sub(state.Now)
		scheduled(job) // the next attempt gets as far
		return pause
	}
	losses := 0
	expect := func(node string, seconds int) {
		t.Helper()
		losses++
		if got := lose(node); got != time.Duration(seconds)*time.Second {
			t.Errorf("pause after loss %d, by node %s, is %s, want %ds", losses, node, got, seconds)
		}
	}
	expect("n2", 2)
	expect("n3", 2)
	expect("n2", 4)
	expect("n4", 2)
	// So many in a row are hardly the nodes' fault.
	expect("n5", 4)
	expect("n6", 8)
	expect("n7", 16)
}

// A node is to blame for what happened there, and not for what had another cause.
func TestANodeIsNotToBlameForWhatItDidNotCause(t *testing.T) {
	shuts := withCondition(corev1.DisruptionTarget, corev1.PodReasonTerminationByKubelet, "shutting down")
	starts := func(pod *corev1.Pod) { // the program's own fault: an exit before its program started
		onNode("n2")(pod)
		pod.Status.Phase = corev1.PodFailed
	}
	job := trains(2)
	state := elasticState(job, crewOf(job)...)
	state.Pods = []*corev1.Pod{podOf(job, 1, 0, onNode("n1"), shuts), podOf(job, 1, 1, starts)}
	var losses []rendezvous.Loss
	for i, pod := range state.Pods {
		losses = append(losses, rendezvous.Loss{UID: string(pod.UID), Name: pod.Name, Rank: int32(i), Program: i == 1, At: now})
	}
	p := &planner{State: state}
	if v := p.verdict(losses); v.cause != causeInfrastructure || !slices.Equal(v.nodes, []string{"n1"}) {
		t.Errorf("cause %d, nodes %v", v.cause, v.nodes)
	}
	if v := p.verdict(losses[1:]); v.cause != causeProgram || !slices.Equal(v.nodes, []string{"n2"}) {
		t.Errorf("cause %d, nodes %v", v.cause, v.nodes)
	}
}

// Whom the operator hears, and its peers do not reach, they would not reach there again.
func TestANodeIsToBlameWhereNobodyReachesAWorker(t *testing.T) {
	for _, unreached := range []bool{false, true} {
		job := trains(2)
		state := elasticState(job, crewOf(job)...)
		state.Pods = []*corev1.Pod{podOf(job, 1, 0, onNode("n1"))}
		uid := string(state.Pods[0].UID)
		state.World.Members[uid] = rendezvous.MemberObservation{Joined: true, Connected: true, WorkerRank: -1}
		v := (&planner{State: state}).verdict([]rendezvous.Loss{{UID: uid, Unreached: unreached, Message: "nobody reaches it", At: now}})
		if blamed := slices.Equal(v.nodes, []string{"n1"}); v.cause != causeInfrastructure || blamed != unreached {
			t.Errorf("unreached %v: cause %d, nodes %v", unreached, v.cause, v.nodes)
		}
	}
}

// A worker that was to join and whom nobody reaches is let go, and its node is avoided once, however often the job is looked at
// before the pod is gone: the next would only have the world stand for it again.
func TestTheNodeOfAStandbyThatNobodyReachesIsAvoided(t *testing.T) {
	for _, unreached := range []bool{false, true} {
		job := trains(2)
		state := elasticState(job, crewOf(job)...)
		state.Job.Status.Workers.Target, state.Job.Status.NextOrdinal = ptr.To[int32](3), ptr.To[int32](3)
		pod := growthPod(state, 2, trainerRuns, onNode("n7"))
		seen := state.World.Members[string(pod.UID)]
		seen.WasIn, seen.WorkerRank = true, -1
		state.World.Members[string(pod.UID)] = seen
		state.World.Losses = []rendezvous.Loss{{UID: string(pod.UID), Name: pod.Name, Unreached: unreached, Rank: -1, At: now, Message: "nobody reaches it"}}
		for range 3 {
			plan := look(state)
			if got := names(plan.Actions.Delete); !slices.Equal(got, []string{pod.Name}) {
				t.Errorf("deletes %v", got)
			}
			nodes := plan.Status.AvoidedNodes
			if blamed := len(nodes) == 1 && nodes[0].Name == "n7" && value(nodes[0].Failures) == 1; blamed != unreached || !unreached && len(nodes) > 0 {
				t.Errorf("unreached %v: avoids %v", unreached, nodes)
			}
			state.Job.Status.AvoidedNodes = nodes
		}
	}
}

// Where many newcomers are reached by nobody it is hardly their nodes: the job does not grow for a while. Each of them counts once,
// however many nodes there is room for in the status.
func TestAJobDoesNotGrowOnWhereNobodyReachesNewcomers(t *testing.T) {
	for newcomers, paused := range map[int]bool{1: false, fewNodes: false, fewNodes + 1: true, mostAvoided + 4: true} {
		job := trains(2)
		state := elasticState(job, crewOf(job)...)
		state.Job.Status.Workers.Target, state.Job.Status.NextOrdinal = ptr.To(int32(2+newcomers)), ptr.To(int32(2+newcomers))
		for i := range newcomers {
			pod := growthPod(state, int32(2+i), trainerRuns, onNode(fmt.Sprintf("m%02d", i)))
			seen := state.World.Members[string(pod.UID)]
			seen.WasIn, seen.WorkerRank = true, -1
			state.World.Members[string(pod.UID)] = seen
			state.World.Losses = append(state.World.Losses, rendezvous.Loss{
				UID: string(pod.UID), Name: pod.Name, Unreached: true, Rank: -1, At: now, Message: "nobody reaches it",
			})
		}
		var avoided []v1alpha1.AvoidedNode
		for n := range 3 {
			plan := look(state)
			growth, nodes := plan.Elastic.Growth, plan.Status.AvoidedNodes
			if got := now.Before(growth.Until); got != paused || paused && growth.Count != 1 || len(nodes) != min(newcomers, mostAvoided) {
				t.Errorf("after %d newcomers growth is %+v, and %d nodes are avoided", newcomers, growth, len(nodes))
			}
			if n > 0 && !reflect.DeepEqual(nodes, avoided) {
				t.Errorf("after %d newcomers the nodes change each time:\n%v\n%v", newcomers, avoided, nodes)
			}
			avoided = nodes
		}
	}
}

// A job that is suspended may go on with another template, which need not fail where this one did.
func TestASuspendedJobAvoidsNoNode(t *testing.T) {
	job := jobWith(scheduled, func(job *v1alpha1.TrainingJob) {
		job.Spec.Suspend = ptr.To(true)
		job.Status.AvoidedNodes = []v1alpha1.AvoidedNode{{Name: "n1", Until: ptr.To(metav1.NewTime(now.Add(time.Hour)))}}
	})
	if got := avoided(NewPlan(stateOf(job), settings)); len(got) > 0 {
		t.Errorf("avoids %v", got)
	}
}
