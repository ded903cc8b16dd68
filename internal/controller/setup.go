package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// concurrentJobs is how many jobs are looked at at a time; one job only once.
const concurrentJobs = 8

// SetupWithManager has the manager call the reconciler when a job, one of its pods, a quota or limit
// of its namespace, or its world changes.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	limits := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, limit client.Object) []reconcile.Request {
		return r.forgiveRefusals(ctx, limit.GetNamespace())
	})
	builder := ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.TrainingJob{}).
		Owns(&corev1.Pod{}).
		Watches(&corev1.ResourceQuota{}, limits).
		Watches(&corev1.LimitRange{}, limits).
		WatchesRawSource(source.Func(r.watchWorlds)).
		WatchesRawSource(source.Func(r.watchRoom)).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrentJobs})
	if err := builder.Complete(r); err != nil {
		return fmt.Errorf("set up the TrainingJob controller: %w", err)
	}
	if err := mgr.Add(manager.RunnableFunc(r.retryWaiting)); err != nil {
		return fmt.Errorf("set up the TrainingJob controller: %w", err)
	}
	return nil
}

// watchWorlds turns what happens in the rendezvous into reconciles.
func (r *Reconciler) watchWorlds(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case key := <-r.Rendezvous.Changed():
				queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: key.Namespace, Name: key.Name}})
			}
		}
	}()
	return nil
}
