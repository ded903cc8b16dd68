package controller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

const (
	// The pause of a job whose growth failed doubles from firstGrowthPause to lastGrowthPause. A change
	// of the nodes ends it.
	firstGrowthPause = 30 * time.Second
	lastGrowthPause  = 10 * time.Minute
)

// GrowthBackOff is the pause after workers that could not be added.
type GrowthBackOff struct {
	// Until is when growth may be tried again, unless the nodes change before.
	Until time.Time
	// Nodes is the digest of the nodes when growth failed.
	Nodes uint64
	// Count is how often in a row it failed, Why says why it did last.
	Count int
	Why   string
	// Crashed is true when pods could not start or have failed, rather than found no room.
	Crashed bool
	// Blamed are the uids of the pods of the last failure: one pod is one failure.
	Blamed []string
}

// failed returns the back-off after one more failure.
func (b GrowthBackOff) failed(now time.Time, nodes uint64, why string, blamed []string) GrowthBackOff {
	count := 1
	if b.Nodes == nodes {
		count = b.Count + 1
	}
	pause := firstGrowthPause
	for i := 1; i < count && pause < lastGrowthPause; i++ {
		pause *= 2
	}
	return GrowthBackOff{Until: now.Add(min(pause, lastGrowthPause)), Nodes: nodes, Count: count, Why: why, Blamed: blamed}
}

// told is the back-off in words.
func (b GrowthBackOff) told() string {
	return fmt.Sprintf("%s; more workers are tried again at %s, or when the nodes change",
		b.Why, b.Until.UTC().Format(time.RFC3339))
}

// growthPaused says whether no more workers are made for now. Somebody must look when that is over: nothing
// else may happen to the job meanwhile.
func (p *planner) growthPaused() bool {
	growth := &p.plan.Elastic.Growth
	left := growth.Until.Sub(p.Now)
	if left <= 0 || growth.Nodes != p.Nodes.digest() {
		return false
	}
	p.lookAgain(left)
	return true
}

// need is a number of pods that are missing, and whether they must be placed together.
type need struct {
	pods   int32
	refill bool
}

// missing says which pods the crew lacks. Below min all that is missing must come together, since a
// part of it helps nobody; above, each one is worth having that there is room for.
func (p *planner) missing(crew []worker) need {
	if p.finishing(crew) {
		return need{}
	}
	settled := count(crew, func(w *worker) bool { return w.stays() && (w.bound() || isRefill(w.pod)) })
	if settled < p.minimum() {
		if p.growthPaused() && p.plan.Elastic.Growth.Crashed {
			return need{}
		}
		return need{pods: p.minimum() - settled, refill: true}
	}
	if p.growthPaused() {
		return need{}
	}
	bound := count(crew, func(w *worker) bool { return w.stays() && w.bound() })
	goal := p.legal(min(value(p.plan.Status.Workers.Target), bound+p.Room))
	return need{pods: max(0, goal-count(crew, (*worker).stays))}
}

// finishing says whether the world has made its last step, or a worker of it has ended well: nobody
// who comes now would be of use. While a loss is being made good the training is not at its end: what
// follows the last step, such as an evaluation, is yet to be done again.
func (p *planner) finishing(crew []worker) bool {
	if p.World.Phase == rendezvous.PhaseRecovering || p.World.Phase == rendezvous.PhaseRegrouping {
		return false
	}
	progress := p.World.Progress
	if progress.TotalSteps > 0 && progress.Step >= progress.TotalSteps {
		return true
	}
	return slices.ContainsFunc(crew, func(w worker) bool { return w.ended && w.lost == "" && w.inWorld() })
}

// retarget decides how many workers the job should have, and reserves names for those that are
// missing. Both are durable before a pod is made.
func (p *planner) retarget(crew []worker) {
	status := &p.plan.Status
	failed := p.growthFailure(crew)
	target := p.target()
	bound := count(crew, func(w *worker) bool { return w.stays() && w.bound() && w.stuck == "" })
	ceiling := max(p.legal(value(p.Job.Spec.Workers.Max)), p.minimum())
	switch {
	case target > ceiling:
		target = ceiling
		p.note(corev1.EventTypeNormal, v1alpha1.EventWorkerLeaving, "spec.workers.max is %d: %d workers are to stay",
			value(p.Job.Spec.Workers.Max), target)
	case p.growthPaused():
		// What did not come is not waited for; who is there stays.
		target = max(p.minimum(), min(target, p.legal(bound)))
	case p.World.Phase == rendezvous.PhaseTraining && !p.finishing(crew):
		target = max(target, p.legal(bound+p.Room))
	}
	status.Workers.Target = ptr.To(target)
	if target < p.target() || failed || len(p.reserved()) > 0 {
		return
	}
	if lacking := p.missing(crew); lacking.pods > 0 && !p.incomplete(crew) {
		first := value(status.NextOrdinal)
		status.NextOrdinal = ptr.To(first + lacking.pods)
		p.plan.Elastic.Reserved = nil
		for ordinal := first; ordinal < first+lacking.pods; ordinal++ {
			p.plan.Elastic.Reserved = append(p.plan.Elastic.Reserved, ordinal)
		}
		p.plan.Elastic.Refill = lacking.refill
	}
}

// reserved are the names that this process may use now.
func (p *planner) reserved() []int32 { return p.Memory.Elastic.Reserved }

// spawn makes the pods whose names are reserved, as far as they are still missing.
func (p *planner) spawn(crew []worker) {
	reserved := p.reserved()
	if len(reserved) == 0 {
		return
	}
	lacking := p.missing(crew)
	if lacking.pods == 0 || lacking.refill != p.Memory.Elastic.Refill {
		p.plan.Elastic.Reserved = nil // names are cheap
		return
	}
	reserved = reserved[:min(len(reserved), int(lacking.pods))]
	if lacking.refill {
		p.spawnRefill(reserved)
		return
	}
	var names []string
	for _, ordinal := range reserved {
		pod := newGrowthPod(p.Job, p.settings, p.attempt(), ordinal)
		p.plan.Actions.Grow = append(p.plan.Actions.Grow, pod)
		names = append(names, pod.Name)
	}
	if gone := p.gone(crew); gone != "" {
		p.note(corev1.EventTypeNormal, v1alpha1.EventReplacing, "%s made, in the place of %s", strings.Join(names, ", "), gone)
		return
	}
	p.note(corev1.EventTypeNormal, v1alpha1.EventGrowing,
		"%s made: there is room for %d more, the job is to have %d workers",
		strings.Join(names, ", "), p.Room, p.target())
}

// gone names those whose place newcomers take.
func (p *planner) gone(crew []worker) string {
	var names []string
	for i := range crew {
		w := &crew[i]
		if !w.newcomer() && (w.lost != "" || w.leaving != "" && w.leaving != rendezvous.ReasonScaledDown) {
			names = append(names, w.pod.Name)
		}
	}
	return strings.Join(names, ", ")
}

// growthFailure remembers newcomers that found no node in time, cannot start, or have failed before
// they were in a world. It says whether there is one that was not known before.
func (p *planner) growthFailure(crew []worker) bool {
	stabilization := value(p.Job.Spec.Growth.Stabilization).Duration
	var why, blamed []string
	crashed := false
	for i := range crew {
		w := &crew[i]
		if !w.newcomer() || w.leaving != "" || isRefill(w.pod) && !w.bound() {
			continue
		}
		text := ""
		left := w.pod.CreationTimestamp.Add(stabilization).Sub(p.Now)
		switch {
		case p.crashed(w):
			text = w.lost
		case w.ended || w.lost != "" || w.bound() && w.stuck == "":
			continue
		case left > 0:
			p.lookAgain(left)
			continue
		case !w.bound():
			text = fmt.Sprintf("%s has no node after spec.growth.stabilization (%s): %s",
				w.pod.Name, stabilization, unschedulable(w.pod))
		default:
			text = w.stuck
		}
		crashed = crashed || w.bound()
		blamed = append(blamed, string(w.pod.UID))
		if !slices.Contains(p.Memory.Elastic.Growth.Blamed, string(w.pod.UID)) {
			why = append(why, text)
		}
	}
	if len(why) == 0 {
		return false
	}
	growth := &p.plan.Elastic.Growth
	*growth = growth.failed(p.Now, p.Nodes.digest(), strings.Join(why, "; "), blamed)
	growth.Crashed = crashed
	p.note(corev1.EventTypeWarning, v1alpha1.EventGrowthWithdrawn, "%s", growth.told())
	return true
}

// crashed says whether a newcomer has failed by itself. One that was taken away, or whose node was lost,
// has not: another may find room at once. One that a kubelet has refused counts as failed, since the next
// would be refused as well.
func (p *planner) crashed(w *worker) bool {
	if w.lost == "" || disruptionTarget(w.pod) != nil {
		return false
	}
	var at time.Time
	exits := p.failedExits([]*corev1.Pod{w.pod})
	switch {
	case w.loss != nil && w.loss.Program:
		at = w.loss.At
	case w.ended && len(exits) > 0:
		at = exits[0].at
	default:
		return false
	}
	// What ends in the second in which it is deleted most likely ends by that.
	return w.pod.DeletionTimestamp == nil || deletionTime(w.pod).After(at.Truncate(time.Second))
}

// unschedulable is why the scheduler has no node for a pod, in its own words.
func unschedulable(pod *corev1.Pod) string {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse && condition.Message != "" {
			return condition.Message
		}
	}
	return "the scheduler has not said why"
}
