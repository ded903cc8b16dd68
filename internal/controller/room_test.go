package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concertina-dev/concertina/internal/rendezvous"
)

func TestRoom(t *testing.T) {
	// Two nodes of 2 CPUs; a worker takes half of one.
	node := func(name string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("64Gi"),
				corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceEphemeralStorage: resource.MustParse("100Gi")}}}
	}
	cases := []struct {
		name   string
		change func(*State)
		want   int32
	}{
		{name: "what the crew leaves", want: 6},
		{name: "a cordoned node offers nothing", want: 2, change: func(s *State) { s.Nodes.ByName["n1"].Spec.Unschedulable = true }},
		{name: "one that is about to go neither", want: 2, change: func(s *State) {
			s.Nodes.ByName["n1"].Spec.Taints = []corev1.Taint{{Key: DefaultDrainTaints[0], Effect: corev1.TaintEffectPreferNoSchedule}}
		}},
		{name: "a pod that is ending holds its room", want: 6, change: func(s *State) { deletedAt(now)(s.Pods[0]) }},
		{name: "one that has ended does not", want: 7, change: func(s *State) { s.Pods[0].Status.Phase = corev1.PodFailed }},
		{name: "its own newcomers are what the room is for", want: 6, change: func(s *State) { growthPod(s, 2) }},
		{name: "a newcomer that the other cache does not know yet", want: 5, change: func(s *State) { growthPod(s, 2, onNode("n1")) }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			job := trains(2)
			state := elasticState(job, crewOf(job)...)
			var cached []corev1.Pod
			for _, pod := range state.Pods {
				cached = append(cached, *pod.DeepCopy())
			}
			state.Nodes.ByName = map[string]*corev1.Node{"n0": node("n0"), "n1": node("n1")}
			if c.change != nil {
				c.change(state)
			}
			if got := roomFor(state, settings, state.Nodes.ByName, cached, 8); got != c.want {
				t.Errorf("room for %d, want %d", got, c.want)
			}
		})
	}
}

func TestRoomIsLookedForOnlyWhenItIsOfUse(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)...)
	if state.roomLimit() != 8 {
		t.Errorf("limit is %d, want max", state.roomLimit())
	}
	*job.Spec.Workers.Max = 2
	if state.roomLimit() != 0 {
		t.Error("the job has all that it may have")
	}
	withCondition(corev1.DisruptionTarget, "EvictionByEvictionAPI", "")(state.Pods[1])
	if state.roomLimit() != 2 {
		t.Error("one is to leave, and nobody looks for a place for another")
	}
	state.World = rendezvous.Observation{}
	if state.roomLimit() != 0 {
		t.Error("nothing is known of the world")
	}
}
