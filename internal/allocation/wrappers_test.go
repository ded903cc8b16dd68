package allocation

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

type nodeChange func(*corev1.Node)

// nodeOf makes a ready node of 8 CPUs, 32 GiB and 10 pods, in zone a.
func nodeOf(name string, changes ...nodeChange) *corev1.Node {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: "a"}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("32Gi"), corev1.ResourcePods: resource.MustParse("10"),
			},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, change := range changes {
		change(node)
	}
	return node
}

func tainted(key string, effect corev1.TaintEffect) nodeChange {
	return func(node *corev1.Node) {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: effect})
	}
}

func inZone(zone string) nodeChange {
	return func(node *corev1.Node) { node.Labels[corev1.LabelTopologyZone] = zone }
}

func offers(name corev1.ResourceName, quantity string) nodeChange {
	return func(node *corev1.Node) { node.Status.Allocatable[name] = resource.MustParse(quantity) }
}

type podChange func(*corev1.Pod)

// podOf makes a pod of one container that requests CPUs.
func podOf(name, cpu string, changes ...podChange) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team", UID: "uid", Labels: map[string]string{"app": "train"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
		}}}},
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func on(node string) podChange { return func(pod *corev1.Pod) { pod.Spec.NodeName = node } }

func labelled(value string) podChange {
	return func(pod *corev1.Pod) { pod.Labels = map[string]string{"app": value} }
}

func asks(name corev1.ResourceName, quantity string) podChange {
	return func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Resources.Requests[name] = resource.MustParse(quantity)
	}
}

func priority(value int32) podChange {
	return func(pod *corev1.Pod) { pod.Spec.Priority = ptr.To(value) }
}

func hostPort(number int32) podChange {
	return func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: number, HostPort: number}}
	}
}

func termOf(app, key string) []corev1.PodAffinityTerm {
	return []corev1.PodAffinityTerm{{TopologyKey: key, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}}
}

// apartFrom keeps a pod away from those with a label.
func apartFrom(app, key string) podChange {
	return func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: termOf(app, key)}}
	}
}

// nearTo has a pod placed only beside those with a label.
func nearTo(app, key string) podChange {
	return func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: termOf(app, key)}}
	}
}

func spreadOver(key string, skew int32) podChange {
	return func(pod *corev1.Pod) {
		pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			TopologyKey: key, MaxSkew: skew, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "train"}},
		}}
	}
}

// nodesOf makes n nodes, n0 to n(n-1).
func nodesOf(n int, changes ...nodeChange) []*corev1.Node {
	var nodes []*corev1.Node
	for i := range n {
		nodes = append(nodes, nodeOf(fmt.Sprintf("n%d", i), changes...))
	}
	return nodes
}
