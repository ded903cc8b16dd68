package controller

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

const (
	// settleTime is how long the operator waits after the first failing exit for a sign that the
	// cause lies elsewhere: the loss of one worker makes the others fail too.
	settleTime = 2 * time.Second
	// lastWords is how long the kubelet may take to tell what a program said last.
	lastWords = 10 * time.Second
)

// verdict is whose fault some losses were.
type verdict struct {
	// wait is how long to wait before it is certain; the rest means nothing until then.
	wait time.Duration
	// program is true when nothing but the program was at fault.
	program bool
	message string
}

// infrastructureLoss says how a pod was lost through no fault of the program; empty if it was not.
func (p *planner) infrastructureLoss(pod *corev1.Pod) string {
	where := fmt.Sprintf("worker %s on node %s", pod.Name, pod.Spec.NodeName)
	if exit := trainerExit(pod, &p.Job.Spec.Workers); exit != nil && exit.ExitCode == 0 {
		return ""
	}
	if reason, message := disruption(pod); reason != "" {
		return fmt.Sprintf("%s was lost: %s: %s", where, reason, message)
	}
	if pod.DeletionTimestamp != nil {
		return fmt.Sprintf("%s was deleted", where)
	}
	if !podEnded(pod) && p.rendezvousKnows() && p.member(pod).Silent {
		return fmt.Sprintf("%s has been silent for %s and no step was made", where, value(p.Job.Spec.Failure.HeartbeatTimeout).Duration)
	}
	return ""
}

// disruption is the reason why the cluster ended a pod; empty when it did not. A kubelet that
// rejects a pod, or is shut down, fails it without any container having ended.
func disruption(pod *corev1.Pod) (reason, message string) {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.DisruptionTarget && condition.Status == corev1.ConditionTrue {
			return condition.Reason, condition.Message
		}
	}
	if pod.Status.Phase == corev1.PodFailed && pod.Status.Reason != "" {
		return pod.Status.Reason, pod.Status.Message
	}
	return "", ""
}

// judge corrects what the rendezvous saw of a loss by the status of its pod: the cluster knows of
// evictions, the kubelet of exits that no agent could report. Both need a moment to say so; wait is how
// long it may take yet.
func (p *planner) judge(loss *rendezvous.Loss) (whom cause, message string, wait time.Duration) {
	told := causeInfrastructure
	if loss.Program {
		told = causeProgram
	}
	pod := p.podByUID(loss.UID)
	if pod == nil {
		return told, whose(loss, nil), 0
	}
	if reason, said := disruption(pod); reason != "" {
		message = fmt.Sprintf("worker %s on node %s was lost: %s: %s", pod.Name, pod.Spec.NodeName, reason, said)
		return causeInfrastructure, message, 0
	}
	if pod.DeletionTimestamp != nil && (!loss.Program || !deletedAfter(pod, loss.At)) {
		return causeInfrastructure, whose(loss, pod) + " (its pod was deleted)", 0
	}
	ended := podEnded(pod) || trainerExit(pod, &p.Job.Spec.Workers) != nil
	patience := settleTime
	if !ended && !loss.Program && !p.member(pod).Stays {
		patience = lastWords
	}
	wait = max(0, loss.At.Add(patience).Sub(p.Now))
	exits := p.failedExits([]*corev1.Pod{pod})
	switch {
	case !ended || len(exits) == 0:
		return told, whose(loss, pod), wait
	case loss.Program && loss.Message != "" && exits[0].said() == "":
		return causeProgram, whose(loss, pod), wait
	default:
		exits[0].rank = loss.Rank
		return causeProgram, exits[0].message(), wait
	}
}

// deletedAfter says whether a pod that is being deleted was still wanted at a time. The deletion's time in
// the API is that of its end.
func deletedAfter(pod *corev1.Pod, at time.Time) bool {
	return !deletionTime(pod).Before(at.Truncate(time.Second))
}

// deletionTime is when a pod that is being deleted was, to the second.
func deletionTime(pod *corev1.Pod) time.Time {
	return pod.DeletionTimestamp.Add(-time.Duration(value(pod.DeletionGracePeriodSeconds)) * time.Second)
}

// whose names the worker in front of what became of it. The pod may be gone.
func whose(loss *rendezvous.Loss, pod *corev1.Pod) string {
	who, where := "worker "+loss.Name, ""
	if pod != nil {
		where = "node " + pod.Spec.NodeName
	}
	if loss.Rank >= 0 {
		where = strings.TrimSuffix(fmt.Sprintf("worker rank %d, %s", loss.Rank, where), ", ")
	}
	if where != "" {
		who += " (" + where + ")"
	}
	return who + ": " + loss.Message
}

// lostWorker says how we know that a worker will make no step any more, and whether its processes
// are certainly gone.
func (p *planner) lostWorker(w *worker) (lost string, ended bool) {
	pod := w.pod
	where := fmt.Sprintf("worker %s on node %s", pod.Name, pod.Spec.NodeName)
	exit := trainerExit(pod, &p.Job.Spec.Workers)
	switch {
	case exit != nil && exit.ExitCode == 0:
		return "", true
	case exit != nil:
		return p.endedMessage(pod), true
	case podEnded(pod):
		return p.endedMessage(pod), true
	case w.bound() && p.Nodes.Gone[pod.Spec.NodeName] && !w.seen.Connected:
		return where + " was lost: the node was deleted", true
	case w.bound() && p.Nodes.outOfService(pod.Spec.NodeName):
		return where + " was lost: the node is tainted " + corev1.TaintNodeOutOfService, true
	case w.loss != nil:
		return w.loss.Message, false
	case p.overdue(pod):
		return where + " was deleted, and its node does not say that it has ended", false
	default:
		return "", false
	}
}

// endedMessage says how a worker has ended that should not have.
func (p *planner) endedMessage(pod *corev1.Pod) string {
	if reason, message := disruption(pod); reason != "" {
		return fmt.Sprintf("worker %s on node %s was lost: %s: %s", pod.Name, pod.Spec.NodeName, reason, message)
	}
	for _, exit := range p.failedExits([]*corev1.Pod{pod}) {
		return exit.line()
	}
	return fmt.Sprintf("worker %s on node %s has ended", pod.Name, pod.Spec.NodeName)
}

// crashed says whether a newcomer has failed by itself. One that was taken away, or whose node was lost,
// has not: another may find room at once. One that a kubelet has refused counts as failed, since the next
// would be refused as well.
func (p *planner) crashed(w *worker) bool {
	if _, marked := fleet.MarkOf(w.pod); marked || w.lost == "" || disruptionTarget(w.pod) != nil || p.Memory.Elastic.Told[string(w.pod.UID)] {
		return false // who was told to go, went
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

// history says whether a pod has ended that was in no world by then: what became of it explains
// nothing now. It is kept for its logs. Whoever had ended before the world before the newest one began was not in that either.
func (p *planner) history(pod *corev1.Pod) bool {
	if !podEnded(pod) {
		return false
	}
	if stands := p.recorded(pod); stands.rank >= 0 || stands.open && !p.endedBefore(pod, p.rolled.since) {
		return false
	}
	return isGrowth(pod) || p.member(pod).LostIn > 0 || p.endedBefore(pod, p.rolled.made.StartedAt)
}

// endedBefore says whether the training container of a pod is known to have ended before a time.
func (p *planner) endedBefore(pod *corev1.Pod, at time.Time) bool {
	exit := trainerExit(pod, &p.Job.Spec.Workers)
	return exit != nil && exit.FinishedAt.Time.Before(at)
}
