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
)

const (
	// overdueAfter is how long after its grace period a pod may still stand in the API before its
	// node is taken for dead.
	overdueAfter = 10 * time.Second
	// groupKindPoll is how often we look whether the cluster has learned the gang's kind.
	groupKindPoll = 10 * time.Second
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
	if p.held = p.mayNotStart(); p.held {
		return
	}
	if !p.Grant.Known || !p.Grant.Start {
		if p.Grant.Known && !p.answered() {
			p.ask() // others may have to leave for it
			return
		}
		first := newPod(p.Job, p.settings, p.attempt()+1, value(status.NextOrdinal))
		if shortage := quotaShortage(p.Quotas, first, p.minimum()); shortage != "" && p.answered() {
			// It may be that others in the namespace have to give way first: the planner sees to that, once it reads this. So that is not
			// written of a job whose pods may be refused.
			p.refuseForQuota(shortage)
			return
		}
		p.enqueue()
		return
	}
	p.plan.NoPlaceSince = time.Time{}
	status.Attempt = ptr.To(p.attempt() + 1)
	status.NextOrdinal = ptr.To(value(status.NextOrdinal) + p.minimum())
	status.Workers.Target = ptr.To(p.minimum())
	// What it has waited counts on, until it trains: an attempt that comes to nothing does not put it behind others.
	status.RetryTime, status.Queue = nil, v1alpha1.QueueStatus{Since: status.Queue.Since}
	if status.StartTime == nil {
		status.StartTime = ptr.To(metav1.NewTime(p.Now))
	}
	p.justBegun()
}

// mayNotStart says whether the job could not start its gang, whatever room there is; the status says why.
func (p *planner) mayNotStart() bool {
	if fault := templateFault(&p.Job.Spec); fault != "" {
		p.refuse(v1alpha1.ReasonInvalidTemplate, fault)
		return true
	}
	if p.GroupKindMissing != "" {
		p.refuse(v1alpha1.ReasonPodGroupsMissing, p.GroupKindMissing)
		p.lookAgain(groupKindPoll)
		return true
	}
	if retry := p.Job.Status.RetryTime; retry != nil && p.Now.Before(retry.Time) {
		p.lookAgain(retry.Sub(p.Now))
		return true
	}
	if refusal := p.refused(); refusal != nil {
		p.refuse(refusal.Reason, refusal.Message)
		p.lookAgain(refusal.Retry.Sub(p.Now))
		return true
	}
	if p.refusals() > 0 && !p.answered() {
		p.ask() // it would be refused again, most likely
		return true
	}
	return false
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
