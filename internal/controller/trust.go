package controller

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// trustManager owns the CA bundle on pods that were made with another one. What fieldManager applies
// to a pod leaves it out, and would take it away.
const trustManager = "concertina-trust"

// settings are what goes into every pod that is made now.
func (r *Reconciler) settings() PodSettings {
	settings := r.Pods
	settings.CABundle = string(r.CABundle())
	return settings
}

// refreshTrust gives pods that were made before the operator's authority changed what they trust it by
// now. A new authority signs nothing for a day, and every job is looked at more often than that.
func (r *Reconciler) refreshTrust(ctx context.Context, state *State) error {
	bundle := string(r.CABundle())
	for _, pod := range distrustful(state, bundle) {
		config := applycorev1.Pod(pod.Name, pod.Namespace).WithUID(pod.UID).
			WithAnnotations(map[string]string{v1alpha1.AnnotationCABundle: bundle})
		err := r.Client.Apply(ctx, config, client.FieldOwner(trustManager), client.ForceOwnership)
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return wrapf(err, "give pod %s/%s the operator's new authority", pod.Namespace, pod.Name)
		}
	}
	return nil
}

// distrustful returns the pods that may still call the operator and hold another bundle.
func distrustful(state *State, bundle string) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, pod := range state.live() {
		if pod.Annotations[v1alpha1.AnnotationCABundle] != bundle {
			pods = append(pods, pod)
		}
	}
	return pods
}
