package controller

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

const (
	// DefaultConcurrentJobs is how many jobs are looked at at a time, unless it is said.
	DefaultConcurrentJobs = 8
	// worldSettles is how long after its world began to change a job is looked at. The rendezvous needs
	// nobody for a planned change, which takes less than this; what would be written of it meanwhile
	// would only hold up the record of the next world, and the processes that wait for it.
	worldSettles = 500 * time.Millisecond
	// A look that failed is tried again after firstRetry, which doubles to lastRetry. Events wake the job meanwhile, and each look that
	// fails counts: a silence of the API server of a minute would have a job wait for a quarter of an hour by what is usual.
	firstRetry = 5 * time.Millisecond
	lastRetry  = 15 * time.Second
)

// retries is how long a look that failed is to wait. There is no bucket for all jobs beside that: what waits for its turn there would
// wait for it when the API server is back as well.
func retries() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry)
}

// SetupWithManager has the manager call the reconciler when a job, one of its pods, a quota or limit
// of its namespace, or its world changes.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	limits := func(ranges bool) handler.EventHandler {
		return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, limit client.Object) []reconcile.Request {
			return r.forgiveRefusals(ctx, limit.GetNamespace(), ranges)
		})
	}
	ofJob := handler.EnqueueRequestForOwner(mgr.GetScheme(), mgr.GetRESTMapper(), &v1alpha1.TrainingJob{}, handler.OnlyControllerOwner())
	if err := indexPods(context.Background(), mgr.GetFieldIndexer()); err != nil {
		return err
	}
	builder := ctrl.NewControllerManagedBy(mgr).
		Named("trainingjob").
		Watches(&v1alpha1.TrainingJob{}, jobHandler()).
		Watches(&corev1.Pod{}, podHandler{EventHandler: ofJob, gone: r.podGone}).
		Watches(&corev1.ResourceQuota{}, limits(false)).
		Watches(&corev1.LimitRange{}, limits(true)).
		WatchesRawSource(source.Func(r.watchWorlds)).
		WatchesRawSource(source.Func(r.watchFleet)).
		WithOptions(controller.Options{MaxConcurrentReconciles: r.concurrent(), RateLimiter: retries()})
	if err := builder.Complete(r); err != nil {
		return fmt.Errorf("set up the TrainingJob controller: %w", err)
	}
	return nil
}

// concurrent is how many jobs are looked at at a time.
func (r *Reconciler) concurrent() int {
	if r.ConcurrentJobs == 0 {
		return DefaultConcurrentJobs
	}
	return r.ConcurrentJobs
}

// jobHandler has a job looked at when it changes: at once, unless only the rendezvous has written.
func jobHandler() handler.EventHandler {
	var all handler.EnqueueRequestForObject
	return handler.Funcs{
		CreateFunc:  all.Create,
		DeleteFunc:  all.Delete,
		GenericFunc: all.Generic,
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			if onlyWorldDiffers(e.ObjectOld, e.ObjectNew) {
				queue.AddAfter(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(e.ObjectNew)}, worldSettles)
				return
			}
			all.Update(ctx, e, queue)
		},
	}
}

// onlyWorldDiffers says whether two versions of a job are the same but for the record of its world.
func onlyWorldDiffers(before, after client.Object) bool {
	a, ok := before.(*v1alpha1.TrainingJob)
	b, same := after.(*v1alpha1.TrainingJob)
	if !ok || !same || equality.Semantic.DeepEqual(a.Status.World, b.Status.World) {
		return false
	}
	a, b = a.DeepCopy(), b.DeepCopy()
	for _, job := range []*v1alpha1.TrainingJob{a, b} {
		job.Status.World, job.ManagedFields, job.ResourceVersion = nil, nil, ""
	}
	return equality.Semantic.DeepEqual(a, b)
}

// watchWorlds turns what happens in the rendezvous into reconciles.
func (r *Reconciler) watchWorlds(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case key := <-r.Rendezvous.Changed():
				request := reconcile.Request{NamespacedName: types.NamespacedName(key)}
				if r.someoneIsOut(key) {
					queue.Add(request) // others wait for its room
				} else {
					queue.AddAfter(request, worldSettles)
				}
			}
		}
	}()
	return nil
}

// someoneIsOut says whether the world goes on without a worker that leaves: then nothing is held up by a
// write, and its pod can go.
func (r *Reconciler) someoneIsOut(key rendezvous.JobKey) bool {
	seen := r.Rendezvous.Observe(key)
	if seen.Phase != rendezvous.PhaseTraining {
		return false
	}
	for _, member := range seen.Members {
		if member.Out && member.Connected {
			return true
		}
	}
	return false
}

// watchFleet has a job looked at when its grant has changed, or a node that its workers have.
func (r *Reconciler) watchFleet(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case name := <-r.Fleet.Changed():
				queue.Add(reconcile.Request{NamespacedName: name})
			}
		}
	}()
	return nil
}
