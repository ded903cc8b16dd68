package console

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
)

// rest is why the planner has no say in a job.
type rest struct {
	reason, text string
	// waits is true when it will begin to queue by itself.
	waits bool
}

// rest says why the planner leaves a job alone; false for one that it decides about.
func (j *job) rest(l *Look) (rest, bool) {
	if j.in.Stage != allocation.Held {
		return rest{}, false
	}
	spec, status := &j.object.Spec, &j.object.Status
	failed, admitted := j.condition(v1alpha1.ConditionFailed), j.condition(v1alpha1.ConditionAdmitted)
	switch {
	case meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionComplete):
		return rest{reason: v1alpha1.ConditionComplete, text: "it is complete"}, true
	case failed != nil && meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionFailed):
		return rest{reason: failed.Reason, text: "it has failed: " + failed.Message}, true
	case j.object.DeletionTimestamp != nil:
		return rest{reason: "Deleted", text: "it is being deleted"}, true
	case value(spec.Suspend):
		return rest{reason: v1alpha1.ReasonSuspended, text: "it is suspended: it queues when spec.suspend is false"}, true
	case spec.ManagedBy != "" && spec.ManagedBy != v1alpha1.ManagedByOperator:
		return rest{reason: "ManagedByOthers", text: spec.ManagedBy + " runs it (spec.managedBy)"}, true
	case admitted != nil && admitted.Reason == v1alpha1.ReasonInvalidTemplate:
		return rest{reason: admitted.Reason, text: "its template cannot train: " + admitted.Message}, true
	case status.RetryTime != nil && status.RetryTime.After(l.now):
		text := fmt.Sprintf("its last attempt ended, and it queues again in %s, at %s", span(status.RetryTime.Sub(l.now)), clock(status.RetryTime.Time))
		return rest{reason: v1alpha1.ReasonBackOff, text: text, waits: true}, true
	case len(j.pods) > 0:
		return rest{reason: v1alpha1.ReasonStopping, text: "it queues again when the pods of its last attempt have ended", waits: true}, true
	default:
		return rest{reason: "Held", text: "its template makes no pod that could train"}, true
	}
}

// finished says whether a job is over.
func (j *job) finished() bool {
	conditions := j.object.Status.Conditions
	return meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionComplete) || meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionFailed)
}

// waits says whether a job waits to start.
func (j *job) waits(l *Look) bool {
	if r, resting := j.rest(l); resting {
		return r.waits
	}
	return j.in.Stage == allocation.Queued && (j.decision == nil || !j.decision.Start)
}
