package controller

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// simKubelets run the pods of all nodes.
type simKubelets struct {
	sim *fleetSim
	// agents are the pods whose agent has a session with the operator that leads.
	agents map[types.UID]bool
	// released are pods whose agent was told to go.
	released map[types.UID]bool
}

// notice is told of each change of a pod.
func (k *simKubelets) notice(before, after *corev1.Pod) {
	training := k.sim.training
	switch {
	case after == nil:
		delete(k.agents, before.UID)
		delete(k.released, before.UID)
		if training != nil {
			training.kill(before.UID)
		}
	case after.Spec.NodeName != "" && (before == nil || before.Spec.NodeName == ""):
		k.sim.after(k.sim.span(50*time.Millisecond, 3*time.Second), func() { k.run(after) })
	}
	if after != nil && after.DeletionTimestamp != nil && (before == nil || before.DeletionTimestamp == nil) {
		grace := time.Until(after.DeletionTimestamp.Time)
		if training != nil && training.terminate(after.UID) {
			k.sim.after(max(grace, time.Second), func() { k.end(after) })
			return
		}
		k.sim.after(k.sim.span(100*time.Millisecond, max(grace, time.Second)), func() { k.end(after) })
	}
}

// now is the pod as it is now; nil when it is gone.
func (k *simKubelets) now(pod *corev1.Pod) *corev1.Pod {
	if now := k.sim.server.pod(client.ObjectKeyFromObject(pod)); now != nil && now.UID == pod.UID {
		return now
	}
	return nil
}

// run admits a pod and starts it.
func (k *simKubelets) run(pod *corev1.Pod) {
	pod = k.now(pod)
	if pod == nil || pod.DeletionTimestamp != nil || podEnded(pod) {
		return
	}
	held := int64(0)
	for _, other := range k.sim.server.pods() {
		if other.Spec.NodeName == pod.Spec.NodeName && !podEnded(other) {
			held += simShare(other)
		}
	}
	node, _ := k.sim.server.objects[simNode][types.NamespacedName{Name: pod.Spec.NodeName}].(*corev1.Node)
	switch {
	case node == nil:
		return // whoever collects orphans takes it
	case held > simOffer(node):
		k.sim.counts["rejections"]++
		k.sim.server.changePod(pod, func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "OutOfdevice", "node has too few"
		})
		return
	}
	k.sim.server.changePod(pod, func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodRunning
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: p.Spec.Containers[0].Name, State: corev1.ContainerState{
			Running: &corev1.ContainerStateRunning{StartedAt: k.sim.training.second(p.Spec.NodeName)}}}}
	})
	switch {
	case !ofOperator(pod):
	case k.sim.training != nil:
		k.sim.after(k.sim.span(100*time.Millisecond, 4*time.Second), func() { k.sim.training.start(k.now(pod)) })
	default:
		k.sim.after(k.sim.span(100*time.Millisecond, 4*time.Second), func() { k.connect(pod) })
	}
}

// connect gives an agent its session with the operator that leads.
func (k *simKubelets) connect(pod *corev1.Pod) {
	now := k.now(pod)
	if now == nil || podEnded(now) || now.Status.Phase != corev1.PodRunning || k.agents[pod.UID] {
		return
	}
	if op := k.sim.operator; op == nil || op.dead {
		return // it tries again when there is one
	}
	k.agents[pod.UID] = true
	k.sim.touch(jobOf(pod))
}

// reconnectAgents has all agents look for the operator that leads now.
func (s *fleetSim) reconnectAgents() {
	if s.training != nil {
		return // agents find out by themselves
	}
	clear(s.kubelets.agents)
	for _, pod := range s.server.pods() {
		if ofOperator(pod) && pod.Status.Phase == corev1.PodRunning {
			s.after(s.span(10*time.Millisecond, 3*time.Second), func() { s.kubelets.connect(pod) })
		}
	}
}

// end is the end of a pod that was deleted: its status first, then its object.
func (k *simKubelets) end(pod *corev1.Pod) {
	now := k.now(pod)
	if now == nil {
		return
	}
	if !podEnded(now) {
		k.exit(now, 143)
	}
	k.sim.after(k.sim.span(time.Millisecond, 300*time.Millisecond), func() {
		if now := k.now(pod); now != nil {
			k.sim.server.remove(now)
		}
	})
}

// exit ends the program of a pod.
func (k *simKubelets) exit(pod *corev1.Pod, code int32) { k.exitBy(pod, code, "Error") }

// exitBy has it end with a reason.
func (k *simKubelets) exitBy(pod *corev1.Pod, code int32, reason string) {
	pod = k.now(pod)
	if pod == nil || podEnded(pod) {
		return
	}
	delete(k.agents, pod.UID)
	if k.sim.training != nil {
		k.sim.training.kill(pod.UID)
	}
	k.sim.server.changePod(pod, func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodSucceeded
		if code != 0 {
			p.Status.Phase = corev1.PodFailed
		}
		if len(p.Spec.Containers) > 0 {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: p.Spec.Containers[0].Name, State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, FinishedAt: k.sim.training.second(p.Spec.NodeName)}}}}
		}
	})
}

// release has the agents of a job end.
func (k *simKubelets) release(job types.NamespacedName, attempt int32) {
	for _, pod := range k.sim.server.pods() {
		if ofOperator(pod) && jobOf(pod) == job && podAttempt(pod) <= attempt {
			k.letGo(pod)
		}
	}
}

// letGo has one agent end, which passes the word on to its program.
func (k *simKubelets) letGo(pod *corev1.Pod) {
	if k.agents[pod.UID] && !k.released[pod.UID] {
		k.released[pod.UID] = true
		k.sim.after(k.sim.span(50*time.Millisecond, 2*time.Second), func() { k.exit(pod, 143) })
	}
}

// loseNode takes a node away. Its pods end, and are collected later.
func (s *fleetSim) loseNode(node *corev1.Node) {
	s.say("node %s is gone", node.Name)
	s.server.remove(node)
	s.after(s.span(time.Second, 40*time.Second), func() {
		for _, pod := range s.server.pods() {
			if pod.Spec.NodeName == node.Name && s.server.objects[simNode][types.NamespacedName{Name: node.Name}] == nil {
				delete(s.kubelets.agents, pod.UID)
				s.server.remove(pod)
			}
		}
	})
	for _, pod := range s.server.pods() {
		if pod.Spec.NodeName == node.Name {
			delete(s.kubelets.agents, pod.UID)
			if s.training != nil {
				s.training.kill(pod.UID)
			}
			s.touch(jobOf(pod))
		}
	}
}

// nodeCalled makes a node.
func nodeCalled(name string, devices string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{
			Allocatable: simResources(devices, "1000", "500"),
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}
