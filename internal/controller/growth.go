package controller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

const (
	// The pause of growth that failed doubles from firstGrowthPause to lastGrowthPause.
	firstGrowthPause = 30 * time.Second
	lastGrowthPause  = 10 * time.Minute
)

// GrowthBackOff is the pause after workers that could not be added.
type GrowthBackOff struct {
	// Until is when growth may be tried again.
	Until time.Time
	// Refused is until when nothing is made at all, a refill neither: the API server would not have it.
	Refused time.Time
	// Count is how often in a row it failed, Why says why it did last.
	Count int
	Why   string
	// Blamed are the uids of the pods of the last failure: one pod is one failure.
	Blamed []string
	// Nodes are those on which newcomers have failed. The next leader does not know of them, and lets some more be tried.
	Nodes []string
	// Unreached are the uids of the pods that peers do not reach, and that were counted.
	Unreached []string
}

// failed returns the back-off after one more failure.
func (b GrowthBackOff) failed(now time.Time, why string, blamed []string) GrowthBackOff {
	count := 1
	if now.Before(b.Until.Add(lastGrowthPause)) {
		count = b.Count + 1
	}
	until := now.Add(doubled(firstGrowthPause, lastGrowthPause, int32(count)))
	return GrowthBackOff{Until: until, Refused: b.Refused, Count: count, Why: why, Blamed: blamed, Nodes: b.Nodes, Unreached: b.Unreached}
}

// told is the back-off in words.
func (b GrowthBackOff) told() string {
	return fmt.Sprintf("%s; more workers are tried again at %s", b.Why, b.over().UTC().Format(time.RFC3339))
}

// over is when the pause ends.
func (b GrowthBackOff) over() time.Time {
	if b.Refused.After(b.Until) {
		return b.Refused
	}
	return b.Until
}

// growthPaused says whether no more workers are made for now.
func (p *planner) growthPaused() bool {
	growth := &p.plan.Elastic.Growth
	return p.Now.Before(growth.Until) || p.Now.Before(growth.Refused)
}

// need is what pods are missing, where there is room for them, and whether they must be placed together.
type need struct {
	places []fleet.Place
	refill bool
}

// missing says which pods the crew lacks that there is room for. Below min all that is missing must come
// together, since a part of it helps nobody, and nothing but room delays it; above, each one is worth
// having.
func (p *planner) missing(crew []worker) need {
	if p.finishing(crew) || !p.Grant.Known || p.Now.Before(p.plan.Elastic.Growth.Refused) {
		return need{}
	}
	places := p.Grant.Places
	settled := count(crew, func(w *worker) bool { return w.stays() && (w.bound() || isRefill(w.pod)) })
	if short := int(p.minimum() - settled); short > 0 {
		if len(places) < short || slices.ContainsFunc(places[:short], func(place fleet.Place) bool { return !place.Own }) {
			return need{}
		}
		return need{places: places[:short], refill: true}
	}
	staying := count(crew, (*worker).stays)
	lacking := max(0, value(p.plan.Status.Workers.Target)-staying)
	// What the planner places beyond what the job is to have takes the place of workers that will move.
	moves := max(0, staying+int32(len(places))-p.Grant.Count)
	places = places[:min(int(lacking+moves), len(places))]
	if p.growthPaused() {
		// A place of the gang's own class is filled whatever became of growth.
		places = slices.DeleteFunc(slices.Clone(places), func(place fleet.Place) bool { return !place.Own })
	}
	// The plan may be from before a node was to blame.
	places = slices.DeleteFunc(slices.Clone(places), func(place fleet.Place) bool { return p.avoids(place.Node) })
	return need{places: places}
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
// missing. Both are durable before a pod is made; and who leaves for another job carries a mark before
// the target says that there are fewer.
func (p *planner) retarget(crew []worker) {
	status := &p.plan.Status
	newcomers := p.failedNewcomers(crew)
	if newcomers.again > 0 {
		p.lookAgain(newcomers.again)
	}
	failed := len(newcomers.why) > 0
	if failed {
		p.withdrawGrowth(&newcomers)
	}
	if newcomers.unknown {
		p.plan.Elastic.Growth.Blamed = newcomers.blamed // they leave, whoever has told of them and their nodes
	}
	status.Workers.Target = ptr.To(p.wanted(crew))
	if p.target() != value(status.Workers.Target) {
		p.explainTarget(value(status.Workers.Target))
		if p.Grant.Known {
			p.noteTriedAgain()
		}
	}
	if value(status.Workers.Target) < p.target() || failed || len(p.reserved()) > 0 {
		return
	}
	if lacking := p.missing(crew); len(lacking.places) > 0 && !p.incomplete(crew) {
		first := value(status.NextOrdinal)
		next := first + int32(len(lacking.places))
		status.NextOrdinal = ptr.To(next)
		p.plan.Elastic.Reserved = nil
		for ordinal := first; ordinal < next; ordinal++ {
			p.plan.Elastic.Reserved = append(p.plan.Elastic.Reserved, ordinal)
		}
		p.plan.Elastic.Refill = lacking.refill
	}
}

// wanted is how many workers the job should have now.
func (p *planner) wanted(crew []worker) int32 {
	target := p.target()
	ceiling := p.Job.Spec.Workers.Ceiling()
	if target > ceiling {
		return ceiling
	}
	lifted := int32(len(p.toLift(crew)))
	there := count(crew, func(w *worker) bool { return w.stays() && w.bound() && w.stuck == "" })
	settled := max(p.minimum(), p.legal(there+lifted+p.ownPlaces()))
	if lifted > 0 && p.Grant.Count > target {
		return min(p.Grant.Count, target+lifted, ceiling) // who need not leave any more is wanted again, first
	}
	switch {
	case p.Grant.Known && p.Grant.Count >= p.minimum() && p.Grant.Count < target:
		if len(p.toMark(crew)) > 0 {
			return target // first it is made durable who leaves
		}
		return p.Grant.Count
	case p.growthPaused() && settled < target:
		return settled // what did not come is not waited for; who is there stays
	case p.Grant.Known && p.Grant.Count > target && p.World.Phase == rendezvous.PhaseTraining && !p.finishing(crew) && !p.growthPaused():
		return min(p.Grant.Count, ceiling)
	default:
		return target
	}
}

// ownPlaces is how many places of the job's own class it may fill now: they are no growth.
func (p *planner) ownPlaces() int32 {
	var own int32
	for _, place := range p.Grant.Places {
		if p.Grant.Known && place.Own {
			own++
		}
	}
	return own
}

func (p *planner) explainTarget(next int32) {
	most, spares := value(p.Job.Spec.Workers.Max), value(p.Job.Spec.Workers.Spares)
	switch {
	case next < p.target() && p.target() > most+spares:
		beside := ""
		if spares > 0 {
			beside = fmt.Sprintf(", and spec.workers.spares %d", spares)
		}
		p.note(corev1.EventTypeNormal, v1alpha1.EventWorkerLeaving, "spec.workers.max is %d%s: %d workers are to stay", most, beside, next)
	case next > p.target() && p.target() == p.minimum():
		p.note(corev1.EventTypeNormal, v1alpha1.EventLent, "the job grows beyond its min of %d to %d workers, into room that nobody else needs now; it is taken back when a gang needs it",
			p.minimum(), next)
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
	if len(lacking.places) == 0 {
		return // there may be room in a moment
	}
	if lacking.refill != p.Memory.Elastic.Refill || lacking.refill && len(lacking.places) > len(reserved) {
		p.plan.Elastic.Reserved = nil // names are cheap
		return
	}
	reserved = reserved[:min(len(reserved), len(lacking.places))]
	if lacking.refill {
		p.spawnRefill(reserved, lacking.places)
		return
	}
	var names []string
	beside := int(max(0, p.target()-count(crew, (*worker).stays)))
	for i, ordinal := range reserved {
		make := newGrowthPod
		if lacking.places[i].Own {
			make = newPod
		}
		pod := make(p.Job, p.settings, p.attempt(), ordinal)
		pod.Spec.SchedulerName = p.Job.Spec.Gang.SchedulerName
		if i >= beside {
			pod.Annotations[annotationMoves] = "true"
		}
		pin(pod, lacking.places[i].Node)
		p.lookFirst(pod)
		p.plan.Actions.Grow = append(p.plan.Actions.Grow, pod)
		names = append(names, pod.Name)
	}
	if gone := p.gone(crew); gone != "" {
		p.note(corev1.EventTypeNormal, v1alpha1.EventReplacing, "%s made, in the place of %s", strings.Join(names, ", "), gone)
		return
	}
	p.note(corev1.EventTypeNormal, v1alpha1.EventGrowing,
		"%s made: there is room, the job is to have %d workers", strings.Join(names, ", "), p.target())
}

// gone names those whose place newcomers take.
func (p *planner) gone(crew []worker) string {
	var names []string
	for i := range crew {
		w := &crew[i]
		byChoice := w.leaving == rendezvous.ReasonScaledDown || forOthers(w.leaving)
		if !w.newcomer() && (w.lost != "" || w.leaving != "" && !byChoice) {
			names = append(names, w.pod.Name)
		}
	}
	return strings.Join(names, ", ")
}

// failedNewcomers are newcomers that found no node in time, cannot start, or have failed before they were in a world.
type failedNewcomers struct {
	// why says so of each that was not known before, nodes of those for which each node is to blame, blamed are the uids of all.
	why    []string
	nodes  map[string][]string
	blamed []string
	// jobs is true where no node is to blame for one that was not known before.
	jobs bool
	// unknown is true where this leader did not know of one, be it that what it says of its node is known.
	unknown bool
	// again is when there may be others; 0 for no such time.
	again time.Duration
}

// failedNewcomers looks for them.
func (p *planner) failedNewcomers(crew []worker) failedNewcomers {
	found := failedNewcomers{nodes: map[string][]string{}}
	for i := range crew {
		w := &crew[i]
		text, node, left := p.whyFailed(w)
		if left > 0 {
			found.again = sooner(found.again, left)
		}
		if text == "" {
			continue
		}
		found.blamed = append(found.blamed, string(w.pod.UID))
		if slices.Contains(p.Memory.Elastic.Growth.Blamed, string(w.pod.UID)) {
			continue
		}
		found.unknown = true
		if node != "" && p.blamedFor(w.pod, node) {
			continue
		}
		found.why = append(found.why, text)
		if node == "" {
			found.jobs = true
			continue
		}
		found.nodes[node] = append(found.nodes[node], text)
	}
	return found
}

// withdrawGrowth remembers newcomers that have failed. The job does not grow on nodes that are to blame for a while. Where none is, or
// many would be, it does not grow at all for a while.
func (p *planner) withdrawGrowth(failed *failedNewcomers) {
	nodes := sortedKeys(failed.nodes)
	for _, node := range nodes {
		p.avoid([]string{node}, strings.Join(failed.nodes[node], "; "))
	}
	growth := &p.plan.Elastic.Growth
	p.growNotOn(nodes)
	if failed.jobs || len(growth.Nodes) > fewNodes {
		*growth = growth.failed(p.Now, strings.Join(failed.why, "; "), growth.Blamed)
		p.note(corev1.EventTypeWarning, v1alpha1.EventGrowthWithdrawn, "%s", growth.told())
		return
	}
	p.note(corev1.EventTypeWarning, v1alpha1.EventGrowthWithdrawn, "%s; %s", strings.Join(failed.why, "; "), p.leftOut(nodes))
}

// growNotOn remembers nodes on which newcomers have failed, as long as they are avoided.
func (p *planner) growNotOn(nodes []string) {
	growth := &p.plan.Elastic.Growth
	all := slices.DeleteFunc(slices.Concat(growth.Nodes, nodes), func(node string) bool { return !p.avoids(node) })
	growth.Nodes = slices.Compact(slices.Sorted(slices.Values(all)))
}

// whyFailed says why a newcomer will be in no world, and which node is to blame; empty for none of them. left is how long one may
// take yet that has not failed.
func (p *planner) whyFailed(w *worker) (text, node string, left time.Duration) {
	if !w.newcomer() || w.leaving != "" || isRefill(w.pod) && !w.bound() && pinned(w.pod) == "" {
		return "", "", 0 // of a batch whose places the scheduler chooses nobody knows how long it may take
	}
	stabilization := value(p.Job.Spec.Growth.Stabilization).Duration
	left = w.pod.CreationTimestamp.Add(stabilization).Sub(p.Now)
	refused := fleet.RefusedBeyondRoom(w.pod) && pinned(w.pod) != ""
	if refused {
		left = min(left, w.pod.CreationTimestamp.Add(refusedAfter).Sub(p.Now))
	}
	switch {
	case p.crashed(w):
		return w.lost, strings.Join(p.judge(w.pod, w.loss).nodes, ""), 0
	case w.ended || w.lost != "" || w.bound() && w.stuck == "":
		return "", "", 0
	case left > 0:
		return "", "", left
	case !w.bound():
		if refused {
			return fmt.Sprintf("%s cannot run on node %s: %s", w.pod.Name, pinned(w.pod), unschedulable(w.pod)), pinned(w.pod), 0
		}
		text = fmt.Sprintf("%s has no node after spec.growth.stabilization (%s): %s", w.pod.Name, stabilization, unschedulable(w.pod))
		return text, pinned(w.pod), 0
	default:
		return w.stuck, strings.Join(toBlame(w.pod), ""), 0
	}
}

// withdraw has newcomers leave that could not start where they are: others take their place elsewhere.
func (p *planner) withdraw(crew []worker) {
	for i := range crew {
		w := &crew[i]
		if w.newcomer() && w.stays() && (w.stuck != "" || !w.bound()) && slices.Contains(p.Memory.Elastic.Growth.Blamed, string(w.pod.UID)) {
			w.leaving, w.why, w.withdrawn = rendezvous.ReasonScaledDown, "it could not start there in time", true
		}
	}
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
