package controller

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/gang"
)

// +kubebuilder:rbac:groups=scheduling.x-k8s.io,resources=podgroups,verbs=patch

// retryInterval is how often the scheduler is asked to look at waiting gangs again. It bounds how long
// free room may go unnoticed, and is the same for one waiting gang and for a thousand.
const retryInterval = 5 * time.Second

// retryWaiting asks the scheduler, while any gang waits for room, to look again every so often.
func (r *Reconciler) retryWaiting(ctx context.Context) error {
	ticker := time.NewTicker(retryInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := r.retryOne(ctx); err != nil && ctx.Err() == nil {
			ctrl.LoggerFrom(ctx).Error(err, "ask the scheduler to look at waiting gangs again")
		}
	}
}

// retryOne asks for the gang that has waited longest; the scheduler then looks at all of them.
func (r *Reconciler) retryOne(ctx context.Context) error {
	var jobs v1alpha1.TrainingJobList
	if err := r.Client.List(ctx, &jobs); err != nil {
		return wrapf(err, "list jobs")
	}
	var longest *State
	var since time.Time
	for i := range jobs.Items {
		job := &jobs.Items[i]
		// A job that regroups waits for the room of a refill; the gang's own group does for asking.
		scheduled := meta.FindStatusCondition(job.Status.Conditions, v1alpha1.ConditionGangScheduled)
		if training := meta.FindStatusCondition(job.Status.Conditions, v1alpha1.ConditionTraining); training != nil && training.Reason == v1alpha1.ReasonRegrouping {
			scheduled = training
		} else if scheduled == nil || scheduled.Reason != v1alpha1.ReasonWaitingForRoom {
			continue
		}
		if longest == nil || scheduled.LastTransitionTime.Time.Before(since) {
			longest, since = &State{Job: job}, scheduled.LastTransitionTime.Time
		}
	}
	if longest == nil {
		return nil
	}
	err := r.Gang.Retry(ctx, longest.groupKey())
	if errors.Is(err, gang.ErrNotInstalled) {
		return nil
	}
	return err
}
