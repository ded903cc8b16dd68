package controller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/internal/rendezvous"
)

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

// failedExit is how the program of a worker has failed, by the word of its agent and of the kubelet; nil when it has not.
func (p *planner) failedExit(pod *corev1.Pod) *failedExit {
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
	if exit.code == 0 {
		return nil
	}
	return &exit
}

// agentPrefix begins every line that the agent itself writes.
const agentPrefix = "concertina-agent: "

// keptOutput is how many bytes of a container's output a kubelet keeps as its last lines, at most.
const keptOutput = 2048

// programLines drops the agent's own lines from the last lines of a container's output, and the first of them when it may be the
// end of one.
func programLines(output string) string {
	if _, others, more := strings.Cut(output, "\n"); more && len(output) == keptOutput {
		output = others
	}
	lines := slices.DeleteFunc(strings.Split(output, "\n"), func(line string) bool { return strings.HasPrefix(line, agentPrefix) })
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

// culprit picks the exit that explains the others: the earliest that is not a mere communication
// error, or the earliest of all.
func culprit(exits []*failedExit) *failedExit {
	slices.SortStableFunc(exits, func(a, b *failedExit) int { return a.at.Compare(b.at) })
	for _, exit := range exits {
		if said := exit.said(); said != "" && !rendezvous.CommunicationError(said) {
			return exit
		}
	}
	return exits[0]
}

func (e *failedExit) said() string {
	if e.fault != "" {
		return e.fault
	}
	return e.lines
}

// ofDevice says whether the program has found a device of its node broken.
func (e *failedExit) ofDevice() bool { return e.code == rendezvous.ExitDevice }

// whose says whose fault it is: that of the infrastructure where the program has found a device of its node broken.
func (e *failedExit) whose() cause {
	if e.ofDevice() {
		return causeInfrastructure
	}
	return causeProgram
}

// nodes are those to blame: that of a worker that failed before its program started, since an init container failed or its own
// could not be started, and that of one with a broken device.
func (e *failedExit) nodes() []string {
	if e.code < 0 || e.ofDevice() || e.cause == "StartError" || e.cause == "ContainerCannotRun" {
		return toBlame(e.pod)
	}
	return nil
}

// message says who ended how, and all that is known of why.
func (e *failedExit) message() string { return e.explained(e.said()) }

// line is the same with the last line of why.
func (e *failedExit) line() string { return e.explained(lastLine(e.said())) }

func (e *failedExit) explained(why string) string {
	who := fmt.Sprintf("worker %s on node %s", e.pod.Name, e.pod.Spec.NodeName)
	if e.rank >= 0 {
		who = fmt.Sprintf("worker %s (worker rank %d, node %s)", e.pod.Name, e.rank, e.pod.Spec.NodeName)
	}
	text := fmt.Sprintf("%s exited with code %d", who, e.code)
	switch {
	case e.code < 0:
		text = who + " failed before its program started"
	case e.ofDevice():
		text += " (a device of the node is broken)"
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
