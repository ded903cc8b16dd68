package controller

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// verdict is whose fault some losses were.
type verdict struct {
	// wait is how long to wait before it is certain; the rest means nothing until then.
	wait time.Duration
	// program is true when nothing but the program was at fault.
	program bool
	message string
}

// verdict judges losses together: one that the infrastructure caused explains the others.
func (p *planner) verdict(losses []rendezvous.Loss) verdict {
	v := verdict{program: len(losses) > 0}
	var program, infrastructure []string
	for i := range losses {
		cause, message, wait := p.judge(&losses[i])
		v.wait = max(v.wait, wait)
		if cause == causeProgram {
			program = append(program, message)
		} else {
			infrastructure = append(infrastructure, message)
		}
	}
	v.program = v.program && len(infrastructure) == 0
	v.message = strings.Join(infrastructure, "; ")
	if v.program {
		v.message = program[0]
		if others := len(program) - 1; others > 0 {
			v.message = fmt.Sprintf("%d workers failed; the first: %s", others+1, program[0])
		}
	}
	return v
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

func (p *planner) podByUID(uid string) *corev1.Pod {
	for _, pod := range p.Pods {
		if string(pod.UID) == uid {
			return pod
		}
	}
	return nil
}

// lossesIn are the losses of worlds from one round on and before another. Losses of workers that were
// in no world belong to none.
func (p *planner) lossesIn(from, before uint64) []rendezvous.Loss {
	var losses []rendezvous.Loss
	for _, loss := range p.World.Losses {
		if loss.Round > 0 && loss.Round >= from && loss.Round < before {
			losses = append(losses, loss)
		}
	}
	return losses
}
