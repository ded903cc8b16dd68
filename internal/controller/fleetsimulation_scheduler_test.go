package controller

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	schedv1alpha1 "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
)

// simScheduler is the only scheduler. Like the coscheduling plugin it places a group as a whole, and looks
// again at one that it has refused only when a group, or a pod of it, changes; other pods it tries again when
// room may have come free.
type simScheduler struct {
	sim *fleetSim
	// parked says of pods that were refused by what, and since when.
	parked map[types.UID]simParked
	// assumed are the nodes of pods that are about to be bound.
	assumed map[types.UID]string
	// due is true while it is about to look.
	due bool
}

type simParked struct {
	byGroup bool
	since   time.Time
}

// flushed is how long a pod that was refused waits at most.
const flushed = 5 * time.Minute

// notice is told of each change.
func (q *simScheduler) notice(kind simKind, before, after client.Object) {
	switch kind {
	case simGroup:
		if after != nil {
			q.wake(func(_ *corev1.Pod, p simParked) bool { return p.byGroup })
		}
	case simNode:
		q.wake(func(_ *corev1.Pod, p simParked) bool { return !p.byGroup })
	case simPod:
		pod, _ := after.(*corev1.Pod)
		was, _ := before.(*corev1.Pod)
		switch {
		case was == nil && pod != nil && pod.Spec.NodeName == "":
			group := pod.Labels[schedv1alpha1.PodGroupLabel]
			q.wake(func(other *corev1.Pod, p simParked) bool {
				return p.byGroup && group != "" && other.Labels[schedv1alpha1.PodGroupLabel] == group && other.Namespace == pod.Namespace
			})
		case was != nil && was.Spec.NodeName != "" && !podEnded(was) && (pod == nil || podEnded(pod)):
			q.wake(func(_ *corev1.Pod, p simParked) bool { return !p.byGroup })
		case was != nil && pod == nil:
			delete(q.parked, was.UID)
			delete(q.assumed, was.UID)
		}
	}
}

// wake has pods that were refused tried again.
func (q *simScheduler) wake(which func(*corev1.Pod, simParked) bool) {
	for _, pod := range q.sim.server.pods() {
		if p, refused := q.parked[pod.UID]; refused && which(pod, p) {
			delete(q.parked, pod.UID)
		}
	}
	q.look()
}

func (q *simScheduler) look() {
	if !q.due {
		q.due = true
		q.sim.after(q.sim.span(time.Millisecond, 30*time.Millisecond), q.cycle)
	}
}

// cycle tries the pod that comes first, with its group.
func (q *simScheduler) cycle() {
	q.due = false
	var queue []*corev1.Pod
	for _, pod := range q.sim.server.pods() {
		p, refused := q.parked[pod.UID]
		if refused && time.Since(p.since) > flushed {
			refused = false
		}
		if pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && q.assumed[pod.UID] == "" && !refused {
			queue = append(queue, pod)
		}
	}
	if len(queue) == 0 {
		return
	}
	first := slices.MinFunc(queue, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(value(b.Spec.Priority), value(a.Spec.Priority)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name))
	})
	if group := first.Labels[schedv1alpha1.PodGroupLabel]; group != "" {
		q.placeGroup(first, group)
	} else if !q.place([]*corev1.Pod{first}) {
		q.park(false, first)
		q.preempt(first)
	}
	q.look()
}

func (q *simScheduler) park(byGroup bool, pods ...*corev1.Pod) {
	for _, pod := range pods {
		q.parked[pod.UID] = simParked{byGroup, time.Now()}
		if !ofOperator(pod) || len(pod.Status.Conditions) > 0 {
			continue
		}
		q.sim.server.changePod(pod, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "no room",
				LastTransitionTime: simSecond()}}
		})
	}
	q.sim.after(flushed+time.Second, q.look)
}

func (q *simScheduler) placeGroup(first *corev1.Pod, name string) {
	group, _ := q.sim.server.objects[simGroup][types.NamespacedName{Namespace: first.Namespace, Name: name}].(*schedv1alpha1.PodGroup)
	var pending []*corev1.Pod
	members := 0
	for _, pod := range q.sim.server.pods() {
		if pod.Namespace != first.Namespace || pod.Labels[schedv1alpha1.PodGroupLabel] != name || podEnded(pod) {
			continue
		}
		members++
		if pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && q.assumed[pod.UID] == "" {
			pending = append(pending, pod)
		}
	}
	if group == nil || members < int(group.Spec.MinMember) {
		q.park(true, pending...)
		return
	}
	free, needed := int64(0), int64(0)
	for _, node := range q.sim.server.nodes() {
		free += q.free(node)
	}
	for _, pod := range pending {
		needed += simShare(pod)
	}
	if free < needed {
		q.park(true, pending...)
		return
	}
	if !q.place(pending) {
		q.park(false, pending...)
	}
}

// free is what the scheduler takes for free on a node.
func (q *simScheduler) free(node *corev1.Node) int64 {
	free := simOffer(node)
	for _, pod := range q.sim.server.pods() {
		if !podEnded(pod) && (pod.Spec.NodeName == node.Name || q.assumed[pod.UID] == node.Name) {
			free -= simShare(pod)
		}
	}
	return free
}

// place finds nodes for all of some pods, or for none of them.
func (q *simScheduler) place(pods []*corev1.Pod) bool {
	free := map[string]int64{}
	var open []string
	for _, node := range q.sim.server.nodes() {
		if simOpen(node) {
			free[node.Name] = q.free(node)
			open = append(open, node.Name)
		}
	}
	where := map[types.UID]string{}
	for _, pod := range pods {
		for _, name := range open {
			if only := pinned(pod); only != "" && only != name || free[name] < simShare(pod) || q.refuses(pod, name) {
				continue
			}
			free[name] -= simShare(pod)
			where[pod.UID] = name
			break
		}
		if where[pod.UID] == "" {
			return false
		}
	}
	for _, pod := range pods {
		node := where[pod.UID]
		q.assumed[pod.UID] = node
		q.sim.after(q.sim.span(5*time.Millisecond, 150*time.Millisecond), func() { q.bind(pod, node) })
	}
	return true
}

// refuses says whether a scheduler has something against a node that is not room, of which the operator knows nothing, such as
// affinity of those who are there. Of who joins others it is known that it has not.
func (q *simScheduler) refuses(pod *corev1.Pod, node string) bool {
	hash := fnv.New32a()
	_, _ = fmt.Fprintf(hash, "%d %s %s", q.sim.seed, jobOf(pod), node)
	if !q.sim.chaos || !ofOperator(pod) || hash.Sum32()%10 != 0 {
		return false
	}
	for _, other := range q.sim.server.pods() {
		if jobOf(other) == jobOf(pod) && other.Spec.NodeName != "" && !podEnded(other) {
			return false
		}
	}
	q.sim.counts["places refused"]++
	return true
}

// simOpen says whether the scheduler places pods on a node.
func simOpen(node *corev1.Node) bool {
	return !node.Spec.Unschedulable && !slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key != simPool })
}

func (q *simScheduler) bind(pod *corev1.Pod, node string) {
	delete(q.assumed, pod.UID)
	now := q.sim.server.pod(client.ObjectKeyFromObject(pod))
	if now == nil || now.UID != pod.UID || now.DeletionTimestamp != nil {
		q.wake(func(_ *corev1.Pod, p simParked) bool { return !p.byGroup })
		return
	}
	q.sim.server.changePod(now, func(p *corev1.Pod) {
		p.Spec.NodeName = node
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: simSecond()}}
	})
}

// preempt makes room for a pod of somebody else, on the node where the least important pods go.
func (q *simScheduler) preempt(pod *corev1.Pod) {
	if ofOperator(pod) {
		return
	}
	for _, node := range q.sim.server.nodes() {
		if !simOpen(node) {
			continue
		}
		lacking := simShare(pod) - q.free(node)
		var victims []*corev1.Pod
		for _, other := range q.sim.server.pods() {
			if other.Spec.NodeName == node.Name && !podEnded(other) && value(other.Spec.Priority) < value(pod.Spec.Priority) {
				if other.DeletionTimestamp != nil {
					lacking -= simShare(other)
					continue
				}
				victims = append(victims, other)
			}
		}
		slices.SortStableFunc(victims, func(a, b *corev1.Pod) int { return cmp.Compare(value(a.Spec.Priority), value(b.Spec.Priority)) })
		n := 0
		for ; n < len(victims) && lacking > 0; n++ {
			lacking -= simShare(victims[n])
		}
		if lacking > 0 {
			continue
		}
		q.sim.server.changePod(pod, func(p *corev1.Pod) { p.Status.NominatedNodeName = node.Name })
		for _, victim := range victims[:n] {
			q.sim.counts["preemptions"]++
			q.sim.server.changePod(victim, func(p *corev1.Pod) {
				p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
					Reason: corev1.PodReasonPreemptionByScheduler, LastTransitionTime: metav1.NewTime(time.Now())})
			})
			_ = q.sim.server.delete(victim, nil)
		}
		return
	}
}
