package controller

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
)

// +kubebuilder:rbac:groups=scheduling.x-k8s.io,resources=podgroups,verbs=patch

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

// DefaultRackLabel is the label by which a node says in which rack it is.
const DefaultRackLabel = "topology.kubernetes.io/rack"

// Nodes is what is known of the nodes that workers of the job have.
type Nodes struct {
	// ByName are those that are there.
	ByName map[string]*corev1.Node
	// Gone are nodes that workers of the job were bound to and that are there no more, by a live
	// read.
	Gone map[string]bool
	// FreeMemory is how much memory nobody has asked for of them, in bytes. It is looked up while the attempt may begin anew.
	FreeMemory map[string]int64
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
		if slices.Contains(keys, taint.Key) || taint.Effect == corev1.TaintEffectNoExecute && !fleet.Tolerated(pod.Spec.Tolerations, taint) {
			return fmt.Sprintf("%s:%s", taint.Key, taint.Effect)
		}
	}
	return ""
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

// inTouch says whether the cluster is in touch with the kubelet of a node.
func (n Nodes) inTouch(name string) bool {
	node := n.ByName[name]
	return node != nil && !n.unreachable(name) && slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// rack is what a node's label says that it may be lost along with; empty where it says nothing.
func (n Nodes) rack(name, label string) string {
	if node := n.ByName[name]; node != nil && label != "" {
		return node.Labels[label]
	}
	return ""
}

// notReady says whether the cluster knows that a node is not ready, or has lost touch with it.
func (n Nodes) notReady(name string) bool { return n.ByName[name] != nil && !n.inTouch(name) }

// gatherNodes looks at the nodes that the workers of a placed gang have, and at those that workers have
// vanished from.
func (r *Reconciler) gatherNodes(ctx context.Context, state *State) error {
	if state.finished() {
		return nil
	}
	on := map[string]bool{}
	for i := range state.Memory.Vanished {
		on[state.Memory.Vanished[i].Node] = true
	}
	if state.target() > 0 && !state.suspended() && isTrue(state.Job.Status.Conditions, v1alpha1.ConditionGangScheduled) {
		for _, pod := range state.gang() {
			if name := pod.Spec.NodeName; name != "" && !podEnded(pod) {
				on[name] = true
			}
		}
	}
	if len(on) == 0 {
		return nil
	}
	names := sortedKeys(on)
	state.Nodes = Nodes{ByName: r.Fleet.Nodes(names), Gone: map[string]bool{}}
	if state.mayBeginAnew() {
		state.Nodes.FreeMemory = r.Fleet.FreeMemory(names)
	}
	for _, name := range names {
		if state.Nodes.ByName[name] != nil {
			continue
		}
		err := r.Live.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("get node %s: %w", name, err)
		}
		state.Nodes.Gone[name] = apierrors.IsNotFound(err)
	}
	return nil
}
