package allocation

import (
	"slices"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// closedFor says why the scheduler would not even consider a node for a pod, in words that follow
// "nodes:"; empty when it would.
func closedFor(node *corev1.Node, pod *corev1.Pod, drainTaints []string) string {
	switch {
	case node.DeletionTimestamp != nil:
		return "being deleted"
	case !ready(node):
		return "not ready"
	case node.Spec.Unschedulable:
		return "cordoned"
	case slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return slices.Contains(drainTaints, t.Key) }):
		return "about to go"
	}
	if taint, found := untolerated(node, pod); found {
		return "with the taint " + taint.Key
	}
	if pod.Spec.NodeName != "" && pod.Spec.NodeName != node.Name || !selected(node, pod) {
		return "not selected by the template"
	}
	return ""
}

func ready(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func untolerated(node *corev1.Node, pod *corev1.Pod) (corev1.Taint, bool) {
	keepsOut := func(taint *corev1.Taint) bool {
		return taint.Effect == corev1.TaintEffectNoSchedule || taint.Effect == corev1.TaintEffectNoExecute
	}
	return schedulinghelper.FindMatchingUntoleratedTaint(logr.Discard(), node.Spec.Taints, pod.Spec.Tolerations, keepsOut, true)
}

// selected says whether the pod's selector and required affinity allow the node. What cannot be
// parsed allows none, as in the scheduler.
func selected(node *corev1.Node, pod *corev1.Pod) bool {
	match, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	return err == nil && match
}

// port is one port of a node. An empty address stands for all of them.
type port struct {
	address  string
	protocol corev1.Protocol
	number   int32
}

func hostPorts(pod *corev1.Pod) []port {
	var ports []port
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort <= 0 {
				continue
			}
			one := port{address: p.HostIP, protocol: p.Protocol, number: p.HostPort}
			if one.address == "0.0.0.0" || one.address == "::" {
				one.address = ""
			}
			if one.protocol == "" {
				one.protocol = corev1.ProtocolTCP
			}
			ports = append(ports, one)
		}
	}
	for i := range pod.Spec.InitContainers {
		if restarts := pod.Spec.InitContainers[i].RestartPolicy; restarts != nil && *restarts == corev1.ContainerRestartPolicyAlways {
			add(&pod.Spec.InitContainers[i])
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return ports
}

func conflict(held, wanted []port) bool {
	for _, a := range held {
		for _, b := range wanted {
			sameAddress := a.address == "" || b.address == "" || a.address == b.address
			if sameAddress && a.protocol == b.protocol && a.number == b.number {
				return true
			}
		}
	}
	return false
}
