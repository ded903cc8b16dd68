package allocation

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Slim reduces a pod to what Room reads of it, for a cache that holds the pods of a whole cluster. The
// label says whose pods are kept as they are.
func Slim(label string) func(any) (any, error) {
	return func(object any) (any, error) {
		pod, ok := object.(*corev1.Pod)
		if !ok {
			return object, nil // a tombstone
		}
		if _, ours := pod.Labels[label]; ours {
			pod.ManagedFields = nil
			return pod, nil
		}
		return &corev1.Pod{
			TypeMeta: pod.TypeMeta,
			ObjectMeta: metav1.ObjectMeta{
				Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
				Labels: pod.Labels, DeletionTimestamp: pod.DeletionTimestamp,
			},
			Spec: corev1.PodSpec{
				NodeName: pod.Spec.NodeName, NodeSelector: pod.Spec.NodeSelector, Affinity: slimAffinity(pod.Spec.Affinity),
				Tolerations: pod.Spec.Tolerations, Priority: pod.Spec.Priority, Overhead: pod.Spec.Overhead,
				Resources: pod.Spec.Resources, SchedulingGates: pod.Spec.SchedulingGates,
				InitContainers: slimContainers(pod.Spec.InitContainers), Containers: slimContainers(pod.Spec.Containers),
			},
			Status: corev1.PodStatus{
				Phase: pod.Status.Phase, NominatedNodeName: pod.Status.NominatedNodeName,
				Conditions:            slimConditions(pod.Status.Conditions),
				InitContainerStatuses: slimStatuses(pod.Status.InitContainerStatuses), ContainerStatuses: slimStatuses(pod.Status.ContainerStatuses),
				Resources: pod.Status.Resources, AllocatedResources: pod.Status.AllocatedResources,
				NodeAllocatableResourceClaimStatuses: pod.Status.NodeAllocatableResourceClaimStatuses,
			},
		}, nil
	}
}

// slimAffinity keeps what is required; preferences keep nobody out.
func slimAffinity(affinity *corev1.Affinity) *corev1.Affinity {
	if affinity == nil {
		return nil
	}
	slim := &corev1.Affinity{}
	if a := affinity.NodeAffinity; a != nil && a.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		slim.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: a.RequiredDuringSchedulingIgnoredDuringExecution}
	}
	if a := affinity.PodAntiAffinity; a != nil && len(a.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
		slim.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: a.RequiredDuringSchedulingIgnoredDuringExecution}
	}
	return slim
}

func slimContainers(containers []corev1.Container) []corev1.Container {
	var slim []corev1.Container
	for i := range containers {
		c := &containers[i]
		var ports []corev1.ContainerPort
		for _, p := range c.Ports {
			if p.HostPort > 0 {
				ports = append(ports, p)
			}
		}
		slim = append(slim, corev1.Container{Name: c.Name, Resources: c.Resources, RestartPolicy: c.RestartPolicy, Ports: ports})
	}
	return slim
}

// slimStatuses keeps what a resize that is under way leaves unsaid in the spec.
func slimStatuses(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	var slim []corev1.ContainerStatus
	for i := range statuses {
		s := &statuses[i]
		if s.Resources != nil || s.AllocatedResources != nil {
			slim = append(slim, corev1.ContainerStatus{Name: s.Name, Resources: s.Resources, AllocatedResources: s.AllocatedResources})
		}
	}
	return slim
}

// slimConditions keeps whether such a resize is possible at all.
func slimConditions(conditions []corev1.PodCondition) []corev1.PodCondition {
	var slim []corev1.PodCondition
	for i := range conditions {
		if c := &conditions[i]; c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress {
			slim = append(slim, *c)
		}
	}
	return slim
}
