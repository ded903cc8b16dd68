package controller

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/record"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

const (
	// keptResizes is how many changes status.resizes holds.
	keptResizes = 16
	// maxResizeMessage bounds the message of one of them, in bytes.
	maxResizeMessage = 1024
)

// newestRound is the newest round whose change is among some of status.resizes. The losses of earlier rounds are
// counted by it.
func newestRound(resizes []v1alpha1.Resize) uint64 {
	var newest int64
	for i := range resizes {
		newest = max(newest, value(resizes[i].Round))
	}
	return uint64(newest)
}

// account enters the changes of the world into status.resizes, each in the same write that counts the
// losses before it: an entry is found by its round, so nothing is counted twice. A change whose
// cause is not certain yet waits, and those after it too; but not beyond the end of the training, when
// nobody would look again. The job may fail by it.
func (p *planner) account(finished bool) {
	for _, change := range p.changes(finished) {
		last := newestRound(p.plan.Status.Resizes)
		if change.Round <= last || change.Reason == rendezvous.ReasonStart {
			continue
		}
		losses := p.lossesIn(last, change.Round)
		verdict := p.verdict(losses)
		if verdict.wait > 0 && !finished {
			p.lookAgain(verdict.wait)
			return
		}
		if len(losses) == 0 && change.recoveredUnseen() {
			// The leader that knew more is gone; the record says what kind of loss it was.
			verdict.cause, verdict.message = causeProgram, change.Message
			if change.Reason == rendezvous.ReasonWorkerLost {
				verdict.cause = causeInfrastructure
			}
		}
		p.enter(change)
		p.tellTakeover(change.Change)
		if change.recoveredUnseen() || len(losses) > 0 {
			if p.countLoss(verdict, change, finished); p.hasFailed() {
				return
			}
			continue
		}
		if change.Reason == rendezvous.ReasonUnreached {
			// Nobody was lost: who was left out lives, and takes part again once its peers reach it.
			p.note(corev1.EventTypeWarning, v1alpha1.EventRecovered, "round %d: %s", change.Round, describeChange(change.Change))
			continue
		}
		p.note(corev1.EventTypeNormal, v1alpha1.EventResized, "round %d: %s", change.Round, describeChange(change.Change))
	}
}

// change is a change of the world, and whether this leader has seen it made.
type change struct {
	rendezvous.Change
	seen bool
}

// recoveredUnseen says whether the change followed a loss that this leader may not have seen: by the word
// of an earlier one, or because it has never heard the worker.
func (c change) recoveredUnseen() bool {
	switch c.Reason {
	case rendezvous.ReasonWorkerLost:
		return true
	case rendezvous.ReasonProgramFailed, rendezvous.ReasonHung:
		return !c.seen
	default:
		return false
	}
}

// changes are those that the rendezvous tells of. For a world that it will not tell of, since it was made before
// this process knew the job, or has finished without another step, its durable record stands in.
func (p *planner) changes(finished bool) []change {
	var all []change
	made := record.FromStatus(p.Job)
	known := false
	for _, c := range p.World.Changes {
		known = known || c.Round == made.Round
		all = append(all, change{Change: c, seen: !c.Inherited})
	}
	earlier := !p.Memory.Since.IsZero() && made.StartedAt.Before(p.Memory.Since)
	current := made.Attempt == p.attempt() && (made.Round == p.World.Round || p.World.Round == 0)
	later := p.World.Adopting || p.World.Untold
	if !known && (earlier && !later || finished) && current && made.From > 0 && made.Reason != "" {
		for _, c := range made.Recovered() {
			all = append(all, change{Change: c})
		}
		all = append(all, change{Change: rendezvous.Change{
			Round: made.Round, From: made.From, To: made.Workers, Reason: made.Reason, At: made.StartedAt,
		}})
		slices.SortStableFunc(all, func(a, b change) int { return cmp.Compare(a.Round, b.Round) })
	}
	return all
}

// enter appends one change, and drops the oldest beyond the bound.
func (p *planner) enter(c change) {
	resize := v1alpha1.Resize{
		Round:  ptr.To(int64(c.Round)),
		From:   ptr.To(c.From),
		To:     ptr.To(c.To),
		Reason: string(c.Reason), Message: cut(c.Message, maxResizeMessage),
		At: ptr.To(metav1.NewTime(c.At)),
	}
	if c.Pause > 0 {
		resize.Pause = &metav1.Duration{Duration: c.Pause.Round(time.Millisecond)}
	}
	if c.seen {
		resize.StepsLost = ptr.To(int64(c.StepsLost))
	}
	resizes := append(p.plan.Status.Resizes, resize)
	p.plan.Status.Resizes = resizes[max(0, len(resizes)-keptResizes):]
}

// countLoss counts what a recovery followed, once per change. The job may fail by it, unless its training has finished all
// the same.
func (p *planner) countLoss(v verdict, c change, finished bool) {
	if doubt := p.avoidDevices(v.nodes, v.message, v.device); doubt != "" {
		v.cause, v.message = causeProgram, v.message+"; "+doubt
	}
	restarts := &p.plan.Status.Restarts
	text := fmt.Sprintf("round %d: %s; before it: %s", c.Round, describeChange(c.Change), v.message)
	if v.cause != causeProgram {
		restarts.Infrastructure = ptr.To(value(restarts.Infrastructure) + 1)
		p.note(corev1.EventTypeWarning, v1alpha1.EventRecovered, "%s", text)
		return
	}
	failures := value(restarts.Program) + 1
	if limit := value(p.Job.Spec.Failure.MaxRestarts); failures > limit && !finished {
		p.fail(v1alpha1.ReasonProgramFailed,
			fmt.Sprintf("the program failed and spec.failure.maxRestarts (%d) is used up: %s", limit, v.message))
		return
	}
	restarts.Program = ptr.To(failures)
	p.note(corev1.EventTypeWarning, v1alpha1.EventRecovered, "%s", text)
}

// describeChange says what a change did and cost.
func describeChange(c rendezvous.Change) string {
	text := fmt.Sprintf("from %d to %d workers (%s)", c.From, c.To, c.Reason)
	if c.From == c.To {
		text = fmt.Sprintf("%d workers go on (%s)", c.To, c.Reason)
	}
	if c.Message != "" {
		text += ": " + c.Message
	}
	switch {
	case c.Pause > 0:
		text += fmt.Sprintf("; training paused for %s", c.Pause.Round(time.Millisecond))
	case c.Begun:
		text += "; how long training paused is unknown"
	}
	if c.StepsLost > 0 {
		text += fmt.Sprintf(", %d steps are made again", c.StepsLost)
	}
	return text
}
