package fleet

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/internal/allocation"
)

// shape is what equal pods of jobs ask for.
type shape struct {
	id         allocation.ShapeID
	key        string
	reach      *reach
	request    shares
	namespace  string
	unmodelled string
	// pod stands for all of them where quotas are concerned, demand is what it counts by the names of
	// counts when there were so many.
	pod    *corev1.Pod
	demand shares
	counts int
	// used is the number of the last snapshot that needed it.
	used uint64
	// dropped is true when its slot is somebody else's by now.
	dropped bool
}

// shapes are interned by what they ask for. A slot that is free is nil.
type shapes struct {
	slots []*shape
	index map[string]*shape
	free  []allocation.ShapeID
}

func (s *shapes) add(one *shape) {
	if last := len(s.free) - 1; last >= 0 {
		one.id = s.free[last]
		s.free = s.free[:last]
		s.slots[one.id] = one
	} else {
		one.id = allocation.ShapeID(len(s.slots))
		s.slots = append(s.slots, one)
	}
	s.index[one.key] = one
}

// sweep frees the slots that the last snapshot did not need.
func (s *shapes) sweep(now uint64) {
	for id, one := range s.slots {
		if one != nil && one.used != now {
			s.slots[id], one.dropped = nil, true
			delete(s.index, one.key)
			s.free = append(s.free, allocation.ShapeID(id))
		}
	}
}

// shapeOf is the shape of a pod that is bound to no node by its affinity.
func (c *Cluster) shapeOf(pod *corev1.Pod, unmodelled string) *shape {
	key := shapeKey(pod, unmodelled)
	if known := c.shapes.index[key]; known != nil {
		return known
	}
	one := &shape{
		key: key, reach: c.reachOf(pod), request: c.resources.shares(requests(pod)), namespace: pod.Namespace, unmodelled: unmodelled,
		pod: scopeOf(pod), used: c.pass,
	}
	c.shapes.add(one)
	return one
}

// shapeKey is the same for pods that are alike to the scheduler and to quotas.
func shapeKey(pod *corev1.Pod, unmodelled string) string {
	text, err := json.Marshal(struct {
		Reach, Namespace, Unmodelled string
		Request, Demand              corev1.ResourceList
		Class                        string
		Scopes                       [3]bool
	}{
		reachKey(pod), pod.Namespace, unmodelled, requests(pod), Demand(pod), pod.Spec.PriorityClassName,
		[3]bool{pod.Spec.ActiveDeadlineSeconds != nil, BestEffort(pod), crossesNamespaces(pod.Spec.Affinity)},
	})
	if err != nil {
		return "" // maps of quantities: there is no error
	}
	return string(text)
}

// scopeOf keeps of a pod what the scheduler and quotas look at.
func scopeOf(pod *corev1.Pod) *corev1.Pod {
	slim, _ := SlimPod(pod)
	return slim.(*corev1.Pod)
}

// reachOf is the reach of a pod, whose nodes are looked for when it is new.
func (c *Cluster) reachOf(pod *corev1.Pod) *reach {
	key := reachKey(pod)
	if known := c.reaches[key]; known != nil {
		return known
	}
	one := newReach(pod)
	for id, node := range c.nodes.slots {
		if node != nil {
			one.mark(allocation.NodeID(id), node.object)
		}
	}
	one.used = c.pass
	c.reaches[key] = one
	return one
}

// Unmodelled says why nobody but the scheduler knows where pods of a template fit, in words that follow
// "the template has"; empty when the planner knows.
func Unmodelled(pod *corev1.Pod) string {
	spec := &pod.Spec
	if a := spec.Affinity; a != nil {
		if a.PodAffinity != nil && len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
			return "required affinity to other pods"
		}
		if a.PodAntiAffinity != nil && len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
			return "required anti-affinity to other pods"
		}
	}
	for i := range spec.TopologySpreadConstraints {
		if spec.TopologySpreadConstraints[i].WhenUnsatisfiable == corev1.DoNotSchedule {
			return "a topology spread constraint (DoNotSchedule)"
		}
	}
	switch {
	case len(spec.ResourceClaims) > 0:
		return "resource claims"
	case spec.NodeName != "":
		return "a nodeName"
	}
	if port := hostPort(spec); port > 0 {
		return fmt.Sprintf("host port %d", port)
	}
	for i := range spec.Volumes {
		if v := &spec.Volumes[i]; v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
			return fmt.Sprintf("volume %s, whose claim may be bound to some nodes", v.Name)
		}
	}
	return ""
}

func hostPort(spec *corev1.PodSpec) int32 {
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			for _, port := range containers[i].Ports {
				if port.HostPort > 0 {
					return port.HostPort
				}
			}
		}
	}
	return 0
}

// UnmodelledWords is Unmodelled as a sentence; empty when the planner knows.
func UnmodelledWords(pod *corev1.Pod) string {
	if why := Unmodelled(pod); why != "" {
		return strings.Join([]string{"the template has ", why, ", and only the scheduler knows where such a pod fits"}, "")
	}
	return ""
}
