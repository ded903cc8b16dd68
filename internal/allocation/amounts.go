package allocation

import (
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// amounts are quantities in the units that the scheduler counts in: thousandths of a CPU, and whole
// units of all else, rounded up. The number of pods is one of them.
type amounts map[corev1.ResourceName]int64

// largest is what an amount of any unit can hold.
var largest = *resource.NewQuantity(math.MaxInt64/1000, resource.DecimalSI)

// amount stops at the largest, where conversions of Quantity would wrap around.
func amount(name corev1.ResourceName, quantity resource.Quantity) int64 {
	switch {
	case quantity.Sign() < 0:
		return 0
	case quantity.Cmp(largest) >= 0:
		return math.MaxInt64
	}
	if name == corev1.ResourceCPU {
		return quantity.MilliValue()
	}
	return quantity.Value()
}

// allocatable is what a node offers to pods.
func allocatable(node *corev1.Node) amounts {
	offered := amounts{}
	for name, quantity := range node.Status.Allocatable {
		offered[name] = amount(name, quantity)
	}
	return offered
}

// requests is what a pod holds on its node: what its spec asks for, or what it was given by a resize
// that is not over or by its claims, whichever is more.
func requests(pod *corev1.Pod) amounts {
	held := amounts{corev1.ResourcePods: 1}
	for name, quantity := range resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{
		UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true, UseDRANodeAllocatableResourceClaimStatus: true,
	}) {
		if name != corev1.ResourcePods {
			held[name] = amount(name, quantity)
		}
	}
	return held
}

// sub takes away; what is asked for and was never there goes below zero. It does not overflow.
func (a amounts) sub(b amounts) {
	for name, n := range b {
		if have := a[name]; n > 0 && have < math.MinInt64+n {
			a[name] = math.MinInt64
		} else {
			a[name] = have - max(n, 0)
		}
	}
}

// holds is how often b fits into a.
func (a amounts) holds(b amounts) int {
	times := int64(math.MaxInt32)
	for name, n := range b {
		if n > 0 {
			times = min(times, max(a[name], 0)/n)
		}
	}
	return int(times)
}

// holdsBeside is how often b fits into a once other has been taken away.
func (a amounts) holdsBeside(b, other amounts) int {
	times := int64(math.MaxInt32)
	for name, n := range b {
		if n > 0 {
			times = min(times, max(max(a[name], 0)-max(other[name], 0), 0)/n)
		}
	}
	return int(times)
}

// short names the amounts of which too little is left for one b.
func (a amounts) short(b amounts) string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(b)) {
		if b[name] > 0 && a[name] < b[name] {
			names = append(names, string(name))
		}
	}
	return strings.Join(names, " and ")
}
