package reclaim

import (
	"bufio"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// read reads what the programs of all pods with these labels have written so far. Each line begins with the
// time at which the container runtime got it: it does not matter when it is read, and nobody reads while
// something is measured, since kubelets and the API server would work for it on the same processors.
func (b Bench) read(ctx context.Context, labels client.MatchingLabels, line func(pod, line string)) error {
	var pods corev1.PodList
	if err := b.Cluster.Client.List(ctx, &pods, client.InNamespace(b.Job.Namespace), labels); err != nil {
		return fmt.Errorf("list the pods: %w", err)
	}
	container := b.Job.Spec.Workers.Template.Spec.Containers[0].Name
	for i := range pods.Items {
		if pod := &pods.Items[i]; begun(pod, container) {
			if err := b.readPod(ctx, pod, container, line); err != nil {
				return err
			}
		}
	}
	return nil
}

// begun says whether a container has something to read.
func begun(pod *corev1.Pod, container string) bool {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == container {
			return status.State.Running != nil || status.State.Terminated != nil
		}
	}
	return false
}

func (b Bench) readPod(ctx context.Context, pod *corev1.Pod, container string, line func(pod, line string)) error {
	stream, err := b.Cluster.Core.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
		Container: container, Timestamps: true,
	}).Stream(ctx)
	if client.IgnoreNotFound(err) == nil && err != nil {
		return nil // a pod that had to go may be gone already
	}
	if err != nil {
		return fmt.Errorf("read the log of pod %s: %w", pod.Name, err)
	}
	defer func() { _ = stream.Close() }()
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line(pod.Name, lines.Text())
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read the log of pod %s: %w", pod.Name, err)
	}
	return nil
}
