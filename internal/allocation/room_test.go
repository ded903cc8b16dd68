package allocation

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestRoom(t *testing.T) {
	const limit = 100
	now := metav1.Now()
	for _, c := range []struct {
		name  string
		nodes []*corev1.Node
		pods  []*corev1.Pod
		shape *corev1.Pod
		limit int
		// want is "node:pods node:pods", says a part of why it is not more.
		want, says string
	}{
		{name: "no nodes", shape: podOf("s", "1"), says: "the cluster has no nodes"},
		{name: "an empty node", nodes: nodesOf(1), shape: podOf("s", "3"), want: "n0:2", says: "1 full with that"},
		{name: "never beyond the limit", nodes: nodesOf(3), shape: podOf("s", "2"), limit: 5, want: "n0:4 n1:1"},
		{name: "fewest nodes first", nodes: []*corev1.Node{nodeOf("n0", offers(corev1.ResourceCPU, "2")), nodeOf("n1")},
			shape: podOf("s", "1"), limit: 3, want: "n1:3"},
		{name: "by the number of pods", nodes: nodesOf(1, offers(corev1.ResourcePods, "3")), pods: []*corev1.Pod{podOf("a", "0", on("n0"))},
			shape: podOf("s", "1"), want: "n0:2"},
		{name: "a node that says nothing of pods", nodes: []*corev1.Node{nodeOf("n0", func(n *corev1.Node) {
			delete(n.Status.Allocatable, corev1.ResourcePods)
		})}, shape: podOf("s", "1"), says: "1 with too little pods"},
		{name: "by devices", nodes: []*corev1.Node{nodeOf("n0", offers("example.com/gpu", "2")), nodeOf("n1")},
			shape: podOf("s", "1", asks("example.com/gpu", "1")), want: "n0:2", says: "1 with too little example.com/gpu"},
		{name: "less what is there", nodes: nodesOf(1), pods: []*corev1.Pod{podOf("a", "3500m", on("n0")), podOf("b", "2", on("n0"))},
			shape: podOf("s", "1"), want: "n0:2"},
		{name: "a node that gives more than it has", nodes: nodesOf(1), pods: []*corev1.Pod{podOf("a", "100", on("n0"))},
			shape: podOf("s", "1"), says: "1 with too little cpu"},
		{name: "init containers count", nodes: nodesOf(1), pods: []*corev1.Pod{podOf("a", "1", on("n0"), func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "load", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("6")}}}}
		})}, shape: podOf("s", "1"), want: "n0:2"},
		{name: "overhead counts", nodes: nodesOf(1), shape: podOf("s", "3", func(p *corev1.Pod) {
			p.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m")}
		}), want: "n0:1"},
		{name: "what is ending holds its share", nodes: nodesOf(1), pods: []*corev1.Pod{podOf("a", "6", on("n0"), func(p *corev1.Pod) {
			p.DeletionTimestamp = &now
		})}, shape: podOf("s", "1"), want: "n0:2"},
		{name: "what has ended does not", nodes: nodesOf(1), pods: []*corev1.Pod{
			podOf("a", "6", on("n0"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
			podOf("b", "6", on("n0"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
		}, shape: podOf("s", "4"), want: "n0:2"},

		{name: "cordoned", nodes: nodesOf(2, func(n *corev1.Node) { n.Spec.Unschedulable = n.Name == "n0" }), shape: podOf("s", "8"),
			want: "n1:1", says: "1 cordoned"},
		{name: "not ready", nodes: nodesOf(1, func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }),
			shape: podOf("s", "1"), says: "1 not ready"},
		{name: "being deleted", nodes: nodesOf(1, func(n *corev1.Node) { n.DeletionTimestamp = &now }), shape: podOf("s", "1"), says: "1 being deleted"},
		{name: "tainted", nodes: nodesOf(1, tainted("gpu", corev1.TaintEffectNoSchedule)), shape: podOf("s", "1"), says: "1 with the taint gpu"},
		{name: "tainted, tolerated", nodes: nodesOf(1, tainted("gpu", corev1.TaintEffectNoSchedule)), shape: podOf("s", "4", func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}}
		}), want: "n0:2"},
		{name: "a preference keeps nobody out", nodes: nodesOf(1, tainted("gpu", corev1.TaintEffectPreferNoSchedule)), shape: podOf("s", "4"), want: "n0:2"},
		{name: "about to go, even if tolerated", nodes: nodesOf(1, tainted("going", corev1.TaintEffectNoSchedule)), shape: podOf("s", "1", func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		}), says: "1 about to go"},
		{name: "another selector", nodes: []*corev1.Node{nodeOf("n0"), nodeOf("n1", inZone("b"))}, shape: podOf("s", "4", func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "b"}
		}), want: "n1:2", says: "1 not selected by the template"},
		{name: "a selector that cannot be parsed", nodes: nodesOf(1), shape: podOf("s", "4", func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "a", Operator: "Perhaps"}}}}}}}
		}), says: "1 not selected by the template"},
		{name: "host ports", nodes: nodesOf(2), pods: []*corev1.Pod{podOf("a", "1", on("n0"), hostPort(80))}, shape: podOf("s", "1", hostPort(80)),
			want: "n1:1", says: "1 whose host port is taken"},
		{name: "resource claims", nodes: nodesOf(1), shape: podOf("s", "1", func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}}
		}), says: "only the scheduler knows"},

		{name: "who waits goes first", nodes: nodesOf(1), pods: []*corev1.Pod{podOf("a", "5")}, shape: podOf("s", "3"), want: "n0:1"},
		{name: "who waits and takes all", nodes: nodesOf(1), pods: []*corev1.Pod{podOf("a", "6")}, shape: podOf("s", "3"), says: "1 wanted by pods that wait"},
		{name: "who waits goes where it hurts", nodes: []*corev1.Node{nodeOf("n0", offers(corev1.ResourceCPU, "9")), nodeOf("n1")},
			pods: []*corev1.Pod{podOf("a", "1")}, shape: podOf("s", "4"), want: "n0:2 n1:1"},
		{name: "who waits and fits nowhere", nodes: nodesOf(1), pods: []*corev1.Pod{podOf("a", "9")}, shape: podOf("s", "4"), want: "n0:2"},
		{name: "who waits and is less important", nodes: nodesOf(1), pods: []*corev1.Pod{podOf("a", "5", priority(-11))},
			shape: podOf("s", "4", priority(-10)), want: "n0:2"},
		{name: "who waits and is as important", nodes: nodesOf(1), pods: []*corev1.Pod{podOf("a", "5", priority(-10))},
			shape: podOf("s", "4", priority(-10)), says: "wanted by pods that wait"},
		{name: "who waits for a gate", nodes: nodesOf(1), pods: []*corev1.Pod{podOf("a", "5", func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "later"}}
		})}, shape: podOf("s", "4"), want: "n0:2"},
		{name: "who waits and is announced", nodes: []*corev1.Node{nodeOf("n0"), nodeOf("n1", offers(corev1.ResourceCPU, "4"))},
			pods:  []*corev1.Pod{podOf("a", "5", func(p *corev1.Pod) { p.Status.NominatedNodeName = "n1" })},
			shape: podOf("s", "4"), want: "n0:2", says: "1 wanted by pods that wait"},
		{name: "apart from others", nodes: nodesOf(2), pods: []*corev1.Pod{podOf("a", "1", on("n0"), labelled("noisy"))},
			shape: podOf("s", "4", apartFrom("noisy", corev1.LabelHostname)), want: "n1:2", says: "1 closed by affinity"},
		{name: "others apart from it", nodes: nodesOf(2), pods: []*corev1.Pod{podOf("a", "1", on("n0"), labelled("shy"), apartFrom("train", corev1.LabelHostname))},
			shape: podOf("s", "4"), want: "n1:2"},
		{name: "one for each node", nodes: nodesOf(3), pods: []*corev1.Pod{podOf("a", "1", on("n1"))},
			shape: podOf("s", "1", apartFrom("train", corev1.LabelHostname)), want: "n0:1 n2:1"},
		{name: "one for each zone", nodes: []*corev1.Node{nodeOf("n0"), nodeOf("n1"), nodeOf("n2", inZone("b"))},
			shape: podOf("s", "1", apartFrom("train", corev1.LabelTopologyZone)), want: "n0:1 n2:1"},
		{name: "another namespace is no neighbour", nodes: nodesOf(1), pods: []*corev1.Pod{podOf("a", "1", on("n0"), func(p *corev1.Pod) { p.Namespace = "other" })},
			shape: podOf("s", "1", apartFrom("train", corev1.LabelHostname)), want: "n0:1"},
		{name: "near others", nodes: []*corev1.Node{nodeOf("n0"), nodeOf("n1", inZone("b"))}, pods: []*corev1.Pod{podOf("a", "1", on("n1"), labelled("cache"))},
			shape: podOf("s", "3", nearTo("cache", corev1.LabelTopologyZone)), want: "n1:2"},
		{name: "near nobody", nodes: nodesOf(1), shape: podOf("s", "1", nearTo("cache", corev1.LabelTopologyZone)), says: "1 closed by affinity"},
		{name: "near each other", nodes: []*corev1.Node{nodeOf("n0"), nodeOf("n1", inZone("b"))}, shape: podOf("s", "3", nearTo("train", corev1.LabelTopologyZone)),
			want: "n0:2"},
		{name: "evenly over zones", nodes: []*corev1.Node{nodeOf("n0"), nodeOf("n1"), nodeOf("n2", inZone("b"), offers(corev1.ResourceCPU, "3"))},
			shape: podOf("s", "2", spreadOver(corev1.LabelTopologyZone, 1)), want: "n0:1 n1:1 n2:1", says: "2 closed by affinity to other pods or by spreading"},
		{name: "evenly with those that are there", nodes: []*corev1.Node{nodeOf("n0"), nodeOf("n1", inZone("b"))},
			pods:  []*corev1.Pod{podOf("a", "1", on("n0")), podOf("b", "1", on("n0"))},
			shape: podOf("s", "4", spreadOver(corev1.LabelTopologyZone, 1)), want: "n1:2 n0:1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.limit == 0 {
				c.limit = limit
			}
			got := Room(Cluster{Nodes: c.nodes, Pods: c.pods}, Wanted{
				Shape: c.shape, Limit: c.limit, DrainTaints: []string{"going"},
			})
			var shares []string
			total := 0
			for _, share := range got.Shares {
				shares = append(shares, fmt.Sprintf("%s:%d", share.Node, share.Pods))
				total += share.Pods
			}
			if text := strings.Join(shares, " "); text != c.want || got.Total != total {
				t.Errorf("%d on %q, want %q (%s)", got.Total, text, c.want, got.Why)
			}
			if (got.Why == "") != (got.Total == c.limit) || !strings.Contains(got.Why, c.says) {
				t.Errorf("why is %q, want %q", got.Why, c.says)
			}
		})
	}
}

func TestRoomOfNothing(t *testing.T) {
	for _, limit := range []int{0, -1} {
		if got := Room(Cluster{Nodes: nodesOf(1)}, Wanted{Shape: podOf("s", "1"), Limit: limit}); got.Total != 0 || got.Shares != nil {
			t.Errorf("limit %d: %+v", limit, got)
		}
	}
}

// TestAbsurdNumbersPromiseNothing: quantities that no integer holds neither wrap around nor panic.
func TestAbsurdNumbersPromiseNothing(t *testing.T) {
	huge := "9223372036854775807"
	var pods []*corev1.Pod
	for i := range 4 {
		pods = append(pods, podOf(fmt.Sprint(i), huge, on("n0"), asks(corev1.ResourceMemory, "9E")))
	}
	for _, shape := range []*corev1.Pod{podOf("s", "1"), podOf("s", huge), podOf("s", "0", asks(corev1.ResourceMemory, huge+"00"))} {
		if got := Room(Cluster{Nodes: nodesOf(1), Pods: pods}, Wanted{Shape: shape, Limit: 3}); got.Total != 0 {
			t.Errorf("%+v is promised on a full node", got)
		}
	}
	negative := podOf("n", "-5", on("n0"))
	if got := Room(Cluster{Nodes: nodesOf(1), Pods: []*corev1.Pod{negative}}, Wanted{Shape: podOf("s", "4"), Limit: 9}); got.Total != 2 {
		t.Errorf("a request below nothing makes room: %+v", got)
	}
}

func TestNothingIsChanged(t *testing.T) {
	nodes, pods, shape := nodesOf(2), []*corev1.Pod{podOf("a", "1", on("n0")), podOf("b", "1")}, podOf("s", "1")
	before := shape.DeepCopy()
	order := slices.Clone(pods)
	first := Room(Cluster{Nodes: nodes, Pods: pods}, Wanted{Shape: shape, Limit: 50})
	second := Room(Cluster{Nodes: nodes, Pods: pods}, Wanted{Shape: shape, Limit: 50})
	if fmt.Sprint(first) != fmt.Sprint(second) {
		t.Errorf("%+v, then %+v", first, second)
	}
	if !slices.Equal(order, pods) || !equality.Semantic.DeepEqual(shape, before) {
		t.Error("the arguments were changed")
	}
}

func TestSpreadHonoursItsPolicies(t *testing.T) {
	// Zone b is closed by a taint, so it takes nobody; whether it counts as empty is the policy's word.
	nodes := []*corev1.Node{nodeOf("n0"), nodeOf("n1", inZone("b"), tainted("gpu", corev1.TaintEffectNoSchedule))}
	for policy, want := range map[corev1.NodeInclusionPolicy]int{corev1.NodeInclusionPolicyIgnore: 1, corev1.NodeInclusionPolicyHonor: 8} {
		shape := podOf("s", "1", spreadOver(corev1.LabelTopologyZone, 1), func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints[0].NodeTaintsPolicy = ptr.To(policy)
		})
		if got := Room(Cluster{Nodes: nodes}, Wanted{Shape: shape, Limit: 50}); got.Total != want {
			t.Errorf("taints policy %s: %d fit, want %d", policy, got.Total, want)
		}
	}
	few := podOf("s", "1", spreadOver(corev1.LabelTopologyZone, 2), func(p *corev1.Pod) { p.Spec.TopologySpreadConstraints[0].MinDomains = ptr.To[int32](2) })
	if got := Room(Cluster{Nodes: nodesOf(2)}, Wanted{Shape: few, Limit: 50}); got.Total != 2 {
		t.Errorf("too few domains: %d fit, want 2", got.Total)
	}
}
