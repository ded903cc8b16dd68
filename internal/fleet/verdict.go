package fleet

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// reasonsOfNodes begin what kube-scheduler says of nodes that would refuse a pod however much of them were free, and whatever other pods
// do: it holds until the node is another one. What it may say besides these and reasonsOfPods is taken for a lack of room.
var reasonsOfNodes = []string{
	"node(s) didn't match Pod's node affinity", "node(s) didn't match scheduler-enforced node affinity", "node(s) didn't match the requested node name",
	"node(s) didn't satisfy plugin(s) [", "node(s) had untolerated taint", "node(s) had taints that the pod didn't tolerate", "node(s) were unschedulable",
	"node(s) had volume node affinity conflict", "node(s) didn't match PersistentVolume's node affinity", "node(s) had no available volume zone",
	"node(s) didn't find available persistent volumes to bind", "node(s) unavailable due to", "pod has unbound immediate PersistentVolumeClaims",
	"persistentvolumeclaim ",
}

// reasonsOfPods begin what it says of nodes that refuse a pod for what other pods have or are. It may be over with each pod that comes or
// goes, on that node or on others: a pod that waits for the host port of one has that one's room as well.
var reasonsOfPods = []string{
	"node(s) didn't match pod affinity rules", "node(s) didn't match pod anti-affinity rules",
	"node(s) didn't satisfy existing pods anti-affinity rules", "node(s) didn't match pod topology spread constraints",
	"node(s) didn't have free ports",
}

// RefusedBeyondRoom says whether the scheduler has refused a pod on all nodes for reasons that have nothing to do with how much is free
// there. Of a pod that may run on one node only that is a verdict on this node.
func RefusedBeyondRoom(pod *corev1.Pod) bool {
	return refusedFor(pod, reasonsOfNodes, reasonsOfPods) != nil
}

// verdictOn is what the scheduler has said so in of a pod, where that holds as long as the nodes are as they are; nil where it has not.
// None is asked for of workers: those who are refused are withdrawn, and a scheduler may have yet to hear of their node.
func verdictOn(object *corev1.Pod) *corev1.PodCondition {
	if ownerOf(object) != "" {
		return nil
	}
	return refusedFor(object, reasonsOfNodes)
}

// refusedFor is what the scheduler has refused a pod in, for no other reasons than these; nil where it has not.
func refusedFor(pod *corev1.Pod, reasons ...[]string) *corev1.PodCondition {
	if pod.Spec.NodeName != "" {
		return nil
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && saysOnly(c.Message, reasons) {
			return c
		}
	}
	return nil
}

// saysTheSame says whether what the scheduler says of a pod makes no difference to who has room. Its sentences count nodes: each one that
// comes or goes has them change, of all pods that wait. Where it has spoken of all nodes as they are it is no news that it does so again.
func (c *Cluster) saysTheSame(old *pod, object *corev1.Pod) bool {
	x, y := verdictOn(old.object), verdictOn(object)
	return (x == nil) == (y == nil) && (x == nil || x.Message == y.Message || c.refusedByAll(old))
}

// refusedByAll says whether the scheduler has refused a pod since any node came or became another one.
func (c *Cluster) refusedByAll(one *pod) bool { return one.refused.After(c.nodes.changed) }

// refusedAt is when the scheduler has said so: when that was heard, or, of a pod that was not known before, since when it says something
// like it. Zero where it does not.
func refusedAt(old *pod, object *corev1.Pod, now time.Time) time.Time {
	says := verdictOn(object)
	switch {
	case says == nil:
		return time.Time{}
	case old == nil:
		if since := latest(object.CreationTimestamp.Time, says.LastTransitionTime.Time); since.Before(now) {
			return since
		}
		return now
	case old.object.UID == object.UID && !old.refused.IsZero() && verdictOn(old.object).Message == says.Message:
		return old.refused
	default:
		return now
	}
}

// saysOnly reads such as "0/9 nodes are available: 1 node(s) had volume node affinity conflict, 8 node(s) were unschedulable.
// preemption: …".
func saysOnly(message string, reasons [][]string) bool {
	head, said, some := strings.Cut(message, " nodes are available: ")
	if !some || !strings.HasPrefix(head, "0/") {
		return false
	}
	said, _, _ = strings.Cut(said, ". ") // what comes of preemption follows
	for one := range strings.SplitSeq(strings.TrimSuffix(said, "."), ", ") {
		one = strings.TrimLeft(one, "0123456789 ")
		begins := func(known string) bool { return strings.HasPrefix(one, known) }
		if !slices.ContainsFunc(reasons, func(list []string) bool { return slices.ContainsFunc(list, begins) }) {
			return false
		}
	}
	return true
}
