package fleet

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// reasonsBeyondRoom begin what kube-scheduler says of nodes that would refuse a pod however much of them were free. What it may say
// besides is taken for a lack of room.
var reasonsBeyondRoom = []string{
	"node(s) didn't match Pod's node affinity", "node(s) didn't match scheduler-enforced node affinity", "node(s) didn't match the requested node name",
	"node(s) didn't satisfy plugin(s) [", "node(s) had untolerated taint", "node(s) had taints that the pod didn't tolerate", "node(s) were unschedulable",
	"node(s) had volume node affinity conflict", "node(s) didn't match PersistentVolume's node affinity", "node(s) had no available volume zone",
	"node(s) didn't find available persistent volumes to bind", "node(s) unavailable due to", "pod has unbound immediate PersistentVolumeClaims",
	"persistentvolumeclaim ", "node(s) didn't match pod affinity rules", "node(s) didn't match pod anti-affinity rules",
	"node(s) didn't satisfy existing pods anti-affinity rules", "node(s) didn't match pod topology spread constraints",
	"node(s) didn't have free ports",
}

// RefusedBeyondRoom says whether the scheduler has refused a pod on all nodes for reasons that have nothing to do with how much is free
// there. Of a pod that may run on one node only that is a verdict on this node.
func RefusedBeyondRoom(pod *corev1.Pod) bool { return verdictOn(pod) != nil }

// verdictOn is what the scheduler has said so in; nil where it has not.
func verdictOn(pod *corev1.Pod) *corev1.PodCondition {
	if pod.Spec.NodeName != "" {
		return nil
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && beyondRoom(c.Message) {
			return c
		}
	}
	return nil
}

// sameVerdict says whether the scheduler says the same of two versions of a pod.
func sameVerdict(a, b *corev1.Pod) bool {
	x, y := verdictOn(a), verdictOn(b)
	return (x == nil) == (y == nil) && (x == nil || x.Message == y.Message)
}

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
	case old.object.UID == object.UID && sameVerdict(old.object, object):
		return old.refused
	default:
		return now
	}
}

// beyondRoom reads such as "0/9 nodes are available: 1 node(s) had volume node affinity conflict, 8 node(s) were unschedulable.
// preemption: …".
func beyondRoom(message string) bool {
	head, reasons, said := strings.Cut(message, " nodes are available: ")
	if !said || !strings.HasPrefix(head, "0/") {
		return false
	}
	reasons, _, _ = strings.Cut(reasons, ". ") // what comes of preemption follows
	for reason := range strings.SplitSeq(strings.TrimSuffix(reasons, "."), ", ") {
		reason = strings.TrimLeft(reason, "0123456789 ")
		if !slices.ContainsFunc(reasonsBeyondRoom, func(known string) bool { return strings.HasPrefix(reason, known) }) {
			return false
		}
	}
	return true
}
