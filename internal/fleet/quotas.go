package fleet

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/concertina-dev/concertina/internal/allocation"
)

// +kubebuilder:rbac:groups="",resources=resourcequotas,verbs=list;watch

// quota is one ResourceQuota. Only what pods count against is looked at.
type quota struct {
	object *corev1.ResourceQuota
	// hard is what it allows by counts, bounded where it says something.
	hard    shares
	used    shares
	charged allocation.Amounts
}

// tenant is a namespace, as far as quotas and jobs go.
type tenant struct {
	quotas map[string]*quota
	ending bool
}

func (c *Cluster) tenant(name string) *tenant {
	one := c.tenants[name]
	if one == nil {
		one = &tenant{quotas: map[string]*quota{}}
		c.tenants[name] = one
	}
	return one
}

// SetNamespace takes in whether a namespace is ending.
func (c *Cluster) SetNamespace(object *corev1.Namespace) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ending := object.DeletionTimestamp != nil || object.Status.Phase == corev1.NamespaceTerminating
	if known := c.tenants[object.Name]; known == nil && !ending || known != nil && known.ending == ending {
		return
	}
	c.tenant(object.Name).ending = ending
	c.changed()
}

// DeleteNamespace takes in that a namespace is gone. Its quotas go by events of their own.
func (c *Cluster) DeleteNamespace(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.tenants[name]; known != nil {
		known.ending = false
		c.dropTenant(name)
		c.changed()
	}
}

func (c *Cluster) dropTenant(name string) {
	if one := c.tenants[name]; one != nil && !one.ending && len(one.quotas) == 0 {
		delete(c.tenants, name)
	}
}

// SetQuota takes in a ResourceQuota as it is now.
func (c *Cluster) SetQuota(object *corev1.ResourceQuota) {
	c.mu.Lock()
	defer c.mu.Unlock()
	quotas := c.tenant(object.Namespace).quotas
	one, old := &quota{object: object}, quotas[object.Name]
	limits := hardOf(object)
	for name := range limits {
		c.counts.of(string(name))
	}
	one.hard = c.bounds(limits)
	one.used = c.counts.sharesUpTo(largestSum, c.counts.known(object.Status.Used))
	quotas[object.Name] = one
	if old != nil && sameBounds(old, one) {
		one.charged = old.charged
		if slices.Equal(sortedShares(old.used), sortedShares(one.used)) {
			return
		}
	} else {
		c.recount(object.Namespace, one)
	}
	c.changed()
}

// sameBounds says whether the same pods count against two versions of a quota, and as much.
func sameBounds(a, b *quota) bool {
	return slices.Equal(sortedShares(a.hard), sortedShares(b.hard)) && slices.Equal(a.object.Spec.Scopes, b.object.Spec.Scopes) &&
		equality.Semantic.DeepEqual(a.object.Spec.ScopeSelector, b.object.Spec.ScopeSelector)
}

func sortedShares(s shares) shares {
	sorted := slices.Clone(s)
	slices.SortFunc(sorted, func(a, b share) int { return a.name - b.name })
	return sorted
}

// DeleteQuota takes in that a ResourceQuota is gone.
func (c *Cluster) DeleteQuota(namespace, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.tenants[namespace]; known != nil && known.quotas[name] != nil {
		delete(known.quotas, name)
		c.dropTenant(namespace)
		c.changed()
	}
}

// hardOf is what a quota allows: what admission goes by, or what it is about to go by.
func hardOf(object *corev1.ResourceQuota) corev1.ResourceList {
	hard := corev1.ResourceList{}
	for _, list := range []corev1.ResourceList{object.Spec.Hard, object.Status.Hard} {
		for name, quantity := range list {
			if countsPods(string(name)) {
				hard[name] = quantity
			}
		}
	}
	return hard
}

// countsPods says whether pods count for a name of a quota.
func countsPods(name string) bool {
	switch corev1.ResourceName(name) {
	case corev1.ResourcePods, "count/pods", corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return true
	case corev1.ResourceRequestsStorage:
		return false
	}
	return strings.HasPrefix(name, "requests.") || strings.HasPrefix(name, "limits.") || strings.HasPrefix(name, corev1.ResourceHugePagesPrefix)
}

// bounds are the shares of a quota; unlike those of a pod, none at all is said too. What allows the largest sum
// bounds nothing.
func (c *Cluster) bounds(hard corev1.ResourceList) shares {
	all := slices.DeleteFunc(c.counts.sharesUpTo(largestSum, hard), func(s share) bool { return s.amount >= largestSum })
	for name, quantity := range hard {
		if quantity.Sign() <= 0 {
			all = append(all, share{name: c.counts.of(string(name))})
		}
	}
	return all
}

// known is what a list says of those names that are known already.
func (n *names) known(list corev1.ResourceList) corev1.ResourceList {
	known := corev1.ResourceList{}
	for name, quantity := range list {
		if _, there := n.index[string(name)]; there {
			known[name] = quantity
		}
	}
	return known
}

// Demand is what one pod counts against quotas, under the names that quotas use.
func Demand(object *corev1.Pod) corev1.ResourceList {
	one := *resource.NewQuantity(1, resource.DecimalSI)
	demand := corev1.ResourceList{corev1.ResourcePods: one, "count/pods": one}
	for name, quantity := range resourcehelper.PodRequests(object, resourcehelper.PodResourcesOptions{}) {
		demand[corev1.ResourceName("requests."+string(name))] = quantity
		switch {
		case name == corev1.ResourceCPU, name == corev1.ResourceMemory, name == corev1.ResourceEphemeralStorage,
			strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
			demand[name] = quantity
		}
	}
	for name, quantity := range resourcehelper.PodLimits(object, resourcehelper.PodResourcesOptions{}) {
		demand[corev1.ResourceName("limits."+string(name))] = quantity
	}
	return demand
}

// demandOf is what a pod counts against the quotas there are.
func (c *Cluster) demandOf(one *pod) shares {
	if one.counts != len(c.counts.list) || one.demand == nil {
		one.demand, one.counts = c.counts.shares(c.counts.known(Demand(one.object))), len(c.counts.list)
	}
	return one.demand
}

// chargeQuotas enters a pod into the quotas of its namespace, or takes it out.
func (c *Cluster) chargeQuotas(namespace string, one *pod, times int64) {
	if t := c.tenants[namespace]; t != nil {
		for _, q := range t.quotas {
			if counted(q.object, one.object) {
				q.charged = c.demandOf(one).addTo(q.charged, times)
			}
		}
	}
	if times > 0 {
		if c.byNamespace[namespace] == nil {
			c.byNamespace[namespace] = map[*pod]bool{}
		}
		c.byNamespace[namespace][one] = true
		return
	}
	delete(c.byNamespace[namespace], one)
	if len(c.byNamespace[namespace]) == 0 {
		delete(c.byNamespace, namespace)
	}
}

// recount adds up what pods count against a quota.
func (c *Cluster) recount(namespace string, q *quota) {
	q.charged = nil
	for one := range c.byNamespace[namespace] {
		if counted(q.object, one.object) {
			q.charged = c.demandOf(one).addTo(q.charged, 1)
		}
	}
}

// free is what a quota allows and what of that is free, by counts. ending and assumed are those pods of its namespace.
func (c *Cluster) free(q *quota, ending, assumed []*pod, now time.Time) (hard, free allocation.Amounts) {
	width := len(c.counts.list)
	hard, free = make(allocation.Amounts, width), make(allocation.Amounts, width)
	charged, used := make(allocation.Amounts, width), q.used.vector(width)
	copy(charged, q.charged)
	for _, one := range ending {
		// The quota controller does not wait for those that never end.
		if one.overdue(now) && counted(q.object, one.object) {
			c.demandOf(one).addTo(charged, -1)
		}
	}
	for _, one := range assumed {
		if counted(q.object, one.object) {
			c.demandOf(one).addTo(used, 1)
		}
	}
	for i := range hard {
		hard[i], free[i] = allocation.Unbounded, allocation.Unbounded
	}
	for _, s := range q.hard {
		hard[s.name], free[s.name] = s.amount, s.amount-max(charged[s.name], used[s.name])
	}
	return hard, free
}

// counted says whether a pod counts against a quota: all of its scopes must fit.
func counted(q *corev1.ResourceQuota, object *corev1.Pod) bool {
	for _, scope := range q.Spec.Scopes {
		if !inScope(corev1.ScopedResourceSelectorRequirement{ScopeName: scope, Operator: corev1.ScopeSelectorOpExists}, object) {
			return false
		}
	}
	if selector := q.Spec.ScopeSelector; selector != nil {
		for _, requirement := range selector.MatchExpressions {
			if !inScope(requirement, object) {
				return false
			}
		}
	}
	return true
}

func inScope(requirement corev1.ScopedResourceSelectorRequirement, object *corev1.Pod) bool {
	switch requirement.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return endsByItself(object)
	case corev1.ResourceQuotaScopeNotTerminating:
		return !endsByItself(object)
	case corev1.ResourceQuotaScopeBestEffort:
		return BestEffort(object)
	case corev1.ResourceQuotaScopeNotBestEffort:
		return !BestEffort(object)
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return crossesNamespaces(object.Spec.Affinity)
	case corev1.ResourceQuotaScopePriorityClass:
		return classSelected(requirement, object.Spec.PriorityClassName)
	default:
		return false // one that is not for pods
	}
}

func classSelected(requirement corev1.ScopedResourceSelectorRequirement, class string) bool {
	switch requirement.Operator {
	case corev1.ScopeSelectorOpIn:
		return class != "" && slices.Contains(requirement.Values, class)
	case corev1.ScopeSelectorOpNotIn:
		return !slices.Contains(requirement.Values, class)
	case corev1.ScopeSelectorOpExists:
		return class != ""
	case corev1.ScopeSelectorOpDoesNotExist:
		return class == ""
	default:
		return false
	}
}

// endsByItself is the scope Terminating, which has nothing to do with deletion.
func endsByItself(object *corev1.Pod) bool {
	return object.Spec.ActiveDeadlineSeconds != nil && *object.Spec.ActiveDeadlineSeconds >= 0
}

// BestEffort says whether no container asks for any CPU or memory.
func BestEffort(object *corev1.Pod) bool {
	asks := func(r *corev1.ResourceRequirements) bool {
		for _, list := range []corev1.ResourceList{r.Requests, r.Limits} {
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
				if quantity, there := list[name]; there && quantity.Sign() > 0 {
					return true
				}
			}
		}
		return false
	}
	for _, containers := range [][]corev1.Container{object.Spec.InitContainers, object.Spec.Containers} {
		for i := range containers {
			if asks(&containers[i].Resources) {
				return false
			}
		}
	}
	return object.Spec.Resources == nil || !asks(object.Spec.Resources)
}

// crossesNamespaces says whether affinity to other pods reaches beyond the pod's own namespace.
func crossesNamespaces(affinity *corev1.Affinity) bool {
	if affinity == nil {
		return false
	}
	crosses := func(term *corev1.PodAffinityTerm) bool {
		return len(term.Namespaces) > 0 || term.NamespaceSelector != nil
	}
	var terms []corev1.PodAffinityTerm
	if a := affinity.PodAffinity; a != nil {
		terms = append(terms, a.RequiredDuringSchedulingIgnoredDuringExecution...)
		for i := range a.PreferredDuringSchedulingIgnoredDuringExecution {
			terms = append(terms, a.PreferredDuringSchedulingIgnoredDuringExecution[i].PodAffinityTerm)
		}
	}
	if a := affinity.PodAntiAffinity; a != nil {
		terms = append(terms, a.RequiredDuringSchedulingIgnoredDuringExecution...)
		for i := range a.PreferredDuringSchedulingIgnoredDuringExecution {
			terms = append(terms, a.PreferredDuringSchedulingIgnoredDuringExecution[i].PodAffinityTerm)
		}
	}
	return slices.ContainsFunc(terms, func(t corev1.PodAffinityTerm) bool { return crosses(&t) })
}
