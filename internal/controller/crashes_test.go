package controller

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// on has a pod of the training container run, or end with a code, on a node.
func on(node string, change podChange) podChange {
	return func(pod *corev1.Pod) {
		change(pod)
		pod.Spec.NodeName = node
	}
}

func looksFirst(pod *corev1.Pod) { pod.Annotations[annotationChecks] = "true" }

// whoLooks is which of the pods that are made are to look at their devices first, by the node that they are made for.
func whoLooks(t *testing.T, pods []*corev1.Pod) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, pod := range pods {
		told := slices.Contains(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: "CONCERTINA_CHECK_DEVICE", Value: "1"})
		if marked := pod.Annotations[annotationChecks] != ""; marked != told {
			t.Errorf("pod %s is told %v, and marked %v", pod.Name, told, marked)
		}
		found[pinned(pod)] = told
	}
	return found
}

// Where a program was ended by a signal, as by a device that has failed, whoever is started there next looks at that, once.
func TestWhoComesAfterACrashLooksAtTheDevice(t *testing.T) {
	for _, test := range []struct {
		name string
		pods []podChange // by their numbers, from 0
		want bool        // on n1
	}{
		{"one trains", []podChange{on("n1", trainerRuns)}, false},
		{"one has failed", []podChange{on("n1", exited(1, now, ""))}, false},
		{"one was killed", []podChange{on("n1", exited(137, now, ""))}, false},
		{"abort", []podChange{on("n1", exited(134, now, ""))}, true},
		{"a bad address", []podChange{on("n1", exited(139, now, ""))}, true},
		{"a bus error", []podChange{on("n1", exited(135, now, ""))}, true},
		{"on another node", []podChange{on("n2", exited(139, now, ""))}, false},
		{"beside one that trains", []podChange{on("n1", exited(139, now, "")), on("n1", trainerRuns)}, true},
		{"one that looks has no node yet", []podChange{on("n1", exited(139, now, "")), looksFirst}, true},
		{"one that looks trains", []podChange{on("n1", exited(139, now, "")), func(pod *corev1.Pod) { looksFirst(pod); on("n1", trainerRuns)(pod) }}, false},
		{"one that looks trains elsewhere", []podChange{on("n1", exited(139, now, "")), func(pod *corev1.Pod) { looksFirst(pod); on("n2", trainerRuns)(pod) }}, true},
		{"one that has looked ends so as well", []podChange{on("n1", exited(139, now, "")), func(pod *corev1.Pod) { looksFirst(pod); on("n1", exited(139, now, ""))(pod) }}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			job := jobWith(scheduled)
			var pods []*corev1.Pod
			for ordinal, change := range test.pods {
				pods = append(pods, podOf(job, 1, int32(ordinal), change))
			}
			state := stateOf(job, pods...)
			p := &planner{State: state}
			for range 2 {
				p.plan.Crashes = state.crashes()
				pod := newPod(job, settings, 1, 9)
				pin(pod, "n1")
				p.lookFirst(pod)
				if got := whoLooks(t, []*corev1.Pod{pod})["n1"]; got != test.want {
					t.Errorf("who comes next looks: %v, want %v: %+v", got, test.want, p.plan.Crashes)
				}
				// The pod that has ended may be gone by then.
				state.Memory.remember(&p.plan)
				state.Pods = slices.DeleteFunc(state.Pods, podEnded)
			}
		})
	}
}

// Where a scheduler chooses the node of a pod, it may be the one in doubt.
func TestWhoeverASchedulerPlacesLooksAtTheDevice(t *testing.T) {
	job := jobWith(scheduled)
	p := &planner{State: stateOf(job, podOf(job, 1, 0, on("n1", exited(139, now, ""))))}
	p.plan.Crashes = p.crashes()
	pod := newPod(job, settings, 1, 9)
	if p.lookFirst(pod); !whoLooks(t, []*corev1.Pod{pod})[""] {
		t.Error("it does not look")
	}
}

// The template's own word for the variable is not repeated.
func TestTheVariableStandsOnce(t *testing.T) {
	job := jobWith(scheduled, func(job *v1alpha1.TrainingJob) {
		job.Spec.Workers.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "CONCERTINA_CHECK_DEVICE", Value: "no"}}
	})
	p := &planner{State: stateOf(job, podOf(job, 1, 0, on("n1", exited(139, now, ""))))}
	p.plan.Crashes = p.crashes()
	pod := newPod(job, settings, 1, 9)
	p.lookFirst(pod)
	if !whoLooks(t, []*corev1.Pod{pod})[""] || slices.Contains(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: "CONCERTINA_CHECK_DEVICE", Value: "no"}) {
		t.Errorf("the environment is %v", pod.Spec.Containers[0].Env)
	}
}

// What is remembered does not grow with what a job has been through.
func TestCrashesAreForgotten(t *testing.T) {
	job := jobWith(scheduled)
	state := stateOf(job,
		podOf(job, 1, 0, on("n1", exited(139, now, ""))),
		podOf(job, 1, 1, on("n1", trainerRuns), looksFirst),
		podOf(job, 1, 2, on("n2", trainerRuns)))
	first := state.crashes()
	if len(first) != 1 {
		t.Errorf("%+v are known: the pod that has ended so would be taken for another one", first)
	}
	state.Memory.Crashes, state.Pods = first, state.Pods[1:]
	if got := state.crashes(); len(got) != 0 {
		t.Errorf("%+v are remembered", got)
	}
	if got := maps.Clone(first); len(got) != len(state.Memory.Crashes) {
		t.Errorf("what was remembered before has changed: %+v", state.Memory.Crashes)
	}
}

// With strategy Restart a world goes on without who was lost, and the worker that takes its place looks at the device of its node.
func TestTheReplacementUnderRestartLooksAtTheDevice(t *testing.T) {
	job := trains(4, func(job *v1alpha1.TrainingJob) { job.Spec.Resize.Strategy = v1alpha1.ResizeRestart })
	state := elasticState(job, crewOf(job)...)
	lost := state.Pods[3]
	on("n1", exited(139, now, ""))(lost)
	after(state, rendezvous.ReasonWorkerLost, true, "exit code 139", lost)
	giveRoom(state, 2)
	state.Grant.Places = []fleet.Place{{Node: "n1"}, {Node: "n7"}}
	var plan Plan
	for range 3 { // its loss is counted, and names are reserved
		state.Grant.Count, state.Grant.Places = 5, []fleet.Place{{Node: "n1"}, {Node: "n7"}}
		plan = NewPlan(state, settings)
		state.Job.Status = plan.Status
		state.Memory.remember(&plan)
		if len(plan.Actions.Grow) > 0 {
			break
		}
		state.Pods = slices.DeleteFunc(state.Pods, func(pod *corev1.Pod) bool { return slices.Contains(plan.Actions.Delete, pod) })
	}
	if got := whoLooks(t, plan.Actions.Grow); len(got) != 2 || !got["n1"] || got["n7"] {
		t.Errorf("who looks is %v", got)
	}
}

// The same where the attempt is over, and the next one is made where the last one was.
func TestTheNextAttemptLooksAtTheDevice(t *testing.T) {
	job := jobWith(scheduled)
	state := stateOf(job, podOf(job, 1, 0, on("n1", exited(1, now, ""))), podOf(job, 1, 1, on("n2", exited(134, now, ""))))
	state.Memory.Crashes = state.crashes()
	state.Job.Status.Attempt, state.Job.Status.NextOrdinal = ptr.To[int32](2), ptr.To[int32](4)
	state.Pods = nil // those of the last attempt may be gone
	p := &planner{State: state}
	p.plan.Status, p.plan.Crashes = *job.Status.DeepCopy(), state.crashes()
	state.Grant.Places = []fleet.Place{{Node: "n1", Own: true}, {Node: "n2", Own: true}}
	p.createGang()
	if got := whoLooks(t, p.plan.Actions.Create); len(got) != 2 || got["n1"] || !got["n2"] {
		t.Errorf("who looks is %v", got)
	}
}
