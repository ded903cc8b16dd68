package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/gang"
)

// fieldManager owns everything that the controller writes. status.world has a manager of its own.
const fieldManager = "concertina-controller"

// errRefused is a batch that the API server will not have; the reason is a condition's.
type errRefused struct{ reason, message string }

func (e *errRefused) Error() string { return e.message }

// errTaken means that the planner has thought better of what it had granted, before it was used.
var errTaken = errors.New("the places of the gang are not the job's any more")

// apply does what was planned, in the order of Actions, but for what may as well not be: see grow. A refused
// batch comes back as *errRefused.
func (r *Reconciler) apply(ctx context.Context, state *State, actions *Actions) error {
	key, uid := jobKey(state.Job), string(state.Job.UID)
	if actions.Release {
		r.Rendezvous.Release(key, uid)
	}
	if err := r.changePods(ctx, state, actions); err != nil {
		return err
	}
	if actions.DeleteGroup {
		if err := r.deleteGroups(ctx, state); err != nil {
			return err
		}
	}
	if actions.Forget {
		r.Rendezvous.Forget(key, uid)
	}
	if err := r.makeGroups(ctx, state, actions); err != nil {
		return err
	}
	if actions.Expect != nil && state.World.Known {
		r.Rendezvous.Expect(key, *actions.Expect)
	}
	if actions.Touch != nil {
		if err := r.Gang.Retry(ctx, *actions.Touch); err != nil && !errors.Is(err, gang.ErrNotInstalled) {
			return err
		}
	}
	if err := r.refreshTrust(ctx, state); err != nil {
		return err
	}
	if actions.DeleteJob {
		err := r.Client.Delete(ctx, state.Job, client.Preconditions{UID: &state.Job.UID}, client.PropagationPolicy(metav1.DeletePropagationBackground))
		return client.IgnoreNotFound(wrapf(err, "delete job %s", key))
	}
	return nil
}

// changePods deletes, withdraws and marks pods, many at a time.
func (r *Reconciler) changePods(ctx context.Context, state *State, actions *Actions) error {
	if err := atOnce(len(actions.Delete), func(i int) error { return r.deletePod(ctx, actions.Delete[i]) }); err != nil {
		return err
	}
	if err := atOnce(len(actions.Withdraw), func(i int) error { return r.withdraw(ctx, actions.Withdraw[i]) }); err != nil {
		return err
	}
	return atOnce(len(actions.Mark), func(i int) error { return r.markPod(ctx, state.Job.UID, actions.Mark[i]) })
}

// makeGroups makes a gang with its group, or groups again that somebody has deleted.
func (r *Reconciler) makeGroups(ctx context.Context, state *State, actions *Actions) error {
	switch {
	case actions.Group != nil:
		return r.createGang(ctx, state, actions)
	case actions.Release || actions.DeleteGroup:
		return nil
	default:
		return r.mendGroups(ctx, state)
	}
}

func (r *Reconciler) deletePod(ctx context.Context, pod *corev1.Pod) error {
	err := r.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return wrapf(err, "delete pod %s/%s", pod.Namespace, pod.Name)
}

// withdraw deletes a pod if it still has no node: once it is bound it may already do its part.
func (r *Reconciler) withdraw(ctx context.Context, pod *corev1.Pod) error {
	err := r.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return wrapf(err, "withdraw pod %s/%s", pod.Namespace, pod.Name)
}

// markPod says on a pod for which job it leaves, or takes that away.
func (r *Reconciler) markPod(ctx context.Context, job types.UID, mark PodMark) error {
	condition := map[string]any{"type": v1alpha1.PodLeaving, "$patch": "delete"}
	if mark.Mark != (fleet.Mark{}) {
		c := mark.Mark.Condition()
		condition = map[string]any{
			"type": c.Type, "status": c.Status, "reason": c.Reason, "message": c.Message, "lastTransitionTime": c.LastTransitionTime,
		}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": mark.Pod.UID}, "status": map[string]any{"conditions": []any{condition}},
	})
	if err != nil {
		return fmt.Errorf("encode the condition %s: %w", v1alpha1.PodLeaving, err)
	}
	// Other conditions are the kubelet's and the scheduler's: this kind of patch leaves them alone.
	marked := bare(mark.Pod)
	err = r.Client.Status().Patch(ctx, marked, client.RawPatch(types.StrategicMergePatchType, patch), client.FieldOwner(fieldManager))
	if there, err := stillThere(err); !there || err != nil {
		return wrapf(err, "mark pod %s/%s as leaving", mark.Pod.Namespace, mark.Pod.Name)
	}
	r.memory.update(job, func(m *Memory) {
		m.Own.marked(mark.Pod.UID, ownMark{version: marked.ResourceVersion, mark: mark.Mark})
	})
	return nil
}

// bare is a pod with nothing but its name: what is to be patched, by uid, since what was read may be older than what stands
// there.
func bare(pod *corev1.Pod) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
}

// stillThere tells from the answer to such a patch whether the pod is there.
func stillThere(err error) (bool, error) {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) {
		return false, nil // a uid that differs is invalid: another pod has the name
	}
	return err == nil, err
}

func wrapf(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}
