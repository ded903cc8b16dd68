package scale

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/hack/bench/apiserver"
)

// hands is how many pods are bound, started or ended at a time.
const hands = 32

// kubelet plays the scheduler and all kubelets: it gives every pending pod a node that it fits on, says
// that it runs, and lets pods go that are deleted. There are no containers. A real kubelet writes a pod's
// status more often than once; that would be the same for everybody who is measured.
type kubelet struct {
	core   kubernetes.Interface
	places *places
	pods   cache.SharedIndexInformer
	queue  workqueue.TypedInterface[string]
	group  sync.WaitGroup
	stop   context.CancelFunc
	// running is how many pods were set running and are not gone, failed the first error.
	running atomic.Int64
	failed  atomic.Pointer[error]
}

// startKubelet begins to play, on all nodes that there are.
func startKubelet(ctx context.Context, s *server) (*kubelet, error) {
	user, err := s.user(kubeletUser, "system:masters")
	if err != nil {
		return nil, err
	}
	core, err := kubernetes.NewForConfig(apiserver.Compact(user.Config()))
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	nodes, err := core.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the nodes: %w", err)
	}
	factory := informers.NewSharedInformerFactory(core, 0)
	k := &kubelet{
		core: core, places: newPlaces(nodes.Items), pods: factory.Core().V1().Pods().Informer(),
		queue: workqueue.NewTyped[string](),
	}
	_, err = k.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    k.look,
		UpdateFunc: func(_, pod any) { k.look(pod) },
		DeleteFunc: k.gone,
	})
	if err != nil {
		return nil, fmt.Errorf("watch the pods: %w", err)
	}
	ctx, k.stop = context.WithCancel(ctx)
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), k.pods.HasSynced) {
		k.end()
		return nil, errors.New("the pods cannot be watched")
	}
	for range hands {
		k.group.Go(func() { k.work(ctx) })
	}
	return k, nil
}

func (k *kubelet) end() {
	k.stop()
	k.queue.ShutDown()
	k.group.Wait()
}

// err is the first thing that went wrong, if any.
func (k *kubelet) err() error {
	if failed := k.failed.Load(); failed != nil {
		return *failed
	}
	return nil
}

// situation tells which pods do not run.
func (k *kubelet) situation() string {
	unbound, waiting, ending, example := 0, 0, 0, "none"
	for _, object := range k.pods.GetStore().List() {
		pod := object.(*corev1.Pod)
		switch {
		case pod.DeletionTimestamp != nil:
			ending++
			continue
		case pod.Spec.NodeName == "":
			unbound++
		case pod.Status.Phase == corev1.PodPending:
			waiting++
		default:
			continue
		}
		named, _ := pinnedTo(pod)
		example = fmt.Sprintf("%s/%s, node %q, demands node %q, %s", pod.Namespace, pod.Name, pod.Spec.NodeName, named, k.places.describe(named))
	}
	return fmt.Sprintf("of %d pods %d have no node, %d have one and wait, %d are ending; one of those that wait: %s",
		len(k.pods.GetStore().ListKeys()), unbound, waiting, ending, example)
}

// look takes in a pod as it is now: it may hold room, and there may be something to do.
func (k *kubelet) look(object any) {
	pod := object.(*corev1.Pod)
	if pod.Spec.NodeName != "" {
		k.places.hold(pod)
	}
	if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodPending {
		k.queue.Add(pod.Namespace + "/" + pod.Name)
	}
}

func (k *kubelet) gone(object any) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	pod := object.(*corev1.Pod)
	k.release(pod)
	if pod.Status.Phase == corev1.PodRunning {
		k.running.Add(-1)
	}
}

// release gives the room of a pod back and has those looked at that wait for some.
func (k *kubelet) release(pod *corev1.Pod) {
	for _, key := range k.places.release(pod.UID) {
		k.queue.Add(key)
	}
}

func (k *kubelet) work(ctx context.Context) {
	for {
		key, shut := k.queue.Get()
		if shut {
			return
		}
		if err := k.serve(ctx, key); err != nil && ctx.Err() == nil {
			err = fmt.Errorf("play the kubelet of pod %s: %w", key, err)
			k.failed.CompareAndSwap(nil, &err)
		}
		k.queue.Done(key)
	}
}

// serve does what there is to do for a pod.
func (k *kubelet) serve(ctx context.Context, key string) error {
	object, exists, err := k.pods.GetStore().GetByKey(key)
	if err != nil || !exists {
		return err
	}
	pod := object.(*corev1.Pod)
	pods := k.core.CoreV1().Pods(pod.Namespace)
	if pod.DeletionTimestamp != nil {
		err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: &pod.UID},
		})
		return ignoreGone(err)
	}
	if pod.Status.Phase != corev1.PodPending || len(pod.Spec.SchedulingGates) > 0 {
		return nil
	}
	if pod.Spec.NodeName == "" {
		node := k.places.find(pod)
		if node == "" {
			return nil // for now, or it was bound by us just now
		}
		if err := pods.Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: node},
		}, metav1.CreateOptions{}); err != nil {
			k.release(pod)
			return ignoreGone(err)
		}
		pod = pod.DeepCopy()
		pod.Spec.NodeName = node
	}
	return k.run(ctx, pod)
}

// run says that a pod runs, once.
func (k *kubelet) run(ctx context.Context, pod *corev1.Pod) error {
	if !k.places.start(pod.UID) {
		return nil
	}
	pod = pod.DeepCopy()
	pod.ResourceVersion = "" // whatever else has changed meanwhile
	pod.Status = runningStatus(pod)
	if _, err := k.core.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		return ignoreGone(err)
	}
	k.running.Add(1)
	return nil
}

// ignoreGone forgives that a pod was deleted meanwhile.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// runningStatus is what a kubelet says of a pod all of whose containers run.
func runningStatus(pod *corev1.Pod) corev1.PodStatus {
	now := metav1.Now()
	status := corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: "192.0.2.10", PodIPs: []corev1.PodIP{{IP: "192.0.2.10"}}, StartTime: &now,
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{
			Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now,
		})
	}
	for _, c := range pod.Spec.InitContainers {
		status.InitContainerStatuses = append(status.InitContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, Ready: true,
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now}},
		})
	}
	for _, c := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, Ready: true, Started: ptr.To(true),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	return status
}
