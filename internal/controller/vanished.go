package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/record"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// kubeletPatience is how long after the grace period of a pod that was deleted by force its node must count as
// ready until its processes count as ended: a kubelet that is in touch ends what the API server names no more,
// and one that is not is found out in less.
const kubeletPatience = time.Minute

// keptEnded is of how many pods that are gone it is kept that they had ended. A world that begins with what one of them held does not know
// it for long.
const keptEnded = 256

// Vanished is a worker whose pod is gone from the API, and of which nobody has said that it has ended: somebody
// has deleted it by force. Its processes may train on.
type Vanished struct {
	// UID is the pod's; of one that only the record names, one that no pod has.
	UID              types.UID
	Name, Node       string
	Attempt, Ordinal int32
	// Created is when its pod was made.
	Created time.Time
	// Ranked is true once it is known to have been in a world, Round the newest round when it was missed; 0
	// until somebody has looked.
	Ranked bool
	Round  uint64
	// At is when it was missed, Grace its grace period.
	At    time.Time
	Grace time.Duration
	// Unseen is true when its pod was gone before this operator first looked at the job.
	Unseen bool
}

// unaccounted are those whom the record of the job's world names, and who have no pod: nobody who still knows has seen
// how they went. An attempt that is over misses nobody, and the record of an older version does not say enough.
func (s *State) unaccounted() []Vanished {
	made := record.FromStatus(s.Job)
	if made.Attempt != s.attempt() || value(s.Job.Status.EndedAttempt) >= s.attempt() || s.finished() {
		return nil
	}
	there := map[int32]bool{}
	for _, pod := range s.gang() {
		there[podOrdinal(pod)] = true
	}
	var missed []Vanished
	for _, member := range made.Named() {
		if there[member.Ordinal] {
			continue
		}
		name := podName(s.Job.Name, made.Attempt, member.Ordinal)
		missed = append(missed, Vanished{
			UID: types.UID("unseen/" + name), Name: name, Node: member.Node, Attempt: made.Attempt, Ordinal: member.Ordinal,
			Ranked: true, Round: made.Round, At: s.Now, Grace: grace(&corev1.Pod{Spec: s.Job.Spec.Workers.Template.Spec}), Unseen: true,
		})
	}
	return missed
}

// vanishedPod is what is kept of a pod that is gone; false for one that is known to have ended, or never began.
// The last state of a pod that its kubelet has ended says so.
func vanishedPod(pod *corev1.Pod, now time.Time) (Vanished, bool) {
	if pod.Spec.NodeName == "" || podEnded(pod) || containersEnded(pod) {
		return Vanished{}, false
	}
	return Vanished{
		UID: pod.UID, Name: pod.Name, Node: pod.Spec.NodeName, Attempt: podAttempt(pod), Ordinal: podOrdinal(pod),
		Created: pod.CreationTimestamp.Time, At: now, Grace: grace(pod),
	}, true
}

// podHandler has the job of a pod looked at, and keeps what is to be known of a pod that is gone.
type podHandler struct {
	handler.EventHandler
	gone func(*corev1.Pod)
}

// Update is told of a pod as it was and is. One that somebody has taken the label of is a worker no more, whatever runs in it.
func (h podHandler) Update(ctx context.Context, e event.UpdateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	was, ok := e.ObjectOld.(*corev1.Pod)
	if ok && e.ObjectNew.GetLabels()[v1alpha1.LabelJob] != was.Labels[v1alpha1.LabelJob] {
		h.gone(was)
	}
	if is, both := e.ObjectNew.(*corev1.Pod); ok && both && saysNothing(was, is) {
		return
	}
	h.EventHandler.Update(ctx, e, queue)
}

// saysNothing says whether a worker's pod has changed in nothing that a decision reads: the cache keeps no more than that
// (SlimPod). A pod without a node is withdrawn by its resourceVersion, which may have failed for the one before; and what
// comes again as it was is the cache's own round, for what was missed.
func saysNothing(was, is *corev1.Pod) bool {
	if is.Spec.NodeName == "" || was.ResourceVersion == is.ResourceVersion {
		return false
	}
	same := *was
	same.ResourceVersion = is.ResourceVersion
	return equality.Semantic.DeepEqual(&same, is)
}

// Delete is told of the last state of a pod.
func (h podHandler) Delete(queueing context.Context, e event.DeleteEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	if pod, ok := e.Object.(*corev1.Pod); ok {
		h.gone(pod)
	}
	h.EventHandler.Delete(queueing, e, queue)
}

// podGone keeps a pod in mind that is gone and may not have ended.
func (r *Reconciler) podGone(pod *corev1.Pod) {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return
	}
	r.memory.gone(owner.UID, pod, r.Now())
}

// gone keeps a pod in mind that has vanished from a job that is known. Its last state says more than that the record
// names it.
func (m *memories) gone(job types.UID, pod *corev1.Pod, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	memory, known := m.jobs[job]
	if !known {
		return
	}
	memory.Vanished = slices.DeleteFunc(slices.Clone(memory.Vanished), func(v Vanished) bool {
		return v.Unseen && v.Attempt == podAttempt(pod) && v.Ordinal == podOrdinal(pod)
	})
	if vanished, ok := vanishedPod(pod, now); ok {
		memory.Vanished = append(memory.Vanished, vanished)
	} else if podEnded(pod) || containersEnded(pod) { // one that had no node yet may get one, where it was its label that went
		memory.Ended = append(slices.Clone(memory.Ended), string(pod.UID))
		memory.Ended = memory.Ended[max(0, len(memory.Ended)-keptEnded):]
	}
	m.jobs[job] = memory
}

// missing are those of the workers that have vanished which may still make a step in the newest world.
func (s *State) missing(vanished []Vanished) []Vanished {
	if len(vanished) == 0 {
		return nil
	}
	roll := s.roll()
	newest := s.World.Round
	if !s.rendezvousKnows() && roll.made.Attempt == s.attempt() {
		newest = roll.made.Round
	}
	var left []Vanished
	for _, v := range vanished {
		seen := s.World.Members[string(v.UID)]
		stands := roll.standing(v.Attempt, v.Ordinal, v.Created)
		ranked := v.Ranked || stands.rank >= 0 || stands.open
		knows := s.rendezvousKnows() && s.World.Round > 0 && seen.Joined
		switch {
		case v.Attempt != s.attempt() || seen.Exited || v.Round > 0 && v.Round < newest:
			continue // its agent has said that it has ended, or the next world is there
		case knows && seen.WorkerRank < 0, !knows && !ranked:
			continue // it is in no world
		}
		v.Ranked, v.Round = true, newest
		left = append(left, v)
	}
	return left
}

// watchVanished has workers that have vanished looked at again and again, as long as their nodes may be in touch again
// or lost: nobody else tells of those.
func (p *planner) watchVanished() {
	for i := range p.Memory.Vanished {
		if v := &p.Memory.Vanished[i]; !p.Nodes.Gone[v.Node] && !p.Nodes.outOfService(v.Node) {
			p.lookAgain(overdueAfter / 4)
		}
	}
}

// provenEnd says whether the processes of a worker that has vanished are known to have ended.
func (p *planner) provenEnd(v *Vanished) bool {
	if p.Nodes.Gone[v.Node] || p.Nodes.outOfService(v.Node) {
		return true
	}
	return p.Nodes.inTouch(v.Node) && p.Now.Sub(v.At) > v.Grace+kubeletPatience
}

// unproven are the workers that have vanished and are not known to have ended.
func (p *planner) unproven() []string {
	var names []string
	for i := range p.Memory.Vanished {
		if v := &p.Memory.Vanished[i]; !p.provenEnd(v) {
			names = append(names, fmt.Sprintf("%s on node %s (%s)", v.Name, v.Node, v.how()))
		}
	}
	return names
}

// vanished is what the rendezvous is told of workers whose pods are gone.
func (p *planner) vanished() []rendezvous.Member {
	var all []rendezvous.Member
	for i := range p.Memory.Vanished {
		v := &p.Memory.Vanished[i]
		all = append(all, rendezvous.Member{
			UID: string(v.UID), Name: v.Name, Ordinal: v.Ordinal, Node: v.Node, Gone: true, Ended: p.provenEnd(v),
			Lost: fmt.Sprintf("worker %s on node %s was %s, and nobody says that it has ended", v.Name, v.Node, v.how()),
		})
	}
	return all
}

// how says how its pod went.
func (v *Vanished) how() string {
	if v.Unseen {
		return "gone when this operator first looked"
	}
	return "deleted by force"
}
