package scale

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
)

// amounts are quantities by resource, thousandths for CPUs and whole units of all else.
type amounts map[corev1.ResourceName]int64

func amountsOf(list corev1.ResourceList) amounts {
	all := amounts{}
	for name, quantity := range list {
		all[name] = quantity.Value()
		if name == corev1.ResourceCPU {
			all[name] = quantity.MilliValue()
		}
	}
	return all
}

// demand is what a pod takes from a node.
func demand(pod *corev1.Pod) amounts {
	all := amountsOf(resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}))
	all[corev1.ResourcePods] = 1
	return all
}

// charge is the room that one pod holds.
type charge struct {
	node   string
	amount amounts
}

// places is what is free on each node.
type places struct {
	mu    sync.Mutex
	names []string
	free  map[string]amounts
	held  map[types.UID]charge
	// waiting are the pods that fitted nowhere, as namespace/name.
	waiting map[string]bool
	// started are the pods that were set running.
	started map[types.UID]bool
	// next is the node at which the next search begins: nodes are filled one after another.
	next int
}

func newPlaces(nodes []corev1.Node) *places {
	p := &places{free: map[string]amounts{}, held: map[types.UID]charge{}, waiting: map[string]bool{}, started: map[types.UID]bool{}}
	for i := range nodes {
		p.names = append(p.names, nodes[i].Name)
		p.free[nodes[i].Name] = amountsOf(nodes[i].Status.Allocatable)
	}
	return p
}

// hold notes the room of a pod that has its node already.
func (p *places) hold(pod *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.held[pod.UID]; !known {
		p.take(pod.UID, pod.Spec.NodeName, demand(pod))
	}
}

func (p *places) take(pod types.UID, node string, amount amounts) {
	p.held[pod] = charge{node: node, amount: amount}
	for name, n := range amount {
		if free := p.free[node]; free != nil {
			free[name] -= n
		}
	}
}

// find chooses a node for a pod and takes the room. It is empty when the pod fits nowhere now, or has
// been given its node before; release then tells of one that fitted nowhere.
func (p *places) find(pod *corev1.Pod) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.held[pod.UID]; known {
		return ""
	}
	wanted := demand(pod)
	if named, pinned := pinnedTo(pod); pinned {
		if !p.fits(named, wanted) {
			p.waiting[pod.Namespace+"/"+pod.Name] = true
			return ""
		}
		p.take(pod.UID, named, wanted)
		return named
	}
	for i := range p.names {
		at := (p.next + i) % len(p.names)
		if p.fits(p.names[at], wanted) {
			p.next = at
			p.take(pod.UID, p.names[at], wanted)
			return p.names[at]
		}
	}
	p.waiting[pod.Namespace+"/"+pod.Name] = true
	return ""
}

func (p *places) fits(node string, wanted amounts) bool {
	free := p.free[node]
	for name, n := range wanted {
		if n > free[name] {
			return false
		}
	}
	return free != nil
}

// start is true for the first caller who wants to set a pod running.
func (p *places) start(pod types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := !p.started[pod]
	p.started[pod] = true
	return first
}

// release gives the room of a pod back that is gone, and says which pods wait for some.
func (p *places) release(pod types.UID) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	held, known := p.held[pod]
	if !known {
		return nil
	}
	delete(p.held, pod)
	delete(p.started, pod)
	for name, n := range held.amount {
		if free := p.free[held.node]; free != nil {
			free[name] += n
		}
	}
	waiting := slices.Sorted(maps.Keys(p.waiting))
	clear(p.waiting)
	return waiting
}

// describe tells what is free on a node.
func (p *places) describe(node string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	free := p.free[node]
	return fmt.Sprintf("where %d devices and room for %d pods are free", free[device], free[corev1.ResourcePods])
}

// pinnedTo is the node that a pod demands by name. All terms of a pod that the operator has placed name
// the same one.
func pinnedTo(pod *corev1.Pod) (string, bool) {
	affinity := pod.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return "", false
	}
	for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == "metadata.name" && field.Operator == corev1.NodeSelectorOpIn && len(field.Values) == 1 {
				return field.Values[0], true
			}
		}
	}
	return "", false
}
