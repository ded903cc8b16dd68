package gang

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	schedv1alpha1 "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
)

// annotationRetried holds when the scheduler was last asked to look at a waiting PodGroup again.
const annotationRetried = "training.concertina.dev/retried-at"

// Coscheduling places groups with the coscheduling plugin of scheduler-plugins: a PodGroup of
// scheduling.x-k8s.io, and a label on each pod.
//
// The plugin counts terminating pods towards the quorum and keys on pod names, hence the rule of
// fresh groups and fresh names. The status of its PodGroup is not reliable and is never read.
type Coscheduling struct {
	// Client must not serve PodGroups from a cache: the kind may be missing from the cluster, and
	// Exists promises a live read.
	Client client.Client
}

var _ Scheduler = Coscheduling{}

// Ensure implements Scheduler.
func (c Coscheduling) Ensure(ctx context.Context, group Group) error {
	podGroup := &schedv1alpha1.PodGroup{
		ObjectMeta: metav1.ObjectMeta{Name: group.Key.Name, Namespace: group.Key.Namespace, Labels: group.Labels},
		Spec:       schedv1alpha1.PodGroupSpec{MinMember: group.MinMember, MinResources: group.MinResources},
	}
	if err := controllerutil.SetControllerReference(group.Owner, podGroup, c.Client.Scheme()); err != nil {
		return fmt.Errorf("own PodGroup %s: %w", group.Key, err)
	}
	err := c.Client.Create(ctx, podGroup)
	if !apierrors.IsAlreadyExists(err) {
		return c.wrap("create", group.Key, err)
	}
	found := &schedv1alpha1.PodGroup{}
	if err := c.Client.Get(ctx, group.Key, found); err != nil {
		return c.wrap("get", group.Key, err)
	}
	if !metav1.IsControlledBy(found, group.Owner) {
		return fmt.Errorf("PodGroup %s is there already: %w: delete it, or rename the job", group.Key, ErrForeign)
	}
	return nil
}

// Exists implements Scheduler.
func (c Coscheduling) Exists(ctx context.Context, owner client.Object, key types.NamespacedName) (bool, error) {
	found := &schedv1alpha1.PodGroup{}
	err := c.Client.Get(ctx, key, found)
	if apierrors.IsNotFound(err) && !c.kindMissing(err) {
		return false, nil
	}
	return err == nil && found.DeletionTimestamp == nil && metav1.IsControlledBy(found, owner), c.wrap("get", key, err)
}

// Decorate implements Scheduler.
func (Coscheduling) Decorate(pod *corev1.Pod, group Group) {
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[schedv1alpha1.PodGroupLabel] = group.Key.Name
	pod.Spec.SchedulerName = group.SchedulerName
}

// List implements Scheduler.
func (c Coscheduling) List(ctx context.Context, owner client.Object, labels map[string]string) ([]types.NamespacedName, error) {
	var list schedv1alpha1.PodGroupList
	err := c.Client.List(ctx, &list, client.InNamespace(owner.GetNamespace()), client.MatchingLabels(labels))
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list PodGroups of namespace %s: %w", owner.GetNamespace(), err)
	}
	var keys []types.NamespacedName
	for i := range list.Items {
		if metav1.IsControlledBy(&list.Items[i], owner) {
			keys = append(keys, client.ObjectKeyFromObject(&list.Items[i]))
		}
	}
	return keys, nil
}

// Delete implements Scheduler.
func (c Coscheduling) Delete(ctx context.Context, owner client.Object, key types.NamespacedName) error {
	found := &schedv1alpha1.PodGroup{}
	err := c.Client.Get(ctx, key, found)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return nil
	}
	if err != nil {
		return c.wrap("get", key, err)
	}
	if !metav1.IsControlledBy(found, owner) {
		return nil
	}
	// The uid keeps what takes its name a moment later.
	err = c.Client.Delete(ctx, found, client.Preconditions{UID: &found.UID})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || meta.IsNoMatchError(err) {
		return nil
	}
	return c.wrap("delete", key, err)
}

// Retry implements Scheduler.
//
// The plugin refuses a group that lacks minResources before it looks at nodes, and is told of no pod
// or node that makes room later: pods that were refused then wait until the scheduler's queue is
// flushed, five minutes. A change of any PodGroup makes it look at all of them.
func (c Coscheduling) Retry(ctx context.Context, key types.NamespacedName) error {
	podGroup := &schedv1alpha1.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: key.Name, Namespace: key.Namespace}}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": map[string]string{annotationRetried: time.Now().UTC().Format(time.RFC3339)},
	}})
	if err != nil {
		return fmt.Errorf("encode a patch of PodGroup %s: %w", key, err)
	}
	err = c.Client.Patch(ctx, podGroup, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsNotFound(err) && !c.kindMissing(err) {
		return nil
	}
	return c.wrap("patch", key, err)
}

// Why implements Scheduler.
func (Coscheduling) Why(pods []*corev1.Pod) string {
	var unplaced []string
	why := ""
	for _, pod := range pods {
		if pod.Spec.NodeName != "" {
			continue
		}
		unplaced = append(unplaced, pod.Name)
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse && condition.Message != "" {
				why = condition.Message
			}
		}
	}
	if len(unplaced) == 0 {
		return ""
	}
	if why == "" {
		why = "the scheduler has not looked at them yet; if this stays, see whether it runs under the name in spec.gang.schedulerName"
	}
	return fmt.Sprintf("%d of %d pods have no node (%s): %s", len(unplaced), len(pods), strings.Join(unplaced, ", "), why)
}

// Install implements Scheduler.
func (Coscheduling) Install() string {
	return "the cluster does not know PodGroups of scheduling.x-k8s.io: install the PodGroup CRD and the " +
		"coscheduling scheduler of kubernetes-sigs/scheduler-plugins; the job goes on by itself then"
}

func (c Coscheduling) wrap(verb string, key types.NamespacedName, err error) error {
	switch {
	case err == nil:
		return nil
	case c.kindMissing(err):
		return fmt.Errorf("%s PodGroup %s: %w", verb, key, ErrNotInstalled)
	default:
		return fmt.Errorf("%s PodGroup %s: %w", verb, key, err)
	}
}

// kindMissing tells a missing kind from a missing object. Once the REST mapping has been learned, a
// CRD that was deleted since answers a plain 404, without the Status that tells of a missing object.
func (c Coscheduling) kindMissing(err error) bool {
	return meta.IsNoMatchError(err) ||
		apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}
