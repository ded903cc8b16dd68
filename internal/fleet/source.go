package fleet

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// +kubebuilder:rbac:groups="",resources=nodes;pods;namespaces,verbs=list;watch
// +kubebuilder:rbac:groups=training.concertina.dev,resources=trainingjobs,verbs=list;watch

// CacheOptions are those of a cache of what is needed of the whole cluster and of nobody else: all nodes, priority
// classes and namespaces, of each only what is read. Pods come from the manager's cache, which has them for the
// controller of jobs too: a large cluster has too many of them to hold, and to follow, twice.
func CacheOptions() cache.Options {
	return cache.Options{
		ReaderFailOnMissingInformer: true,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Node{}:                {Transform: slimNode},
			&corev1.Namespace{}:           {Transform: slimNamespace},
			&schedulingv1.PriorityClass{}: {Transform: slimClass},
		},
	}
}

// AddTo has a manager run the cluster: kept up on every replica, so that the next leader need not begin
// with nothing, and planning on the leader. What the cache holds can be narrowed: the cluster is then no
// more than that.
func (c *Cluster) AddTo(mgr manager.Manager, narrow ...func(*cache.Options)) error {
	options := CacheOptions()
	options.Scheme, options.Mapper, options.HTTPClient = mgr.GetScheme(), mgr.GetRESTMapper(), mgr.GetHTTPClient()
	for _, change := range narrow {
		change(&options)
	}
	whole, err := cache.New(mgr.GetConfig(), options)
	if err != nil {
		return fmt.Errorf("set up the cache of nodes: %w", err)
	}
	for _, part := range []manager.Runnable{whole, &source{into: c, whole: whole, ours: mgr.GetCache()}, manager.RunnableFunc(c.Run)} {
		if err := mgr.Add(part); err != nil {
			return fmt.Errorf("set up the fleet: %w", err)
		}
	}
	return nil
}

// source feeds a cluster from informers.
type source struct {
	into *Cluster
	// whole caches what only the planner reads; ours what the controller reads too: jobs, pods and quotas.
	whole, ours cache.Cache
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (s *source) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (s *source) Start(ctx context.Context) error {
	c := s.into
	feeds := []feed{
		{s.whole, &schedulingv1.PriorityClass{}, handler(c.SetClass, func(o *schedulingv1.PriorityClass) { c.DeleteClass(o.Name) })},
		{s.whole, &corev1.Namespace{}, handler(c.SetNamespace, func(o *corev1.Namespace) { c.DeleteNamespace(o.Name) })},
		{s.ours, &corev1.ResourceQuota{}, handler(c.SetQuota, func(o *corev1.ResourceQuota) { c.DeleteQuota(o.Namespace, o.Name) })},
		{s.whole, &corev1.Node{}, handler(c.SetNode, func(o *corev1.Node) { c.DeleteNode(o.Name) })},
		{s.ours, &v1alpha1.TrainingJob{}, handler(c.SetJob, c.DeleteJob)},
		{s.ours, &corev1.Pod{}, handler(c.SetPod, c.DeletePod)},
	}
	var synced []toolscache.InformerSynced
	for _, f := range feeds {
		informer, err := f.from.GetInformer(ctx, f.kind, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch %T: %w", f.kind, err)
		}
		registration, err := informer.AddEventHandler(f.handler)
		if err != nil {
			return fmt.Errorf("watch %T: %w", f.kind, err)
		}
		defer func() { _ = informer.RemoveEventHandler(registration) }()
		synced = append(synced, registration.HasSynced)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil // the manager ends
	}
	c.Synced()
	<-ctx.Done()
	return nil
}

// feed is one kind of object, where it comes from, and who takes it.
type feed struct {
	from    cache.Cache
	kind    client.Object
	handler toolscache.ResourceEventHandler
}

// handler takes the objects of one kind, tombstones included.
func handler[T client.Object](set, remove func(T)) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			if one, ok := object.(T); ok {
				set(one)
			}
		},
		UpdateFunc: func(_, object any) {
			if one, ok := object.(T); ok {
				set(one)
			}
		},
		DeleteFunc: func(object any) {
			if tombstone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = tombstone.Obj
			}
			if one, ok := object.(T); ok {
				remove(one)
			}
		},
	}
}
