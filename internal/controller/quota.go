package controller

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/concertina-dev/concertina/internal/fleet"
)

// quotaShortage says which ResourceQuota stands in the way of a batch of equal pods, and by how
// much; empty when none does. A quota whose scopes depend on what admission makes of the pods is left
// to the API server, whose refusal is reported in its own words.
func quotaShortage(quotas []corev1.ResourceQuota, pod *corev1.Pod, batch int32) string {
	return shortageIn(quotas, pod, batch, false)
}

// shortageIn says the same; a quota that may be meant or not counts if unsure is true.
func shortageIn(quotas []corev1.ResourceQuota, pod *corev1.Pod, batch int32, unsure bool) string {
	demand := fleet.Demand(pod)
	var shortages []string
	for i := range quotas {
		quota := &quotas[i]
		if !concerns(quota, pod, unsure) {
			continue
		}
		for name, hard := range quota.Status.Hard {
			one, ok := demand[name]
			if !ok || one.IsZero() {
				continue
			}
			need := one.DeepCopy()
			need.Mul(int64(batch))
			used := quota.Status.Used[name]
			if missing := missing(hard, used, need); missing.Sign() > 0 {
				shortages = append(shortages, fmt.Sprintf("ResourceQuota %s allows %s %s, %s are used and the gang of %d needs %s: %s too few",
					quota.Name, hard.String(), name, used.String(), batch, need.String(), missing.String()))
			}
		}
	}
	return strings.Join(sorted(shortages), "; ")
}

// charge counts a batch of equal pods against the quotas that may be meant.
func charge(quotas []corev1.ResourceQuota, pod *corev1.Pod, batch int32) {
	demand := fleet.Demand(pod)
	for i := range quotas {
		quota := &quotas[i]
		if !concerns(quota, pod, true) {
			continue
		}
		for name := range quota.Status.Hard {
			one, ok := demand[name]
			if !ok {
				continue
			}
			used := quota.Status.Used[name]
			total := used.DeepCopy()
			need := one.DeepCopy()
			need.Mul(int64(batch))
			total.Add(need)
			if quota.Status.Used == nil {
				quota.Status.Used = corev1.ResourceList{}
			}
			quota.Status.Used[name] = total
		}
	}
}

// concerns says whether a pod counts against a quota: all of its scopes must match.
func concerns(quota *corev1.ResourceQuota, pod *corev1.Pod, unsure bool) bool {
	var scopes []corev1.ScopedResourceSelectorRequirement
	if selector := quota.Spec.ScopeSelector; selector != nil {
		scopes = slices.Clone(selector.MatchExpressions)
	}
	for _, scope := range quota.Spec.Scopes {
		scopes = append(scopes, corev1.ScopedResourceSelectorRequirement{ScopeName: scope, Operator: corev1.ScopeSelectorOpExists})
	}
	return !slices.ContainsFunc(scopes, func(scope corev1.ScopedResourceSelectorRequirement) bool {
		matches, known := inScope(scope, pod)
		return known && !matches || !known && !unsure
	})
}

// inScope says whether a pod is in a scope, as far as that is known before admission has seen it.
func inScope(scope corev1.ScopedResourceSelectorRequirement, pod *corev1.Pod) (matches, known bool) {
	if scope.ScopeName == corev1.ResourceQuotaScopePriorityClass {
		class := pod.Spec.PriorityClassName
		if class == "" {
			return false, false // admission gives it the cluster's default class, if there is one
		}
		switch scope.Operator {
		case corev1.ScopeSelectorOpExists:
			return true, true
		case corev1.ScopeSelectorOpDoesNotExist:
			return false, true
		case corev1.ScopeSelectorOpIn:
			return slices.Contains(scope.Values, class), true
		case corev1.ScopeSelectorOpNotIn:
			return !slices.Contains(scope.Values, class), true
		default:
			return false, false
		}
	}
	if scope.Operator != corev1.ScopeSelectorOpExists {
		return false, false
	}
	switch scope.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return pod.Spec.ActiveDeadlineSeconds != nil, true
	case corev1.ResourceQuotaScopeNotTerminating:
		return pod.Spec.ActiveDeadlineSeconds == nil, true
	case corev1.ResourceQuotaScopeBestEffort:
		return fleet.BestEffort(pod), true
	case corev1.ResourceQuotaScopeNotBestEffort:
		return !fleet.BestEffort(pod), true
	default:
		return false, false
	}
}

func missing(hard, used, need resource.Quantity) resource.Quantity {
	total := used.DeepCopy()
	total.Add(need)
	total.Sub(hard)
	return total
}

// batchResources is what a batch of equal pods requests together, overhead included.
func batchResources(pod *corev1.Pod, batch int32) corev1.ResourceList {
	total := corev1.ResourceList{}
	for name, quantity := range resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}) {
		quantity.Mul(int64(batch))
		total[name] = quantity
	}
	return total
}
