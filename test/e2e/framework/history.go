package framework

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// Change is one event of a watch: what became of a pod, and when we heard of it.
type Change struct {
	At time.Time
	// Gone is true when the pod was removed from the API.
	Gone bool
	Pod  *corev1.Pod
}

// PodHistory records every change of pods of one namespace, from a watch: between two changes nothing
// happened.
type PodHistory struct {
	watcher *toolswatch.RetryWatcher
	done    chan struct{}

	mu      sync.Mutex
	changes []Change
	broken  error
}

// WatchPods starts a history of the pods of a namespace that have all these labels. It ends with Stop.
func (c *Cluster) WatchPods(ctx context.Context, namespace string, having labels.Set) (*PodHistory, error) {
	pods := c.Clientset.CoreV1().Pods(namespace)
	selector := having.String()
	list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list pods of namespace %s: %w", namespace, err)
	}
	source := &toolscache.ListWatch{WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		options.LabelSelector = selector
		return pods.Watch(ctx, options)
	}}
	watcher, err := toolswatch.NewRetryWatcherWithContext(context.WithoutCancel(ctx), list.ResourceVersion, source)
	if err != nil {
		return nil, fmt.Errorf("watch pods of namespace %s: %w", namespace, err)
	}
	history := &PodHistory{watcher: watcher, done: make(chan struct{})}
	go history.record()
	return history, nil
}

// Stop ends the history.
func (h *PodHistory) Stop() {
	h.watcher.Stop()
	<-h.done
}

func (h *PodHistory) record() {
	defer close(h.done)
	for event := range h.watcher.ResultChan() {
		at := time.Now()
		h.mu.Lock()
		switch object := event.Object.(type) {
		case *corev1.Pod:
			h.changes = append(h.changes, Change{At: at, Gone: event.Type == watch.Deleted, Pod: object})
		default:
			h.broken = fmt.Errorf("the watch brought %s %v", event.Type, event.Object)
		}
		h.mu.Unlock()
	}
}

// Changes are all changes up to now, in their order. It is an error when some may be missing.
func (h *PodHistory) Changes() ([]Change, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Change(nil), h.changes...), h.broken
}

// Ended says whether the kubelet has reported the end of all containers of a pod.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Gang names the gang that a pod belongs to: its job and attempt.
func Gang(pod *corev1.Pod) string {
	return pod.Labels[v1alpha1.LabelJob] + "/" + pod.Labels[v1alpha1.LabelAttempt]
}

// Occupation is a time during which the number of pods of a gang that hold room stayed the same.
type Occupation struct {
	Gang string
	// Bound is the number of pods that have a node and have not ended.
	Bound int
	From  time.Time
	// For how long; the last one of a gang goes on until the last change of the history.
	For time.Duration
}

// String is for messages.
func (o Occupation) String() string {
	return fmt.Sprintf("%s has %d pods bound for %v from %s", o.Gang, o.Bound, o.For.Round(time.Millisecond), o.From.Format("15:04:05.000"))
}

// Occupations tells for each gang of a job how many of its pods held room over time.
func Occupations(changes []Change) []Occupation {
	bound := map[string]map[string]bool{}
	open := map[string]*Occupation{}
	var all []Occupation
	step := func(gang string, count int, at time.Time) {
		current := open[gang]
		if current != nil && current.Bound == count {
			return
		}
		if current != nil {
			current.For = at.Sub(current.From)
			all = append(all, *current)
		}
		open[gang] = &Occupation{Gang: gang, Bound: count, From: at}
	}
	for _, change := range changes {
		if change.Pod.Labels[v1alpha1.LabelJob] == "" {
			continue
		}
		gang := Gang(change.Pod)
		if bound[gang] == nil {
			bound[gang] = map[string]bool{}
		}
		if change.Pod.Spec.NodeName != "" && !change.Gone && !Ended(change.Pod) {
			bound[gang][change.Pod.Name] = true
		} else {
			delete(bound[gang], change.Pod.Name)
		}
		step(gang, len(bound[gang]), change.At)
	}
	for gang := range open {
		step(gang, -1, changes[len(changes)-1].At)
	}
	return all
}

// Describe tells a history in lines, for failures.
func Describe(changes []Change) string {
	var text strings.Builder
	for _, change := range changes {
		state := string(change.Pod.Status.Phase)
		if change.Pod.DeletionTimestamp != nil {
			state += " terminating"
		}
		if change.Gone {
			state = "gone"
		}
		fmt.Fprintf(&text, "%s %s on %q: %s\n", change.At.Format("15:04:05.000"), change.Pod.Name, change.Pod.Spec.NodeName, state)
	}
	return text.String()
}
