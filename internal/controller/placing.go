package controller

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
)

const (
	// firstTouch to lastTouch is when the scheduler is asked to look at a group again after its pods were
	// made; the time doubles. Coscheduling wakes on pods and groups only: a group that it saw before the
	// last of those who made room was gone would sleep for five minutes.
	firstTouch = time.Second
	lastTouch  = 30 * time.Second
	// unplacedAfter is how long a gang for which there was room may have no node at all: then somebody else
	// has taken the room, and the planner should think again.
	unplacedAfter = 45 * time.Second
	// refusedAfter is how long it may have none where the scheduler says that it is not for room: it may have yet to hear of a node.
	refusedAfter = 5 * time.Second
	// unplacedPerPod is how much longer that is for each pod of it: schedulers look at one after the other.
	unplacedPerPod = 100 * time.Millisecond
)

// Shapes makes pods that stand for those that a job's gang and growth would have, whichever attempt is the next; nil for a template
// that cannot train.
func Shapes(settings PodSettings) fleet.Shapes {
	return func(job *v1alpha1.TrainingJob) (own, growth *corev1.Pod) {
		if templateFault(&job.Spec) != "" {
			return nil, nil
		}
		return newPod(job, settings, 0, 0), newGrowthPod(job, settings, 0, 0)
	}
}

// pin lets a pod run on one node only, in addition to all that its template asks of nodes. An empty name
// leaves the choice to the scheduler.
func pin(pod *corev1.Pod, node string) {
	if node != "" {
		fleet.Pin(pod, node)
	}
}

// pinned is the node that a pod may run on only; empty when it has a choice.
func pinned(pod *corev1.Pod) string { return fleet.Pinned(pod) }

// nodeOf is the node that a pod has, or is to have.
func nodeOf(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	return pinned(pod)
}

// toBlame is the node on which something happened to a pod, where the operator chose it. Where the scheduler did, it would choose it
// again: nothing keeps others off it.
func toBlame(pod *corev1.Pod) []string {
	if pinned(pod) == "" || pod.Spec.NodeName == "" {
		return nil
	}
	return []string{pod.Spec.NodeName}
}

// askScheduler has the scheduler look at a gang that has no nodes yet, and gives it up when somebody else
// must have taken its room.
func (p *planner) askScheduler(pods []*corev1.Pod) {
	made := lastMade(pods)
	p.touch(p.groupKey(), made)
	if pinned(pods[0]) == "" {
		return // the scheduler chooses, and may take its time
	}
	for _, pod := range pods {
		if pod.Spec.NodeName != "" {
			return // spec.gang.startTimeout runs
		}
	}
	from := made
	if busy := p.Grant.Bound; busy.After(made) && !judged(pods) {
		from = busy // it has not come to these yet
	}
	patience := unplacedAfter + time.Duration(len(pods))*unplacedPerPod
	if slices.ContainsFunc(pods, fleet.RefusedBeyondRoom) {
		patience = refusedAfter // nobody has taken its room
	}
	if left := min(from.Add(patience).Sub(p.Now), made.Add(value(p.Job.Spec.Gang.StartTimeout).Duration).Sub(p.Now)); left > 0 {
		p.lookAgain(left)
		return
	}
	p.handle(failure{cause: causeUnplaced, message: p.whyUnplaced(pods), nodes: refusedOn(pods)})
}

// judged says whether a scheduler has looked at any of some pods.
func judged(pods []*corev1.Pod) bool {
	return slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
		return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled })
	})
}

// whyUnplaced says why a gang has no nodes where there was room.
func (p *planner) whyUnplaced(pods []*corev1.Pod) string {
	if i := slices.IndexFunc(pods, fleet.RefusedBeyondRoom); i >= 0 {
		return fmt.Sprintf("the scheduler does not place %s on node %s, and that is not for room: %s", pods[i].Name, pinned(pods[i]), unschedulable(pods[i]))
	}
	switch {
	case judged(pods):
		return "the scheduler did not place the gang where room was seen; most likely somebody else has taken the room: " + p.Placement
	case p.Grant.Bound.After(lastMade(pods)):
		return fmt.Sprintf("scheduler %s gives nodes to others and has not come to this gang: %s", p.Job.Spec.Gang.SchedulerName, p.Placement)
	}
	return fmt.Sprintf("no scheduler has looked at the gang: does one run under the name %s (spec.gang.schedulerName)? %s",
		p.Job.Spec.Gang.SchedulerName, p.Placement)
}

// touch has the scheduler look at a group whose pods were made at a time, when it is due.
func (p *planner) touch(group types.NamespacedName, made time.Time) {
	next := &p.plan.Elastic
	if next.Touched != group.Name {
		next.Touched, next.Touches = group.Name, 0
	}
	if !p.Now.Before(made.Add(touchedAfter(next.Touches))) {
		next.Touches++
		p.plan.Actions.Touch = &group
	}
	p.lookAgain(made.Add(touchedAfter(next.Touches)).Sub(p.Now))
}

// askForRefills has the scheduler look at a refill that has no nodes yet.
func (p *planner) askForRefills(crew []worker) {
	for i := range crew {
		w := &crew[i]
		if first, _, ok := refillOf(w.pod); ok && isRefill(w.pod) && !w.bound() && w.stays() {
			group := types.NamespacedName{Namespace: p.Job.Namespace, Name: refillName(p.Job.Name, p.attempt(), first)}
			p.touch(group, w.pod.CreationTimestamp.Time)
			return // one batch at a time
		}
	}
}

// lastMade is when the last of some pods was made.
func lastMade(pods []*corev1.Pod) time.Time {
	var last time.Time
	for _, pod := range pods {
		if pod.CreationTimestamp.After(last) {
			last = pod.CreationTimestamp.Time
		}
	}
	return last
}

// touchedAfter is how long after its pods were made a group is touched once more.
func touchedAfter(touches int) time.Duration {
	doubled := firstTouch << min(touches, 5)
	return doubled + lastTouch*time.Duration(max(0, touches-5))
}

// evicted says whether a job of higher priority needs the room of all workers.
func (p *planner) evicted() bool { return p.Grant.Known && p.Grant.Evict != "" }

// evict lets all workers go for that job.
func (p *planner) evict() {
	p.refreshCheckpoint()
	p.handle(failure{cause: causeEvicted, message: fmt.Sprintf("all of its workers are released: %s; %s", p.whyAllGo(), p.lostByEviction())})
}

// lostByEviction says what an eviction costs the job.
func (p *planner) lostByEviction() string {
	step, durable := p.World.Progress.Step, p.plan.Status.Checkpoint.Step
	switch {
	case p.World.Parked:
		return fmt.Sprintf("it goes on after step %d, which is in its storage", value(durable))
	case durable != nil && step > 0:
		return fmt.Sprintf("it goes on after step %d, which is in its storage; it was at step %d", *durable, step)
	case step > 0:
		return fmt.Sprintf("steps that its program has not saved itself, of %d, are made again", step)
	default:
		return "nothing is known of what its program has saved"
	}
}
