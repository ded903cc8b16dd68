package controller

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What nobody should do to a cluster, and somebody does: a clock is set, a PriorityClass that jobs use is deleted, a whole namespace
// goes with all that is in it.

// clocksOff is how far the clock of an operator is off at most while things go wrong. What was put off by a clock that is behind comes
// later by as much once that is set right, and that is to be less than what counts as promptly.
const clocksOff = 10 * time.Second

// setClock has the clock of the operator's machine jump, forward or back.
func (s *fleetSim) setClock() {
	off := s.span(time.Second, clocksOff).Truncate(time.Second)
	if s.chance(0.5) {
		off = -off
	}
	s.say("the clock of operator %d is off by %s", s.operator.number, off)
	s.counts["clocks set"]++
	s.operator.clock.off.Store(int64(off))
}

// makeClass makes a PriorityClass that is not there.
func (s *fleetSim) makeClass(name string) {
	if s.classExists(name) {
		return
	}
	_ = s.server.create(&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: simPriorities[name]})
}

func (s *fleetSim) classExists(name string) bool {
	return s.server.objects[simClass][types.NamespacedName{Name: name}] != nil
}

// dropClass deletes a PriorityClass, for a while: no pod is made with it then.
func (s *fleetSim) dropClass() {
	name := pickOne(s, "low", "mid", "high", "concertina-growth")
	class := s.server.objects[simClass][types.NamespacedName{Name: name}]
	if class == nil {
		return
	}
	s.say("PriorityClass %s is deleted", name)
	s.counts["classes deleted"]++
	s.server.remove(class)
	s.after(s.span(time.Second, 4*time.Minute), func() { s.makeClass(name) })
}

// simDoomed is the namespace that is deleted now and then.
const simDoomed = "green"

func (s *fleetSim) namespace(name string) *corev1.Namespace {
	ns, _ := s.server.objects[simNamespace][types.NamespacedName{Name: name}].(*corev1.Namespace)
	return ns
}

// gone says whether nothing can be made in a namespace: it is being deleted, or is not there.
func (s *fleetSim) gone(namespace string) bool {
	ns := s.namespace(namespace)
	return namespace == simDoomed && (ns == nil || ns.DeletionTimestamp != nil)
}

// endNamespace deletes a namespace: nothing is made in it any more, and what is there goes, one after the other.
func (s *fleetSim) endNamespace() {
	ns := s.namespace(simDoomed)
	if ns == nil || ns.DeletionTimestamp != nil {
		return
	}
	s.say("namespace %s is being deleted", ns.Name)
	s.counts["namespaces deleted"]++
	next, now := ns.DeepCopy(), simSecond()
	next.DeletionTimestamp, next.Status.Phase = &now, corev1.NamespaceTerminating
	s.server.put(next)
	for _, kind := range []simKind{simPod, simGroup, simJob} {
		for _, object := range simSorted[client.Object](s.server.objects[kind]) {
			if object.GetNamespace() == ns.Name {
				s.after(s.span(10*time.Millisecond, 20*time.Second), func() { _ = s.server.delete(object, &metav1.Preconditions{UID: new(object.GetUID())}) })
			}
		}
	}
	s.after(20*time.Second, s.emptied)
}

// emptied has the namespace go once nothing is left in it, and somebody make it again.
func (s *fleetSim) emptied() {
	for _, kind := range []simKind{simPod, simGroup, simJob} {
		for key := range s.server.objects[kind] {
			if key.Namespace == simDoomed {
				s.after(time.Second, s.emptied)
				return
			}
		}
	}
	s.say("namespace %s is gone", simDoomed)
	s.server.remove(s.namespace(simDoomed))
	s.after(s.span(time.Second, 3*time.Minute), s.makeNamespace)
}

func (s *fleetSim) makeNamespace() {
	_ = s.server.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: simDoomed}})
}
