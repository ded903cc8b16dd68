package controller

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// whyLeaving says why the cluster, or its user, wants a worker gone. A cordon is no such wish.
func (p *planner) whyLeaving(w *worker) (rendezvous.Reason, string, time.Time) {
	pod := w.pod
	target := disruptionTarget(pod)
	switch {
	case pod.DeletionTimestamp != nil && target != nil:
		return reasonOfDisruption(target.Reason), target.Reason + ": " + target.Message, pod.DeletionTimestamp.Time
	case pod.DeletionTimestamp != nil:
		return rendezvous.ReasonDeleted, "its pod was deleted", pod.DeletionTimestamp.Time
	case target != nil:
		return reasonOfDisruption(target.Reason), target.Reason + ": " + target.Message, target.LastTransitionTime.Add(grace(pod))
	}
	if m, marked := fleet.MarkOf(pod); marked {
		return rendezvous.Reason(m.Reason), "its room is for job " + m.For, p.leaveBy(pod)
	}
	if w.bound() {
		if taint := p.Nodes.drains(pod, p.DrainTaints); taint != "" {
			why := fmt.Sprintf("node %s is tainted %s", pod.Spec.NodeName, taint)
			return rendezvous.ReasonNodeTainted, why, time.Time{}
		}
	}
	if p.cutOff(w) {
		return rendezvous.ReasonNodeTainted, fmt.Sprintf("node %s does not answer", pod.Spec.NodeName), time.Time{}
	}
	if w.seen.Terminating {
		return rendezvous.ReasonTerminated, "its agent was told to end", p.terminatingSince(pod).Add(grace(pod))
	}
	return "", "", time.Time{}
}

// terminatingSince is when this operator first knew that an agent was told to end.
func (p *planner) terminatingSince(pod *corev1.Pod) time.Time {
	if since, known := p.Memory.Elastic.Terminating[string(pod.UID)]; known {
		return since
	}
	return p.Now
}

// keepSince remembers since when it is known that a worker is to leave, where that counts.
func (p *planner) keepSince(w *worker) {
	uid := string(w.pod.UID)
	switch {
	case forOthers(w.leaving):
		p.plan.Elastic.MarkedSince[uid] = p.markedSince(w.pod)
	case w.leaving == rendezvous.ReasonTerminated && w.seen.Terminating:
		p.plan.Elastic.Terminating[uid] = p.terminatingSince(w.pod)
	}
}

func disruptionTarget(pod *corev1.Pod) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		condition := &pod.Status.Conditions[i]
		if condition.Type == corev1.DisruptionTarget && condition.Status == corev1.ConditionTrue {
			return condition
		}
	}
	return nil
}

func reasonOfDisruption(reason string) rendezvous.Reason {
	switch reason {
	case corev1.PodReasonPreemptionByScheduler:
		return rendezvous.ReasonPreempted
	case "EvictionByEvictionAPI":
		return rendezvous.ReasonEvicted
	case "DeletionByTaintManager":
		return rendezvous.ReasonNodeTainted
	case corev1.PodReasonTerminationByKubelet:
		return rendezvous.ReasonTerminated
	default:
		return rendezvous.ReasonDeleted
	}
}

func grace(pod *corev1.Pod) time.Duration {
	if seconds := pod.Spec.TerminationGracePeriodSeconds; seconds != nil {
		return time.Duration(*seconds) * time.Second
	}
	return corev1.DefaultTerminationGracePeriodSeconds * time.Second
}

// annotationMoves marks a pod that is made in the place of a worker which leaves once this one is ready.
const annotationMoves = "training.concertina.dev/moves"

// markSurplus marks those as leaving that are more than the durable target.
func (p *planner) markSurplus(crew []worker) {
	var staying, coming []*worker
	named := 0
	for i := range crew {
		w := &crew[i]
		if !w.stays() {
			continue
		}
		staying = append(staying, w)
		leave, unwanted := p.Grant.Leave[w.pod.UID]
		switch {
		case w.newcomer() && w.pod.Annotations[annotationMoves] != "" && !unwanted:
			coming = append(coming, w)
		case unwanted && leave.For == "":
			named++
		}
	}
	moves := p.tooManyByMoves(crew, coming, len(staying)-int(p.target()))
	if count(crew, (*worker).starting) == 0 {
		// All who come are ready, and for whom nobody else needs the room of no mark tells of.
		moves = max(0, moves-named)
	}
	surplus := len(staying) - int(p.target()) - moves
	if !p.rendezvousKnows() || p.target() == 0 {
		return
	}
	first := p.tooManyTrain(staying)
	for _, w := range first {
		w.leaving, w.why = rendezvous.ReasonScaledDown, fmt.Sprintf("no more than %d workers are to train", p.trainsAtMost())
	}
	if surplus <= len(first) {
		return
	}
	// Those of the own class that go first count as those who may leave: so the choice is among all, and they are passed over.
	for _, w := range chooseLeavers(staying, len(staying), int(p.minimum())) {
		if w.stays() && surplus > len(first) {
			w.leaving, w.why = rendezvous.ReasonScaledDown, fmt.Sprintf("the job is to have %d workers", p.target())
			surplus--
		}
	}
}

// tooManyByMoves is how many of those who come in the place of others are too many yet: until these leave. Others that are lost or leave
// meanwhile make no difference: who replaces them comes as well. With spares, one that is ready may be in no world for long, so it counts like
// any other also once the job is complete with no more workers than it is to have: whoever it came for has gone.
func (p *planner) tooManyByMoves(crew []worker, coming []*worker, over int) int {
	if !p.rendezvousKnows() || p.target() == 0 {
		return len(coming)
	}
	staying := map[string]bool{}
	for i := range crew {
		staying[string(crew[i].pod.UID)] = crew[i].stays()
	}
	before, settled := p.Memory.Elastic, map[string]string{}
	left := slices.DeleteFunc(slices.Clone(coming), func(w *worker) bool {
		uid := string(w.pod.UID)
		moved, known := before.Settled[uid]
		if !known || staying[moved] { // it stays after all
			return false
		}
		settled[uid] = moved
		return true
	})
	moves := map[string]bool{}
	for _, uid := range sortedKeys(before.Moves) {
		switch {
		case staying[uid] && !p.Grant.Known:
			moves[uid] = true
		case !staying[uid] && len(left) > 0:
			settled[string(left[0].pod.UID)] = uid
			left = left[1:]
		}
	}
	for uid, leave := range p.Grant.Leave {
		if p.Grant.Known && leave.Reason == fleet.Moved && staying[string(uid)] {
			moves[string(uid)] = true
		}
	}
	if p.completeWithSpares(crew) {
		left = slices.DeleteFunc(left, func(w *worker) bool {
			if len(coming)-len(settled) <= max(0, over) || !w.seen.Standby || !w.seen.Connected {
				return false
			}
			settled[string(w.pod.UID)] = ""
			return true
		})
	}
	p.plan.Elastic.Settled, p.plan.Elastic.Moves = settled, moves
	return len(left)
}

// completeWithSpares says whether a job that has spares trains with as many as its target allows, and nobody is about to leave.
func (p *planner) completeWithSpares(crew []worker) bool {
	leaves := func(w *worker) bool { return w.leaving != "" && !w.ended && w.lost == "" }
	trains := func(w *worker) bool { return w.stays() && w.inWorld() }
	workers := &p.Job.Spec.Workers
	return value(workers.Spares) > 0 && count(crew, leaves) == 0 && count(crew, trains) >= workers.World(p.target())
}

// chooseLeavers picks n workers to leave, by what is lost and freed: those first that are in no world
// yet, the further from it the earlier; then whole nodes, as many as can be freed; then the rest
// from the node with the fewest of ours. Rank 0 goes last where there is a choice. The choice depends on
// nothing else, so that it stays the same from look to look. Of those of the job's own class at least
// min stay, whatever that frees: the others are what the scheduler may take.
func chooseLeavers(staying []*worker, n, minimum int) []*worker {
	var all []*worker
	spare := -minimum
	for _, w := range staying {
		if !isGrowth(w.pod) && w.bound() {
			spare++
		}
	}
	for _, w := range inOrderOfLeaving(staying) {
		if !isGrowth(w.pod) && w.bound() {
			if spare <= 0 {
				continue
			}
			spare--
		}
		all = append(all, w)
	}
	return all[:min(n, len(all))]
}

// inOrderOfLeaving sorts workers by what is lost and freed when they leave.
func inOrderOfLeaving(staying []*worker) []*worker {
	var chosen, world []*worker
	for _, w := range staying {
		if w.inWorld() {
			world = append(world, w)
		} else {
			chosen = append(chosen, w)
		}
	}
	slices.SortFunc(chosen, func(a, b *worker) int {
		return cmp.Or(cmp.Compare(readiness(a), readiness(b)), cmp.Compare(podOrdinal(b.pod), podOrdinal(a.pod)))
	})
	for _, node := range byNode(world) {
		chosen = append(chosen, node...) // nodes come smallest first: while whole ones fit they are taken whole
	}
	return chosen
}

// readiness is how far a worker is on its way into a world.
func readiness(w *worker) int {
	switch {
	case !w.bound():
		return 0
	case w.stuck != "":
		return 1
	case !w.seen.Connected:
		return 2
	case !w.seen.Standby:
		return 3
	default:
		return 4
	}
}

// byNode groups workers by node, the smallest group first, and within a group the highest rank.
func byNode(workers []*worker) [][]*worker {
	nodes := map[string][]*worker{}
	for _, w := range workers {
		nodes[w.pod.Spec.NodeName] = append(nodes[w.pod.Spec.NodeName], w)
	}
	var groups [][]*worker
	for _, group := range nodes {
		slices.SortFunc(group, func(a, b *worker) int {
			return cmp.Or(cmp.Compare(b.stands.rank, a.stands.rank), cmp.Compare(podOrdinal(b.pod), podOrdinal(a.pod)))
		})
		groups = append(groups, group)
	}
	lowest := func(group []*worker) int32 { return group[len(group)-1].stands.rank }
	slices.SortFunc(groups, func(a, b []*worker) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(lowest(b), lowest(a)),
			cmp.Compare(a[0].pod.Spec.NodeName, b[0].pod.Spec.NodeName))
	})
	return groups
}
