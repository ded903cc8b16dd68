package controller

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// keptForLogs picks of pods that have failed those that stay for their logs: the last that failed by itself, and the
// last that the cluster has ended. later says whether b is to be kept rather than a.
func keptForLogs(failed []*corev1.Pod, later func(a, b *corev1.Pod) bool) []*corev1.Pod {
	var program, infrastructure *corev1.Pod
	for _, pod := range failed {
		last := &program
		if reason, _ := disruption(pod); reason != "" {
			last = &infrastructure
		}
		if *last == nil || later(*last, pod) {
			*last = pod
		}
	}
	return []*corev1.Pod{program, infrastructure}
}

// lostAndEnded are the workers of an attempt that goes on without them, as far as they have logs that are all written.
func lostAndEnded(crew []worker) []*corev1.Pod {
	var failed []*corev1.Pod
	for i := range crew {
		if w := &crew[i]; w.ended && w.lost != "" {
			failed = append(failed, w.pod)
		}
	}
	return failed
}

// higherOrdinal prefers the pod that was made later. Of a world that goes on each failure is one of its own.
func higherOrdinal(a, b *corev1.Pod) bool { return podOrdinal(b) > podOrdinal(a) }

// failedPods are those that the kubelet says have failed, and those that the cluster has ended.
func failedPods(pods []*corev1.Pod, workers *v1alpha1.WorkersSpec) []*corev1.Pod {
	var failed []*corev1.Pod
	for _, pod := range pods {
		reason, _ := disruption(pod)
		exit := trainerExit(pod, workers)
		if podEnded(pod) && (reason != "" || exit != nil && exit.ExitCode != 0) {
			failed = append(failed, pod)
		}
	}
	return failed
}

// laterAttempt prefers the pod of the later attempt, and within one attempt, which was lost as a whole, the one that
// failed first: that explains the others.
func laterAttempt(workers *v1alpha1.WorkersSpec) func(a, b *corev1.Pod) bool {
	return func(a, b *corev1.Pod) bool {
		if podAttempt(a) != podAttempt(b) {
			return podAttempt(b) > podAttempt(a)
		}
		exitA, exitB := trainerExit(a, workers), trainerExit(b, workers)
		return exitA != nil && exitB != nil && exitB.FinishedAt.Before(&exitA.FinishedAt)
	}
}
