package allocation

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
)

// Cluster is what there is now: all nodes, and all pods of all namespaces, as they are or as Slim
// left them, but pods without a node that the caller has room in mind for.
type Cluster struct {
	Nodes []*corev1.Node
	Pods  []*corev1.Pod
}

// Wanted is what room is looked for.
type Wanted struct {
	// Shape is the pod that is to be placed. A pod that admission has seen is best: it shows the
	// overhead of its runtime, the defaults of its namespace, and its priority as a number. Without
	// that number every pod that waits for a node counts as more important. Limits are not looked at.
	Shape *corev1.Pod
	// Limit is how many are wanted at most.
	Limit int
	// DrainTaints are keys of taints whose nodes are about to go: they offer nothing, even to pods
	// that tolerate them.
	DrainTaints []string
}

// Placement is where room was found.
type Placement struct {
	// Total is the number of pods that fit, at most Limit.
	Total int
	// Shares are the nodes that they fit on, those with most room first.
	Shares []Share
	// Why says in words why it is not more; empty when Limit was reached.
	Why string
}

// Share is what one node can take.
type Share struct {
	Node string
	Pods int
}

// Room says how many more pods of a shape fit. Pods that wait for a node and are not less important
// are placed first, where they hurt most, so that the promise also holds once they are in.
func Room(cluster Cluster, want Wanted) Placement {
	if want.Limit <= 0 {
		return Placement{}
	}
	if fault := unknowable(want.Shape); fault != "" {
		return Placement{Why: fault}
	}
	c := newCandidates(cluster, want)
	c.chargeWaiting()
	taken := c.place(want.Limit)
	placement := Placement{}
	for i, node := range c.open {
		if taken[i] > 0 {
			placement.Total += taken[i]
			placement.Shares = append(placement.Shares, Share{Node: node.node.Name, Pods: taken[i]})
		}
	}
	slices.SortFunc(placement.Shares, func(a, b Share) int {
		return cmp.Or(cmp.Compare(b.Pods, a.Pods), strings.Compare(a.Node, b.Node))
	})
	if placement.Total < want.Limit {
		placement.Why = c.why(taken)
	}
	return placement
}

// unknowable says why nobody but the scheduler can tell whether a pod fits.
func unknowable(shape *corev1.Pod) string {
	if len(shape.Spec.ResourceClaims) > 0 {
		return "the template has resource claims, and only the scheduler knows which devices are free"
	}
	return ""
}

// candidates are the nodes that may take a pod of the shape, with what is left on them.
type candidates struct {
	shape    *corev1.Pod
	request  amounts
	ports    []port
	topology *topology
	// open are the nodes that the scheduler would consider, by name.
	open []*candidate
	// closed counts the other nodes, by reason.
	closed  map[string]int
	waiting []*corev1.Pod
}

type candidate struct {
	node  *corev1.Node
	free  amounts
	ports []port
	// room is how many pods of the shape it takes while those that wait are placed.
	room int
	// waited says that a pod that waits for a node was charged here.
	waited bool
}

func newCandidates(cluster Cluster, want Wanted) *candidates {
	c := &candidates{
		shape: want.Shape, request: requests(want.Shape), ports: hostPorts(want.Shape), closed: map[string]int{},
	}
	byNode := map[string][]*corev1.Pod{}
	for _, pod := range cluster.Pods {
		switch {
		case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		case pod.Spec.NodeName != "":
			byNode[pod.Spec.NodeName] = append(byNode[pod.Spec.NodeName], pod)
		case want.competes(pod):
			c.waiting = append(c.waiting, pod)
		}
	}
	nodes := slices.SortedFunc(slices.Values(cluster.Nodes), func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	c.topology = newTopology(want.Shape, nodes, byNode)
	for _, node := range nodes {
		if reason := closedFor(node, want.Shape, want.DrainTaints); reason != "" {
			c.closed[reason]++
			continue
		}
		one := &candidate{node: node, free: allocatable(node)}
		for _, pod := range byNode[node.Name] {
			one.charge(pod)
		}
		c.open = append(c.open, one)
	}
	slices.SortFunc(c.waiting, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(schedulinghelper.PodPriority(b), schedulinghelper.PodPriority(a)),
			strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return c
}

// competes says whether a pod without a node may take room from the shape.
func (w *Wanted) competes(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && len(pod.Spec.SchedulingGates) == 0 && !lessImportant(pod, w.Shape)
}

// lessImportant says whether a pod that waits stands behind the shape.
func lessImportant(pod, shape *corev1.Pod) bool {
	return pod.Spec.Priority != nil && shape.Spec.Priority != nil && *pod.Spec.Priority < *shape.Spec.Priority
}

func (n *candidate) charge(pod *corev1.Pod) {
	n.free.sub(requests(pod))
	n.ports = append(n.ports, hostPorts(pod)...)
}

// takes is how many pods of the shape fit, regardless of other nodes.
func (c *candidates) takes(n *candidate) int {
	if conflict(n.ports, c.ports) {
		return 0
	}
	count := n.free.holds(c.request)
	if len(c.ports) > 0 {
		count = min(count, 1)
	}
	return count
}

// chargeWaiting places the pods that wait for a node: where the scheduler has announced them, else
// on the node where the shape loses most by it. Only nodes that have room for the shape matter.
func (c *candidates) chargeWaiting() {
	for _, n := range c.open {
		if n.room = c.takes(n); c.topology.closes(n.node) {
			n.room = 0
		}
	}
	for _, pod := range c.waiting {
		request, ports := requests(pod), hostPorts(pod)
		var worst *candidate
		most := -1
		for _, n := range c.open {
			if loss := c.loss(n, request, ports); loss > most && mayGoTo(pod, request, ports, n) {
				worst, most = n, loss
			}
		}
		if worst != nil {
			worst.charge(pod)
			worst.room, worst.waited = c.takes(worst), true
		}
	}
}

// loss is how many pods of the shape a node takes less when it has taken another pod; -1 when it
// takes none as it is.
func (c *candidates) loss(n *candidate, request amounts, ports []port) int {
	if n.room == 0 {
		return -1
	}
	if conflict(ports, c.ports) {
		return n.room
	}
	return n.room - min(n.room, n.free.holdsBeside(c.request, request))
}

// mayGoTo says whether the scheduler may place a pod that waits on a node. One that is announced there
// waits for others to end, so it need not fit yet.
func mayGoTo(pod *corev1.Pod, request amounts, ports []port, n *candidate) bool {
	if nominated := pod.Status.NominatedNodeName; nominated != "" {
		return nominated == n.node.Name
	}
	return n.free.holds(request) > 0 && !conflict(n.ports, ports) && closedFor(n.node, pod, nil) == ""
}

// place fills nodes until the limit is reached or nothing fits any more, and returns how many pods
// each open node takes.
func (c *candidates) place(limit int) []int {
	left, taken := make([]int, len(c.open)), make([]int, len(c.open))
	for i, n := range c.open {
		left[i] = c.takes(n)
	}
	if c.topology == nil {
		order := make([]int, len(c.open))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(left[b], left[a]) })
		for _, i := range order {
			taken[i] = min(left[i], limit)
			limit -= taken[i]
		}
		return taken
	}
	for ; limit > 0; limit-- {
		best := -1
		for i, n := range c.open {
			if left[i] == 0 || !c.topology.allows(n.node) {
				continue
			}
			if best < 0 || cmp.Or(cmp.Compare(c.topology.crowd(n.node), c.topology.crowd(c.open[best].node)), cmp.Compare(left[best], left[i])) < 0 {
				best = i
			}
		}
		if best < 0 {
			break
		}
		c.topology.add(c.open[best].node)
		left[best]--
		taken[best]++
	}
	return taken
}

// why tells what keeps the nodes from taking more.
func (c *candidates) why(taken []int) string {
	reasons := maps.Clone(c.closed)
	for i, n := range c.open {
		switch {
		case c.takes(n) > taken[i]:
			reasons["closed by affinity to other pods or by spreading"]++
		case taken[i] > 0:
			reasons["full with that"]++
		case conflict(n.ports, c.ports):
			reasons["whose host port is taken"]++
		case n.waited:
			reasons["wanted by pods that wait"]++
		default:
			reasons["with too little "+n.free.short(c.request)]++
		}
	}
	if len(reasons) == 0 {
		return "the cluster has no nodes"
	}
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		parts = append(parts, fmt.Sprintf("%d %s", reasons[reason], reason))
	}
	return "nodes: " + strings.Join(parts, ", ")
}
