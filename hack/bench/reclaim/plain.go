package reclaim

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/hack/bench/contexts"
)

const (
	// plainLabel tells the bench's pods that belong to no job.
	plainLabel = "concertina.dev/bench"
	// grace is that of a worker: the time for its last barrier and snapshot, and a margin. These programs
	// end on SIGTERM, at once.
	grace = 75
)

// preempt measures four plain pods for which the stock scheduler preempts four of twelve. Each is a world
// of its own, and a gang of them would make its first step when the last of them makes its own.
func (b Bench) preempt(ctx context.Context) (_ sample, err error) {
	remove := func(ctx context.Context) error { return b.removePlain(ctx) }
	if err := remove(ctx); err != nil {
		return sample{}, err
	}
	defer func() { err = errors.Join(err, contexts.Cleared(ctx, patience, remove)) }()
	if err := b.createPlain(ctx, "low", all, "", endless, lowStepTime); err != nil {
		return sample{}, err
	}
	if err := b.awaitPlain(ctx, "low", all, corev1.PodRunning); err != nil {
		return sample{}, err
	}
	if err := contexts.Pause(ctx, b.Settle); err != nil {
		return sample{}, err
	}
	begin := time.Now()
	if err := b.createPlain(ctx, "high", gang, highClass, shortTraining, stepTime, "--log-every=1"); err != nil {
		return sample{}, err
	}
	if err := b.awaitPlain(ctx, "high", gang, corev1.PodSucceeded); err != nil {
		return sample{}, err
	}
	steps := firstSteps{}
	if err := b.read(ctx, client.MatchingLabels{plainLabel: "high"}, steps.line); err != nil {
		return sample{}, err
	}
	at, err := steps.last(gang)
	return sample{firstStep: at.Sub(begin)}, err
}

func (b Bench) createPlain(ctx context.Context, label string, count int, class string, flags ...string) error {
	for i := range count {
		pod := b.plainPod(label, i, class, flags...)
		if err := b.Cluster.Client.Create(ctx, pod); err != nil {
			return fmt.Errorf("create pod %s: %w", pod.Name, err)
		}
	}
	return nil
}

// plainPod is a worker of the example without the operator.
func (b Bench) plainPod(label string, number int, class string, flags ...string) *corev1.Pod {
	spec := b.program("", 1, 1, flags...).Spec.Workers.Template.Spec
	spec.RestartPolicy = corev1.RestartPolicyNever
	spec.TerminationGracePeriodSeconds = ptr.To[int64](grace)
	spec.PriorityClassName = class
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: b.Job.Namespace, Name: fmt.Sprintf("bench-plain-%s-%d", label, number),
			Labels: map[string]string{plainLabel: label},
		},
		Spec: spec,
	}
}

// awaitPlain waits until so many pods are in a phase.
func (b Bench) awaitPlain(ctx context.Context, label string, count int, phase corev1.PodPhase) error {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	for {
		var pods corev1.PodList
		if err := b.Cluster.Client.List(ctx, &pods, client.InNamespace(b.Job.Namespace), client.MatchingLabels{plainLabel: label}); err != nil {
			return fmt.Errorf("list the plain pods: %w", err)
		}
		there := 0
		for i := range pods.Items {
			if pods.Items[i].Status.Phase == phase {
				there++
			}
		}
		if there == count {
			return nil
		}
		if err := contexts.Pause(ctx, lookEvery); err != nil {
			return fmt.Errorf("%d of %d plain pods are %s: %w", there, count, phase, err)
		}
	}
}

// removePlain deletes all plain pods and waits until they are gone.
func (b Bench) removePlain(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	which := []client.DeleteAllOfOption{client.InNamespace(b.Job.Namespace), client.HasLabels{plainLabel}, client.GracePeriodSeconds(0)}
	if err := b.Cluster.Client.DeleteAllOf(ctx, &corev1.Pod{}, which...); err != nil {
		return fmt.Errorf("delete the plain pods: %w", err)
	}
	for {
		var pods corev1.PodList
		if err := b.Cluster.Client.List(ctx, &pods, client.InNamespace(b.Job.Namespace), client.HasLabels{plainLabel}); err != nil {
			return fmt.Errorf("list the plain pods: %w", err)
		}
		if len(pods.Items) == 0 {
			return nil
		}
		if err := contexts.Pause(ctx, lookEvery); err != nil {
			return fmt.Errorf("%d plain pods are still there: %w", len(pods.Items), err)
		}
	}
}
