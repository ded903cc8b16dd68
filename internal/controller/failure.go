package controller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

const (
	// settleTime is how long the operator waits after the first failing exit for a sign that the
	// cause lies elsewhere: the loss of one worker makes the others fail too.
	settleTime = 2 * time.Second
	// lastWords is how long the kubelet may take to tell what a program said last.
	lastWords = 10 * time.Second
	// The pause before the next attempt after a program's failure doubles from programBackOff to
	// spec.failure.maxBackOff.
	programBackOff = 5 * time.Second
	// maxBackOff is the default of spec.failure.maxBackOff.
	maxBackOff = 5 * time.Minute
	// agentPrefix begins every line that the agent itself writes.
	agentPrefix = "concertina-agent: "
	// infrastructureBackOff gives the node's controllers time to see what happened. It doubles as long as
	// attempts are lost before they have trained for trainedWell: a node that kills whatever comes to it
	// would have the job start over and over.
	infrastructureBackOff = 2 * time.Second
	trainedWell           = time.Minute
)

type cause int

const (
	causeNone cause = iota
	// causeUnsettled: something failed, and it is too early to say whose fault it is.
	causeUnsettled
	causeProgram
	causeInfrastructure
	// causeReleased: nobody was lost, and the attempt is over all the same.
	causeReleased
	// causeEvicted: a job of higher priority needs the room.
	causeEvicted
	// causeUnplaced: the scheduler has no room where the planner saw it.
	causeUnplaced
)

// failure is what ended, or will end, an attempt.
type failure struct {
	cause   cause
	message string
	// after is when an unsettled failure should be looked at again.
	after time.Duration
}

// diagnose says what has gone wrong with a gang, if anything. An infrastructure loss explains the
// failures of all the others, so it is looked for first.
func (p *planner) diagnose(pods []*corev1.Pod) failure {
	pods = slices.DeleteFunc(slices.Clone(pods), p.history)
	if missing := int(p.minimum()) - len(pods); missing > 0 {
		return failure{cause: causeInfrastructure, message: fmt.Sprintf("%d of %d workers of attempt %d are gone", missing, p.minimum(), p.attempt())}
	}
	for _, pod := range pods {
		if loss := p.infrastructureLoss(pod); loss != "" {
			return failure{cause: causeInfrastructure, message: loss}
		}
	}
	exits := p.failedExits(pods)
	if len(exits) == 0 {
		return failure{}
	}
	first := slices.MinFunc(exits, func(a, b failedExit) int { return a.at.Compare(b.at) })
	if left := first.at.Add(settleTime).Sub(p.Now); left > 0 {
		return failure{cause: causeUnsettled, after: left}
	}
	if left := p.maybeLost(pods); left > 0 {
		return failure{cause: causeUnsettled, after: left}
	}
	if left := p.unexplained(exits); left > 0 {
		return failure{cause: causeUnsettled, after: left}
	}
	return failure{cause: causeProgram, message: culprit(exits).message()}
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

// maybeLost returns how long to wait for members that may have been lost without a word: their
// session is gone, and neither their exit nor their silence is certain yet.
func (p *planner) maybeLost(pods []*corev1.Pod) time.Duration {
	if !p.rendezvousKnows() {
		return 0
	}
	var wait time.Duration
	for _, pod := range pods {
		member := p.member(pod)
		if podEnded(pod) || member.Exited || member.Connected || member.LastSeen.IsZero() {
			continue
		}
		silentAt := member.LastSeen.Add(value(p.Job.Spec.Failure.HeartbeatTimeout).Duration + time.Second)
		wait = max(wait, silentAt.Sub(p.Now))
	}
	return wait
}

// unexplained returns how long to wait for the last words of exits of which only the agent has told:
// the culprit is found by what it said, and a busy kubelet needs seconds to bring its lines.
func (p *planner) unexplained(exits []failedExit) time.Duration {
	var wait time.Duration
	for _, exit := range exits {
		ended := podEnded(exit.pod) || trainerExit(exit.pod, &p.Job.Spec.Workers) != nil
		if exit.said() == "" && !ended {
			wait = max(wait, exit.at.Add(lastWords).Sub(p.Now))
		}
	}
	return wait
}

// failedExit is one worker whose program failed.
type failedExit struct {
	pod   *corev1.Pod
	rank  int32
	code  int32
	at    time.Time
	cause string // OOMKilled, Error
	lines string // what it said last
	fault string // the exception that its SDK reported
}

func (p *planner) failedExits(pods []*corev1.Pod) []failedExit {
	var exits []failedExit
	for _, pod := range pods {
		member := p.member(pod)
		exit := failedExit{pod: pod, rank: p.standing(pod).rank, fault: member.Fault, at: member.FailedAt, code: member.ExitCode}
		if ended := trainerExit(pod, &p.Job.Spec.Workers); ended != nil {
			exit.code, exit.cause, exit.lines = ended.ExitCode, ended.Reason, programLines(ended.Message)
			if exit.at.IsZero() {
				exit.at = ended.FinishedAt.Time
			}
		} else if pod.Status.Phase == corev1.PodFailed {
			exit.code, exit.at = -1, p.Now.Add(-settleTime)
		}
		if exit.code != 0 {
			exits = append(exits, exit)
		}
	}
	return exits
}

// programLines drops the agent's own lines from the last lines of a container's output.
func programLines(output string) string {
	lines := slices.DeleteFunc(strings.Split(output, "\n"), func(line string) bool { return strings.HasPrefix(line, agentPrefix) })
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

// culprit picks the exit that explains the others: the earliest that is not a mere communication
// error, or the earliest of all.
func culprit(exits []failedExit) failedExit {
	slices.SortStableFunc(exits, func(a, b failedExit) int { return a.at.Compare(b.at) })
	for _, exit := range exits {
		if said := exit.said(); said != "" && !rendezvous.CommunicationError(said) {
			return exit
		}
	}
	return exits[0]
}

func (e failedExit) said() string {
	if e.fault != "" {
		return e.fault
	}
	return e.lines
}

// message says who ended how, and all that is known of why.
func (e failedExit) message() string { return e.explained(e.said()) }

// line is the same with the last line of why.
func (e failedExit) line() string { return e.explained(lastLine(e.said())) }

func (e failedExit) explained(why string) string {
	who := fmt.Sprintf("worker %s on node %s", e.pod.Name, e.pod.Spec.NodeName)
	if e.rank >= 0 {
		who = fmt.Sprintf("worker %s (worker rank %d, node %s)", e.pod.Name, e.rank, e.pod.Spec.NodeName)
	}
	text := fmt.Sprintf("%s exited with code %d", who, e.code)
	if e.code < 0 {
		text = who + " failed before its program started"
	}
	if e.cause != "" && e.cause != "Error" {
		text += " (" + e.cause + ")"
	}
	if why != "" {
		text += ": " + why
	}
	return text
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// handle turns a failure into a restart of the gang, or into the end of the job.
func (p *planner) handle(f failure) {
	status := &p.plan.Status
	if f.cause == causeUnsettled {
		p.lookAgain(f.after)
		return
	}
	if f.cause == causeProgram {
		failures := value(status.Restarts.Program) + 1
		if limit := value(p.Job.Spec.Failure.MaxRestarts); failures > limit {
			p.fail(v1alpha1.ReasonProgramFailed, fmt.Sprintf("the program failed and spec.failure.maxRestarts (%d) is used up: %s", limit, f.message))
			return
		}
		status.Restarts.Program = ptr.To(failures)
		p.restart("ProgramFailure", f.message, p.backOff(programBackOff, failures))
		return
	}
	switch f.cause {
	case causeReleased:
		p.restart(v1alpha1.EventGangReleased, f.message, infrastructureBackOff)
		return
	case causeEvicted:
		status.StartTime = nil // it waits for its admission again, and spec.activeDeadline begins anew with that
		p.restart(v1alpha1.EventEvicted, f.message, infrastructureBackOff)
		return
	case causeUnplaced:
		p.restart("GangUnplaced", f.message, p.vainStart())
		return
	}
	placed := isTrue(p.Job.Status.Conditions, v1alpha1.ConditionGangScheduled)
	if !placed && p.Memory.Own.Began != p.attempt() {
		// A leader has died over it, most likely. Others would grow into the room meanwhile.
		p.restart("GangIncomplete", f.message, 0)
		return
	}
	retries := value(status.Retries) + 1
	status.Retries = &retries
	pause := p.backOff(infrastructureBackOff, retries)
	if !placed {
		// Nothing ran yet: a pod that was withdrawn before it had a node is no loss.
		p.restart("GangIncomplete", f.message, pause)
		return
	}
	status.Restarts.Infrastructure = ptr.To(value(status.Restarts.Infrastructure) + 1)
	p.restart("InfrastructureLoss", f.message, pause)
}

// forgetRetries begins the count of lost attempts anew once the job has trained for a while. Steps would
// tell less: not every program reports them, and some go back to the same one each time.
func (p *planner) forgetRetries() {
	training := meta.FindStatusCondition(p.Job.Status.Conditions, v1alpha1.ConditionTraining)
	if value(p.Job.Status.Retries) == 0 || training == nil || training.Status != metav1.ConditionTrue {
		return
	}
	if left := training.LastTransitionTime.Add(trainedWell).Sub(p.Now); left > 0 {
		p.lookAgain(left)
		return
	}
	p.plan.Status.Retries = nil
}

// restart releases the gang; the next attempt starts after the pause.
func (p *planner) restart(reason, message string, pause time.Duration) {
	retry := metav1.NewTime(p.Now.Add(pause))
	p.plan.Status.RetryTime = &retry
	p.plan.Status.Workers.Target = ptr.To[int32](0)
	text := fmt.Sprintf("attempt %d ended: %s", p.attempt(), message)
	p.set(v1alpha1.ConditionGangScheduled, metav1.ConditionFalse, v1alpha1.ReasonNoGang, "the last gang is being released")
	p.set(v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonBackOff,
		fmt.Sprintf("the next attempt is due at %s; %s", retry.UTC().Format(time.RFC3339), text))
	p.note(corev1.EventTypeWarning, reason, "%s; the job queues again in %s", text, pause)
}

// backOff is the pause after the n-th failure, n from 1: it doubles from the first one.
func (p *planner) backOff(first time.Duration, n int32) time.Duration {
	longest := maxBackOff
	if limit := p.Job.Spec.Failure.MaxBackOff; limit != nil {
		longest = limit.Duration
	}
	return doubled(first, longest, n)
}

// vainStart counts a gang that was given room and did not start, and returns the pause before its next try. Whoever
// takes the room again and again is not to cost the lenders each time.
func (p *planner) vainStart() time.Duration {
	retries := value(p.plan.Status.Retries) + 1
	p.plan.Status.Retries = &retries
	return doubled(startBackOff, longestStartBackOff, retries)
}

func doubled(first, longest time.Duration, n int32) time.Duration {
	pause := first
	for i := int32(1); i < n && pause < longest; i++ {
		pause *= 2
	}
	return min(pause, longest)
}
