package controller

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/internal/deviceerror"
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

// verdict is whose fault a loss was, of one worker or of several.
type verdict struct {
	// cause is causeProgram or causeInfrastructure; causeNone while nobody is known to be lost.
	cause   cause
	message string
	// wait is how long to wait before it is certain; the rest may change until then.
	wait time.Duration
	// exit is how the program of the worker failed; nil when that is not how it was lost.
	exit *failedExit
	// nodes are those to blame, on which others would be lost as well; none where nobody knows. device is true where it is their
	// devices, by the word of the program alone.
	nodes  []string
	device bool
}

// judge says whose fault it was that a worker was lost, by all that is known of it: its pod, which is nil once it is gone,
// and what the rendezvous says of its loss, which is nil for nothing.
func (p *planner) judge(pod *corev1.Pod, loss *rendezvous.Loss) verdict {
	switch {
	case pod == nil:
		return verdict{cause: told(loss), message: whose(loss, nil)}
	case loss == nil && p.endedWell(pod):
		return verdict{}
	}
	if disrupted := disruptedMessage(pod); disrupted != "" {
		return verdict{cause: causeInfrastructure, message: disrupted, nodes: disruptedOn(pod)}
	}
	if unseen := p.unseenEnd(pod); unseen != "" && pod.DeletionTimestamp == nil && (loss == nil || !loss.Program) {
		return verdict{cause: causeInfrastructure, message: unseen, nodes: toBlame(pod)}
	}
	if loss != nil {
		return p.judgeTold(pod, loss)
	}
	return p.judgeUntold(pod)
}

// judgeUntold judges a worker of whose loss the rendezvous says nothing, as of one that was in no world yet.
func (p *planner) judgeUntold(pod *corev1.Pod) verdict {
	where := whereIs(pod)
	if pod.DeletionTimestamp != nil {
		return verdict{cause: causeInfrastructure, message: where + " was deleted"}
	}
	if !podEnded(pod) && p.rendezvousKnows() && p.member(pod).Silent {
		return verdict{cause: causeInfrastructure, nodes: toBlame(pod), message: fmt.Sprintf(
			"%s has been silent for %s and no step was made", where, value(p.Job.Spec.Failure.HeartbeatTimeout).Duration)}
	}
	v := verdict{wait: p.mayBeLost(pod)}
	if v.exit = p.failedExit(pod); v.exit != nil {
		v.cause, v.message, v.nodes, v.device = v.exit.whose(), v.exit.message(), v.exit.nodes(), v.exit.ofDevice()
		v.wait = max(v.wait, p.unexplained(v.exit))
	}
	return v
}

// judgeTold corrects what the rendezvous saw of a loss by the status of its pod: the cluster knows of
// deletions, the kubelet of exits that no agent could report. Both need a moment to say so.
func (p *planner) judgeTold(pod *corev1.Pod, loss *rendezvous.Loss) verdict {
	if pod.DeletionTimestamp != nil && (!loss.Program || !deletedAfter(pod, loss.At)) {
		return verdict{cause: causeInfrastructure, message: whose(loss, pod) + " (its pod was deleted)"}
	}
	ended, member := p.ended(pod), p.member(pod)
	v := verdict{cause: told(loss), message: whose(loss, pod)}
	patience := settleTime
	if !ended && !loss.Program && !member.Stays {
		patience = lastWords
		if loss.Unreached || !member.Connected && !member.InWorld {
			v.nodes = toBlame(pod) // nobody reaches, or hears it there
		}
	}
	if !ended && mayCheck(loss, &member) {
		patience = deviceerror.CheckTimeout // one of its processes may yet find its device broken
	}
	v.wait = max(0, loss.At.Add(patience).Sub(p.Now))
	exit := p.failedExit(pod)
	if exit == nil || !ended && exit.whose() == causeProgram {
		return v
	}
	v.cause, v.exit, v.nodes, v.device = exit.whose(), exit, exit.nodes(), exit.ofDevice()
	if !loss.Program || loss.Message == "" || exit.said() != "" {
		exit.rank = loss.Rank
		v.message = exit.message()
	}
	return v
}

// mayCheck says whether a program that was lost by an error of a device may still be looking at that.
func mayCheck(loss *rendezvous.Loss, member *rendezvous.MemberObservation) bool {
	return loss.Program && !member.Exited && !member.Stays && deviceerror.Is(loss.Message)
}

// told is whose fault a loss was by the word of the rendezvous.
func told(loss *rendezvous.Loss) cause {
	if loss.Program {
		return causeProgram
	}
	return causeInfrastructure
}

// mayBeLost returns how long to wait for a member that may have been lost without a word: its session is gone, and neither
// its exit nor its silence is certain yet.
func (p *planner) mayBeLost(pod *corev1.Pod) time.Duration {
	member := p.member(pod)
	if !p.rendezvousKnows() || podEnded(pod) || member.Exited || member.Connected || member.LastSeen.IsZero() {
		return 0
	}
	silentAt := member.LastSeen.Add(value(p.Job.Spec.Failure.HeartbeatTimeout).Duration + time.Second)
	return max(0, silentAt.Sub(p.Now))
}

// unexplained returns how long to wait for the last words of an exit of which only the agent has told:
// the culprit is found by what it said, and a busy kubelet needs seconds to bring its lines.
func (p *planner) unexplained(exit *failedExit) time.Duration {
	if exit.said() != "" || p.ended(exit.pod) {
		return 0
	}
	return max(0, exit.at.Add(lastWords).Sub(p.Now))
}

// ended says whether the kubelet has told that the program of a worker has ended.
func (p *planner) ended(pod *corev1.Pod) bool {
	return podEnded(pod) || trainerExit(pod, &p.Job.Spec.Workers) != nil
}

// endedWell says whether the kubelet has told that it has ended with 0.
func (p *planner) endedWell(pod *corev1.Pod) bool {
	exit := trainerExit(pod, &p.Job.Spec.Workers)
	return exit != nil && exit.ExitCode == 0
}

func whereIs(pod *corev1.Pod) string {
	return fmt.Sprintf("worker %s on node %s", pod.Name, pod.Spec.NodeName)
}

// disruption is the reason why the cluster ended a pod; empty when it did not. A kubelet that
// rejects a pod, or is shut down, fails it without any container having ended.
func disruption(pod *corev1.Pod) (reason, message string) {
	if target := disruptionTarget(pod); target != nil {
		return target.Reason, target.Message
	}
	if pod.Status.Phase == corev1.PodFailed && pod.Status.Reason != "" {
		return pod.Status.Reason, pod.Status.Message
	}
	return "", ""
}

// disruptedMessage says how the cluster ended a pod; empty when it did not.
func disruptedMessage(pod *corev1.Pod) string {
	reason, said := disruption(pod)
	if reason == "" {
		return ""
	}
	return fmt.Sprintf("%s was lost: %s: %s", whereIs(pod), reason, said)
}

// unseenEnd says of a worker whose container was found ended by a node that had not seen it end, as after its restart, that it was
// lost with its node; empty for any other. The exit code is made up then: 137 by a kubelet, 255 by containerd. What its agent
// told of its program by then is known better.
func (p *planner) unseenEnd(pod *corev1.Pod) string {
	exit, member := trainerExit(pod, &p.Job.Spec.Workers), p.member(pod)
	if exit == nil || member.ExitCode != 0 || member.Fault != "" ||
		exit.Reason != "ContainerStatusUnknown" && (exit.Reason != "Unknown" || exit.ExitCode != 255) {
		return ""
	}
	return fmt.Sprintf("%s was lost: %s: its node did not see how it ended, most likely it was started anew", whereIs(pod), exit.Reason)
}

// disruptedOn is the node that is to blame for what the cluster did to a pod: where a scheduler needed its room, none.
func disruptedOn(pod *corev1.Pod) []string {
	if reason, _ := disruption(pod); reason == "" || reason == corev1.PodReasonPreemptionByScheduler {
		return nil
	}
	return toBlame(pod)
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
	pod, where := w.pod, whereIs(w.pod)
	switch {
	case p.endedWell(pod):
		return "", true
	case p.ended(pod):
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
	if disrupted := disruptedMessage(pod); disrupted != "" {
		return disrupted
	}
	if unseen := p.unseenEnd(pod); unseen != "" {
		return unseen
	}
	if exit := p.failedExit(pod); exit != nil {
		return exit.line()
	}
	return whereIs(pod) + " has ended"
}

// crashed says whether a newcomer has failed by itself. One that was taken away, or whose node was lost,
// has not: another may find room at once. One that a kubelet has refused counts as failed, since the next
// would be refused as well.
func (p *planner) crashed(w *worker) bool {
	if _, marked := fleet.MarkOf(w.pod); marked || w.lost == "" || disruptionTarget(w.pod) != nil || p.Memory.Elastic.Told[string(w.pod.UID)] {
		return false // who was told to go, went
	}
	var at time.Time
	exit := p.failedExit(w.pod)
	switch {
	case w.loss != nil && w.loss.Program:
		at = w.loss.At
	case w.ended && exit != nil:
		at = exit.at
	default:
		return false
	}
	// What ends in the second in which it is deleted most likely ends by that, and so does what nobody knows the end of.
	return w.pod.DeletionTimestamp == nil || !at.IsZero() && deletionTime(w.pod).After(at.Truncate(time.Second))
}

// history says whether a pod has ended that was in no world by then: what became of it explains
// nothing now. It is kept for its logs.
func (p *planner) history(pod *corev1.Pod) bool {
	if !podEnded(pod) {
		return false
	}
	if stands := p.recorded(pod); stands.rank >= 0 || stands.open {
		return false
	}
	if isGrowth(pod) || p.member(pod).LostIn > 0 {
		return true
	}
	// Its end is a stamp of its node's clock. That of an earlier attempt's world is compared with none.
	return p.rolled.made.Attempt == podAttempt(pod) && p.endedBefore(pod, p.rolled.made.StartedAt)
}

// endedBefore says whether the training container of a pod is known to have ended before a time.
func (p *planner) endedBefore(pod *corev1.Pod, at time.Time) bool {
	exit := trainerExit(pod, &p.Job.Spec.Workers)
	return exit != nil && exit.FinishedAt.Time.Before(at)
}
