package controller

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// goodput estimates which part of the time that the attempt has held its room went into steps that
// were kept, since its first world trained: the time, less the pauses of its changes and what the
// steps took that had to be made again, over the time. A step that was lost is taken to have been as
// long as those since the last refresh were on average.
//
// It speaks of the changes that status.resizes holds: once those are the last 16 only, of the time
// since the oldest of them. Empty while there is nothing to go by.
func (p *planner) goodput() string {
	training := meta.FindStatusCondition(p.Job.Status.Conditions, v1alpha1.ConditionGangScheduled)
	if training == nil || p.World.Progress.Step == 0 {
		return ""
	}
	since := training.LastTransitionTime.Time
	resizes := p.plan.Status.Resizes
	if len(resizes) == keptResizes && resizes[0].At != nil && resizes[0].At.After(since) {
		since = resizes[0].At.Time
	}
	for _, change := range p.World.Changes {
		// Waiting for the first step is no pause of training.
		if change.From == 0 && change.At.After(since) {
			since = change.At
		}
	}
	held := p.Now.Sub(since)
	if held <= 0 {
		return ""
	}
	var pauses time.Duration
	var lost int64
	for i := range resizes {
		resize := &resizes[i]
		if resize.At == nil || resize.At.Time.Before(since) {
			continue
		}
		pauses += value(resize.Pause).Duration
		lost += value(resize.StepsLost)
	}
	step, known := p.stepTime()
	if lost > 0 && !known {
		return p.Job.Status.Progress.Goodput
	}
	kept := held - pauses - time.Duration(lost)*step
	return fmt.Sprintf("%.3f", min(1, max(0, kept.Seconds()/held.Seconds())))
}

// stepTime is how long a step has taken since the last refresh, on average.
func (p *planner) stepTime() (time.Duration, bool) {
	done, memory := p.World.Progress.Step, p.Memory
	if memory.ReportedRound != p.World.Round || memory.ReportedAt.IsZero() || done <= memory.ReportedStep {
		return 0, false
	}
	return p.Now.Sub(memory.ReportedAt) / time.Duration(done-memory.ReportedStep), true
}
