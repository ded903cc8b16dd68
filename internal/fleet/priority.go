package fleet

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// +kubebuilder:rbac:groups=scheduling.k8s.io,resources=priorityclasses,verbs=list;watch

// SetClass takes in a PriorityClass as it is now.
func (c *Cluster) SetClass(object *schedulingv1.PriorityClass) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.classes[object.Name]; old != nil && old.Value == object.Value && old.GlobalDefault == object.GlobalDefault &&
		neverPreempts(old.PreemptionPolicy) == neverPreempts(object.PreemptionPolicy) {
		return
	}
	c.classes[object.Name] = object
	c.allDirty()
}

// DeleteClass takes in that a PriorityClass is gone. Pods that were made with it carry its number.
func (c *Cluster) DeleteClass(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.classes[name] != nil {
		delete(c.classes, name)
		c.allDirty()
	}
}

func neverPreempts(policy *corev1.PreemptionPolicy) bool {
	return policy != nil && *policy == corev1.PreemptNever
}

// standing is what the PriorityClass of a job means for it.
type standing struct {
	priority int32
	preempts bool
	// fault says why it may not grow; empty when it may.
	fault string
}

// globalDefault is the class of pods that name none; nil when there is none. Of several the lowest is
// taken, as admission does.
func (c *Cluster) globalDefault() *schedulingv1.PriorityClass {
	var lowest *schedulingv1.PriorityClass
	for _, class := range c.classes {
		if class.GlobalDefault && (lowest == nil || class.Value < lowest.Value || class.Value == lowest.Value && class.Name < lowest.Name) {
			lowest = class
		}
	}
	return lowest
}

// classOf is the class of a name, or the default one for none; nil when there is none.
func (c *Cluster) classOf(name string) *schedulingv1.PriorityClass {
	if name == "" {
		return c.globalDefault()
	}
	return c.classes[name]
}

// standingOf is how a job stands. Pods of its own class that admission has seen know it best: the class
// may be gone, or have come back as another one.
func (c *Cluster) standingOf(job *v1alpha1.TrainingJob, workers map[podKey]*pod) standing {
	template := &job.Spec.Workers.Template.Spec
	s := standing{preempts: !neverPreempts(template.PreemptionPolicy)}
	class := c.classOf(template.PriorityClassName)
	if class != nil {
		s.priority = class.Value
		s.preempts = s.preempts && !neverPreempts(class.PreemptionPolicy)
	}
	seen := seenOwn(workers)
	if seen != nil {
		s.priority, s.preempts = *seen.Spec.Priority, !neverPreempts(seen.Spec.PreemptionPolicy)
	}
	if class == nil && seen == nil && template.PriorityClassName != "" {
		s.fault = fmt.Sprintf("PriorityClass %s of the template does not exist: create it, or name another one", template.PriorityClassName)
		return s
	}
	growth := c.classOf(job.Spec.Growth.PriorityClassName)
	switch {
	case growth == nil && job.Spec.Growth.PriorityClassName != "":
		s.fault = fmt.Sprintf("PriorityClass %s of spec.growth.priorityClassName does not exist: create it, or name another one",
			job.Spec.Growth.PriorityClassName)
	case growth != nil && growth.Value > s.priority:
		s.fault = fmt.Sprintf("PriorityClass %s of spec.growth.priorityClassName has the value %d, above the job's own priority %d: "+
			"name a class that is no higher, so that workers beyond min leave first", growth.Name, growth.Value, s.priority)
	}
	return s
}

// seenOwn is the first pod of the job's own class, by name, that carries its priority as a number; nil
// for none. What is ending says it as well as others.
func seenOwn(workers map[podKey]*pod) *corev1.Pod {
	var first *corev1.Pod
	for _, one := range workers {
		if object := one.object; !isGrowth(object) && object.Spec.Priority != nil && (first == nil || object.Name < first.Name) {
			first = object
		}
	}
	return first
}
