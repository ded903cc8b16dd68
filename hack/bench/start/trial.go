package start

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/hack/demo/kube"
)

// trial is one start that is being observed.
type trial struct {
	observer
	cluster kube.Cluster
	// namespace and labels are those of the workers, container is where they train.
	namespace string
	labels    client.MatchingLabels
	container string
	// job is the name of the TrainingJob, empty when there is none.
	job string
	// wanted are the moments to wait for.
	wanted []point

	marks     chan mark
	group     *errgroup.Group
	following map[types.UID]bool
}

// run starts what begin starts and observes it until all wanted moments have come.
func (t *trial) run(ctx context.Context, begin func(context.Context) error) error {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	t.marks, t.following = make(chan mark), map[types.UID]bool{}
	var inside context.Context
	t.group, inside = errgroup.WithContext(ctx)
	pods, jobs, err := t.watch(inside)
	if err != nil {
		return err
	}
	defer pods.Stop()
	defer jobs.Stop()
	t.group.Go(func() error { return begin(inside) })
	err = t.observe(inside, pods.ResultChan(), jobs.ResultChan())
	timedOut := errors.Is(ctx.Err(), context.DeadlineExceeded)
	stop()
	if failed := t.group.Wait(); failed != nil && !errors.Is(failed, context.Canceled) {
		return failed
	}
	if timedOut {
		return fmt.Errorf("the first step did not come within %s; so far: %s", patience, t.timeline)
	}
	return err
}

func (t *trial) watch(ctx context.Context) (pods, jobs watch.Interface, err error) {
	pods, err = t.cluster.Client.Watch(ctx, &corev1.PodList{}, client.InNamespace(t.namespace), t.labels)
	if err != nil {
		return nil, nil, fmt.Errorf("watch the workers: %w", err)
	}
	if t.job == "" {
		return pods, watch.NewEmptyWatch(), nil
	}
	jobs, err = t.cluster.Client.Watch(ctx, &v1alpha1.TrainingJobList{}, client.InNamespace(t.namespace),
		client.MatchingFields{"metadata.name": t.job})
	if err != nil {
		pods.Stop()
		return nil, nil, fmt.Errorf("watch the job: %w", err)
	}
	return pods, jobs, nil
}

func (t *trial) observe(ctx context.Context, pods, jobs <-chan watch.Event) error {
	for !t.complete(t.wanted...) {
		var event watch.Event
		open := true
		select {
		case event, open = <-pods:
		case event, open = <-jobs:
			if t.job == "" {
				jobs, open = nil, true
			}
		case m := <-t.marks:
			t.mark(m)
		case <-ctx.Done():
			return ctx.Err()
		}
		if !open {
			return errors.New("the API server ended a watch: run the bench again")
		}
		if err := t.event(ctx, event); err != nil {
			return err
		}
	}
	return nil
}

// event takes in what the API server says.
func (t *trial) event(ctx context.Context, event watch.Event) error {
	now := time.Now()
	switch object := event.Object.(type) {
	case *corev1.Pod:
		if object.Status.Phase == corev1.PodFailed {
			return fmt.Errorf("pod %s has failed before the first step: see its log", object.Name)
		}
		if t.pod(object, t.container, now) && !t.following[object.UID] {
			t.following[object.UID] = true
			t.group.Go(func() error {
				return followMarks(ctx, t.cluster.Core, object, t.container, t.marks)
			})
		}
	case *v1alpha1.TrainingJob:
		failed := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionFailed)
		if failed != nil && failed.Status == "True" {
			return fmt.Errorf("the job has failed: %s: %s", failed.Reason, failed.Message)
		}
		if t.at[formed].IsZero() && meta.IsStatusConditionTrue(object.Status.Conditions, v1alpha1.ConditionTraining) {
			t.at[formed] = now
		}
	}
	return nil
}
