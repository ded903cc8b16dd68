package controller

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/internal/deviceerror"
)

// A program that was ended by a signal, as libraries end one when a device has failed, had no time to look at that. Whoever is started
// there next does, before all else: docs/program-protocol.md has what programs make of it.

const (
	// annotationChecks marks a pod whose first programs are to look at their devices.
	annotationChecks = "training.concertina.dev/checks-device"
	checkVariable    = "CONCERTINA_CHECK_DEVICE"
)

// Crashed is a node on which programs have ended so, by the numbers of workers, of which none is used twice: that of the last one, and
// of the last one that began there and was to look; -1 for none.
type Crashed struct{ Last, Looked int32 }

// doubtful says whether nobody has looked since.
func (c Crashed) doubtful() bool { return c.Last >= 0 && c.Last >= c.Looked }

// crashes are the nodes on which a program of the job has ended so, as far as nobody has looked since, or it can still be seen.
func (s *State) crashes() map[string]Crashed {
	nodes, seen := maps.Clone(s.Memory.Crashes), map[string]bool{}
	if nodes == nil {
		nodes = map[string]Crashed{}
	}
	for _, pod := range s.Pods {
		node, code := pod.Spec.NodeName, int(s.member(pod).ExitCode)
		exit := trainerExit(pod, &s.Job.Spec.Workers)
		if exit != nil {
			code = int(exit.ExitCode)
		}
		if node == "" {
			continue
		}
		at, known := nodes[node]
		if !known {
			at = Crashed{Last: -1, Looked: -1}
		}
		if deviceerror.Crashed(code) {
			at.Last, seen[node] = max(at.Last, podOrdinal(pod)), true
		}
		if pod.Annotations[annotationChecks] != "" && (exit != nil || trainerRunning(pod, &s.Job.Spec.Workers)) {
			at.Looked = max(at.Looked, podOrdinal(pod))
		}
		nodes[node] = at
	}
	maps.DeleteFunc(nodes, func(node string, at Crashed) bool { return !at.doubtful() && !seen[node] })
	return nodes
}

// lookFirst has the first programs of a pod that is to be made look at their devices, where there is doubt about those of its node. Where
// a scheduler chooses that, it may be any.
func (p *planner) lookFirst(pod *corev1.Pod) {
	node, doubt := pinned(pod), false
	for name, at := range p.plan.Crashes {
		doubt = doubt || at.doubtful() && (node == "" || node == name)
	}
	if !doubt {
		return
	}
	pod.Annotations[annotationChecks] = "true"
	index, _ := trainingContainer(&p.Job.Spec.Workers)
	trainer := &pod.Spec.Containers[index]
	trainer.Env = slices.DeleteFunc(trainer.Env, func(v corev1.EnvVar) bool { return v.Name == checkVariable })
	trainer.Env = append(trainer.Env, corev1.EnvVar{Name: checkVariable, Value: "1"})
}
