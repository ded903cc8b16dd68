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
	var lost failure
	var exits []*failedExit
	var wait time.Duration
	for _, pod := range pods {
		v := p.judge(pod, nil)
		if v.cause == causeInfrastructure {
			if lost.cause == causeNone {
				lost.cause, lost.message, lost.device = v.cause, v.message, v.device
			}
			lost.nodes, lost.device = append(lost.nodes, v.nodes...), lost.device && v.device
		}
		if v.exit != nil {
			exits = append(exits, v.exit)
		}
		wait = sooner(wait, v.wait)
	}
	if lost.cause != causeNone || len(exits) == 0 {
		return lost
	}
	first := slices.MinFunc(exits, func(a, b *failedExit) int { return a.at.Compare(b.at) })
	if left := first.at.Add(settleTime).Sub(p.Now); left > 0 {
		return failure{cause: causeUnsettled, after: left}
	}
	if wait > 0 {
		return failure{cause: causeUnsettled, after: wait}
	}
	guilty := culprit(exits)
	return failure{cause: causeProgram, message: guilty.message(), nodes: guilty.nodes()}
}

// verdict judges losses together: one that the infrastructure caused explains the others.
func (p *planner) verdict(losses []rendezvous.Loss) verdict {
	var v verdict
	var program, infrastructure, unfit, lost []string
	device := true
	for i := range losses {
		one := p.judge(p.podByUID(losses[i].UID), &losses[i])
		v.wait = max(v.wait, one.wait)
		if one.cause == causeProgram {
			program, unfit = append(program, one.message), append(unfit, one.nodes...)
		} else {
			infrastructure, lost, device = append(infrastructure, one.message), append(lost, one.nodes...), device && one.device
		}
	}
	if len(infrastructure) > 0 || len(program) == 0 {
		v.cause, v.message, v.nodes = causeInfrastructure, strings.Join(infrastructure, "; "), lost
		v.device = device && len(infrastructure) > 0
		return v
	}
	v.cause, v.message, v.nodes = causeProgram, program[0], unfit
	if others := len(program) - 1; others > 0 {
		v.message = fmt.Sprintf("%d workers failed; the first: %s", others+1, program[0])
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
	losses := p.lossesIn(newestRound(p.Job.Status.Resizes), math.MaxUint64)
	if len(losses) == 0 {
		return f
	}
	verdict := p.verdict(losses)
	if verdict.wait > 0 {
		return failure{cause: causeUnsettled, after: verdict.wait}
	}
	f.cause, f.nodes, f.device = verdict.cause, verdict.nodes, verdict.device
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
