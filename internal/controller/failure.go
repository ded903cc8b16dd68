package controller

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

const (
	// The pause before the next attempt after a program's failure doubles from programBackOff to
	// spec.failure.maxBackOff.
	programBackOff = 5 * time.Second
	// maxBackOff is the default of spec.failure.maxBackOff.
	maxBackOff = 5 * time.Minute
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
	// causeOutgrown: its volumes are too small for its state, and others can be had while next to nothing is lost.
	causeOutgrown
)

// failure is what ended, or will end, an attempt.
type failure struct {
	cause   cause
	message string
	// after is when an unsettled failure should be looked at again.
	after time.Duration
	// nodes are those to blame; none where nobody knows. device is true where it is their devices, by the word of the program alone.
	nodes  []string
	device bool
}

// handle turns a failure into a restart of the gang, or into the end of the job.
func (p *planner) handle(f failure) {
	status := &p.plan.Status
	if f.cause == causeUnsettled {
		p.lookAgain(f.after)
		return
	}
	if f.cause == causeUnplaced {
		pause := p.vainStart()
		p.avoidFrom(p.Now.Add(pause), f.nodes, f.message)
		p.restart("GangUnplaced", f, pause)
		return
	}
	if doubt := p.avoidDevices(f.nodes, f.message, f.device); doubt != "" {
		f.cause, f.message = causeProgram, f.message+"; "+doubt
	}
	if f.cause == causeProgram {
		failures := value(status.Restarts.Program) + 1
		if limit := value(p.Job.Spec.Failure.MaxRestarts); failures > limit {
			p.fail(v1alpha1.ReasonProgramFailed, fmt.Sprintf("the program failed and spec.failure.maxRestarts (%d) is used up: %s", limit, f.message))
			return
		}
		status.Restarts.Program = ptr.To(failures)
		p.restart("ProgramFailure", f, p.backOff(programBackOff, failures))
		return
	}
	switch f.cause {
	case causeReleased:
		p.restart(v1alpha1.EventGangReleased, f, infrastructureBackOff)
		return
	case causeEvicted:
		status.StartTime = nil // it waits for its admission again, and spec.activeDeadline begins anew with that
		p.restart(v1alpha1.EventEvicted, f, infrastructureBackOff)
		return
	case causeOutgrown:
		p.restart(v1alpha1.EventVolumesEnlarged, f, 0)
		return
	}
	placed := isTrue(p.Job.Status.Conditions, v1alpha1.ConditionGangScheduled)
	if !placed && p.Memory.Own.Began != p.attempt() {
		// A leader has died over it, most likely. Others would grow into the room meanwhile.
		p.restart("GangIncomplete", f, 0)
		return
	}
	if own := &p.Memory.Own; !placed && own.Faulty == p.attempt() {
		// Its pods could not be made: that says nothing of the job, and the API server is given time.
		p.restart("GangIncomplete", f, p.backOff(infrastructureBackOff, own.Faults))
		return
	}
	retries := value(status.Retries) + 1
	status.Retries = &retries
	pause := p.lossPause(f.nodes)
	if !placed {
		// Nothing ran yet: a pod that was withdrawn before it had a node is no loss.
		p.restart("GangIncomplete", f, pause)
		return
	}
	status.Restarts.Infrastructure = ptr.To(value(status.Restarts.Infrastructure) + 1)
	p.restart("InfrastructureLoss", f, pause)
}

// lossPause is the pause after an attempt that was lost to the infrastructure. Where it is known which nodes are to blame the next
// attempt leaves those out, and need not wait: the pause grows with the failures of the same node, which means that there is no
// other. When more than a few were lost in a row it is hardly the nodes.
func (p *planner) lossPause(nodes []string) time.Duration {
	retries := value(p.plan.Status.Retries)
	if len(nodes) == 0 {
		return p.backOff(infrastructureBackOff, retries)
	}
	again := max(1, retries-fewNodes)
	for i := range p.plan.Status.AvoidedNodes {
		if node := &p.plan.Status.AvoidedNodes[i]; slices.Contains(nodes, node.Name) {
			again = max(again, value(node.Failures))
		}
	}
	return p.backOff(infrastructureBackOff, again)
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
func (p *planner) restart(reason string, f failure, pause time.Duration) {
	retry := metav1.NewTime(p.Now.Add(pause))
	p.plan.Status.RetryTime = &retry
	p.plan.Status.Workers.Target = ptr.To[int32](0)
	p.withdrawStart()
	text := fmt.Sprintf("attempt %d ended: %s", p.attempt(), f.message)
	if without := p.leftOut(f.nodes); without != "" {
		text += "; " + without
	}
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
