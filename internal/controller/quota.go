package controller

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// quotaShortage says which ResourceQuota stands in the way of a batch of equal pods, and by how
// much; empty when none does. Quotas with scopes are left to the API server, whose refusal is
// reported in its own words.
func quotaShortage(quotas []corev1.ResourceQuota, pod *corev1.Pod, batch int32) string {
	demand := quotaDemand(pod)
	var shortages []string
	for i := range quotas {
		quota := &quotas[i]
		if len(quota.Spec.Scopes) > 0 || quota.Spec.ScopeSelector != nil {
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

func missing(hard, used, need resource.Quantity) resource.Quantity {
	total := used.DeepCopy()
	total.Add(need)
	total.Sub(hard)
	return total
}

// quotaDemand is what one pod counts against a quota, under the names that quotas use.
func quotaDemand(pod *corev1.Pod) corev1.ResourceList {
	one := *resource.NewQuantity(1, resource.DecimalSI)
	demand := corev1.ResourceList{corev1.ResourcePods: one, "count/pods": one}
	for name, quantity := range resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}) {
		demand[corev1.ResourceName("requests."+string(name))] = quantity
		switch name {
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
			demand[name] = quantity
		}
	}
	for name, quantity := range resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{}) {
		demand[corev1.ResourceName("limits."+string(name))] = quantity
	}
	return demand
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
