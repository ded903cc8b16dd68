package controller

import (
	"fmt"
	"hash/fnv"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// DefaultDrainTaints are the keys of taints that say that a node is about to go: the cluster
// autoscaler's, Karpenter's, and the notices of spot instances.
var DefaultDrainTaints = []string{
	"ToBeDeletedByClusterAutoscaler",
	"karpenter.sh/disrupted",
	"karpenter.sh/disruption",
	"aws-node-termination-handler/spot-itn",
	"aws-node-termination-handler/scheduled-maintenance",
	"aws-node-termination-handler/asg-lifecycle-termination",
	"aws-node-termination-handler/rebalance-recommendation",
	"cloud.google.com/impending-node-termination",
}

// Nodes is what is known of the cluster's nodes.
type Nodes struct {
	// ByName are the nodes that are there.
	ByName map[string]*corev1.Node
	// Gone are nodes that workers of the job were bound to and that are there no more, by a live
	// read.
	Gone map[string]bool
}

// drains says which taint of a pod's node asks its workers to leave: one of the keys, or one that
// would have the pod evicted. Empty for none; what is tolerated for a while only is tolerated.
func (n Nodes) drains(pod *corev1.Pod, keys []string) string {
	node := n.ByName[pod.Spec.NodeName]
	if node == nil {
		return ""
	}
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		if slices.Contains(keys, taint.Key) || taint.Effect == corev1.TaintEffectNoExecute && !tolerated(pod, taint) {
			return fmt.Sprintf("%s:%s", taint.Key, taint.Effect)
		}
	}
	return ""
}

func tolerated(pod *corev1.Pod, taint *corev1.Taint) bool {
	return slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
		if t.Effect != "" && t.Effect != taint.Effect {
			return false
		}
		if t.Operator == corev1.TolerationOpExists {
			return t.Key == "" || t.Key == taint.Key
		}
		return t.Key == taint.Key && t.Value == taint.Value
	})
}

// outOfService says whether somebody vouches that nothing runs on the node any more.
func (n Nodes) outOfService(name string) bool {
	node := n.ByName[name]
	return node != nil && slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

// unreachable says whether the cluster has lost touch with a node. What runs there may run on.
func (n Nodes) unreachable(name string) bool {
	node := n.ByName[name]
	return node != nil && slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnreachable })
}

// digest changes when room may have appeared on a node: one came, was made schedulable or ready, lost
// a taint, or grew.
func (n Nodes) digest() uint64 {
	var names []string
	for name := range n.ByName {
		names = append(names, name)
	}
	hash := fnv.New64a()
	for _, name := range sorted(names) {
		_, _ = fmt.Fprint(hash, nodeDigest(n.ByName[name]))
	}
	return hash.Sum64()
}

// nodeDigest is what of a node decides whether pods fit; heartbeats do not change it.
func nodeDigest(node *corev1.Node) string {
	ready := false
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			ready = condition.Status == corev1.ConditionTrue
		}
	}
	var allocatable, taints []string
	for name, quantity := range node.Status.Allocatable {
		allocatable = append(allocatable, string(name)+"="+quantity.String())
	}
	for i := range node.Spec.Taints {
		taints = append(taints, node.Spec.Taints[i].ToString())
	}
	return fmt.Sprintln(node.Name, node.Labels, ready, node.Spec.Unschedulable, sorted(allocatable), sorted(taints))
}
