package start

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/hack/bench/contexts"
)

const (
	jobName = "bench-start"
	// clearPatience bounds the clearing up after a start, also after an interrupt.
	clearPatience = time.Minute
)

// startJob measures one start as a TrainingJob, from the moment it is sent to the API server.
func (b Bench) startJob(ctx context.Context) (_ timeline, err error) {
	job := measured(b.Job)
	if err := b.Cluster.Delete(ctx, job); err != nil {
		return timeline{}, err
	}
	defer func() {
		err = errors.Join(err, contexts.Cleared(ctx, clearPatience, func(ctx context.Context) error { return b.Cluster.Delete(ctx, job) }))
	}()
	t := &trial{
		cluster: b.Cluster, namespace: job.Namespace, job: job.Name,
		labels:    client.MatchingLabels{v1alpha1.LabelJob: job.Name},
		container: job.Spec.Workers.Template.Spec.Containers[0].Name,
		wanted:    []point{bound, running, formed, program, step},
	}
	t.begin = time.Now()
	err = t.run(ctx, func(ctx context.Context) error {
		if err := b.Cluster.Client.Create(ctx, job); err != nil {
			return fmt.Errorf("submit TrainingJob %s: %w", job.Name, err)
		}
		return nil
	})
	return t.timeline, err
}

// measured is the job of the example with two workers, in which every program says when it starts
// and prints its first step.
func measured(example *v1alpha1.TrainingJob) *v1alpha1.TrainingJob {
	job := example.DeepCopy()
	job.Name = jobName
	job.Spec.Workers.Min, job.Spec.Workers.Max = ptr.To[int32](workers), ptr.To[int32](workers)
	job.Spec.Workers.Sizes = nil
	trainer := &job.Spec.Workers.Template.Spec.Containers[0]
	trainer.Command = append([]string{"/bin/sh", "-c", `echo "` + startMark + `"; exec "$0" "$@"`}, telling(trainer)...)
	trainer.Args = nil
	return job
}

// telling is the command of a container whose program prints every step.
func telling(trainer *corev1.Container) []string {
	return slices.Concat(trainer.Command, trainer.Args, []string{"--log-every", "1"})
}
