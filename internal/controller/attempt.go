package controller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/record"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

const (
	// overdueAfter is how long after its grace period a pod may still stand in the API before its
	// node is taken for dead.
	overdueAfter = 10 * time.Second
	// groupKindPoll is how often we look whether the cluster has learned the gang's kind.
	groupKindPoll = 10 * time.Second
	// startBackOff is the pause after a gang that did not start in time, so that another one gets
	// the room.
	startBackOff = 30 * time.Second
	// longestStartBackOff is what that doubles to while starts come to nothing. It is the operator's and not the
	// job's, and longer than most gangs take to start: others pay for each try, and wait for their turn.
	longestStartBackOff = 30 * time.Minute
)

// startGang begins a new attempt when nothing stands in the way; until then it says what does.
func (p *planner) startGang() {
	status := &p.plan.Status
	p.countSuspension()
	p.set(v1alpha1.ConditionSuspended, metav1.ConditionFalse, v1alpha1.ReasonResumed, "spec.suspend is false")
	p.release(p.busy())
	p.watchVanished()
	p.held = p.heldUp()
	if waiting := p.oldWorld(); waiting != "" {
		p.held = p.held || len(p.unproven()) > 0 // that may take a minute, or for ever
		if retry := p.Job.Status.RetryTime; retry != nil && !p.Now.Before(retry.Time) {
			// The failure is no reason any more.
			p.set(v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonStopping, waiting)
		}
		p.keepBackOff(v1alpha1.ReasonStopping, waiting)
		p.lookAgain(overdueAfter / 4)
		return
	}
	p.closeAttempt()
	if len(p.Earlier) > 0 {
		p.keepBackOff(v1alpha1.ReasonStopping, "waiting for pods of an earlier job of this name to end: "+strings.Join(p.Earlier, ", "))
		return
	}
	if p.plan.Actions.DeleteGroup {
		// Once a new attempt is durable, nobody looks for the old one's group any more.
		p.lookAgain(time.Millisecond)
		return
	}
	p.held = true
	if fault := templateFault(&p.Job.Spec); fault != "" {
		p.refuse(v1alpha1.ReasonInvalidTemplate, fault)
		return
	}
	if p.GroupKindMissing != "" {
		p.refuse(v1alpha1.ReasonPodGroupsMissing, p.GroupKindMissing)
		p.lookAgain(groupKindPoll)
		return
	}
	if retry := p.Job.Status.RetryTime; retry != nil && p.Now.Before(retry.Time) {
		p.lookAgain(retry.Sub(p.Now))
		return
	}
	if refusal := p.refused(); refusal != nil {
		p.refuse(refusal.Reason, refusal.Message)
		p.lookAgain(refusal.Retry.Sub(p.Now))
		return
	}
	p.held = false
	if !p.Grant.Known || !p.Grant.Start {
		first := newPod(p.Job, p.settings, p.attempt()+1, value(status.NextOrdinal))
		if shortage := quotaShortage(p.Quotas, first, p.minimum()); shortage != "" {
			// It may be that others in the namespace have to give way first: the planner sees to that.
			p.refuseForQuota(shortage)
			return
		}
		p.enqueue()
		return
	}
	status.Attempt = ptr.To(p.attempt() + 1)
	status.NextOrdinal = ptr.To(value(status.NextOrdinal) + p.minimum())
	status.Workers.Target = ptr.To(p.minimum())
	status.RetryTime, status.Queue = nil, v1alpha1.QueueStatus{}
	if status.StartTime == nil {
		status.StartTime = ptr.To(metav1.NewTime(p.Now))
	}
	p.justBegun()
}

// justBegun describes a gang whose pods nobody has seen yet. It comes with the write that makes the attempt
// durable, so that the making of the pods needs none. Whether a job that was refused is admitted now, its pods
// have to show.
func (p *planner) justBegun() {
	if !meta.IsStatusConditionFalse(p.Job.Status.Conditions, v1alpha1.ConditionAdmitted) {
		p.admit()
	}
	p.set(v1alpha1.ConditionGangScheduled, metav1.ConditionFalse, v1alpha1.ReasonWaitingForRoom, "the gang was just created")
	p.set(v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonStarting, "the gang was just created")
}

// heldUp says whether clearing up behind the last attempt may take long. Pods without a node and objects go
// at once, and what goes at once does not cost the job its claim to room: others would grow into it.
func (p *planner) heldUp() bool {
	return p.GroupKindMissing != "" || p.refused() != nil ||
		slices.ContainsFunc(p.live(), func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" })
}

// refused is the refusal that has yet to be waited for; nil for none.
func (p *planner) refused() *Refusal {
	if refusal := p.Memory.Refusal; refusal != nil && p.Now.Before(refusal.Retry) {
		return refusal
	}
	return nil
}

// keepBackOff says in Training why there is no gang, unless the condition already tells of a
// failure, which is worth more to the reader.
func (p *planner) keepBackOff(reason, message string) {
	old := meta.FindStatusCondition(p.plan.Status.Conditions, v1alpha1.ConditionTraining)
	if old == nil || old.Reason != v1alpha1.ReasonBackOff {
		p.set(v1alpha1.ConditionTraining, metav1.ConditionFalse, reason, message)
	}
}

// closeAttempt writes down that the worlds of the last attempt make no further step. An operator that starts later could
// not tell pods that have ended from pods that were deleted by force.
func (p *planner) closeAttempt() {
	if p.attempt() > 0 {
		p.plan.Status.EndedAttempt = ptr.To(p.attempt())
	}
}

// oldWorld says which workers of earlier attempts keep a new one from starting; empty for none.
//
// A new world may start only when the old one cannot make another step. A synchronous world cannot
// once one of its processes has ended, so a pod that its dead node will never report as ended, or that
// was deleted by force, is passed over, if another worker of its attempt has ended.
func (p *planner) oldWorld() string {
	var ending, overdue []string
	for _, pod := range p.live() {
		if p.overdue(pod) {
			overdue = append(overdue, fmt.Sprintf("%s on node %s", pod.Name, pod.Spec.NodeName))
		} else {
			ending = append(ending, pod.Name)
		}
	}
	overdue = append(overdue, p.unproven()...)
	switch {
	case len(ending) > 0:
		return "waiting for the old workers to end: " + strings.Join(ending, ", ")
	case int32(len(overdue)) >= p.lastRanks():
		return "no worker of the last attempt is known to have ended: " + strings.Join(overdue, ", ") +
			" do not answer; bring a node back, delete the Node, or taint it node.kubernetes.io/out-of-service"
	default:
		return ""
	}
}

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
		p.expect(members(p.crew(pods), 0))
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
	p.expect(members(p.crew(pods), 0))
	if firstBound, _ := placement(pods); p.Memory.Since.After(firstBound) {
		p.checkStartTimeout(pods, p.Memory.Since)
	} else {
		p.checkStartTimeout(pods, firstBound)
	}
}

// runFixed looks after a gang whose world cannot change: it keeps its workers, is lost and ends as a whole.
func (p *planner) runFixed(pods []*corev1.Pod) {
	if end := p.ending(pods); end != nil {
		end()
		return
	}
	_, bound := placement(pods)
	switch {
	case !bound:
		p.askScheduler(pods)
	case p.hadWorld():
		p.expect(members(p.crew(pods), p.World.Round)) // who is marked still leaves
	default:
		p.expect(gangMembers(pods))
	}
	p.describeGang(pods, bound)
	p.tellUnheard(pods)
	p.refreshCheckpoint()
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
	p.expect(members(p.crew(pods), p.World.Round))
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
	p.refuse(refusal.Reason, refusal.Message)
}

// neverActive says whether nothing came of a job since its startTime: it was granted room that others got.
func (p *planner) neverActive() bool {
	start, resizes := p.Job.Status.StartTime, p.Job.Status.Resizes
	if start == nil || value(p.Job.Status.Retries) > 0 {
		return false
	}
	return len(resizes) == 0 || resizes[len(resizes)-1].At != nil && resizes[len(resizes)-1].At.Before(start)
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
		if p.neverActive() {
			status.StartTime = nil
		}
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
		Target:             max(p.target(), p.minimum()),
		Sizes:              slices.Sorted(slices.Values(spec.Workers.Sizes)),
		ProcessesPerWorker: value(spec.Workers.ProcessesPerWorker),
		HeartbeatTimeout:   value(spec.Failure.HeartbeatTimeout).Duration,
		BarrierTimeout:     value(spec.Checkpoint.Timeout).Duration,
		GrowthWindow:       value(spec.Growth.Stabilization).Duration,
		HangTimeout:        value(spec.Failure.HangTimeout).Duration,
		MayRestart:         value(p.Job.Status.Restarts.Program) < value(spec.Failure.MaxRestarts),
		Durable:            record.FromStatus(p.Job),
		Storage:            p.storage(),
		Copies:             value(spec.Checkpoint.Copies),
	}
	if spec.Strategy() == v1alpha1.ResizeRestart {
		expected.Strategy = rendezvous.Restart
	}
	for i := range expected.Members {
		member := &expected.Members[i]
		member.NodeNotReady = p.Nodes.notReady(member.Node)
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
	if firstBound.IsZero() {
		if pinned(pods[0]) != "" {
			return // what becomes of places that were found is looked at more often
		}
		// An attempt for which only the scheduler knows the room is not to keep others from theirs for ever.
		firstBound = lastMade(pods)
	}
	timeout := value(p.Job.Spec.Gang.StartTimeout).Duration
	if left := firstBound.Add(timeout).Sub(p.Now); left > 0 {
		p.lookAgain(left)
		return
	}
	_, why, _ := p.whyNotTraining(pods)
	retry := metav1.NewTime(p.Now.Add(p.vainStart()))
	p.plan.Status.RetryTime = &retry
	p.plan.Status.Workers.Target = ptr.To[int32](0)
	message := fmt.Sprintf("attempt %d did not start within spec.gang.startTimeout (%s): %s; it lets go of its room, the next attempt is due at %s",
		p.attempt(), timeout, why, retry.UTC().Format(time.RFC3339))
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
