package controller

import (
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
	// startBackOff is the pause after a gang that did not start in time, so that another one gets
	// the room.
	startBackOff = 30 * time.Second
	// longestStartBackOff is what that doubles to while starts come to nothing. It is the operator's and not the
	// job's, and longer than most gangs take to start: others pay for each try, and wait for their turn.
	longestStartBackOff = 30 * time.Minute
)

// runGang looks after the gang of the current attempt, by what it is in the middle of.
func (p *planner) runGang() {
	p.sweep()
	pods := p.gang()
	switch p.phase() {
	case phaseRefused:
		p.giveUp(p.Memory.Refusal)
	case phaseUnmade:
		p.createGang()
	case phaseElastic:
		p.runElastic(pods)
	case phaseOver:
		p.account(true)
		p.complete()
	case phaseUnheard:
		p.expectCrew(p.crew(pods), 0)
	case phaseBurned:
		p.runBurned(pods)
	case phaseFixed:
		p.runFixed(pods)
	case phasePlacing:
		p.runPlacing(pods)
	case phaseDeserted:
		p.runDeserted(pods)
	case phaseStarting:
		p.runStarting(pods)
	}
}

// runBurned looks after an attempt whose last round never became a world that anyone knows: those who
// are there form the next one.
func (p *planner) runBurned(pods []*corev1.Pod) {
	if failure := p.diagnose(pods); failure.cause != causeNone {
		p.handle(failure)
		return
	}
	p.expectCrew(p.crew(pods), 0)
	if firstBound, _ := placement(pods); p.Memory.Since.After(firstBound) {
		p.checkStartTimeout(pods, p.Memory.Since)
	} else {
		p.checkStartTimeout(pods, firstBound)
	}
}

// runFixed looks after a gang whose world cannot change, or of which that is not known yet: it keeps its workers, is lost and
// ends as a whole. Who has no node yet is in no world.
func (p *planner) runFixed(pods []*corev1.Pod) {
	pods = slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool { return pod.Spec.NodeName == "" })
	if end := p.ending(pods); end != nil {
		end()
		return
	}
	if p.hadWorld() {
		p.expectCrew(p.crew(pods), p.World.Round) // who is marked still leaves
	} else {
		p.expect(gangMembers(pods))
	}
	p.describeGang(pods, true)
	p.tellUnheard(pods)
	p.refreshCheckpoint()
	p.describeVolumes(pods)
	p.describeFixed(pods)
	p.refreshProgress()
}

// runPlacing looks after a gang that has no world yet, and not all of its nodes.
func (p *planner) runPlacing(pods []*corev1.Pod) {
	if end := p.ending(pods); end != nil {
		end()
		return
	}
	p.askScheduler(pods)
	p.describeGang(pods, false)
	p.tellUnheard(pods)
	p.refreshCheckpoint()
	firstBound, _ := placement(pods)
	p.checkStartTimeout(pods, firstBound)
}

// runDeserted looks after an attempt that has had a world, of which nobody is left who could tell: what has become of
// it, the pods say.
func (p *planner) runDeserted(pods []*corev1.Pod) {
	if end := p.ending(pods); end != nil {
		end()
		return
	}
	p.expectCrew(p.crew(pods), p.World.Round)
	p.describeGang(pods, true)
}

// runStarting looks after a gang that has its nodes, and is to form its first world.
func (p *planner) runStarting(pods []*corev1.Pod) {
	if end := p.ending(pods); end != nil {
		end()
		return
	}
	p.expect(gangMembers(pods))
	p.describeGang(pods, true)
	p.tellUnheard(pods)
	p.refreshCheckpoint()
	if !p.rendezvousKnows() {
		return // this leader has yet to tell the rendezvous of it, or to learn whether there is a world
	}
	firstBound, _ := placement(pods)
	p.checkStartTimeout(pods, firstBound)
}

// ending is what ends an attempt that is lost and ends as a whole; nil while it goes on.
func (p *planner) ending(pods []*corev1.Pod) func() {
	lost := p.diagnose(pods)
	if lost.cause == causeNone && !p.allSucceeded(pods) && p.rendezvousKnows() && p.World.Fatal != "" {
		lost = p.blame(failure{cause: causeInfrastructure, message: p.World.Fatal})
	}
	switch {
	case lost.cause != causeNone:
		return func() { p.handle(lost) }
	case p.allSucceeded(pods):
		return p.complete
	case p.evicted():
		return func() { p.afterParking(p.evict) }
	default:
		return nil
	}
}

// giveUp ends an attempt whose batch the API server refused. What was made of it by then is released
// once this is durable.
func (p *planner) giveUp(refusal *Refusal) {
	p.plan.Status.Workers.Target = ptr.To[int32](0)
	p.withdrawStart()
	if refusal.Reason != v1alpha1.ReasonQuotaExceeded {
		p.plan.Status.Retries = ptr.To(value(p.plan.Status.Retries) + 1) // others may have left for it
	}
	p.refuse(refusal.Reason, refusal.Message)
}

// neverActive says whether nothing came of a job since its startTime: it had no world, and no program of it has run in this attempt.
// It was granted room that others got, or in which it could not start.
func (p *planner) neverActive() bool {
	start, resizes, made := p.Job.Status.StartTime, p.Job.Status.Resizes, record.FromStatus(p.Job)
	if start == nil {
		return false
	}
	if made.Round > 0 && (made.Attempt == p.attempt() || !made.StartedAt.Before(start.Time)) {
		return false
	}
	if slices.ContainsFunc(p.gang(), func(pod *corev1.Pod) bool {
		return trainerRunning(pod, &p.Job.Spec.Workers) || trainerExit(pod, &p.Job.Spec.Workers) != nil
	}) {
		return false
	}
	return len(resizes) == 0 || resizes[len(resizes)-1].At != nil && resizes[len(resizes)-1].At.Before(start)
}

// withdrawStart has the time of a job that was never active begin to run with its next start, as it queues again:
// spec.activeDeadline bounds what it does, not what it waits for.
func (p *planner) withdrawStart() {
	if p.neverActive() {
		p.plan.Status.StartTime = nil
	}
}

// createGang makes the group and its pods, in one batch, where the planner has places for all of them.
func (p *planner) createGang() {
	status := &p.plan.Status
	if !p.Grant.Known || len(p.Grant.Places) == 0 && p.Grant.Why == "" {
		p.awaitPlan()
		return
	}
	if len(p.Grant.Places) < int(p.target()) {
		// Another gang has got the room in between. One without a pod that is about to start would stand
		// outside the queue, and take what comes free from those before it.
		status.Workers.Target = ptr.To[int32](0)
		p.withdrawStart()
		p.set(v1alpha1.ConditionGangScheduled, metav1.ConditionFalse, v1alpha1.ReasonQueued, p.Grant.Why)
		p.keepBackOff(v1alpha1.ReasonQueued, "the gang has no room yet")
		return
	}
	var ordinals []int32
	for ordinal := value(status.NextOrdinal) - p.target(); ordinal < value(status.NextOrdinal); ordinal++ {
		ordinals = append(ordinals, ordinal)
	}
	group, pods := p.batch(p.groupKey().Name, ordinals, p.Grant.Places)
	p.plan.Actions.Group, p.plan.Actions.Create = group, pods
	p.note(corev1.EventTypeNormal, v1alpha1.EventGangCreated, "attempt %d: %d workers are to start together (PodGroup %s)",
		p.attempt(), p.target(), group.Key.Name)
	p.justBegun()
	p.admit()
}

// placement says when the first pod got its node (zero if none has), and whether all have one.
func placement(pods []*corev1.Pod) (first time.Time, all bool) {
	all = true
	for _, pod := range pods {
		if pod.Spec.NodeName == "" {
			all = false
			continue
		}
		at := pod.CreationTimestamp.Time
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionTrue {
				at = condition.LastTransitionTime.Time
			}
		}
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first, all
}

// expect tells the rendezvous what to make the next world of. Nobody tells of the nodes of those who have vanished.
func (p *planner) expect(members []rendezvous.Member) {
	p.plan.Actions.Expect = p.expected(members)
	p.watchVanished()
}

// expected is what the rendezvous should make the next world of.
func (p *planner) expected(members []rendezvous.Member) *rendezvous.Gang {
	spec := &p.Job.Spec
	expected := &rendezvous.Gang{
		JobUID:             string(p.Job.UID),
		Attempt:            p.attempt(),
		Members:            append(members, p.vanished()...),
		Addresses:          addressesOf(p.Pods),
		Minimum:            p.minimum(),
		Target:             p.trainsWith(),
		Spares:             value(spec.Workers.Spares),
		Sizes:              slices.Sorted(slices.Values(spec.Workers.Sizes)),
		ProcessesPerWorker: value(spec.Workers.ProcessesPerWorker),
		HeartbeatTimeout:   value(spec.Failure.HeartbeatTimeout).Duration,
		BarrierTimeout:     value(spec.Checkpoint.Timeout).Duration,
		GrowthWindow:       value(spec.Growth.Stabilization).Duration,
		HangTimeout:        value(spec.Failure.HangTimeout).Duration,
		RegroupTimeout:     value(spec.Failure.RegroupTimeout).Duration,
		MayRestart:         value(p.Job.Status.Restarts.Program) < value(spec.Failure.MaxRestarts),
		Durable:            record.FromStatus(p.Job),
		Storage:            p.storage(),
		Copies:             value(spec.Checkpoint.Copies),
		Sharded:            value(p.Job.Status.Checkpoint.Size.Shards) > 0,
	}
	if spec.Strategy() == v1alpha1.ResizeRestart {
		expected.Strategy = rendezvous.Restart
	}
	for i := range expected.Members {
		member := &expected.Members[i]
		member.NodeNotReady, member.Rack = p.Nodes.notReady(member.Node), p.Nodes.rack(member.Node, p.RackLabel)
	}
	return expected
}

func gangMembers(pods []*corev1.Pod) []rendezvous.Member {
	var members []rendezvous.Member
	for _, pod := range pods {
		members = append(members, rendezvous.Member{
			UID: string(pod.UID), Name: pod.Name, Ordinal: podOrdinal(pod), Node: pod.Spec.NodeName,
		})
	}
	return members
}

// checkStartTimeout lets a gang go that holds room and does not start.
func (p *planner) checkStartTimeout(pods []*corev1.Pod, firstBound time.Time) {
	timeout, field := value(p.Job.Spec.Gang.StartTimeout).Duration, "spec.gang.startTimeout"
	if firstBound.IsZero() {
		if pinned(pods[0]) != "" {
			return // what becomes of places that were found is looked at more often
		}
		// An attempt for which only the scheduler knows the room is not to keep others from theirs for ever.
		firstBound = lastMade(pods)
		if bound := p.AttemptTimeout; bound > 0 && bound < timeout {
			timeout, field = bound, "the operator's fleet.attemptTimeout"
		}
	}
	if left := firstBound.Add(timeout).Sub(p.Now); left > 0 {
		p.lookAgain(left)
		return
	}
	_, why, _ := p.whyNotTraining(pods)
	retry := metav1.NewTime(p.Now.Add(p.vainStart()))
	p.plan.Status.RetryTime = &retry
	p.plan.Status.Workers.Target = ptr.To[int32](0)
	p.withdrawStart()
	nodes := p.stuckOn(pods)
	p.avoidFrom(retry.Time, nodes, why)
	message := fmt.Sprintf("attempt %d did not start within %s (%s): %s; it lets go of its room, the next attempt is due at %s",
		p.attempt(), field, timeout, why, retry.UTC().Format(time.RFC3339))
	if without := p.leftOut(nodes); without != "" {
		message += "; " + without
	}
	p.set(v1alpha1.ConditionGangScheduled, metav1.ConditionFalse, v1alpha1.ReasonNoGang, "the last gang did not start in time")
	p.set(v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonBackOff, message)
	p.note(corev1.EventTypeWarning, v1alpha1.EventStartTimeout, "%s", message)
}

func (p *planner) allSucceeded(pods []*corev1.Pod) bool {
	for _, pod := range pods {
		exit := trainerExit(pod, &p.Job.Spec.Workers)
		if exit == nil || exit.ExitCode != 0 {
			return false
		}
	}
	return true
}
