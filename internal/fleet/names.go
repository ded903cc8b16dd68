package fleet

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/concertina-dev/concertina/internal/allocation"
)

const (
	// mostNames bounds how many resources are told apart: names come from anybody who may make a pod, and
	// every node has an amount of each. Those beyond it share one name, of which no node has any. What nodes
	// offer has as much room again, so that no pod's names keep a device from being known.
	mostNames  = 256
	otherNames = "other resources"

	// largest is what one pod or node can ask for or offer, so that no sum wraps around; what many pods use
	// together, and a quota allows them, is told apart up to largestSum.
	largest    = int64(1) << 50
	largestSum = int64(1) << 60
)

// names gives resources small numbers. They are never taken back.
type names struct {
	list  []string
	index map[string]int
}

func newNames() *names { return &names{index: map[string]int{}} }

// of is the number of a name, which is new or known.
func (n *names) of(name string) int {
	if i, known := n.index[name]; known {
		return i
	}
	if len(n.list) >= mostNames {
		name = otherNames
		if i, known := n.index[name]; known {
			return i
		}
	}
	return n.add(name)
}

func (n *names) add(name string) int {
	n.list = append(n.list, name)
	n.index[name] = len(n.list) - 1
	return len(n.list) - 1
}

// offered are the shares of a node, and whether one of its names is new. Names for which there is no number are
// left out: nothing is promised of them.
func (n *names) offered(list corev1.ResourceList) (all shares, added bool) {
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if _, there := n.index[string(name)]; !there && len(n.list) < 2*mostNames && string(name) != otherNames {
			n.add(string(name))
			added = true
		}
	}
	return n.shares(n.known(list)), added
}

// hasOther says whether something is asked for that had no number of its own.
func (n *names) hasOther(s shares) bool {
	other, there := n.index[otherNames]
	return there && slices.ContainsFunc(s, func(one share) bool { return one.name == other })
}

// share is an amount of one resource.
type share struct {
	name   int
	amount int64
}

// shares are what one pod or node has of each resource, those that it has none of left out.
type shares []share

// addTo adds the shares, as often as is said, to a vector that is as long as it must be afterwards.
func (s shares) addTo(vector allocation.Amounts, times int64) allocation.Amounts {
	for _, one := range s {
		for len(vector) <= one.name {
			vector = append(vector, 0)
		}
		vector[one.name] += times * one.amount
	}
	return vector
}

// vector is the shares as a vector of some length.
func (s shares) vector(length int) allocation.Amounts {
	return s.addTo(make(allocation.Amounts, length), 1)
}

// amount is a quantity in the units that are counted in: thousandths of a CPU, and whole units of all
// else, rounded up; 0 to most.
func amount(cpu bool, quantity resource.Quantity, most int64) int64 {
	switch {
	case quantity.Sign() < 0:
		return 0
	case quantity.Cmp(*resource.NewQuantity(most/1000, resource.DecimalSI)) >= 0:
		// A conversion of Quantity would wrap around.
		if cpu || quantity.Cmp(*resource.NewQuantity(most, resource.DecimalSI)) >= 0 {
			return most
		}
	}
	if cpu {
		return quantity.MilliValue()
	}
	return quantity.Value()
}

// shares are those of one pod or node.
func (n *names) shares(list corev1.ResourceList) shares { return n.sharesUpTo(largest, list) }

func (n *names) sharesUpTo(most int64, list corev1.ResourceList) shares {
	var all shares
	for name, quantity := range list {
		cpu := name == corev1.ResourceCPU || name == corev1.ResourceRequestsCPU || name == corev1.ResourceLimitsCPU
		if one := amount(cpu, quantity, most); one > 0 {
			all = append(all, share{name: n.of(string(name)), amount: one})
		}
	}
	return all
}

// requests is what a pod holds on its node: what its spec asks for, or what it was given by a resize
// that is not over or by its claims, whichever is more. The pod itself is one of them.
func requests(pod *corev1.Pod) corev1.ResourceList {
	held := corev1.ResourceList{}
	for name, quantity := range resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{
		UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true, UseDRANodeAllocatableResourceClaimStatus: true,
	}) {
		held[name] = quantity
	}
	held[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	return held
}

// IsDevice says whether a resource is one that only some nodes have, such as nvidia.com/gpu.
func IsDevice(name string) bool {
	domain, _, extended := strings.Cut(name, "/")
	return extended && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io")
}
