package controller

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
)

const (
	// queueInterval is how often a job far back in the queue is looked at: nobody wakes it for words.
	queueInterval = 2 * time.Minute
	// nearTheFront is up to which position the place of a job in the queue is always shown as it is. Behind
	// it, it is written anew only when it has changed by a tenth: one start does not write a thousand jobs.
	nearTheFront = fleet.NearTheFront
	// maxWaitsFor bounds status.queue.waitsFor, in bytes.
	maxWaitsFor = 1024
)

// enqueue says that the job waits for room, where it stands, and what it waits for. It has no pods
// meanwhile, so that it holds no name, no quota and no time of the scheduler.
func (p *planner) enqueue() {
	status, why := &p.plan.Status, p.Grant.Why
	if !p.Grant.Known || why == "" { // a plan for a job that is held says nothing
		p.awaitPlan()
		return
	}
	since := status.Queue.Since
	if since == nil {
		since = ptr.To(metav1.NewTime(p.Now))
		p.note(corev1.EventTypeNormal, v1alpha1.EventQueued, "%s", why)
	}
	p.tellLate()
	p.boundVolumes()
	if left := p.Memory.SizeToldAt.Add(sizeInterval).Sub(p.Now); status.Queue.Since != nil && p.Grant.Queue.Position > nearTheFront && left > 0 {
		p.lookAgain(left)
		return
	}
	p.plan.SizeTold = true
	if p.Grant.Queue.Position > nearTheFront {
		p.lookAgain(queueInterval)
	}
	next := v1alpha1.QueueStatus{Since: since, WaitsFor: cut(p.withVolumes(p.withAvoided(why)), maxWaitsFor), Position: status.Queue.Position}
	if place := p.Grant.Queue.Position; place > 0 && moved(value(status.Queue.Position), place) {
		next.Position = ptr.To(place)
	}
	if at := p.Grant.Queue.Start; !at.IsZero() {
		next.EstimatedStart = ptr.To(metav1.NewTime(at.Truncate(time.Second)))
	}
	status.Queue = next
	p.admit()
	p.set(v1alpha1.ConditionGangScheduled, metav1.ConditionFalse, v1alpha1.ReasonQueued, why)
	p.set(v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonQueued, "the gang has no room yet")
}

// planTakes is how long a plan may take before a new job says that it waits for one.
const planTakes = time.Second

// awaitPlan leaves a job as it is until the planner has looked at it, which takes a moment: it is told of in
// one write, with what was found. A new job says after a while what it waits for.
func (p *planner) awaitPlan() {
	if meta.FindStatusCondition(p.Job.Status.Conditions, v1alpha1.ConditionGangScheduled) != nil {
		return
	}
	if left := p.Memory.Since.Add(planTakes).Sub(p.Now); left > 0 {
		p.unheard = true
		p.lookAgain(left)
		return
	}
	p.set(v1alpha1.ConditionGangScheduled, metav1.ConditionFalse, v1alpha1.ReasonQueued, "the operator has yet to look for room")
	p.keepBackOff(v1alpha1.ReasonQueued, "the gang has no room yet")
}

// moved says whether a new place in the queue is worth a write.
func moved(shown, now int32) bool {
	if now <= nearTheFront || shown == 0 {
		return shown != now
	}
	return max(shown-now, now-shown) >= max(1, shown/10)
}

// describeSize says whether the job has all workers that it may have, and why not.
func (p *planner) describeSize(crew []worker) {
	have, most := p.haveAndMost(crew)
	leftOut := leftOut(crew)
	p.tellLate()
	switch {
	case have >= most && p.late():
		p.setLate(metav1.ConditionTrue, fmt.Sprintf("the job has %d workers, as many as it may have; ", most))
	case have >= most:
		p.set(v1alpha1.ConditionFullSize, metav1.ConditionTrue, v1alpha1.ReasonFullSize,
			fmt.Sprintf("the job has %d workers, as many as it may have", most))
	case leftOut != "":
		p.set(v1alpha1.ConditionFullSize, metav1.ConditionFalse, v1alpha1.ReasonWorkersLeftOut, leftOut+p.andLate())
	case p.growthPaused():
		p.set(v1alpha1.ConditionFullSize, metav1.ConditionFalse, v1alpha1.ReasonGrowthBackOff, p.plan.Elastic.Growth.told()+p.tried()+p.andLate())
	case p.late():
		p.setLate(metav1.ConditionFalse, "")
	case p.Grant.Known && p.Grant.Reason != "":
		if p.sizeToldLately(p.Grant.Reason) {
			return
		}
		p.set(v1alpha1.ConditionFullSize, metav1.ConditionFalse, p.Grant.Reason, p.withVolumes(p.withAvoided(p.Grant.Why)))
		p.plan.SizeTold = true
	case p.rendezvousKnows():
		if old := meta.FindStatusCondition(p.plan.Status.Conditions, v1alpha1.ConditionFullSize); old != nil && old.Reason == v1alpha1.ReasonWorkersLeftOut {
			meta.RemoveStatusCondition(&p.plan.Status.Conditions, v1alpha1.ConditionFullSize) // they are not, and nobody has said more yet
		}
	}
}

// haveAndMost is how many workers the job has that train or are spares, and how many it may have. One that does not grow, and so gets no
// spares, has all once as many train as may.
func (p *planner) haveAndMost(crew []worker) (have, most int32) {
	have, most = count(crew, func(w *worker) bool { return w.stays() && w.inWorld() }), p.Job.Spec.Workers.Ceiling()
	if value(p.Job.Spec.Workers.Spares) <= 0 {
		return have, most
	}
	ready := count(crew, func(w *worker) bool { return w.stays() && !w.inWorld() && w.seen.Standby && w.seen.Connected })
	if p.Grant.Known && p.Grant.NoSpares && have >= p.trainsAtMost() && have+ready < most {
		return have, have
	}
	return have + ready, most
}

// sizeToldLately says whether the sentence of FullSize stays as it is for a while, as long as its reason does.
func (p *planner) sizeToldLately(reason string) bool {
	old := meta.FindStatusCondition(p.plan.Status.Conditions, v1alpha1.ConditionFullSize)
	return old != nil && old.Reason == reason && p.Now.Sub(p.Memory.SizeToldAt) < sizeInterval && !p.blamesAnew()
}

// leftOutNamed is of how many workers it is said why they are left out.
const leftOutNamed = 3

// leftOut says which workers are in no world since others do not reach them, and why; empty for none.
func leftOut(crew []worker) string {
	var said []string
	more := 0
	for i := range crew {
		w := &crew[i]
		switch {
		case w.seen.Aside == "" || !w.stays():
		case len(said) == leftOutNamed:
			more++
		default:
			said = append(said, fmt.Sprintf("%s on node %s is left out since %s: %s",
				w.pod.Name, w.pod.Spec.NodeName, w.seen.AsideSince.UTC().Format(time.RFC3339), w.seen.Aside))
		}
	}
	if len(said) == 0 {
		return ""
	}
	if more > 0 {
		said = append(said, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(said, "; ") + ". Who is left out takes part again once its peers reach it, and another takes its place if they do not: " +
		"see the network between the nodes, and network policies"
}

// describeFixed says why a job whose world cannot change has no more workers than it has.
func (p *planner) describeFixed(pods []*corev1.Pod) {
	if have, most := int32(len(pods)), p.Job.Spec.Workers.World(p.Job.Spec.Workers.Ceiling()); have < most {
		p.set(v1alpha1.ConditionFullSize, metav1.ConditionFalse, v1alpha1.ReasonFixed,
			fmt.Sprintf("the job keeps its %d workers: its program does not speak to the agent, so its world cannot change", have))
		return
	}
	p.set(v1alpha1.ConditionFullSize, metav1.ConditionTrue, v1alpha1.ReasonFullSize, fmt.Sprintf("the job has %d workers, as many as it may have", len(pods)))
}

// sizeInterval is how often the sentence of FullSize is written anew at most while its reason stays: it
// speaks of other jobs, which come and go.
const sizeInterval = 30 * time.Second
