package framework

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

// LogRecorder keeps what a container of pods prints, also that of pods that are deleted meanwhile.
type LogRecorder struct {
	clientset kubernetes.Interface
	namespace string
	container string
	cancel    context.CancelFunc
	running   sync.WaitGroup

	mu    sync.Mutex
	lines map[string][]string
	err   error
}

// RecordLogs starts a recorder of the pods of a namespace that have all these labels. It ends with Stop.
func (c *Cluster) RecordLogs(ctx context.Context, namespace string, having labels.Set, container string) (*LogRecorder, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &LogRecorder{clientset: c.Clientset, namespace: namespace, container: container, cancel: cancel, lines: map[string][]string{}}
	history, err := c.WatchPods(ctx, namespace, having)
	if err != nil {
		cancel()
		return nil, err
	}
	r.running.Go(func() {
		defer history.Stop()
		r.watch(ctx, history)
	})
	return r, nil
}

// Stop ends the recorder and waits for it.
func (r *LogRecorder) Stop() {
	r.cancel()
	r.running.Wait()
}

// Lines are all lines so far, by the name of the pod. It is an error when some may be missing.
func (r *LogRecorder) Lines() (map[string][]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	copied := map[string][]string{}
	for name, lines := range maps.All(r.lines) {
		copied[name] = slices.Clone(lines)
	}
	return copied, r.err
}

// Tail are the last lines so far, at most n of each pod, by the name of the pod.
func (r *LogRecorder) Tail(n int) map[string][]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	tails := map[string][]string{}
	for name, lines := range r.lines {
		tails[name] = slices.Clone(lines[max(0, len(lines)-n):])
	}
	return tails
}

// watch follows the log of every container that has been started, and those that take its place.
func (r *LogRecorder) watch(ctx context.Context, history *PodHistory) {
	following := map[string]bool{}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	seen := 0
	for {
		changes, err := history.Changes()
		if err != nil {
			r.fail(err)
			return
		}
		for _, change := range changes[seen:] {
			pod := change.Pod
			if started := r.started(pod); started != "" && !change.Gone && !following[started] {
				following[started] = true
				r.running.Go(func() { r.follow(ctx, pod) })
			}
		}
		seen = len(changes)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// started is the id of the container once it runs or has ended; empty before.
func (r *LogRecorder) started(pod *corev1.Pod) string {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == r.container && (status.State.Running != nil || status.State.Terminated != nil) {
			return status.ContainerID
		}
	}
	return ""
}

func (r *LogRecorder) follow(ctx context.Context, pod *corev1.Pod) {
	stream, err := r.open(ctx, pod)
	if apierrors.IsNotFound(err) || ctx.Err() != nil {
		return // it went before it can have said anything: the ledger shows what is missing
	}
	if err != nil {
		r.fail(fmt.Errorf("follow the log of pod %s: %w", pod.Name, err))
		return
	}
	defer func() { _ = stream.Close() }()
	scanner := bufio.NewScanner(stream)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		r.mu.Lock()
		r.lines[pod.Name] = append(r.lines[pod.Name], scanner.Text())
		r.mu.Unlock()
	}
	// A stream that breaks off belongs to a node that was lost: what it had is kept.
	if errors.Is(scanner.Err(), bufio.ErrTooLong) {
		r.fail(fmt.Errorf("the log of pod %s: %w", pod.Name, scanner.Err()))
	}
}

// open asks for a log until it comes: a kubelet that was just lost or is busy refuses.
func (r *LogRecorder) open(ctx context.Context, pod *corev1.Pod) (stream io.ReadCloser, err error) {
	pause := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Steps: 8}
	_ = wait.ExponentialBackoffWithContext(ctx, pause, func(ctx context.Context) (bool, error) {
		stream, err = r.clientset.CoreV1().Pods(r.namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
			Container: r.container, Follow: true,
		}).Stream(ctx)
		return err == nil || apierrors.IsNotFound(err), nil
	})
	return stream, err
}

func (r *LogRecorder) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = errors.Join(r.err, err)
}
