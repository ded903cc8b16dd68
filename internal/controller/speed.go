package controller

import (
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/record"
	"github.com/concertina-dev/concertina/internal/speed"
)

// measureSpeed brings status.speed up to date with the progress that is about to be written. It follows from nothing but
// what is durable, and from the refresh before: what an operator has not seen itself is not counted.
func (p *planner) measureSpeed() {
	status := &p.plan.Status
	if all, seen := p.addSpeed(); seen {
		status.Speed.Sizes = fleet.SizesStatus(all)
	}
	if p.Grant.Known {
		status.Speed.ShortSince = nil
		if since := p.Grant.ShortSince; !since.IsZero() {
			status.Speed.ShortSince = ptr.To(metav1.NewTime(since))
		}
		p.noteTriedAgain()
	}
	told := fleet.ProgressOf(status)
	if first := told.First(); first > 0 && status.Speed.FirstTotalSteps == nil {
		status.Speed.FirstTotalSteps = ptr.To(value(status.Progress.TotalSteps))
	}
	if least := told.Least(); least > 0 && least < math.MaxInt64 {
		status.Speed.LeastTotalSteps = ptr.To(int64(least))
	}
	if total := value(status.Progress.TotalSteps); told.Blind() && status.Speed.Doubt == "" && total == 0 {
		status.Speed.Doubt = fmt.Sprintf("the program said before that the training has %d steps, and has made %d",
			value(status.Speed.LeastTotalSteps), value(status.Progress.Step))
		p.noteDoubt()
	} else if told.Blind() && status.Speed.Doubt == "" {
		status.Speed.Doubt = fmt.Sprintf("the program said before that the training has %d steps, and after %d of them that it has %d",
			value(status.Speed.LeastTotalSteps), value(status.Progress.Step), total)
		p.noteDoubt()
	}
}

// noteTriedAgain enters when the job was tried again with more workers. It is written with the target of that: another operator would
// otherwise take what is tried for what the job has.
func (p *planner) noteTriedAgain() {
	speed := &p.plan.Status.Speed
	speed.TriedAgain = nil
	again := &p.Grant.Again
	if again.At.IsZero() {
		return
	}
	speed.TriedAgain = &v1alpha1.TriedAgain{At: ptr.To(metav1.NewTime(again.At))}
	if again.From > 0 {
		speed.TriedAgain.From = ptr.To(again.From)
	}
	if again.Vain > 0 {
		speed.TriedAgain.Vain = ptr.To(again.Vain)
	}
}

func (p *planner) noteDoubt() {
	p.note(corev1.EventTypeWarning, v1alpha1.EventTotalDoubted, "%s: how many are left is not believed until the job ends, "+
		"as many as were made are expected", p.plan.Status.Speed.Doubt)
}

// addSpeed enters the steps that the world has made since the last refresh; false where there are none of which it is
// known how long they took, and in which world.
func (p *planner) addSpeed() ([]speed.Seen, bool) {
	seen, memory := &p.World.Progress, &p.Memory
	workers, nodes := p.worldSpan()
	if workers == 0 || memory.ReportedAt.IsZero() || memory.ReportedRound != p.World.Round || seen.Step <= memory.ReportedStep || seen.StepTime <= 0 {
		return nil, false
	}
	if len(p.plan.Status.Stragglers) > 0 {
		// It is one worker that is slow, or its node, and all wait for it: other workers were faster in as many.
		return speed.Withdraw(fleet.SizesSeen(&p.Job.Status.Speed), workers, nodes), true
	}
	steps := seen.Step - memory.ReportedStep
	// Between two refreshes no more steps were made than there was time for, but for one that was begun before: beyond
	// twice as many it is no matter of when reports come.
	if float64(steps-1)*seen.StepTime.Seconds() > 2*max(p.Now.Sub(memory.ReportedAt), time.Second).Seconds() {
		return nil, false
	}
	return speed.Add(fleet.SizesSeen(&p.Job.Status.Speed), speed.Seen{
		Workers: workers, Nodes: nodes, StepsPerSecond: 1 / seen.StepTime.Seconds(), Steps: int64(steps),
		Took: time.Duration(float64(steps) * float64(seen.StepTime)), At: p.Now,
	}), true
}

// worldSpan is how many members the world has, and on how many nodes they are; 0 when that is not known of all.
func (p *planner) worldSpan() (workers, nodes int) {
	on := map[string]bool{}
	for _, pod := range p.gang() {
		if seen := p.member(pod); seen.Joined && seen.WorkerRank >= 0 && pod.Spec.NodeName != "" {
			workers++
			on[pod.Spec.NodeName] = true
		}
	}
	if made := record.FromStatus(p.Job); made.Round != p.World.Round || int(made.Workers) != workers {
		return 0, 0
	}
	return workers, len(on)
}
