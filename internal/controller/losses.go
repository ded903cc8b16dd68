package controller

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/internal/rendezvous"
)

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

func (p *planner) podByUID(uid string) *corev1.Pod {
	for _, pod := range p.Pods {
		if string(pod.UID) == uid {
			return pod
		}
	}
	return nil
}

// blame finds out whose fault it was that an attempt cannot go on, from the losses that no change has
// accounted for, and names it first. Without such losses the failure stays what it was.
func (p *planner) blame(f failure) failure {
	losses := p.lossesIn(p.accountedRound(), math.MaxUint64)
	if len(losses) == 0 {
		return f
	}
	verdict := p.verdict(losses)
	if verdict.wait > 0 {
		return failure{cause: causeUnsettled, after: verdict.wait}
	}
	f.cause = causeInfrastructure
	if verdict.program {
		f.cause = causeProgram
	}
	if !strings.Contains(f.message, lastLine(verdict.message)) {
		f.message = verdict.message + "; " + f.message
	}
	return f
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
