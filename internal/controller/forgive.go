package controller

import (
	"cmp"
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// forgiveRefusals is told that a quota of a namespace has changed, or a LimitRange. It ends the pauses
// after refused batches that may pass now, and returns the jobs to look at.
func (r *Reconciler) forgiveRefusals(ctx context.Context, namespace string, limits bool) []ctrl.Request {
	if !r.memory.anyRefused(namespace) {
		return nil // a quota changes with every pod, and jobs are many
	}
	var jobs v1alpha1.TrainingJobList
	if err := r.Client.List(ctx, &jobs, client.InNamespace(namespace)); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "list jobs whose quota has changed", "namespace", namespace)
		return nil
	}
	var quotas corev1.ResourceQuotaList
	if err := r.Client.List(ctx, &quotas, client.InNamespace(namespace)); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "list the quotas that jobs wait for", "namespace", namespace)
		return nil
	}
	var waiting []*v1alpha1.TrainingJob
	for i := range jobs.Items {
		job := &jobs.Items[i]
		admitted := findCondition(job, v1alpha1.ConditionAdmitted)
		if admitted == nil || admitted.Status != metav1.ConditionFalse {
			continue
		}
		waiting = append(waiting, job)
	}
	refusal := func(uid types.UID) *Refusal { return r.memory.of(uid).Refusal }
	// Those whom no quota has refused yet are woken by the planner, when it has room for them.
	var requests []ctrl.Request
	for _, job := range forgivable(waiting, refusal, quotas.Items, limits, r.settings()) {
		requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(job)})
		r.memory.update(job.UID, func(m *Memory) {
			if m.Refusal != nil {
				forgiven := *m.Refusal // a reconcile may be reading the old one
				forgiven.Retry = time.Time{}
				m.Refusal = &forgiven
			}
		})
	}
	return requests
}

// forgivable picks the jobs whose refused batch may pass now. A batch that a quota refused may if all of
// it fits: what was made of it is deleted again, and the quota changes by that as well. When several wait
// they come in the order of their creation, and only those that fit together: of two that try at once each
// may get a part, and both lose it again.
func forgivable(
	jobs []*v1alpha1.TrainingJob, refusal func(types.UID) *Refusal, quotas []corev1.ResourceQuota, limits bool, settings PodSettings,
) []*v1alpha1.TrainingJob {
	jobs = slices.SortedFunc(slices.Values(jobs), func(a, b *v1alpha1.TrainingJob) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	left := make([]corev1.ResourceQuota, len(quotas))
	for i := range quotas {
		quotas[i].DeepCopyInto(&left[i])
	}
	var forgiven []*v1alpha1.TrainingJob
	for _, job := range jobs {
		refused := refusal(job.UID)
		switch {
		case refused == nil || value(job.Spec.Suspend) || templateFault(&job.Spec) != "":
		case refused.Reason != v1alpha1.ReasonQuotaExceeded:
			// No quota has refused it, so only other limits can help.
			if limits {
				forgiven = append(forgiven, job)
			}
		default:
			pod, batch := newPod(job, settings, 0, 0), value(job.Spec.Workers.Min)
			if shortageIn(left, pod, batch, true) == "" {
				charge(left, pod, batch)
				forgiven = append(forgiven, job)
			}
		}
	}
	return forgiven
}
