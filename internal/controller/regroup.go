package controller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// annotationRefill marks the pods of a batch that fills a job up to min again: "first-count", by
// ordinals.
const annotationRefill = "training.concertina.dev/refill"

func isRefill(pod *corev1.Pod) bool { return pod.Annotations[annotationRefill] != "" }

// spawnRefill makes what an attempt lacks of min, beside those who wait with their state: its names are reserved, and
// its pods say of which batch they are, since one that is not made whole is withdrawn and its attempt goes on. A gang
// (createGang) that is not made whole is over with its attempt.
func (p *planner) spawnRefill(ordinals []int32, places []fleet.Place) {
	ordinals = ordinals[:min(len(ordinals), len(places))]
	first, size := ordinals[0], int32(len(ordinals))
	group, pods := p.batch(refillName(p.Job.Name, p.attempt(), first), ordinals, places)
	var names []string
	for _, pod := range pods {
		pod.Annotations[annotationRefill] = fmt.Sprintf("%d-%d", first, size)
		names = append(names, pod.Name)
	}
	p.plan.Actions.RefillGroup, p.plan.Actions.Refill = group, pods
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

// regroupFailure says that survivors have waited too long for others, or that nobody waits. They may have after a while; 0
// for no such time.
func (p *planner) regroupFailure(crew []worker) (f failure, again time.Duration) {
	if p.isLeftSafely(crew) {
		return failure{cause: causeReleased, message: fmt.Sprintf(
			"all of its workers are to leave; it goes on after step %d, which is in its storage", p.World.Durable.Snapshot.Step)}, 0
	}
	training := meta.FindStatusCondition(p.Job.Status.Conditions, v1alpha1.ConditionTraining)
	if p.World.Phase != rendezvous.PhaseRegrouping || training == nil ||
		training.Status != metav1.ConditionFalse || training.Reason != v1alpha1.ReasonRegrouping {
		return failure{}, 0
	}
	timeout := value(p.Job.Spec.Failure.RegroupTimeout).Duration
	since := training.LastTransitionTime.Add(p.plan.Elastic.Recovered)
	if left := p.regroupsUntil(since, crew).Sub(p.Now); left > 0 {
		return failure{}, left
	}
	message := fmt.Sprintf("fewer than spec.workers.min (%d) workers were left for spec.failure.regroupTimeout (%s)",
		p.minimum(), timeout)
	if !p.tooFew(crew) {
		message = fmt.Sprintf("those who were lost did not come back within spec.failure.regroupTimeout (%s), "+
			"and those who are left hold no snapshot", timeout)
		if why := p.World.Storage; why != "" {
			message += "; nor does the storage give one: " + why
		}
	}
	// A world that all were asked to leave is no loss, and is not counted.
	return p.blame(failure{cause: causeReleased, message: message}), 0
}

// mostRegroups is how many times spec.failure.regroupTimeout survivors wait at most, whoever holds it up.
const mostRegroups = 3

// regroupsUntil is until when survivors wait that have done so since a time. What they wait for the operator, and it for the
// API server, does not count: it counts from when this operator was there, and had an answer. Until it has one there
// has to be something to ask.
func (p *planner) regroupsUntil(since time.Time, crew []worker) time.Time {
	timeout := value(p.Job.Spec.Failure.RegroupTimeout).Duration
	last := since.Add(mostRegroups * timeout)
	if p.Memory.Own.Unanswered && (!p.Grant.Known || len(p.missing(crew).places) > 0 || p.incomplete(crew)) {
		return last
	}
	until := latest(latest(since, p.Memory.Since), p.Memory.Own.AnsweredAt).Add(timeout)
	if p.Memory.Own.NotGrown > 0 {
		until = latest(until, p.plan.Elastic.Growth.Refused) // a verdict is an answer, whatever pause follows from it
	}
	if until.After(last) {
		return last
	}
	return until
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
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
