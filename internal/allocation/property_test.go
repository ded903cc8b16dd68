package allocation

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// model is a scheduler of a few lines, which knows nothing of the code under test: it takes pods of
// one container that asks for CPUs and devices.
type model struct {
	nodes []*corev1.Node
	pods  []*corev1.Pod
}

const device = corev1.ResourceName("example.com/gpu")

func (m *model) fits(pod *corev1.Pod, node *corev1.Node) bool {
	if node.Spec.Unschedulable || len(node.Spec.Taints) > 0 && len(pod.Spec.Tolerations) == 0 ||
		node.Status.Conditions[0].Status != corev1.ConditionTrue {
		return false
	}
	if zone := pod.Spec.NodeSelector[corev1.LabelTopologyZone]; zone != "" && node.Labels[corev1.LabelTopologyZone] != zone {
		return false
	}
	count := resource.MustParse("1")
	sums := map[corev1.ResourceName]resource.Quantity{corev1.ResourcePods: count}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, device} {
		sums[name] = pod.Spec.Containers[0].Resources.Requests[name].DeepCopy()
	}
	for _, other := range m.pods {
		if other.Spec.NodeName != node.Name || other.Status.Phase == corev1.PodSucceeded {
			continue
		}
		for name, sum := range sums {
			if name == corev1.ResourcePods {
				sum.Add(count)
			} else {
				sum.Add(other.Spec.Containers[0].Resources.Requests[name])
			}
			sums[name] = sum
		}
	}
	for name, sum := range sums {
		asked := name == corev1.ResourcePods || !pod.Spec.Containers[0].Resources.Requests.Name(name, resource.DecimalSI).IsZero()
		if offered := node.Status.Allocatable[name]; asked && sum.Cmp(offered) > 0 {
			return false
		}
	}
	return m.apart(pod, node) && m.even(pod, node)
}

// apart checks anti-affinity within domains of one label.
func (m *model) apart(pod *corev1.Pod, node *corev1.Node) bool {
	keepsAway := func(one, other *corev1.Pod, theirs *corev1.Node) bool {
		if one.Spec.Affinity == nil {
			return false
		}
		term := one.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0]
		return theirs.Labels[term.TopologyKey] == node.Labels[term.TopologyKey] && term.LabelSelector.MatchLabels["app"] == other.Labels["app"]
	}
	for _, other := range m.pods {
		index := slices.IndexFunc(m.nodes, func(n *corev1.Node) bool { return n.Name == other.Spec.NodeName })
		if index < 0 || other.Status.Phase == corev1.PodSucceeded {
			continue
		}
		if keepsAway(pod, other, m.nodes[index]) || keepsAway(other, pod, m.nodes[index]) {
			return false
		}
	}
	return true
}

// even checks the spreading of the pods of the shape over zones.
func (m *model) even(pod *corev1.Pod, node *corev1.Node) bool {
	if len(pod.Spec.TopologySpreadConstraints) == 0 {
		return true
	}
	zones := map[string]int{}
	for _, n := range m.nodes {
		if zone := pod.Spec.NodeSelector[corev1.LabelTopologyZone]; zone == "" || zone == n.Labels[corev1.LabelTopologyZone] {
			zones[n.Labels[corev1.LabelTopologyZone]] += 0
			for _, other := range m.pods {
				if other.Spec.NodeName == n.Name && other.Labels["app"] == "train" && other.Status.Phase != corev1.PodSucceeded && other.DeletionTimestamp == nil {
					zones[n.Labels[corev1.LabelTopologyZone]]++
				}
			}
		}
	}
	least := zones[node.Labels[corev1.LabelTopologyZone]]
	for _, n := range zones {
		least = min(least, n)
	}
	return zones[node.Labels[corev1.LabelTopologyZone]]+1-least <= int(pod.Spec.TopologySpreadConstraints[0].MaxSkew)
}

// bind places a copy of a pod.
func (m *model) bind(pod *corev1.Pod, node *corev1.Node) {
	pod = pod.DeepCopy()
	pod.Spec.NodeName = node.Name
	m.pods = append(m.pods, pod)
}

func drawCluster(t *rapid.T) *model {
	m := &model{}
	for i := range rapid.IntRange(0, 6).Draw(t, "nodes") {
		node := nodeOf(fmt.Sprintf("n%d", i), inZone(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "zone")),
			offers(corev1.ResourceCPU, rapid.SampledFrom([]string{"0", "1", "3500m", "8"}).Draw(t, "cpu")),
			offers(corev1.ResourcePods, rapid.SampledFrom([]string{"0", "2", "10"}).Draw(t, "pods")))
		if gpus := rapid.IntRange(-1, 4).Draw(t, "gpus"); gpus >= 0 {
			offers(device, fmt.Sprint(gpus))(node)
		}
		node.Spec.Unschedulable = rapid.IntRange(0, 9).Draw(t, "cordoned") == 0
		if rapid.IntRange(0, 5).Draw(t, "tainted") == 0 {
			tainted("gpu", corev1.TaintEffectNoSchedule)(node)
		}
		if rapid.IntRange(0, 9).Draw(t, "broken") == 0 {
			node.Status.Conditions[0].Status = corev1.ConditionFalse
		}
		m.nodes = append(m.nodes, node)
	}
	for i := range rapid.IntRange(0, 8).Draw(t, "others") {
		pod := podOf(fmt.Sprintf("other%d", i), rapid.SampledFrom([]string{"0", "100m", "1", "2"}).Draw(t, "other cpu"),
			on(fmt.Sprintf("n%d", rapid.IntRange(0, 6).Draw(t, "other node"))), labelled(rapid.SampledFrom([]string{"train", "web"}).Draw(t, "app")))
		if rapid.Bool().Draw(t, "device") {
			asks(device, "1")(pod)
		}
		if rapid.IntRange(0, 4).Draw(t, "shy") == 0 {
			apartFrom("train", corev1.LabelHostname)(pod)
		}
		switch rapid.IntRange(0, 3).Draw(t, "state") {
		case 0:
			pod.Status.Phase = corev1.PodSucceeded
		case 1:
			now := metav1.Now()
			pod.DeletionTimestamp = &now
		}
		m.pods = append(m.pods, pod)
	}
	return m
}

func drawShape(t *rapid.T) *corev1.Pod {
	shape := podOf("shape", rapid.SampledFrom([]string{"0", "10m", "1", "1500m"}).Draw(t, "shape cpu"))
	if rapid.Bool().Draw(t, "shape device") {
		asks(device, fmt.Sprint(rapid.IntRange(1, 2).Draw(t, "devices")))(shape)
	}
	if rapid.Bool().Draw(t, "tolerates") {
		shape.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}
	if rapid.IntRange(0, 3).Draw(t, "selects") == 0 {
		shape.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "a"}
	}
	switch rapid.IntRange(0, 5).Draw(t, "affinity") {
	case 0:
		apartFrom("train", rapid.SampledFrom([]string{corev1.LabelHostname, corev1.LabelTopologyZone}).Draw(t, "key"))(shape)
	case 1:
		apartFrom("web", corev1.LabelTopologyZone)(shape)
	case 2:
		spreadOver(corev1.LabelTopologyZone, int32(rapid.IntRange(1, 2).Draw(t, "skew")))(shape)
	}
	return shape
}

// TestRoomIsExactlyWhatFits: whatever order a scheduler takes the nodes in, it places as many as were
// promised, and no more.
func TestRoomIsExactlyWhatFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, shape := drawCluster(t), drawShape(t)
		limit := rapid.IntRange(1, 30).Draw(t, "limit")
		got := Room(Cluster{Nodes: m.nodes, Pods: m.pods}, Wanted{Shape: shape, Limit: limit})

		placed := 0
		for ; placed < limit; placed++ {
			var fitting []*corev1.Node
			for _, node := range m.nodes {
				if m.fits(shape, node) {
					fitting = append(fitting, node)
				}
			}
			if len(fitting) == 0 {
				break
			}
			m.bind(shape, fitting[rapid.IntRange(0, len(fitting)-1).Draw(t, "node")])
		}
		if got.Total != placed {
			t.Fatalf("%d are promised (%s), %d fit", got.Total, got.Why, placed)
		}
		if (got.Why == "") != (placed == limit) {
			t.Fatalf("why is %q with %d of %d", got.Why, placed, limit)
		}
	})
}

// TestPromisesHoldBesideThoseThatWait: once those that wait for a node have one, wherever the
// scheduler placed them, no more was promised than a scheduler that places ours last still places;
// and they never take more away than there was.
func TestPromisesHoldBesideThoseThatWait(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, shape := drawCluster(t), drawShape(t)
		shape.Spec.Affinity, shape.Spec.TopologySpreadConstraints = nil, nil
		free := Room(Cluster{Nodes: m.nodes, Pods: m.pods}, Wanted{Shape: shape, Limit: 50})
		// One pod that waits, so that the worst place is known for sure.
		waiting := podOf("waiting", rapid.SampledFrom([]string{"100m", "1", "2"}).Draw(t, "waiting cpu"), labelled("web"))
		got := Room(Cluster{Nodes: m.nodes, Pods: append(slices.Clone(m.pods), waiting)}, Wanted{Shape: shape, Limit: 50})
		if got.Total > free.Total {
			t.Fatalf("%d are promised beside one that waits, %d without", got.Total, free.Total)
		}
		for _, node := range m.nodes {
			if !m.fits(waiting, node) {
				continue
			}
			after := &model{nodes: m.nodes, pods: slices.Clone(m.pods)}
			after.bind(waiting, node)
			if left := Room(Cluster{Nodes: after.nodes, Pods: after.pods}, Wanted{Shape: shape, Limit: 50}); got.Total > left.Total {
				t.Fatalf("%d are promised; %d fit once the pod that waits is on %s", got.Total, left.Total, node.Name)
			}
		}
	})
}

// TestSlimPodsTakeTheSameRoom: the cache may forget what Room does not read.
func TestSlimPodsTakeTheSameRoom(t *testing.T) {
	slim := Slim("ours")
	rapid.Check(t, func(t *rapid.T) {
		m, shape := drawCluster(t), drawShape(t)
		var slimmed []*corev1.Pod
		for _, pod := range m.pods {
			pod.Annotations = map[string]string{"note": "long"}
			hostPort(int32(rapid.IntRange(80, 81).Draw(t, "port")))(pod)
			object, err := slim(pod.DeepCopy())
			if err != nil {
				t.Fatal(err)
			}
			one, ok := object.(*corev1.Pod)
			if !ok || one.Annotations != nil {
				t.Fatalf("slim is %+v", object)
			}
			slimmed = append(slimmed, one)
		}
		if rapid.Bool().Draw(t, "wants port") {
			hostPort(80)(shape)
		}
		want := Room(Cluster{Nodes: m.nodes, Pods: m.pods}, Wanted{Shape: shape, Limit: 20})
		got := Room(Cluster{Nodes: m.nodes, Pods: slimmed}, Wanted{Shape: shape, Limit: 20})
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%+v with slim pods, %+v with whole ones", got, want)
		}
	})
}

func TestPodsOfOursStayWhole(t *testing.T) {
	pod := podOf("mine", "1", func(p *corev1.Pod) {
		p.Labels["ours"], p.Annotations = "yes", map[string]string{"a": "b"}
		p.OwnerReferences = []metav1.OwnerReference{{Name: "job"}}
	})
	object, err := Slim("ours")(pod.DeepCopy())
	if err != nil || !equality.Semantic.DeepEqual(object, pod) {
		t.Errorf("%+v, %v", object, err)
	}
	if object, err := Slim("ours")("tombstone"); err != nil || object != "tombstone" {
		t.Errorf("%v, %v", object, err)
	}
}
