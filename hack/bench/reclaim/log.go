package reclaim

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/hack/bench/contexts"
	"github.com/concertina-dev/concertina/hack/demo/kube"
)

// logs reads the logs of all pods with some labels, as long as it is open. Each line begins with the time
// at which the container runtime got it: it does not matter when we read it.
type logs struct {
	cluster   kube.Cluster
	namespace string
	labels    client.MatchingLabels
	container string
	// line takes in a line of a pod; it is called from several goroutines.
	line func(pod, line string)

	group *errgroup.Group
	stop  context.CancelFunc
}

func (l *logs) open(ctx context.Context) {
	ctx, l.stop = context.WithCancel(ctx)
	l.group, ctx = errgroup.WithContext(ctx)
	l.group.Go(func() error { return l.followAll(ctx) })
}

func (l *logs) close() error {
	l.stop()
	if err := l.group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (l *logs) followAll(ctx context.Context) error {
	following := map[types.UID]bool{}
	for {
		var pods corev1.PodList
		if err := l.cluster.Client.List(ctx, &pods, client.InNamespace(l.namespace), l.labels); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("list the pods: %w", err)
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			if !following[pod.UID] && begun(pod, l.container) {
				following[pod.UID] = true
				l.group.Go(func() error { return l.follow(ctx, pod) })
			}
		}
		if contexts.Pause(ctx, 100*time.Millisecond) != nil {
			return nil
		}
	}
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

func (l *logs) follow(ctx context.Context, pod *corev1.Pod) error {
	stream, err := l.cluster.Core.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
		Container: l.container, Follow: true, Timestamps: true,
	}).Stream(ctx)
	switch {
	case ctx.Err() != nil || client.IgnoreNotFound(err) == nil && err != nil:
		return nil // a pod that had to go may be gone already
	case err != nil:
		return fmt.Errorf("read the log of pod %s: %w", pod.Name, err)
	}
	defer func() { _ = stream.Close() }()
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		l.line(pod.Name, lines.Text())
	}
	if ctx.Err() != nil {
		return nil
	}
	return lines.Err()
}
