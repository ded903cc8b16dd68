package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
)

// gatherNodes looks at the nodes of a gang that has its room, and at the room beyond it.
func (r *Reconciler) gatherNodes(ctx context.Context, state *State) error {
	if r.Cluster == nil || state.target() == 0 || state.finished() || state.suspended() ||
		!isTrue(state.Job.Status.Conditions, v1alpha1.ConditionGangScheduled) {
		return nil
	}
	var nodes corev1.NodeList
	if err := r.Cluster.List(ctx, &nodes); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	state.Nodes = Nodes{ByName: map[string]*corev1.Node{}, Gone: map[string]bool{}}
	for i := range nodes.Items {
		state.Nodes.ByName[nodes.Items[i].Name] = &nodes.Items[i]
	}
	for _, pod := range state.gang() {
		name := pod.Spec.NodeName
		if name == "" || podEnded(pod) || state.Nodes.ByName[name] != nil || state.Nodes.Gone[name] {
			continue
		}
		err := r.Live.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("get node %s: %w", name, err)
		}
		state.Nodes.Gone[name] = apierrors.IsNotFound(err)
	}
	limit := state.roomLimit()
	if limit <= 0 {
		return nil
	}
	var pods corev1.PodList
	if err := r.Cluster.List(ctx, &pods); err != nil {
		return fmt.Errorf("list pods that take room: %w", err)
	}
	state.Room = roomFor(state, r.Pods, state.Nodes.ByName, pods.Items, limit)
	return nil
}

// roomLimit is how many more workers may be of use; 0 when the job has all that it may have, none of
// which was lost or is about to leave.
func (s *State) roomLimit() int32 {
	limit := s.legal(value(s.Job.Spec.Workers.Max))
	var settled int32
	for _, pod := range s.unharmed() {
		w := worker{pod: pod, seen: s.member(pod)}
		leaves := s.Nodes.drains(pod, s.DrainTaints) != "" || disruptionTarget(pod) != nil || w.seen.Terminating
		if w.bound() && !leaves && !s.givenUp(pod) && !s.cutOff(&w) {
			settled++
		}
	}
	if !s.elastic() || settled >= limit {
		return 0
	}
	return limit
}

const (
	// roomInterval is how often jobs that could grow are looked at, at most, because room appeared.
	roomInterval = 3 * time.Second
)

// roomChanges notes that room may have appeared somewhere.
type roomChanges struct{ changed, nodes atomic.Bool }

// watchRoom looks at jobs that could grow when a node changes or a pod ends, every few seconds at
// most; and at jobs with workers on nodes that have changed.
func (r *Reconciler) watchRoom(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	nodes, err := r.Cluster.GetInformer(ctx, &corev1.Node{})
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	pods, err := r.Cluster.GetInformer(ctx, &corev1.Pod{})
	if err != nil {
		return fmt.Errorf("watch pods that take room: %w", err)
	}
	if !r.Cluster.WaitForCacheSync(ctx) {
		return fmt.Errorf("watch nodes and the pods on them: %w", ctx.Err())
	}
	nodesHandle, err := nodes.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { r.room.nodes.Store(true) },
		DeleteFunc: func(any) { r.room.nodes.Store(true) },
		UpdateFunc: func(before, after any) {
			old, isNode := before.(*corev1.Node)
			now, both := after.(*corev1.Node)
			if isNode && both && nodeDigest(old) != nodeDigest(now) {
				r.room.nodes.Store(true)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	podsHandle, err := pods.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		DeleteFunc: func(any) { r.room.changed.Store(true) },
		UpdateFunc: func(before, after any) {
			old, isPod := before.(*corev1.Pod)
			now, both := after.(*corev1.Pod)
			if isPod && both && podEnded(now) && !podEnded(old) {
				r.room.changed.Store(true)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch pods that take room: %w", err)
	}
	go func() {
		defer func() {
			_ = nodes.RemoveEventHandler(nodesHandle)
			_ = pods.RemoveEventHandler(podsHandle)
		}()
		r.lookForRoom(ctx, queue)
	}()
	return nil
}

// lookForRoom turns changes of room into reconciles.
func (r *Reconciler) lookForRoom(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	for {
		// A taint wants an answer within the grace period of what follows it: nodes come sooner.
		for range int(roomInterval / roomPoll) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(roomPoll):
			}
			if r.room.nodes.Swap(false) {
				r.enqueue(ctx, queue, func(*v1alpha1.TrainingJob) bool { return true })
			}
		}
		if r.room.changed.Swap(false) {
			r.enqueue(ctx, queue, func(job *v1alpha1.TrainingJob) bool {
				return value(job.Status.Workers.Running) < value(job.Spec.Workers.Max)
			})
		}
	}
}

// roomPoll is how often jobs are looked at, at most, because a node has changed.
const roomPoll = 500 * time.Millisecond

// enqueue has jobs that have a gang looked at.
func (r *Reconciler) enqueue(
	ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request], which func(*v1alpha1.TrainingJob) bool,
) {
	var jobs v1alpha1.TrainingJobList
	if err := r.Client.List(ctx, &jobs); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "list jobs that could use room")
		return
	}
	for i := range jobs.Items {
		job := &jobs.Items[i]
		if isTrue(job.Status.Conditions, v1alpha1.ConditionGangScheduled) && which(job) {
			queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: job.Namespace, Name: job.Name}})
		}
	}
}

// roomFor is how many more workers the nodes would take now, beyond those that have a node. Pods of
// the job that wait for one are what the room is for.
func roomFor(state *State, settings PodSettings, nodes map[string]*corev1.Node, pods []corev1.Pod, limit int32) int32 {
	cluster := allocation.Cluster{Nodes: slices.Collect(maps.Values(nodes))}
	for i := range pods {
		if !slices.ContainsFunc(state.Pods, func(own *corev1.Pod) bool { return own.UID == pods[i].UID }) {
			cluster.Pods = append(cluster.Pods, &pods[i])
		}
	}
	// The two caches may be a moment apart: of its own pods the plan knows best.
	for _, own := range state.Pods {
		if own.Spec.NodeName != "" {
			cluster.Pods = append(cluster.Pods, own)
		}
	}
	placement := allocation.Room(cluster, allocation.Wanted{
		Shape: growthShape(state, settings), Limit: int(limit), DrainTaints: state.DrainTaints})
	return int32(placement.Total)
}

// growthShape is a worker beyond the gang as the scheduler sees it. What admission has added to one
// pod of the job, it adds to the next.
func growthShape(state *State, settings PodSettings) *corev1.Pod {
	shape := newGrowthPod(state.Job, settings, state.attempt(), 0)
	for _, pod := range state.gang() {
		seen := pod.DeepCopy()
		seen.Spec.NodeName = ""
		if isGrowth(pod) {
			return seen
		}
		seen.Labels[v1alpha1.LabelRole] = v1alpha1.RoleGrowth
		seen.Spec.Priority, seen.Spec.PriorityClassName = nil, shape.Spec.PriorityClassName
		shape = seen
	}
	return shape
}
