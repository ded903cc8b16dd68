package controller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/gang"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// annotationRefill marks the pods of a batch that fills a job up to min again: "first-count", by
// ordinals.
const annotationRefill = "training.concertina.dev/refill"

func isRefill(pod *corev1.Pod) bool { return pod.Annotations[annotationRefill] != "" }

// spawnRefill makes a batch that is placed together, with a group of its own.
func (p *planner) spawnRefill(ordinals []int32, places []fleet.Place) {
	ordinals = ordinals[:min(len(ordinals), len(places))]
	first, size := ordinals[0], int32(len(ordinals))
	group := &gang.Group{
		Key:           types.NamespacedName{Namespace: p.Job.Namespace, Name: refillName(p.Job.Name, p.attempt(), first)},
		Owner:         p.Job,
		Labels:        jobLabels(p.Job, p.attempt()),
		SchedulerName: p.Job.Spec.Gang.SchedulerName,
		MinMember:     size,
	}
	var names []string
	for i, ordinal := range ordinals {
		pod := newPod(p.Job, p.settings, p.attempt(), ordinal)
		pin(pod, places[i].Node)
		pod.Annotations[annotationRefill] = fmt.Sprintf("%d-%d", first, size)
		p.plan.Actions.Refill = append(p.plan.Actions.Refill, pod)
		names = append(names, pod.Name)
	}
	group.MinResources = batchResources(p.plan.Actions.Refill[0], size)
	p.plan.Actions.RefillGroup = group
	p.note(corev1.EventTypeNormal, v1alpha1.EventReplacing,
		"%s made, to be placed together (PodGroup %s): fewer than min (%d) are left",
		strings.Join(names, ", "), group.Key.Name, p.minimum())
}

// incomplete says whether the crew has pods of a batch that was never made whole, because the operator
// died on the way or the batch was refused. They can never be placed, and are withdrawn.
func (p *planner) incomplete(crew []worker) bool {
	for i := range crew {
		if p.orphan(&crew[i], crew) {
			return true
		}
	}
	return false
}

// orphan says whether a pod without a node belongs to a batch that lacks others, or has found its place
// taken.
func (p *planner) orphan(w *worker, crew []worker) bool {
	text := w.pod.Annotations[annotationRefill]
	if text == "" || w.bound() || len(p.reserved()) > 0 {
		return false
	}
	if slices.Contains(p.plan.Elastic.Growth.Blamed, string(w.pod.UID)) {
		return true
	}
	_, want, ok := refillOf(w.pod)
	if !ok {
		return true
	}
	there := count(crew, func(other *worker) bool {
		return other.pod.Annotations[annotationRefill] == text && (other.bound() || other.pod.DeletionTimestamp == nil)
	})
	return there < want
}

// regroupFailure says that survivors have waited too long for others.
func (p *planner) regroupFailure(crew []worker) (failure, bool) {
	if p.isLeftSafely(crew) {
		return failure{cause: causeReleased, message: fmt.Sprintf(
			"all of its workers are to leave; it goes on after step %d, which is in its storage", p.World.Durable.Snapshot.Step)}, true
	}
	training := meta.FindStatusCondition(p.Job.Status.Conditions, v1alpha1.ConditionTraining)
	if p.World.Phase != rendezvous.PhaseRegrouping || training == nil ||
		training.Status != metav1.ConditionFalse || training.Reason != v1alpha1.ReasonRegrouping {
		return failure{}, false
	}
	timeout := value(p.Job.Spec.Failure.RegroupTimeout).Duration
	if left := p.plan.Elastic.Growth.Refused.Sub(p.Now); left > 0 {
		p.lookAgain(left) // it is us that the survivors wait for
		return failure{}, false
	}
	if left := training.LastTransitionTime.Add(timeout).Sub(p.Now); left > 0 {
		p.lookAgain(left)
		return failure{}, false
	}
	message := fmt.Sprintf("fewer than spec.workers.min (%d) workers were left for spec.failure.regroupTimeout (%s)",
		p.minimum(), timeout)
	if !p.tooFew(crew) {
		message = fmt.Sprintf("those who were lost did not come back within spec.failure.regroupTimeout (%s), "+
			"and those who are left hold no snapshot", timeout)
	}
	// A world that all were asked to leave is no loss, and is not counted.
	return p.blame(failure{cause: causeReleased, message: message}), true
}

// isLeftSafely says whether nobody who has left the world is to stay, nobody comes, and the storage has all that was done:
// the nodes that are being drained need not wait until they may kill the workers.
func (p *planner) isLeftSafely(crew []worker) bool {
	return p.World.Phase == rendezvous.PhaseRegrouping && p.storage() != nil &&
		p.World.Durable.Path != "" && int64(p.World.Durable.Snapshot.Step) >= int64(p.World.Progress.Step) &&
		count(crew, (*worker).stays) == 0 && len(p.Grant.Places) == 0
}

// phaseLasts is how long something other than training goes on before a condition says so: nothing
// is written inside a pause.
const phaseLasts = 2 * time.Second
