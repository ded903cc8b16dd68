package peers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/identity"
)

// relist is how often a kubelet looks at its containers: so late it may tell that one has ended.
const relist = time.Second

// play begins to play scheduler and kubelets.
func (c *cluster) play() error {
	ctx, stop := context.WithCancel(context.Background())
	c.stopped = stop
	pods, err := c.core.CoreV1().Pods(jobNamespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("watch the pods: %w", err)
	}
	c.playing.Go(func() {
		seen := map[string]bool{}
		for event := range pods.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			switch {
			case !ok:
			case pod.DeletionTimestamp != nil:
				// Its program has ended, or is ended with the contender.
				_ = c.core.CoreV1().Pods(jobNamespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
			case !seen[pod.Name] && len(pod.Spec.SchedulingGates) == 0:
				seen[pod.Name] = true
				c.pending <- pod
			}
		}
	})
	return nil
}

// add starts the next pod that waits for a node.
func (c *cluster) add(ctx context.Context) (*member, error) {
	patience := time.After(patience)
	for {
		select {
		case pod := <-c.pending:
			m, err := c.run(ctx, pod)
			if client.IgnoreNotFound(err) == nil && err != nil {
				continue // the operator has thought otherwise meanwhile
			}
			return m, err
		case <-c.operatorEnd:
			return nil, fmt.Errorf("the operator has ended (%s):\n%s", c.operator.ProcessState, c.operatorSaid())
		case <-patience:
			return nil, fmt.Errorf("no pod waits for a node; the job: %s\n%s", c.situation(ctx), c.operatorSaid())
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// run binds a pod to its node and starts its training container.
func (c *cluster) run(ctx context.Context, pod *corev1.Pod) (*member, error) {
	node := pinned(pod)
	if node == "" {
		return nil, fmt.Errorf("pod %s demands no node", pod.Name)
	}
	pods := c.core.CoreV1().Pods(pod.Namespace)
	if err := pods.Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	token, err := c.core.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, "default", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			Audiences: []string{identity.Audience}, ExpirationSeconds: ptr.To[int64](3600),
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(
		os.WriteFile(c.path(pod.Name+".token"), []byte(token.Status.Token), 0o644),
		os.WriteFile(c.path(pod.Name+".ca"), []byte(pod.Annotations[v1alpha1.AnnotationCABundle]), 0o644),
	); err != nil {
		return nil, fmt.Errorf("write the identity of pod %s: %w", pod.Name, err)
	}
	c.started++
	// Each pod has an address of its own, as agents have the same ports.
	pod.Status.PodIP = net.IPv4(127, 0, 1, byte(c.started)).String()
	m, err := c.start(pod.Name, agentEnvironment(pod), agentCommand(pod)...)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.running = append(c.running, m)
	c.mu.Unlock()
	c.playing.Go(func() { c.tell(pod, m) })
	return m, nil
}

// tell writes of a pod that its container runs, and later that it has ended.
func (c *cluster) tell(pod *corev1.Pod, m *member) {
	write := func(phase corev1.PodPhase, state corev1.ContainerState) {
		pod := pod.DeepCopy()
		pod.ResourceVersion = "" // whatever else has changed meanwhile
		pod.Status.Phase, pod.Status.PodIPs = phase, []corev1.PodIP{{IP: pod.Status.PodIP}}
		container := pod.Spec.Containers[0]
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: container.Name, Image: container.Image, State: state}}
		// A pod that is gone needs no status.
		_, _ = c.core.CoreV1().Pods(pod.Namespace).UpdateStatus(context.Background(), pod, metav1.UpdateOptions{})
	}
	write(corev1.PodRunning, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}})
	<-m.ended
	time.Sleep(relist)
	code := int32(m.cmd.ProcessState.ExitCode())
	if status, ok := m.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		code = 128 + int32(status.Signal())
	}
	phase := corev1.PodFailed
	if code == 0 {
		phase = corev1.PodSucceeded
	}
	write(phase, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.Now()}})
}

// agentEnvironment are the variables of a pod's training container, as a kubelet would work them out; files that are
// written lie in /tmp, which is each member's own and in memory.
func agentEnvironment(pod *corev1.Pod) []string {
	fields := map[string]string{"metadata.name": pod.Name, "metadata.uid": string(pod.UID), "status.podIP": pod.Status.PodIP}
	replaced := map[string]string{"CONCERTINA_SOCKET": "/tmp/run/agent.sock", "CONCERTINA_MEMORY": "/tmp/memory"}
	var all []string
	for _, variable := range pod.Spec.Containers[0].Env {
		value := variable.Value
		if variable.ValueFrom != nil {
			value = fields[variable.ValueFrom.FieldRef.FieldPath]
		}
		if other, ok := replaced[variable.Name]; ok {
			value = other
		}
		all = append(all, variable.Name+"="+value)
	}
	return all
}

// agentCommand is the command of a pod's training container, with the paths that the agent has here.
func agentCommand(pod *corev1.Pod) []string {
	file := filepath.Join(inside, pod.Name)
	command := []string{
		"/bin/sh", "-c", `mkdir /tmp/run /tmp/memory && exec "$@"`, "sh",
		filepath.Join(inside, "agent"), "run", "--token-file", file + ".token", "--ca-file", file + ".ca",
	}
	return append(command, pod.Spec.Containers[0].Command[2:]...)
}

// pinned is the node that a pod demands by name.
func pinned(pod *corev1.Pod) string {
	affinity := pod.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == "metadata.name" && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return ""
}
