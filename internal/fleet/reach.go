package fleet

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/concertina-dev/concertina/internal/allocation"
)

// reach is where pods may go that select and tolerate alike.
type reach struct {
	affinity    nodeaffinity.RequiredNodeAffinity
	tolerations []corev1.Toleration
	// nodes has a bit for each node that they may go to.
	nodes allocation.Bits
	// used is the number of the last snapshot that needed it.
	used uint64
	// dropped is true when nobody brings it up to date any more.
	dropped bool
}

// reachKey is the same for pods of the same reach.
func reachKey(pod *corev1.Pod) string {
	key := struct {
		Selector    map[string]string    `json:"s,omitempty"`
		Affinity    *corev1.NodeSelector `json:"a,omitempty"`
		Tolerations []string             `json:"t,omitempty"`
	}{Selector: pod.Spec.NodeSelector, Affinity: requiredNodes(pod)}
	for i := range pod.Spec.Tolerations {
		t := &pod.Spec.Tolerations[i]
		key.Tolerations = append(key.Tolerations, strings.Join([]string{t.Key, string(t.Operator), t.Value, string(t.Effect)}, "\x00"))
	}
	slices.Sort(key.Tolerations)
	text, err := json.Marshal(key)
	if err != nil {
		return "" // strings, maps and slices of strings: there is no error
	}
	return string(text)
}

func requiredNodes(pod *corev1.Pod) *corev1.NodeSelector {
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}

func newReach(pod *corev1.Pod) *reach {
	return &reach{affinity: nodeaffinity.GetRequiredNodeAffinity(pod), tolerations: pod.Spec.Tolerations}
}

// allows says whether the node may take such pods, whether or not it is closed or full now. What cannot
// be parsed allows none, as in the scheduler.
func (r *reach) allows(node *corev1.Node) bool {
	keepsOut := func(taint *corev1.Taint) bool {
		return (taint.Effect == corev1.TaintEffectNoSchedule || taint.Effect == corev1.TaintEffectNoExecute) && !passing(taint.Key)
	}
	if _, kept := schedulinghelper.FindMatchingUntoleratedTaint(logr.Discard(), node.Spec.Taints, r.tolerations, keepsOut, true); kept {
		return false
	}
	match, err := r.affinity.Match(node)
	return err == nil && match
}

// Tolerated says whether pods with some tolerations may be on a node with a taint, as the scheduler and the cluster have it.
func Tolerated(tolerations []corev1.Toleration, taint *corev1.Taint) bool {
	return schedulinghelper.TolerationsTolerateTaint(logr.Discard(), tolerations, taint, true)
}

// passing says whether a taint only repeats that the node is closed now.
func passing(key string) bool {
	return key == corev1.TaintNodeUnschedulable || key == corev1.TaintNodeNotReady || key == corev1.TaintNodeUnreachable
}

// mark brings the bit of one node up to date; nil for a node that is gone.
func (r *reach) mark(id allocation.NodeID, node *corev1.Node) {
	for len(r.nodes) <= int(id)>>6 {
		r.nodes = append(r.nodes, 0)
	}
	if node != nil && r.allows(node) {
		r.nodes.Set(int(id))
	} else {
		r.nodes.Clear(int(id))
	}
}

// pinField is the field of a node that a pin names.
const pinField = "metadata.name"

// Pin has a pod placed on one node: the requirement is added to each term of its required node
// affinity.
func Pin(pod *corev1.Pod, node string) {
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	required := &pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	pin := corev1.NodeSelectorRequirement{Key: pinField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}
	if *required == nil {
		*required = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{pin}}}}
		return
	}
	for i := range (*required).NodeSelectorTerms {
		term := &(*required).NodeSelectorTerms[i]
		if len(term.MatchFields)+len(term.MatchExpressions) > 0 { // an empty term selects nothing, and must not begin to
			term.MatchFields = append(term.MatchFields, pin)
		}
	}
}

// Pinned is the one node that a pod's affinity names; empty for none.
func Pinned(pod *corev1.Pod) string {
	required := requiredNodes(pod)
	if required == nil {
		return ""
	}
	name := ""
	for i := range required.NodeSelectorTerms {
		term := &required.NodeSelectorTerms[i]
		if len(term.MatchFields)+len(term.MatchExpressions) == 0 {
			continue
		}
		last := len(term.MatchFields) - 1
		if last < 0 || !namesOne(&term.MatchFields[last]) || name != "" && name != term.MatchFields[last].Values[0] {
			return ""
		}
		name = term.MatchFields[last].Values[0]
	}
	return name
}

// namesOne says whether a requirement names exactly one node.
func namesOne(r *corev1.NodeSelectorRequirement) bool {
	return r.Key == pinField && r.Operator == corev1.NodeSelectorOpIn && len(r.Values) == 1
}

// unpinned is the pod without what Pin has added.
func unpinned(pod *corev1.Pod) *corev1.Pod {
	if Pinned(pod) == "" {
		return pod
	}
	free := *pod
	affinity, nodes := *pod.Spec.Affinity, *pod.Spec.Affinity.NodeAffinity
	required := &corev1.NodeSelector{}
	for i := range requiredNodes(pod).NodeSelectorTerms {
		term := requiredNodes(pod).NodeSelectorTerms[i]
		if n := len(term.MatchFields); n > 0 {
			term.MatchFields = slices.Clone(term.MatchFields[:n-1])
			if n == 1 {
				term.MatchFields = nil
			}
			if n == 1 && len(term.MatchExpressions) == 0 {
				// Only a pod that selected no node by itself has a term of the pin alone.
				required = nil
				break
			}
		}
		required.NodeSelectorTerms = append(required.NodeSelectorTerms, term)
	}
	nodes.RequiredDuringSchedulingIgnoredDuringExecution = required
	affinity.NodeAffinity = &nodes
	free.Spec.Affinity = &affinity
	return &free
}
