package fleet

import (
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// SlimPod keeps of a pod what decides which room it holds or wants, for a cache that holds the pods of a whole
// cluster; of one that has ended, that it has. A tombstone comes back as it is. What pods have in common they share: it is
// not to be changed.
func SlimPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	slim := &corev1.Pod{
		TypeMeta: pod.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
			DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase},
	}
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil && staysOnNode(owner.Kind) {
		slim.OwnerReferences = []metav1.OwnerReference{{Kind: owner.Kind, Controller: owner.Controller}}
	}
	if _, ours := pod.Labels[v1alpha1.LabelJob]; ours {
		slim.OwnerReferences = pod.OwnerReferences
		slim.Labels = only(pod.Labels, v1alpha1.LabelJob, v1alpha1.LabelAttempt, v1alpha1.LabelRole)
		slim.Annotations = only(pod.Annotations, v1alpha1.AnnotationMemory)
	} else if ended(pod) {
		return slim, nil
	}
	slim.Spec = corev1.PodSpec{
		NodeName: pod.Spec.NodeName, NodeSelector: pod.Spec.NodeSelector, Affinity: slimAffinity(pod.Spec.Affinity),
		Tolerations: pod.Spec.Tolerations, PriorityClassName: pod.Spec.PriorityClassName, Priority: pod.Spec.Priority,
		PreemptionPolicy: pod.Spec.PreemptionPolicy, Overhead: pod.Spec.Overhead, Resources: pod.Spec.Resources,
		SchedulingGates: pod.Spec.SchedulingGates, ActiveDeadlineSeconds: pod.Spec.ActiveDeadlineSeconds,
		InitContainers: shareContainers(pod.Spec.InitContainers), Containers: shareContainers(pod.Spec.Containers),
	}
	slim.Status = corev1.PodStatus{
		Phase: pod.Status.Phase, NominatedNodeName: pod.Status.NominatedNodeName,
		Conditions:            slimConditions(pod),
		InitContainerStatuses: slimStatuses(pod.Status.InitContainerStatuses), ContainerStatuses: slimStatuses(pod.Status.ContainerStatuses),
		Resources: pod.Status.Resources, AllocatedResources: pod.Status.AllocatedResources,
		NodeAllocatableResourceClaimStatuses: pod.Status.NodeAllocatableResourceClaimStatuses,
	}
	return slim, nil
}

// ended says whether nothing of a pod runs any more.
func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// staysOnNode says whether pods of an owner of this kind belong to the node that they run on: those of a DaemonSet,
// and static ones. Nobody else ever has their room.
func staysOnNode(kind string) bool { return kind == "DaemonSet" || kind == "Node" }

// only is the part of a map that has some keys; nil for none.
func only(all map[string]string, keys ...string) map[string]string {
	var some map[string]string
	for _, key := range keys {
		if value, there := all[key]; there {
			if some == nil {
				some = map[string]string{}
			}
			some[key] = value
		}
	}
	return some
}

// slimAffinity keeps what is required of nodes, and of affinity to other pods what quotas ask for:
// whether it reaches into other namespaces.
func slimAffinity(affinity *corev1.Affinity) *corev1.Affinity {
	if affinity == nil {
		return nil
	}
	slim := &corev1.Affinity{}
	if a := affinity.NodeAffinity; a != nil && a.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		slim.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: a.RequiredDuringSchedulingIgnoredDuringExecution}
	}
	if crossesNamespaces(affinity) {
		slim.PodAffinity, slim.PodAntiAffinity = affinity.PodAffinity, affinity.PodAntiAffinity
	}
	if slim.NodeAffinity == nil && slim.PodAffinity == nil && slim.PodAntiAffinity == nil {
		return nil
	}
	return slim
}

// slimStatuses keeps what a resize that is under way leaves unsaid in the spec.
func slimStatuses(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	var slim []corev1.ContainerStatus
	for i := range statuses {
		s := &statuses[i]
		if s.Resources != nil || s.AllocatedResources != nil {
			slim = append(slim, SlimStatus(s))
		}
	}
	return slim
}

// SlimStatus keeps of a container's status what it has been given.
func SlimStatus(status *corev1.ContainerStatus) corev1.ContainerStatus {
	slim := corev1.ContainerStatus{Name: status.Name, AllocatedResources: shareResources(status.AllocatedResources)}
	if given := status.Resources; given != nil {
		slim.Resources = &corev1.ResourceRequirements{
			Requests: shareResources(given.Requests), Limits: shareResources(given.Limits), Claims: given.Claims,
		}
	}
	return slim
}

// slimConditions keeps whether such a resize is possible at all, marks, and why a pod has no node.
func slimConditions(pod *corev1.Pod) []corev1.PodCondition {
	var slim []corev1.PodCondition
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		if refused := c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse; refused || c.Type == corev1.PodResizePending ||
			c.Type == corev1.PodResizeInProgress || isMark(*c) {
			slim = append(slim, *c)
		}
	}
	return slim
}

// slimNode keeps of a node what decides who may run there, and how much. Images alone are most of it.
func slimNode(object any) (any, error) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return object, nil
	}
	slim := &corev1.Node{
		TypeMeta: node.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, Labels: node.Labels,
			CreationTimestamp: node.CreationTimestamp, DeletionTimestamp: node.DeletionTimestamp,
		},
		Spec:   corev1.NodeSpec{Taints: node.Spec.Taints, Unschedulable: node.Spec.Unschedulable},
		Status: corev1.NodeStatus{Allocatable: node.Status.Allocatable},
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			slim.Status.Conditions = append(slim.Status.Conditions, corev1.NodeCondition{Type: condition.Type, Status: condition.Status})
		}
	}
	return slim, nil
}

// slimNamespace keeps whether a namespace is ending.
func slimNamespace(object any) (any, error) {
	namespace, ok := object.(*corev1.Namespace)
	if !ok {
		return object, nil
	}
	return &corev1.Namespace{
		TypeMeta: namespace.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Name: namespace.Name, UID: namespace.UID, ResourceVersion: namespace.ResourceVersion, DeletionTimestamp: namespace.DeletionTimestamp,
		},
		Status: corev1.NamespaceStatus{Phase: namespace.Status.Phase},
	}, nil
}

func slimClass(object any) (any, error) {
	class, ok := object.(*schedulingv1.PriorityClass)
	if !ok {
		return object, nil
	}
	slim := *class
	slim.ManagedFields, slim.Annotations, slim.Labels, slim.Description = nil, nil, nil, ""
	return &slim, nil
}
