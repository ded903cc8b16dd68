package controller

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/plain"
	"github.com/concertina-dev/concertina/internal/record"
)

const (
	// maxMessage bounds what we put into a condition, in bytes; what a program printed last is cut
	// at its front.
	maxMessage = 2048
	// maxEvent bounds the message of an event: the API server refuses longer ones.
	maxEvent = 1024
	// connectPatience is how long an agent may take to reach the operator before a condition says
	// that it has not.
	connectPatience = 10 * time.Second
	// createPatience is how long the containers of a pod may be in the making before a condition says so.
	createPatience = time.Minute
)

func isTrue(conditions []metav1.Condition, conditionType string) bool {
	return meta.IsStatusConditionTrue(conditions, conditionType)
}

// cut shortens a message in its middle: what was said last tells the most. Much of what is told was written
// by programs, and is not to reach terminals as it is.
func cut(message string, limit int) string {
	message = plain.Text(message)
	if len(message) <= limit {
		return message
	}
	return strings.ToValidUTF8(message[:limit/4]+" … "+message[len(message)-limit*3/4+8:], "")
}

// set writes a condition of the next status.
func (p *planner) set(conditionType string, status metav1.ConditionStatus, reason, message string) {
	message = cut(message, maxMessage)
	meta.SetStatusCondition(&p.plan.Status.Conditions, metav1.Condition{
		Type:               conditionType,
		Status:             status,
		Reason:             reason,
		Message:            message,
		ObservedGeneration: p.Job.Generation,
		LastTransitionTime: metav1.NewTime(p.Now),
	})
}

// admit says that the job may have workers.
func (p *planner) admit() {
	p.set(v1alpha1.ConditionAdmitted, metav1.ConditionTrue, v1alpha1.ReasonAdmitted, "nothing stands in the way of the job's pods")
}

// refuse says that the job may have no workers now, and why.
func (p *planner) refuse(reason, message string) {
	old := meta.FindStatusCondition(p.Job.Status.Conditions, v1alpha1.ConditionAdmitted)
	if old == nil || old.Reason != reason || old.Message != message && reason != v1alpha1.ReasonQuotaExceeded {
		p.note(corev1.EventTypeWarning, reason, "%s", message)
	}
	p.set(v1alpha1.ConditionAdmitted, metav1.ConditionFalse, reason, message)
	p.set(v1alpha1.ConditionGangScheduled, metav1.ConditionFalse, v1alpha1.ReasonNoGang, "the job is not admitted")
	p.set(v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonNoGang, "the job is not admitted")
}

// refuseForQuota says that the namespace's quotas do not admit the gang now. What they say changes with every pod
// of the namespace, so it is written anew now and then only: a thousand jobs may wait for one quota.
func (p *planner) refuseForQuota(shortage string) {
	old := meta.FindStatusCondition(p.Job.Status.Conditions, v1alpha1.ConditionAdmitted)
	left := p.Memory.SizeToldAt.Add(sizeInterval).Sub(p.Now)
	if old != nil && old.Reason == v1alpha1.ReasonQuotaExceeded && left > 0 {
		p.lookAgain(left)
		return
	}
	p.plan.SizeTold = true
	p.lookAgain(queueInterval)
	p.refuse(v1alpha1.ReasonQuotaExceeded, shortage)
}

// describeGang writes GangScheduled and Training for a gang that has all of its pods.
func (p *planner) describeGang(pods []*corev1.Pod, bound bool) {
	p.admit()
	if !bound {
		p.set(v1alpha1.ConditionGangScheduled, metav1.ConditionFalse, v1alpha1.ReasonWaitingForRoom, p.Placement+p.tried())
		p.set(v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonStarting, "the gang has no room yet")
		return
	}
	p.set(v1alpha1.ConditionGangScheduled, metav1.ConditionTrue, v1alpha1.ReasonScheduled, fmt.Sprintf("all %d workers have a node", len(pods))+p.tried())
	if !p.rendezvousKnows() {
		p.describeUnheard(pods)
		return
	}
	if p.World.Round > 0 {
		p.trains(int32(len(pods)))
		return
	}
	reason, message, again := p.whyNotTraining(pods)
	if again > 0 {
		p.lookAgain(again)
	}
	p.set(v1alpha1.ConditionTraining, metav1.ConditionFalse, reason, message)
}

// describeUnheard writes Training for a placed gang of which the rendezvous has not said anything yet.
func (p *planner) describeUnheard(pods []*corev1.Pod) {
	told := meta.FindStatusCondition(p.plan.Status.Conditions, v1alpha1.ConditionTraining) != nil
	made := record.FromStatus(p.Job)
	if told && (isTrue(p.Job.Status.Conditions, v1alpha1.ConditionGangScheduled) || made.Round > 0 && made.Attempt == p.attempt()) {
		return // most likely this leader adopts it: what was true stays true until it knows better
	}
	// The write that tells of the nodes says also what is waited for: the rendezvous is told of the gang after it, and would
	// have nothing else to add. Whether an agent is there only the rendezvous can say.
	reason, message, again := p.whyNotTraining(pods)
	if reason == v1alpha1.ReasonNotConnected {
		reason, message, again = v1alpha1.ReasonStarting, "the workers are starting", 0
	}
	if again > 0 {
		p.lookAgain(again)
	}
	p.set(v1alpha1.ConditionTraining, metav1.ConditionFalse, reason, message)
}

// tried says, behind something else, what becomes of a template of which only the scheduler knows where its pods fit; empty
// for any other.
func (s *State) tried() string {
	why := fleet.UnmodelledWords(&corev1.Pod{Spec: s.Job.Spec.Workers.Template.Spec})
	if why == "" {
		return ""
	}
	return "; " + why + ": its gang is one attempt, all pods or none, and more workers are tried one at a time"
}

// trains says that the current world of so many workers trains.
func (p *planner) trains(workers int32) {
	message := fmt.Sprintf("round %d: %d workers train as %d ranks", p.World.Round, workers, workers*value(p.Job.Spec.Workers.ProcessesPerWorker))
	if !isTrue(p.Job.Status.Conditions, v1alpha1.ConditionTraining) {
		p.note(corev1.EventTypeNormal, v1alpha1.ReasonWorldFormed, "%s", message)
	}
	p.set(v1alpha1.ConditionTraining, metav1.ConditionTrue, v1alpha1.ReasonWorldFormed, message)
}

// whyNotTraining names the pods that keep a placed gang from forming its world. More may be known after a while; 0 for no
// such time.
func (p *planner) whyNotTraining(pods []*corev1.Pod) (reason, message string, again time.Duration) {
	if stuck := stuckPods(pods); stuck != "" {
		return v1alpha1.ReasonWaitingForPods, stuck, 0
	}
	unmade, again := p.unmade(pods)
	if unmade != "" {
		return v1alpha1.ReasonWaitingForPods, unmade, again
	}
	var silent, starting []string
	for _, pod := range pods {
		status := trainerStatus(pod, &p.Job.Spec.Workers)
		switch {
		case p.member(pod).Joined:
		case status == nil || status.State.Running == nil:
			starting = append(starting, pod.Name)
		default:
			silent = append(silent, pod.Name)
			if left := status.State.Running.StartedAt.Add(connectPatience).Sub(p.Now); left > 0 {
				again = sooner(again, left)
				silent, starting = silent[:len(silent)-1], append(starting, pod.Name)
			}
		}
	}
	if len(silent) > 0 {
		return v1alpha1.ReasonNotConnected, fmt.Sprintf("the agents in %s run for more than %s and have not reached the operator at %s: "+
			"see their logs, cluster DNS, and network policies between the namespaces", strings.Join(silent, ", "), connectPatience, p.settings.RendezvousAddress), again
	}
	if len(starting) > 0 {
		return v1alpha1.ReasonStarting, fmt.Sprintf("waiting for %s to start", strings.Join(starting, ", ")), again
	}
	if why := p.World.Storage; why != "" {
		return v1alpha1.ReasonStarting, "all workers are there, and the job's checkpoint is being looked for in its storage: " + why, again
	}
	return v1alpha1.ReasonStarting, "all workers are there, the world is being formed", again
}

// unmade names the pods whose containers have been in the making for a while: the kubelet says why in events alone. After
// again others may be.
func (p *planner) unmade(pods []*corev1.Pod) (text string, again time.Duration) {
	var names []string
	for _, pod := range pods {
		status := trainerStatus(pod, &p.Job.Spec.Workers)
		if pod.Status.StartTime == nil || status != nil && (status.State.Running != nil || status.State.Terminated != nil) {
			continue
		}
		if left := pod.Status.StartTime.Add(createPatience).Sub(p.Now); left > 0 {
			again = sooner(again, left)
			continue
		}
		names = append(names, pod.Name)
	}
	if len(names) == 0 {
		return "", again
	}
	hint := "an image may be large, or a volume or a Secret missing"
	if storage := p.Job.Spec.Checkpoint.Storage; storage != nil && storage.SecretName != "" {
		hint += fmt.Sprintf(" (spec.checkpoint.storage.secretName is %s)", storage.SecretName)
	}
	return fmt.Sprintf("the containers of %s are not made after %s: see the pod's events; %s", strings.Join(names, ", "), createPatience, hint), again
}

// stuckPods names the pods whose containers cannot start, and the cause; empty when there is none.
func stuckPods(pods []*corev1.Pod) string {
	var stuck []string
	for _, pod := range pods {
		for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
			for i := range statuses {
				waiting := statuses[i].State.Waiting
				if waiting == nil || waiting.Reason == "" || waiting.Reason == "PodInitializing" || waiting.Reason == "ContainerCreating" {
					continue
				}
				stuck = append(stuck, fmt.Sprintf("pod %s, container %s: %s: %s", pod.Name, statuses[i].Name, waiting.Reason, waiting.Message))
			}
		}
	}
	return strings.Join(stuck, "; ")
}

// stateWord is status.state: what the job is doing, in one word.
func stateWord(status *v1alpha1.TrainingJobStatus, suspended bool) string {
	reason := func(conditionType string) string {
		if found := meta.FindStatusCondition(status.Conditions, conditionType); found != nil {
			return found.Reason
		}
		return ""
	}
	admitted := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionAdmitted)
	switch {
	case isTrue(status.Conditions, v1alpha1.ConditionComplete):
		return v1alpha1.ConditionComplete
	case isTrue(status.Conditions, v1alpha1.ConditionFailed):
		return v1alpha1.ConditionFailed
	case isTrue(status.Conditions, v1alpha1.ConditionSuspended):
		return v1alpha1.ConditionSuspended
	case suspended:
		return v1alpha1.ReasonStopping
	case admitted != nil && admitted.Status == metav1.ConditionFalse:
		return admitted.Reason
	case isTrue(status.Conditions, v1alpha1.ConditionTraining):
		if reason(v1alpha1.ConditionTraining) == v1alpha1.ReasonResizing {
			return v1alpha1.ReasonResizing
		}
		return v1alpha1.ConditionTraining
	case reason(v1alpha1.ConditionTraining) == "":
		return v1alpha1.ReasonQueued
	default:
		return reason(v1alpha1.ConditionTraining)
	}
}
