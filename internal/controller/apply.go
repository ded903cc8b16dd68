package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/gang"
)

// fieldManager owns everything that the controller writes. status.world has a manager of its own.
const fieldManager = "concertina-controller"

// errRefused is a batch that the API server will not have; the reason is a condition's.
type errRefused struct{ reason, message string }

func (e *errRefused) Error() string { return e.message }

// apply does what was planned, in the order of Actions. A refused batch comes back as *errRefused.
func (r *Reconciler) apply(ctx context.Context, state *State, actions *Actions) error {
	key := jobKey(state.Job)
	if actions.Release {
		r.Rendezvous.Release(key)
	}
	for _, pod := range actions.Delete {
		if err := r.deletePod(ctx, pod); err != nil {
			return err
		}
	}
	for _, pod := range actions.Withdraw {
		if err := r.withdraw(ctx, pod); err != nil {
			return err
		}
	}
	if actions.DeleteGroup {
		if err := r.deleteGroups(ctx, state); err != nil {
			return err
		}
	}
	if actions.Forget {
		r.Rendezvous.Forget(key)
	}
	if actions.Group != nil {
		if err := r.create(ctx, state, actions); err != nil {
			return err
		}
	}
	if err := r.grow(ctx, state, actions); err != nil {
		return err
	}
	if actions.Expect != nil {
		if err := r.ensureConfigMap(ctx, state.Job); err != nil {
			return err
		}
		r.Rendezvous.Expect(key, *actions.Expect)
	}
	for _, rank := range actions.Ranks {
		if err := r.annotateRank(ctx, rank); err != nil {
			return err
		}
	}
	if actions.DeleteJob {
		err := r.Client.Delete(ctx, state.Job, client.Preconditions{UID: &state.Job.UID}, client.PropagationPolicy(metav1.DeletePropagationBackground))
		return client.IgnoreNotFound(wrapf(err, "delete job %s", key))
	}
	return nil
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

// deleteGroups removes the groups of refills and then that of the gang, by which the attempt is known
// to have any.
func (r *Reconciler) deleteGroups(ctx context.Context, state *State) error {
	groups, err := r.Gang.List(ctx, state.Job.Namespace, jobLabels(state.Job, state.attempt()))
	if err != nil {
		return err
	}
	for _, group := range groups {
		if group == state.groupKey() {
			continue
		}
		if err := r.Gang.Delete(ctx, group); err != nil {
			return err
		}
	}
	return r.Gang.Delete(ctx, state.groupKey())
}

// create makes the job's ConfigMap, the group and its pods. A refusal stops it; what was made by
// then goes with the release of the attempt.
func (r *Reconciler) create(ctx context.Context, state *State, actions *Actions) error {
	if err := r.ensureConfigMap(ctx, state.Job); err != nil {
		return refusal("the job's ConfigMap", err)
	}
	err := r.Gang.Ensure(ctx, *actions.Group)
	if errors.Is(err, gang.ErrNotInstalled) {
		return &errRefused{reason: v1alpha1.ReasonPodGroupsMissing, message: r.Gang.Install()}
	}
	if err != nil {
		return refusal("the gang's PodGroup", err)
	}
	for _, pod := range actions.Create {
		r.Gang.Decorate(pod, *actions.Group)
		err := r.Client.Create(ctx, pod)
		if apierrors.IsAlreadyExists(err) {
			if err := r.ours(ctx, state.Job, pod); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return refusal("pod "+pod.Name, err)
		}
	}
	r.memory.update(state.Job.UID, func(m *Memory) { m.Refusal = nil })
	return nil
}

// ours accepts a pod that is there already if this job made it: then it was the cache that lagged.
func (r *Reconciler) ours(ctx context.Context, job *v1alpha1.TrainingJob, pod *corev1.Pod) error {
	found := &corev1.Pod{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(pod), found); err != nil {
		return fmt.Errorf("get pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if !metav1.IsControlledBy(found, job) || found.DeletionTimestamp != nil {
		return &errRefused{reason: v1alpha1.ReasonPodsForbidden, message: fmt.Sprintf(
			"a pod named %s is there already and does not belong to this job: delete it; the next attempt uses other names", pod.Name)}
	}
	return nil
}

// refusal tells the API server's verdict on an object from a passing fault.
func refusal(what string, err error) error {
	message := fmt.Sprintf("the API server refuses %s: %v", what, err)
	switch {
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota"):
		return &errRefused{reason: v1alpha1.ReasonQuotaExceeded, message: message}
	case apierrors.IsForbidden(err):
		return &errRefused{reason: v1alpha1.ReasonPodsForbidden, message: message}
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
		return &errRefused{reason: v1alpha1.ReasonInvalidTemplate, message: message}
	default:
		return fmt.Errorf("create %s: %w", what, err)
	}
}

// ensureConfigMap gives the job's pods the CA bundle that they trust the operator by. The kubelet
// carries a change of it into running pods.
func (r *Reconciler) ensureConfigMap(ctx context.Context, job *v1alpha1.TrainingJob) error {
	bundle := string(r.CABundle())
	key := client.ObjectKey{Namespace: job.Namespace, Name: configMapName(job.Name)}
	found := &corev1.ConfigMap{}
	err := r.Client.Get(ctx, key, found)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get ConfigMap %s: %w", key, err)
	}
	if err == nil && found.Data[caKey] == bundle && metav1.IsControlledBy(found, job) {
		return nil
	}
	owner := metav1.NewControllerRef(job, v1alpha1.GroupVersion.WithKind("TrainingJob"))
	config := applycorev1.ConfigMap(key.Name, key.Namespace).
		WithLabels(map[string]string{v1alpha1.LabelJob: job.Name}).
		WithOwnerReferences(applymetav1.OwnerReference().WithAPIVersion(owner.APIVersion).WithKind(owner.Kind).
			WithName(owner.Name).WithUID(owner.UID).WithController(true)).
		WithData(map[string]string{caKey: bundle})
	return wrapf(r.Client.Apply(ctx, config, client.FieldOwner(fieldManager), client.ForceOwnership), "apply ConfigMap %s", key)
}

func (r *Reconciler) annotateRank(ctx context.Context, rank PodRank) error {
	config := applycorev1.Pod(rank.Pod.Name, rank.Pod.Namespace).WithUID(rank.Pod.UID).
		WithAnnotations(map[string]string{v1alpha1.AnnotationRank: rank.Rank})
	err := r.Client.Apply(ctx, config, client.FieldOwner(fieldManager), client.ForceOwnership)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return wrapf(err, "annotate pod %s/%s with its rank", rank.Pod.Namespace, rank.Pod.Name)
}

func wrapf(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}
