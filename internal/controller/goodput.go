package controller

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/record"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// Goodput is over the life of the job, whatever becomes of its attempts and of operators:
//
//	goodput = keptTime / (now - since - suspendedTime)
//
// All three are durable. keptTime belongs to the step that is written with it: the two are always
// changed together, so each step is counted once, and keptTime / step is how long a step has taken on
// average. From that follows what an operator has not seen.

// measure writes the times of the next progress, and goodput.
func (p *planner) measure(next *v1alpha1.ProgressStatus) {
	old := &p.Job.Status.Progress
	next.Since, next.KeptTime, next.SuspendedTime = old.Since, old.KeptTime, old.SuspendedTime
	if next.Since == nil {
		if p.World.Progress.Step == 0 {
			return
		}
		next.Since = ptr.To(metav1.NewTime(p.firstStepAt()))
	}
	held := p.Now.Sub(next.Since.Time) - value(next.SuspendedTime).Duration
	if held <= 0 {
		next.Goodput = old.Goodput
		if next.KeptTime != nil {
			return // the clock went back: what is known is kept for when it is right again
		}
	}
	kept := max(0, min(p.keptTime(next.Since.Time, held), held))
	next.KeptTime = &metav1.Duration{Duration: kept.Round(time.Millisecond)}
	if held > 0 {
		next.Goodput = fmt.Sprintf("%.3f", kept.Seconds()/held.Seconds())
	}
}

// firstStepAt is when the first step of the job was made: now, or, when this operator has not seen its
// world begin, no earlier than that.
func (p *planner) firstStepAt() time.Time {
	made := record.FromStatus(p.Job)
	seen := p.madeHere()
	if !seen && made.Round == p.World.Round && !made.StartedAt.IsZero() && made.StartedAt.Before(p.Now) {
		return made.StartedAt
	}
	return p.Now
}

// madeHere says whether this operator has made the present world, and knows all of the change that led to it.
func (p *planner) madeHere() bool {
	return slices.ContainsFunc(p.World.Changes, func(c rendezvous.Change) bool {
		return c.Round == p.World.Round && !c.Inherited
	})
}

// keptTime is how long the steps that are done by now have taken; held is the whole time since the first.
func (p *planner) keptTime(since time.Time, held time.Duration) time.Duration {
	old, memory, step := &p.Job.Status.Progress, &p.Memory, p.World.Progress.Step
	made := record.FromStatus(p.Job)
	if made.Round == p.World.Round && !made.StartedAt.IsZero() && !made.StartedAt.After(since) {
		return held // it is still the world of the first step
	}
	kept, before := value(old.KeptTime).Duration, uint64(value(old.Step))
	if memory.ReportedAt.IsZero() || memory.ReportedStep != before || !p.begun() {
		// What was written last is not ours, or not all is known of what came after it.
		return scale(kept, step, before)
	}
	var lost uint64
	trained := p.Now.Sub(memory.ReportedAt)
	for _, change := range p.World.Changes {
		if change.Round <= memory.ReportedRound {
			continue
		}
		if change.Reason == rendezvous.ReasonStart || change.Inherited || p.Job.Spec.Strategy() == v1alpha1.ResizeRestart {
			// Programs resumed by themselves, or under another operator: how far back they went is not known here.
			return scale(kept, step, before)
		}
		trained -= change.Pause
		lost += change.StepsLost
	}
	return scale(kept+trained, step, step+lost)
}

// scale is how long some steps took when as many as these took so long.
func scale(took time.Duration, some, these uint64) time.Duration {
	if these == 0 {
		return 0
	}
	return time.Duration(float64(took) * float64(some) / float64(these))
}

// makesSteps says whether the world trains, and it is known what the change before it has cost.
func (p *planner) makesSteps() bool {
	trains := p.World.Phase == rendezvous.PhaseTraining || p.World.Phase == ""
	return trains && !p.World.Untold && (p.Job.Status.Progress.Since == nil || p.begun())
}

// begun says whether all processes of the world have made a step in it.
func (p *planner) begun() bool {
	made := record.FromStatus(p.Job)
	if made.Round != p.World.Round {
		return p.World.Progress.Step > 0
	}
	return p.World.Progress.Step > made.FromStep
}

// countSuspension adds up how long the job was suspended, in the write that ends a suspension.
func (p *planner) countSuspension() {
	suspended := meta.FindStatusCondition(p.Job.Status.Conditions, v1alpha1.ConditionSuspended)
	progress := &p.plan.Status.Progress
	if progress.Since == nil || suspended == nil || suspended.Status != metav1.ConditionTrue {
		return
	}
	// A suspension that began by a clock that was ahead takes nothing off those before it.
	total := value(progress.SuspendedTime).Duration + max(0, p.Now.Sub(suspended.LastTransitionTime.Time))
	progress.SuspendedTime = &metav1.Duration{Duration: total.Round(time.Millisecond)}
}
