package controller

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// A worker that trains on without being heard is told of once, and again when that has been over.
func TestAWorkerThatIsNotHeardIsToldOf(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)...)
	unheard := state.Pods[1]
	hears := func(cutOff bool, witnesses string) {
		seen := state.World.Members[string(unheard.UID)]
		seen.CutOff, seen.Witnesses = cutOff, witnesses
		state.World.Members[string(unheard.UID)] = seen
	}
	told := func() int {
		notes := look(state).Notes
		return len(slices.DeleteFunc(notes, func(n Note) bool { return n.Reason != v1alpha1.EventWorkerUnheard }))
	}
	if told() != 0 {
		t.Error("a worker that is heard is told of")
	}
	hears(true, "digits-1-0")
	expectNote(t, NewPlan(state, settings), v1alpha1.EventWorkerUnheard, "digits-1-1 on node "+unheard.Spec.NodeName, "digits-1-0 can reach it", "network")
	if first, second := told(), told(); first != 1 || second != 0 {
		t.Errorf("it is told of %d times, then %d", first, second)
	}
	hears(false, "")
	told()
	hears(true, "")
	expectNote(t, NewPlan(state, settings), v1alpha1.EventWorkerUnheard, "steps are made")
}

// Who is left out since others do not reach it is named by the condition FullSize as long as it is, and up to three are.
func TestWorkersThatAreLeftOutAreNamed(t *testing.T) {
	job := trains(5)
	state := elasticState(job, crewOf(job)...)
	leaves := func(pods []*corev1.Pod, why string) {
		for _, pod := range pods {
			seen := state.World.Members[string(pod.UID)]
			seen.Aside, seen.AsideSince, seen.InWorld, seen.WorkerRank = why, now, why == "", -1
			if why == "" {
				seen.WorkerRank = 0
			}
			state.World.Members[string(pod.UID)] = seen
		}
	}
	leaves(state.Pods[1:2], "it could not reach digits-1-0: i/o timeout")
	expectCondition(t, look(state), v1alpha1.ConditionFullSize, metav1.ConditionFalse, v1alpha1.ReasonWorkersLeftOut,
		"digits-1-1 on node "+state.Pods[1].Spec.NodeName+" is left out since 2030-01-01T12:01:00Z: it could not reach digits-1-0: i/o timeout. ", "network")
	leaves(state.Pods[1:], "it could not reach digits-1-0: i/o timeout")
	expectCondition(t, look(state), v1alpha1.ConditionFullSize, metav1.ConditionFalse, v1alpha1.ReasonWorkersLeftOut, "digits-1-3 on", "; and 1 more. ")
	leaves(state.Pods[1:], "")
	if is := meta.FindStatusCondition(look(state).Status.Conditions, v1alpha1.ConditionFullSize); is != nil && is.Reason == v1alpha1.ReasonWorkersLeftOut {
		t.Errorf("nobody is left out any more, and the condition says %s", is.Message)
	}
}

// The rendezvous is told of which nodes the cluster knows that they are not ready.
func TestMembersOnNodesThatAreNotReady(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)...)
	state.Pods[1].Spec.NodeName = "n9"
	for i, pod := range state.Pods {
		status := corev1.ConditionTrue
		if i == 1 {
			status = corev1.ConditionUnknown
		}
		state.Nodes.ByName[pod.Spec.NodeName] = &corev1.Node{Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}},
		}}
	}
	for _, member := range NewPlan(state, settings).Actions.Expect.Members {
		if member.NodeNotReady != (member.UID == string(state.Pods[1].UID)) {
			t.Errorf("%s on node %s: not ready %v", member.Name, member.Node, member.NodeNotReady)
		}
	}
}
