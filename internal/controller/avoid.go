package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

const (
	// nodeBackOff is for how long a node is avoided at first. It doubles with each failure there, up to
	// spec.failure.maxBackOff. It is longer than the first pauses of the job: those are to end while the node is still avoided.
	nodeBackOff = 30 * time.Second
	// mostAvoided is how many nodes status.avoidedNodes holds.
	mostAvoided = 16
	// fewNodes is how many nodes may be to blame at a time, or one after the other, until it is hardly the nodes.
	fewNodes = 3
	// maxAvoidedMessage bounds the message of one of them, in bytes.
	maxAvoidedMessage = 256
)

// avoid keeps the job off nodes that are to blame for the loss of workers, for a while that doubles each time.
func (p *planner) avoid(nodes []string, why string) { p.avoidFrom(p.Now, nodes, why) }

// avoidFrom does the same for a job that makes no use of any node before a time.
func (p *planner) avoidFrom(from time.Time, nodes []string, why string) {
	nodes = slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(nodes))), func(name string) bool { return name == "" })
	all := slices.Clone(p.plan.Status.AvoidedNodes)
	for _, name := range nodes {
		failures, devices := int32(1), (*int32)(nil)
		if i := slices.IndexFunc(all, isNode(name)); i >= 0 {
			failures, devices = failures+value(all[i].Failures), all[i].Devices
			all = slices.Delete(all, i, i+1)
		}
		until := from.Add(p.backOff(nodeBackOff, failures))
		all = append(all, v1alpha1.AvoidedNode{
			Name: name, Failures: ptr.To(failures), Devices: devices, Until: ptr.To(metav1.NewTime(until)), Message: cut(why, maxAvoidedMessage),
		})
	}
	if len(all) > mostAvoided {
		slices.SortStableFunc(all, p.avoidedMore(nodes))
		all = all[:mostAvoided]
	}
	slices.SortFunc(all, func(a, b v1alpha1.AvoidedNode) int { return strings.Compare(a.Name, b.Name) })
	p.plan.Status.AvoidedNodes = all
}

// suspects are those of the nodes of a gang that did not start which are to blame, by the pods that something is wrong with:
// none where it is hardly the nodes, as more than a few are, and more than half of them.
func suspects(pods []*corev1.Pod, wrong func(*corev1.Pod) bool) []string {
	all, bad := map[string]bool{}, map[string]bool{}
	for _, pod := range pods {
		node := pinned(pod) // where the scheduler chose, it would choose it again
		if node == "" {
			continue
		}
		if all[node] = true; wrong(pod) {
			bad[node] = true
		}
	}
	if len(bad) > fewNodes && 2*len(bad) > len(all) {
		return nil
	}
	return sortedKeys(bad)
}

// refusedOn are the nodes on which the scheduler has refused pods of a gang. It refuses the others with them; of those that it has
// looked for nodes for it counts these ("1 node(s) …").
func refusedOn(pods []*corev1.Pod) []string {
	for _, says := range []string{"node(s)", ""} {
		if nodes := suspects(pods, func(pod *corev1.Pod) bool {
			return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, says)
			})
		}); len(nodes) > 0 {
			return nodes
		}
	}
	return nil
}

// stuckOn are the nodes on which pods of a gang do not start: their containers cannot, or their agents are not heard.
func (p *planner) stuckOn(pods []*corev1.Pod) []string {
	if nodes := suspects(pods, func(pod *corev1.Pod) bool { return stuckPods([]*corev1.Pod{pod}) != "" }); len(nodes) > 0 {
		return nodes
	}
	return suspects(pods, func(pod *corev1.Pod) bool { return !p.member(pod).Joined })
}

// avoidUnreached keeps the job off the nodes of workers that peers do not reach, and that are given up, and has it grow no more for a
// while where there are many of them: each newcomer would have the world stand for it. Of those that were in no world no change of the
// world counts that; where the node is avoided it was counted.
func (p *planner) avoidUnreached(crew []worker) {
	growth := &p.plan.Elastic.Growth
	var all, nodes, blamed, why []string
	for i := range crew {
		w := &crew[i]
		if w.loss == nil || !w.loss.Unreached || w.pod.DeletionTimestamp != nil {
			continue
		}
		uid := string(w.pod.UID)
		if all = append(all, uid); slices.Contains(growth.Unreached, uid) {
			continue
		}
		text := whose(w.loss, w.pod)
		why = append(why, text)
		for _, node := range toBlame(w.pod) {
			blamed = append(blamed, node)
			if w.loss.Round == 0 && !p.avoids(node) {
				nodes = append(nodes, node)
			}
		}
	}
	growth.Unreached = all
	if len(why) == 0 {
		return
	}
	text := why[0]
	if len(why) > 1 {
		text = fmt.Sprintf("%s; and %d more could not be reached", text, len(why)-1)
	}
	p.avoid(nodes, text)
	if p.growNotOn(blamed); len(growth.Nodes) > fewNodes {
		*growth = growth.failed(p.Now, text, growth.Blamed)
		p.note(corev1.EventTypeWarning, v1alpha1.EventGrowthWithdrawn, "%s", growth.told())
	}
}

// avoidedMore compares what is known of nodes: what is worth more comes first. That is what has just failed, what is avoided yet, and
// of that what failed most often and is avoided for longest.
func (p *planner) avoidedMore(just []string) func(a, b v1alpha1.AvoidedNode) int {
	standing := func(node *v1alpha1.AvoidedNode) int {
		switch {
		case slices.Contains(just, node.Name):
			return 0
		case p.Now.Before(value(node.Until).Time):
			return 1
		default:
			return 2
		}
	}
	return func(a, b v1alpha1.AvoidedNode) int {
		return cmp.Or(
			cmp.Compare(standing(&a), standing(&b)),
			cmp.Compare(value(b.Failures), value(a.Failures)),
			value(b.Until).Compare(value(a.Until).Time),
		)
	}
}

// blamedFor says whether it is known of a node that is avoided now that it is to blame for a pod that failed there: the pod was made
// before that was last written of the node.
func (p *planner) blamedFor(pod *corev1.Pod, name string) bool {
	return slices.ContainsFunc(p.avoidedNow(), func(node v1alpha1.AvoidedNode) bool {
		return node.Name == name && pod.CreationTimestamp.Time.Before(p.blamedAt(&node))
	})
}

// blamedAt is when a node was last to blame: for how long it is avoided follows from how often it was.
func (p *planner) blamedAt(node *v1alpha1.AvoidedNode) time.Time {
	return value(node.Until).Add(-p.backOff(nodeBackOff, value(node.Failures)))
}

func isNode(name string) func(v1alpha1.AvoidedNode) bool {
	return func(node v1alpha1.AvoidedNode) bool { return node.Name == name }
}

// forgetNodes begins the count of a node anew once the job has trained for a while since it may be used again. A newcomer that is
// on its way there may yet fail.
func (p *planner) forgetNodes() {
	training := meta.FindStatusCondition(p.Job.Status.Conditions, v1alpha1.ConditionTraining)
	if training == nil || training.Status != metav1.ConditionTrue {
		return
	}
	p.plan.Status.AvoidedNodes = slices.DeleteFunc(slices.Clone(p.plan.Status.AvoidedNodes), func(node v1alpha1.AvoidedNode) bool {
		from := value(node.Until).Time
		if training.LastTransitionTime.After(from) {
			from = training.LastTransitionTime.Time
		}
		if left := from.Add(trainedWell).Sub(p.Now); left > 0 {
			p.lookAgain(left)
			return false
		}
		return !slices.ContainsFunc(p.workers, func(w worker) bool { return w.newcomer() && w.stays() && nodeOf(w.pod) == node.Name })
	})
}

// avoidedNow are the nodes that are avoided now.
func (p *planner) avoidedNow() []v1alpha1.AvoidedNode {
	return slices.DeleteFunc(slices.Clone(p.plan.Status.AvoidedNodes), func(node v1alpha1.AvoidedNode) bool {
		return !p.Now.Before(value(node.Until).Time)
	})
}

func (p *planner) avoids(name string) bool { return slices.ContainsFunc(p.avoidedNow(), isNode(name)) }

// blamesAnew says whether a node is to blame of which the status does not say so yet.
func (p *planner) blamesAnew() bool {
	return !apiequality.Semantic.DeepEqual(p.Job.Status.AvoidedNodes, p.plan.Status.AvoidedNodes)
}

// leftOut says until when nothing is placed on some nodes.
func (p *planner) leftOut(names []string) string {
	var parts []string
	for _, node := range p.avoidedNow() {
		if slices.Contains(names, node.Name) {
			parts = append(parts, notOn(&node))
		}
	}
	return strings.Join(parts, ", ")
}

// withAvoided is a sentence on where there is room, and which nodes are left out and why.
func (p *planner) withAvoided(sentence string) string {
	for _, node := range p.avoidedNow() {
		sentence += "; " + notOn(&node) + ": " + node.Message
	}
	return sentence
}

func notOn(node *v1alpha1.AvoidedNode) string {
	return fmt.Sprintf("not on node %s until %s", node.Name, value(node.Until).UTC().Format(time.RFC3339))
}
