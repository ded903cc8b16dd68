package controller

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/gang"
	"github.com/concertina-dev/concertina/internal/record"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// Plan is a decision: what the status should say, what to do, and why.
type Plan struct {
	// Status is the next status. Its world belongs to the rendezvous and is not written.
	Status v1alpha1.TrainingJobStatus
	// Notes say why, one for each thing that was decided; they become events.
	Notes []Note
	// Actions are what to do. They follow from what is durable already.
	Actions Actions
	// After is when to look again without being asked; 0 for never. What is written to the job asks by
	// itself.
	After time.Duration
	// Progress is true when Status brings a new progress.
	Progress bool
	// SizeTold is true when Status brings a new sentence about the job's size.
	SizeTold bool
	// NoPlaceSince is since when the gang has had no place in an empty cluster with the volumes that it needs; zero where it may have.
	NoPlaceSince time.Time
	// Crashes are the nodes on which a program has ended by a signal, as by a device that has failed.
	Crashes map[string]Crashed
	// Facts are what the planner of all jobs should know of this one.
	Facts fleet.Facts
	// Elastic is what to remember once Status is written.
	Elastic ElasticMemory
	// Decided is true when the plan does nothing but write.
	Decided bool
}

// Note is one decision in words.
type Note struct {
	// Type is Normal or Warning, Reason one word, Message a sentence.
	Type, Reason, Message string
	// Worker is the pod that it is about, where several notes of one reason may follow on each other: events of the same
	// job, reason and related object are taken for one that happens again, whatever they say. nil for none.
	Worker *corev1.Pod
}

// Actions are changes to the cluster and to what the rendezvous expects. They are applied in the
// order of the fields.
type Actions struct {
	// Release lets the agents go, before their pods are deleted.
	Release bool
	// Delete removes pods, by uid.
	Delete []*corev1.Pod
	// Withdraw removes pods, by uid and resourceVersion: only if they still have no node.
	Withdraw []*corev1.Pod
	// Mark makes durable which workers leave for other jobs, and which need not any more.
	Mark []PodMark
	// DeleteGroup removes the object of the current attempt's group.
	DeleteGroup bool
	// Forget drops what the rendezvous knows.
	Forget bool
	// Ask is a worker of which the API server is to say what it would make; nil for none. What else is to be done follows from the
	// plan that knows the answer.
	Ask *corev1.Pod
	// Group is made before its pods; nil for none.
	Group *gang.Group
	// Create are pods that are all created, or none.
	Create []*corev1.Pod
	// Grow are pods of which each is worth having, and which may be refused without harm. Their names
	// are the first of those that are reserved.
	Grow []*corev1.Pod
	// Touch is the group that the scheduler should look at once more; nil for none.
	Touch *types.NamespacedName
	// RefillGroup and Refill are a batch that fills the job up to min again; nil for none.
	RefillGroup *gang.Group
	Refill      []*corev1.Pod
	// Expect tells the rendezvous who the world is made of. One that knows nothing of the job is told last, once the
	// status is written.
	Expect *rendezvous.Gang
	// DeleteJob removes the job itself.
	DeleteJob bool
}

// planner collects one Plan.
type planner struct {
	*State
	settings PodSettings
	plan     Plan
	// workers are those of an attempt whose world can change; nil for another.
	workers []worker
	// held is true while the job could not start its gang, whatever room there is.
	held bool
	// rolled is what the record says of ranks, once somebody has asked.
	rolled *roll
	// unheard is true while nothing can be said of a new job.
	unheard bool
}

// NewPlan decides what should happen to a job now. It is pure.
func NewPlan(state *State, settings PodSettings) Plan {
	p := &planner{State: state, settings: settings}
	p.plan.Status = *state.Job.Status.DeepCopy()
	if p.gangChanged() {
		p.plan.Status.Retries = nil // what kept it from starting may be mended
	}
	p.forgetMetric()
	p.plan.Status.ObservedGeneration = ptr.To(state.Job.Generation)
	p.plan.Status.Selector = v1alpha1.LabelJob + "=" + state.Job.Name
	p.plan.Crashes = state.crashes()
	p.plan.Elastic, p.plan.NoPlaceSince = state.Memory.Elastic.next(state.attempt()), state.Memory.NoPlaceSince
	if p.whyAllGo() == "" {
		p.plan.Elastic.ParkingSince = time.Time{}
	}
	p.measureState()
	p.unboundVolumes()
	switch {
	case state.World.Deposed:
		return Plan{Status: *state.Job.Status.DeepCopy(), Elastic: state.Memory.Elastic, Crashes: p.plan.Crashes}
	case p.finished():
		p.afterEnd()
	case p.suspended():
		p.afterParking(p.suspend)
	default:
		p.run()
	}
	p.tellPolicy()
	p.tellKueue()
	p.countWorkers()
	if isTrue(p.plan.Status.Conditions, v1alpha1.ConditionTraining) {
		p.plan.Status.Queue = v1alpha1.QueueStatus{}
	}
	if value(p.plan.Status.Workers.Target) == 0 {
		if p.target() > 0 {
			p.plan.Status.Checkpoint.Size.VolumeAtMost = nil // it goes with the attempt, also with one that came to nothing
		}
		meta.RemoveStatusCondition(&p.plan.Status.Conditions, v1alpha1.ConditionFullSize)
		meta.RemoveStatusCondition(&p.plan.Status.Conditions, v1alpha1.ConditionSnapshotsFit)
		p.plan.Status.Checkpoint.Memory = v1alpha1.MemoryStatus{} // it goes with the workers
		p.plan.Status.Stragglers = nil
	}
	p.forgetStragglers()
	p.plan.Status.State = stateWord(&p.plan.Status, p.suspended())
	p.plan.Facts = p.facts()
	if p.unheard {
		p.plan.Status = *state.Job.Status.DeepCopy()
		return p.plan
	}
	p.restDetails()
	if p.decided() {
		// What was decided becomes durable first; the write itself brings the reconcile that acts on it.
		p.plan.Actions = Actions{}
		p.plan.Decided = true
		p.plan.Elastic.Told = state.Memory.Elastic.Told // nobody else was told
	}
	return p.plan
}

// gangChanged says whether the gang is to be made of something else than before, by all that is known. How far the job may grow is
// nothing of that: scalers change it as they like.
func (p *planner) gangChanged() bool {
	seen := p.Job.Status.ObservedGeneration
	return seen != nil && *seen != p.Job.Generation && (p.Memory.GangOf != *seen || p.Memory.Gang != gangKey(p.Job))
}

// run starts the job's gang, or looks after it, as long as its deadline is not over.
func (p *planner) run() {
	left, bounded := p.untilDeadline()
	switch {
	case bounded && left <= 0:
		p.fail(v1alpha1.ReasonDeadlineExceeded, fmt.Sprintf("the job was not complete within its spec.activeDeadline of %s", p.Job.Spec.ActiveDeadline.Duration))
		return
	case bounded:
		p.lookAgain(left)
	}
	if p.target() > 0 {
		p.runGang()
		return
	}
	p.startGang()
}

// untilDeadline is how long the job may take yet; false for as long as it likes.
func (p *planner) untilDeadline() (time.Duration, bool) {
	deadline, start := p.Job.Spec.ActiveDeadline, p.Job.Status.StartTime
	if deadline == nil || start == nil {
		return 0, false
	}
	return start.Add(deadline.Duration).Sub(p.Now), true
}

// decided says whether the plan changes what actions follow from.
func (p *planner) decided() bool {
	old, next := &p.Job.Status, &p.plan.Status
	ends := func(s *v1alpha1.TrainingJobStatus) [2]bool {
		return [2]bool{isTrue(s.Conditions, v1alpha1.ConditionComplete), isTrue(s.Conditions, v1alpha1.ConditionFailed)}
	}
	return value(old.Attempt) != value(next.Attempt) ||
		value(old.NextOrdinal) != value(next.NextOrdinal) ||
		value(old.Workers.Target) != value(next.Workers.Target) ||
		!apiequality.Semantic.DeepEqual(old.Restarts, next.Restarts) ||
		ends(old) != ends(next)
}

func (p *planner) note(eventType, reason, format string, args ...any) {
	p.plan.Notes = append(p.plan.Notes, Note{Type: eventType, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// noteOf notes something of one worker.
func (p *planner) noteOf(worker *corev1.Pod, eventType, reason, format string, args ...any) {
	p.note(eventType, reason, format, args...)
	p.plan.Notes[len(p.plan.Notes)-1].Worker = worker
}

// lookAgain asks for another reconcile, the earliest wish wins.
func (p *planner) lookAgain(after time.Duration) {
	if after = max(after, time.Millisecond); p.plan.After == 0 || after < p.plan.After {
		p.plan.After = after
	}
}

// sooner is the shorter of two waits, of which 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

func (p *planner) countWorkers() {
	var running, standby int32
	for _, pod := range p.gang() {
		if !trainerRunning(pod, &p.Job.Spec.Workers) || p.givenUp(pod) {
			continue
		}
		running++
		if seen := p.member(pod); seen.Standby && seen.WorkerRank < 0 && p.World.Round > 0 {
			standby++
		}
	}
	workers := &p.plan.Status.Workers
	workers.Running = ptr.To(running)
	workers.Standby = ptr.To(standby)
	if workers.Target == nil {
		workers.Target = ptr.To[int32](0)
	}
	workers.Summary = fmt.Sprintf("%d/%d-%d", running, p.minimum(), value(p.Job.Spec.Workers.Max))
	workers.Spares = nil
	if spares := value(p.Job.Spec.Workers.Spares); spares > 0 {
		workers.Spares = ptr.To(p.sparesReady())
		workers.Summary += fmt.Sprintf("+%d", spares)
	}
}

// afterEnd clears up behind a job that is complete or has failed, and deletes it when its time has
// come. Pods that have ended stay, for their logs.
func (p *planner) afterEnd() {
	p.release(p.busy())
	if ttl := p.Job.Spec.TTLAfterFinished; ttl != nil && p.Job.Status.CompletionTime != nil {
		left := p.Job.Status.CompletionTime.Add(ttl.Duration).Sub(p.Now)
		if left <= 0 {
			p.plan.Actions.DeleteJob = true
			p.note(corev1.EventTypeNormal, v1alpha1.EventTTLExpired, "the job ended %s ago, spec.ttlAfterFinished is %s: it is deleted",
				p.Now.Sub(p.Job.Status.CompletionTime.Time).Round(time.Second), ttl.Duration)
			return
		}
		p.lookAgain(left)
	}
}

// suspend lets go of all workers.
func (p *planner) suspend() {
	status := &p.plan.Status
	p.refreshCheckpoint()
	if p.target() > 0 {
		p.note(corev1.EventTypeNormal, v1alpha1.ReasonSuspended, "spec.suspend is true: all workers are released")
	}
	status.Workers.Target = ptr.To[int32](0)
	status.StartTime, status.RetryTime, status.Queue = nil, nil, v1alpha1.QueueStatus{}
	status.AvoidedNodes, status.Retries = nil, nil // its template may be another one when it goes on
	p.release(p.Pods)
	left := len(p.live())
	message := "spec.suspend is true; set it to false to start the job"
	p.set(v1alpha1.ConditionAdmitted, metav1.ConditionFalse, v1alpha1.ReasonSuspended, message)
	p.set(v1alpha1.ConditionGangScheduled, metav1.ConditionFalse, v1alpha1.ReasonNoGang, message)
	if left > 0 {
		p.set(v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonStopping, fmt.Sprintf("%d workers are still ending", left))
		return
	}
	p.watchVanished()
	if waiting := p.oldWorld(); waiting != "" {
		p.set(v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonStopping, waiting)
		return
	}
	p.closeAttempt()
	p.set(v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonSuspended, message)
	p.set(v1alpha1.ConditionSuspended, metav1.ConditionTrue, v1alpha1.ReasonSuspended, message)
}

// release lets workers go: agents first, then pods, then the group. It is repeated until nothing is
// left.
func (p *planner) release(pods []*corev1.Pod) {
	actions := &p.plan.Actions
	actions.Release = p.World.Known
	actions.DeleteGroup = p.attempt() > 0 && p.GroupExists
	for _, pod := range pods {
		if pod.DeletionTimestamp == nil {
			actions.Delete = append(actions.Delete, pod)
		}
	}
	actions.Forget = len(p.live()) == 0 && p.World.Known
}

// tellPolicy says once that a policy is not in force.
func (p *planner) tellPolicy() {
	if p.Grant.Known && p.Grant.NotAllowed && !p.Memory.NotAllowedTold && !p.finished() {
		p.note(corev1.EventTypeWarning, v1alpha1.EventPolicyNotAllowed, "spec.preemption.policy %s is not allowed in namespace %s (fleet settings of the operator): %s is used",
			p.Job.Spec.Preemption.Policy, p.Job.Namespace, v1alpha1.PreemptionShrink)
	}
}

// tellKueue says once what Kueue's label does and does not do: who gives a job to a queue expects it to wait there.
func (p *planner) tellKueue() {
	queue := p.Job.Labels[v1alpha1.LabelKueueQueue]
	if queue == "" || p.Memory.KueueTold || p.finished() || p.suspended() {
		return
	}
	p.note(corev1.EventTypeWarning, v1alpha1.EventKueueNotAsked,
		"label %s is %s: Kueue is not asked, the job waits in the operator's own queue; as long as it has the label it has spec.workers.min (%d) workers, "+
			"is not grown, and is neither shrunk nor ended for others; what admits jobs for Kueue may suspend and resume it (spec.suspend)",
		v1alpha1.LabelKueueQueue, queue, p.minimum())
}

// fail ends the job without success.
func (p *planner) fail(reason, message string) {
	p.end(v1alpha1.ConditionFailed, reason, message)
	p.note(corev1.EventTypeWarning, reason, "%s", message)
}

// hasFailed says whether this plan ends the job without success.
func (p *planner) hasFailed() bool { return isTrue(p.plan.Status.Conditions, v1alpha1.ConditionFailed) }

// complete ends the job with success.
func (p *planner) complete() {
	p.refreshCheckpoint()
	p.reportProgress()
	message := fmt.Sprintf("all %d workers ended with exit code 0", p.finalWorkers()) + p.withoutBest()
	p.end(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, message)
	p.note(corev1.EventTypeNormal, v1alpha1.ReasonCompleted, "%s", message)
}

// finalWorkers is the number of workers of the last world.
func (p *planner) finalWorkers() int32 {
	if made := record.FromStatus(p.Job); made.Attempt == p.attempt() && made.Workers > 0 {
		return made.Workers
	}
	return p.minimum()
}

// lastRanks is how many workers must be known to have ended, less one, until the worlds of the last attempt make no
// further step: as many as any of them had that may still make one. The one before the newest may, as long as nobody has seen
// a step of that.
func (p *planner) lastRanks() int32 {
	made := record.FromStatus(p.Job)
	if made.Attempt == p.attempt() && made.Parent > 0 && made.From > 0 && !p.stepSeen(&made) {
		return min(p.finalWorkers(), made.From)
	}
	return p.finalWorkers()
}

func (p *planner) end(condition, reason, message string) {
	status := &p.plan.Status
	status.Workers.Target = ptr.To[int32](0)
	status.CompletionTime = ptr.To(metav1.NewTime(p.Now))
	status.RetryTime, status.Queue = nil, v1alpha1.QueueStatus{}
	p.set(v1alpha1.ConditionGangScheduled, metav1.ConditionFalse, v1alpha1.ReasonNoGang, "the job has ended")
	p.set(v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonFinished, "the job has ended")
	p.set(condition, metav1.ConditionTrue, reason, message)
}

// sweep removes pods of earlier attempts, but for those that have ended and are kept for their logs. One that
// lives was made by a call that took effect after its attempt was given up: it would hold the room of the
// gang for ever.
func (p *planner) sweep() {
	keep := keptForLogs(failedPods(p.Pods, &p.Job.Spec.Workers), laterAttempt(&p.Job.Spec.Workers))
	for _, pod := range p.Pods {
		old := podAttempt(pod) != p.attempt()
		if old && pod.DeletionTimestamp == nil && !slices.Contains(keep, pod) {
			p.plan.Actions.Delete = append(p.plan.Actions.Delete, pod)
		}
	}
}
