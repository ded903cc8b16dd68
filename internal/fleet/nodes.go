package fleet

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/concertina-dev/concertina/internal/allocation"
)

// autoscalerCandidate is the taint by which the cluster autoscaler says that it would remove a node.
const autoscalerCandidate = "DeletionCandidateOfClusterAutoscaler"

// node is one node, or the name of one that pods are on and that is not there.
type node struct {
	id   allocation.NodeID
	name string
	// object is nil while the node is not there. described is what the planner sees of it, but for its room: it
	// is found when the object changes, since a plan asks for that of all nodes.
	object    *corev1.Node
	described allocation.Node
	capacity  shares
	// changed is when it came, or when what decides who may run there changed.
	changed time.Time
	// used is what pods hold of it, fixtures the part of that which is held by pods that belong to the node.
	used, fixtures allocation.Amounts
	pods           map[podKey]*pod
}

// nodes are interned by name. A slot that is free is nil.
type nodes struct {
	slots []*node
	index map[string]*node
	free  []allocation.NodeID
	// sorted are those that there are, by name; nil when it has to be found out anew.
	sorted []*node
	// changed is when the last of all came or changed.
	changed time.Time
}

// byName returns the nodes in an order that does not depend on who came first.
func (n *nodes) byName() []*node {
	if n.sorted == nil {
		n.sorted = slices.SortedFunc(maps.Values(n.index), func(a, b *node) int { return strings.Compare(a.name, b.name) })
	}
	return n.sorted
}

// of is the node of a name, which is new or known.
func (n *nodes) of(name string) *node {
	if known := n.index[name]; known != nil {
		return known
	}
	one := &node{name: name, pods: map[podKey]*pod{}, described: absent(name)}
	if last := len(n.free) - 1; last >= 0 {
		one.id = n.free[last]
		n.free = n.free[:last]
		n.slots[one.id] = one
	} else {
		one.id = allocation.NodeID(len(n.slots))
		n.slots = append(n.slots, one)
	}
	n.index[name], n.sorted = one, nil
	return one
}

// drop frees the slot of a node that neither is there nor has pods.
func (n *nodes) drop(one *node) {
	if one.object == nil && len(one.pods) == 0 {
		n.slots[one.id] = nil
		n.free = append(n.free, one.id)
		delete(n.index, one.name)
		n.sorted = nil
	}
}

// SetNode takes in a node as it is now.
func (c *Cluster) SetNode(object *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.nodes.of(object.Name)
	before := one.object
	one.object = object
	if before != nil && sameNode(before, object) {
		return
	}
	capacity, added := c.resources.offered(object.Status.Allocatable)
	one.capacity, one.described = capacity, c.describe(object)
	if added {
		c.readOthers()
	}
	switch {
	case before == nil:
		one.changed = object.CreationTimestamp.Time
	case !sameReach(before, object) || !sameTrust(before, object):
		one.changed = c.options.Now()
	}
	c.nodes.changed = latest(c.nodes.changed, one.changed)
	if before == nil || !sameReach(before, object) {
		c.remark(one)
	}
	if before == nil {
		c.avoidersChanged(object.Name)
	}
	if before == nil || !sameTrust(before, object) {
		c.wakeWorkers(one)
	}
	c.changed()
}

// readOthers reads anew what asks for resources that were not told apart: a node may offer one of them now.
func (c *Cluster) readOthers() {
	for key, one := range c.pods {
		if c.resources.hasOther(one.request) {
			c.uncharge(key, one)
			one.request = c.resources.shares(requests(one.object))
			c.charge(key, one)
		}
	}
	for _, one := range c.shapes.index {
		if c.resources.hasOther(one.request) {
			one.request = c.resources.shares(requests(one.pod))
		}
	}
}

// DeleteNode takes in that a node is gone. What pods hold of it they hold until they are gone.
func (c *Cluster) DeleteNode(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.nodes.index[name]
	if one == nil || one.object == nil {
		return
	}
	one.object, one.capacity, one.described = nil, nil, absent(name)
	c.remark(one)
	c.avoidersChanged(name)
	c.wakeWorkers(one)
	c.nodes.drop(one)
	c.changed()
}

// remark finds out anew which pods may go to a node.
func (c *Cluster) remark(one *node) {
	for _, r := range c.reaches {
		r.mark(one.id, one.object)
	}
}

// wakeWorkers has the jobs looked at that have a worker on a node.
func (c *Cluster) wakeWorkers(one *node) {
	for _, p := range one.pods {
		if j := c.jobs[p.owner]; j != nil {
			c.changes.add(j.key())
		}
	}
}

// Nodes returns those of the named nodes that are there. Of each, what decides who may run on it is
// kept: labels, taints, readiness, what it offers. They must not be changed.
func (c *Cluster) Nodes(names []string) map[string]*corev1.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	some := make(map[string]*corev1.Node, len(names))
	for _, name := range names {
		if one := c.nodes.index[name]; one != nil && one.object != nil {
			some[name] = one.object
		}
	}
	return some
}

// FreeMemory is how many bytes of memory nobody has asked for of those of the named nodes that are there. Pods that wait for a
// node are not counted.
func (c *Cluster) FreeMemory(names []string) map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	free := make(map[string]int64, len(names))
	memory, known := c.resources.index[string(corev1.ResourceMemory)]
	for _, name := range names {
		if one := c.nodes.index[name]; known && one != nil && one.object != nil {
			capacity := one.capacity.vector(len(c.resources.list))
			free[name] = capacity[memory]
			if memory < len(one.used) {
				free[name] -= one.used[memory]
			}
		}
	}
	return free
}

// sameNode says whether two versions of a node are the same to everybody here. Heartbeats are.
func sameNode(a, b *corev1.Node) bool {
	return sameReach(a, b) && sameTrust(a, b) && equality.Semantic.DeepEqual(a.Status.Allocatable, b.Status.Allocatable)
}

func sameReach(a, b *corev1.Node) bool {
	return maps.Equal(a.Labels, b.Labels) && sameTaints(a, b)
}

// sameTrust says whether the workers of a node have no more or less to fear than before.
func sameTrust(a, b *corev1.Node) bool {
	return a.UID == b.UID && sameTaints(a, b) && a.Spec.Unschedulable == b.Spec.Unschedulable && ready(a) == ready(b) &&
		(a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil)
}

func sameTaints(a, b *corev1.Node) bool {
	return slices.EqualFunc(a.Spec.Taints, b.Spec.Taints, func(x, y corev1.Taint) bool {
		return x.Key == y.Key && x.Value == y.Value && x.Effect == y.Effect
	})
}

func ready(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// closed says why no pod may be placed on a node now, in words that follow "the node is"; empty when one
// may.
func closed(node *corev1.Node, drainTaints []string) string {
	switch {
	case node.DeletionTimestamp != nil:
		return "being deleted"
	case !ready(node):
		return "not ready"
	case node.Spec.Unschedulable:
		return "cordoned"
	case slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return slices.Contains(drainTaints, t.Key) }):
		return "about to go"
	default:
		return ""
	}
}

// absent is the description of a node that is not there.
func absent(name string) allocation.Node { return allocation.Node{Name: name, Closed: "not there"} }

// describe is a node as the planner sees it, but for its room. All that it reads is in sameNode.
func (c *Cluster) describe(object *corev1.Node) allocation.Node {
	described := allocation.Node{Name: object.Name, Closed: closed(object, c.options.DrainTaints)}
	for _, label := range c.options.Settings.DeviceTypeLabels {
		if value := object.Labels[label]; value != "" {
			described.DeviceType = value
			break
		}
	}
	described.Autoscaled = c.options.Settings.Capacity == Autoscaled &&
		slices.ContainsFunc(object.Spec.Taints, func(t corev1.Taint) bool { return t.Key == autoscalerCandidate })
	return described
}
