package controller

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// build makes nodes, and a quota for one of the namespaces.
func (s *fleetSim) build() {
	for i := range 2 + s.dice.IntN(4) {
		node := nodeCalled(fmt.Sprintf("node-%d", i), fmt.Sprint([]int{4, 8, 8, 6}[s.dice.IntN(4)]))
		if i > 0 && s.seed%3 == 0 {
			node.Spec.Taints = []corev1.Taint{{Key: simPool, Effect: corev1.TaintEffectNoSchedule}}
		}
		_ = s.server.create(node)
	}
	s.makeNamespace()
	if s.chance(0.5) {
		hard := corev1.ResourceList{"requests." + simDevice: resource.MustParse(fmt.Sprint(6 + s.dice.IntN(12)))}
		_ = s.server.create(&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "devices"},
			Spec: corev1.ResourceQuotaSpec{Hard: hard}})
		s.server.recount()
	}
}

// arrivals has users submit jobs, and change their minds, until it is calm.
func (s *fleetSim) arrivals() {
	if !s.chaos {
		return
	}
	if s.born < 40 {
		s.submit()
	}
	if s.chance(0.3) {
		s.changeMind()
	}
	s.after(s.span(2*time.Second, 2*time.Minute), s.arrivals)
}

func pickOne[T any](s *fleetSim, from ...T) T { return from[s.dice.IntN(len(from))] }

func (s *fleetSim) submit() {
	s.born++
	least := int32(1 + s.dice.IntN(4))
	job := jobWith(func(j *v1alpha1.TrainingJob) {
		j.Namespace, j.Name = pickOne(s, "red", "red", "blue", simDoomed), fmt.Sprintf("j%d", s.born)
		if s.gone(j.Namespace) {
			j.Namespace = "red"
		}
		w := &j.Spec.Workers
		w.Min, w.Max = ptr.To(least), ptr.To(least+int32(s.dice.IntN(6)))
		if s.chance(0.15) {
			w.Sizes = []int32{least, least + 2, least + 4}
			w.Max = ptr.To(least + 4)
		}
		if s.born%3 == 0 {
			w.Spares = ptr.To(int32(1 + s.born%2))
		}
		container := &w.Template.Spec.Containers[0]
		devices := pickOne(s, "1", "1", "1", "2", "4")
		container.Resources = corev1.ResourceRequirements{Requests: simResources(devices, "1", "1"), Limits: corev1.ResourceList{}}
		delete(container.Resources.Requests, corev1.ResourcePods)
		if s.born%7 == 0 {
			w.Template.Spec.ServiceAccountName = simAccount
		}
		w.Template.Spec.PriorityClassName = pickOne(s, "low", "low", "mid", "mid", "high")
		j.Spec.Preemption.Policy = pickOne(s, v1alpha1.PreemptionShrink, v1alpha1.PreemptionShrink, v1alpha1.PreemptionEvict, v1alpha1.PreemptionNever)
		j.Spec.Growth.Policy = pickOne(s, v1alpha1.GrowthAuto, v1alpha1.GrowthAuto, v1alpha1.GrowthAuto, v1alpha1.GrowthOff)
		j.Spec.Failure.MaxRestarts = ptr.To[int32](10000)
		j.Spec.Failure.RegroupTimeout = &metav1.Duration{Duration: time.Minute}
		j.Spec.Gang.StartTimeout = &metav1.Duration{Duration: 3 * time.Minute}
		j.Spec.Checkpoint.Timeout = &metav1.Duration{Duration: 30 * time.Second}
		j.UID, j.ResourceVersion = "", ""
	})
	if err := s.server.create(job); err != nil {
		s.fail("submit %s: %v", job.Name, err)
		return
	}
	made := s.server.job(client.ObjectKeyFromObject(job))
	s.lengths[made.UID] = 50 + s.dice.Float64()*s.dice.Float64()*4000
	s.foreign[made.UID] = s.chance(0.1)
	s.say("%s/%s: min %d max %d spares %d of %d, %s, %s, growth %s", job.Namespace, job.Name, least, value(job.Spec.Workers.Max), value(job.Spec.Workers.Spares),
		devicesOf(made),
		job.Spec.Workers.Template.Spec.PriorityClassName, job.Spec.Preemption.Policy, job.Spec.Growth.Policy)
}

// edit changes the spec of a job.
func (s *fleetSim) edit(job *v1alpha1.TrainingJob, change func(*v1alpha1.TrainingJob)) {
	next := s.server.job(client.ObjectKeyFromObject(job)).DeepCopy()
	change(next)
	next.Generation++
	s.server.put(next)
}

func (s *fleetSim) changeMind() {
	jobs := slices.DeleteFunc(s.server.jobs(), func(job *v1alpha1.TrainingJob) bool { return (&State{Job: job}).finished() })
	if len(jobs) == 0 {
		return
	}
	job := pickOne(s, jobs...)
	switch s.dice.IntN(5) {
	case 0:
		s.say("%s/%s is deleted", job.Namespace, job.Name)
		s.server.remove(job)
	case 1:
		s.say("%s/%s is suspended", job.Namespace, job.Name)
		s.edit(job, func(j *v1alpha1.TrainingJob) { j.Spec.Suspend = ptr.To(true) })
		uid := job.UID
		s.after(s.span(time.Second, 5*time.Minute), func() { s.resume(client.ObjectKeyFromObject(job), uid) })
	default:
		if len(job.Spec.Workers.Sizes) > 0 {
			return
		}
		most := value(job.Spec.Workers.Min) + int32(s.dice.IntN(6))
		s.say("%s/%s: max is %d now", job.Namespace, job.Name, most)
		s.scaled[job.UID] = true
		s.edit(job, func(j *v1alpha1.TrainingJob) { j.Spec.Workers.Max = ptr.To(most) })
	}
}

func (s *fleetSim) resume(key types.NamespacedName, uid types.UID) {
	if job := s.server.job(key); job != nil && job.UID == uid && value(job.Spec.Suspend) {
		s.say("%s is resumed", key)
		s.edit(job, func(j *v1alpha1.TrainingJob) { j.Spec.Suspend = ptr.To(false) })
	}
}

// accidents has things go wrong until it is calm.
func (s *fleetSim) accidents() {
	if !s.chaos {
		return
	}
	s.accident()
	s.after(s.span(time.Second, 3*time.Minute), s.accidents)
}

func (s *fleetSim) accident() {
	var running []*corev1.Pod
	for _, pod := range s.server.pods() {
		if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			running = append(running, pod)
		}
	}
	nodes := s.server.nodes()
	switch what := s.dice.IntN(15); {
	case what < 3 && len(running) > 0:
		pod := pickOne(s, running...)
		s.say("the program of %s fails", pod.Name)
		s.kubelets.exit(pod, 1)
	case what < 5 && len(running) > 0:
		pod := pickOne(s, running...)
		s.say("somebody deletes %s", pod.Name)
		_ = s.server.delete(pod, nil)
	case what == 5:
		s.crash()
	case what == 6 && len(nodes) > 1:
		node := pickOne(s, nodes...)
		s.loseNode(node)
		offer := fmt.Sprint(simOffer(node))
		s.after(s.span(time.Second, 4*time.Minute), func() { _ = s.server.create(nodeCalled(node.Name, offer)) })
	case what == 7 && len(nodes) > 0:
		s.cordon(pickOne(s, nodes...), s.chance(0.5))
	case what < 11:
		s.strangerComes()
	case what == 12:
		s.setClock()
	case what == 13:
		s.dropClass()
	case what == 14:
		s.endNamespace()
	}
}

// cordon closes a node, or asks all workers to leave it, for a while.
func (s *fleetSim) cordon(node *corev1.Node, drain bool) {
	s.say("node %s is cordoned, drained: %v", node.Name, drain)
	next := node.DeepCopy()
	next.Spec.Unschedulable = true
	if drain {
		next.Spec.Taints = append(next.Spec.Taints, corev1.Taint{Key: DefaultDrainTaints[0], Effect: corev1.TaintEffectNoSchedule})
	}
	s.server.put(next)
	s.after(s.span(5*time.Second, 5*time.Minute), func() { s.uncordon(node.Name) })
}

func (s *fleetSim) uncordon(name string) {
	if node, ok := s.server.objects[simNode][types.NamespacedName{Name: name}].(*corev1.Node); ok && !simOpen(node) {
		next := node.DeepCopy()
		next.Spec.Unschedulable = false
		next.Spec.Taints = slices.DeleteFunc(next.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key != simPool })
		s.server.put(next)
	}
}

// strangerComes makes a pod of somebody else, for a while. Some are put onto their node past the scheduler.
func (s *fleetSim) strangerComes() {
	devices := pickOne(s, "1", "1", "2", "3")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "others", Name: fmt.Sprintf("foreign-%d", s.ticks)},
		Spec: corev1.PodSpec{PriorityClassName: pickOne(s, "low", "low", "mid", "urgent"), TerminationGracePeriodSeconds: ptr.To[int64](5),
			Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: simResources(devices, "1", "1")}}}}}
	delete(pod.Spec.Containers[0].Resources.Requests, corev1.ResourcePods)
	if nodes := s.server.nodes(); s.chance(0.2) && len(nodes) > 0 {
		pod.Spec.NodeName = pickOne(s, nodes...).Name
	}
	s.say("%s wants %s of %s %s", pod.Name, devices, simDevice, pod.Spec.NodeName)
	if s.server.create(pod) == nil {
		s.after(s.span(2*time.Second, 8*time.Minute), func() { _ = s.server.delete(pod, nil) })
	}
}

// calmDown ends all accidents, mends what they left, and takes away what can never run.
func (s *fleetSim) calmDown() {
	s.say("it is calm now")
	s.chaos, s.calmSince = false, time.Now()
	if s.training == nil {
		s.operator.clock.off.Store(0)
	}
	for _, name := range slices.Sorted(maps.Keys(simPriorities)) {
		s.makeClass(name)
	}
	for _, node := range s.server.nodes() {
		s.uncordon(node.Name)
	}
	for _, pod := range s.server.pods() {
		if !ofOperator(pod) {
			_ = s.server.delete(pod, nil)
		}
	}
	for _, job := range s.server.jobs() {
		s.resume(client.ObjectKeyFromObject(job), job.UID)
	}
	s.after(5*time.Minute, func() {
		for _, job := range s.server.jobs() {
			if !(&State{Job: job}).finished() && !s.fitsEmpty(job) {
				s.say("%s/%s can never run, and is deleted", job.Namespace, job.Name)
				s.server.remove(job)
			}
		}
	})
}

// endless has programs train on for ever, or come to their end after all.
func (s *fleetSim) endless(on bool) {
	s.hold = on
	for _, job := range s.server.jobs() {
		key := client.ObjectKeyFromObject(job)
		w := s.worlds[key]
		if on {
			s.lengths[job.UID] += 1e9
		} else {
			s.lengths[job.UID] = 50 + 500*s.dice.Float64()
		}
		if w == nil || w.uid != job.UID || w.finishing {
			continue
		}
		if on {
			w.last += 1e9
		} else {
			w.last = w.step() + s.lengths[job.UID]
		}
		s.finishLater(key, w)
	}
}
