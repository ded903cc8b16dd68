package controller

import (
	"unique"

	corev1 "k8s.io/api/core/v1"
	schedv1alpha1 "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
)

// What of a worker's labels and annotations decisions look at, beside what the planner of all jobs keeps.
var (
	keptLabels      = []string{schedv1alpha1.PodGroupLabel}
	keptAnnotations = append([]string{annotationRefill, annotationMoves, annotationChecks, v1alpha1.AnnotationMemoryUnknown}, networkStatus...)
)

// SlimPod keeps of a pod what the planner of all jobs looks at, and of a worker what a look at its job does. It is for the
// one cache of pods, which holds those of the whole cluster. What decisions begin to read belongs in here; nothing is
// made, or written, of what a cache has. A tombstone comes back as it is.
func SlimPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	kept, err := fleet.SlimPod(pod)
	slim, ok := kept.(*corev1.Pod)
	if _, ours := pod.Labels[v1alpha1.LabelJob]; err != nil || !ok || !ours {
		return kept, err
	}
	slim.Labels = adding(slim.Labels, pod.Labels, keptLabels)
	slim.Annotations = adding(slim.Annotations, pod.Annotations, keptAnnotations)
	if bundle, there := pod.Annotations[v1alpha1.AnnotationCABundle]; there {
		slim.Annotations = adding(slim.Annotations, map[string]string{
			v1alpha1.AnnotationCABundle: unique.Make(bundle).Value(), // all pods have the same
		}, []string{v1alpha1.AnnotationCABundle})
	}
	if _, written := pod.Annotations[v1alpha1.AnnotationMemory]; !written { // volumeOf looks for it
		for i := range pod.Spec.Volumes {
			if pod.Spec.Volumes[i].Name == memoryVolume {
				slim.Spec.Volumes = []corev1.Volume{pod.Spec.Volumes[i]}
			}
		}
	}
	slim.Spec.SchedulerName, slim.Spec.TerminationGracePeriodSeconds = pod.Spec.SchedulerName, pod.Spec.TerminationGracePeriodSeconds
	from, to := &pod.Status, &slim.Status
	to.Reason, to.Message, to.StartTime, to.PodIP, to.PodIPs = from.Reason, from.Message, from.StartTime, from.PodIP, from.PodIPs
	to.Conditions = nil
	for i := range from.Conditions {
		switch c := &from.Conditions[i]; c.Type {
		case corev1.PodScheduled, corev1.DisruptionTarget, corev1.PodResizePending, corev1.PodResizeInProgress, v1alpha1.PodLeaving:
			to.Conditions = append(to.Conditions, *c)
		}
	}
	to.InitContainerStatuses, to.ContainerStatuses = slimStatuses(from.InitContainerStatuses), slimStatuses(from.ContainerStatuses)
	return slim, nil
}

// slimStatuses keeps what containers do, and what they have been given.
func slimStatuses(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	slim := make([]corev1.ContainerStatus, 0, len(statuses))
	for i := range statuses {
		one := fleet.SlimStatus(&statuses[i])
		one.State = statuses[i].State
		slim = append(slim, one)
	}
	return slim
}

// adding is a map with some keys of another, as far as that has them.
func adding(to, from map[string]string, keys []string) map[string]string {
	for _, key := range keys {
		if value, there := from[key]; there {
			if to == nil {
				to = map[string]string{}
			}
			to[key] = value
		}
	}
	return to
}
