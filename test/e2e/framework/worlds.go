package framework

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// WorldRecorder keeps every world that a job's status has told of. The API server tells of every
// write, so none is missed.
type WorldRecorder struct {
	watcher watch.Interface
	done    chan struct{}

	mu     sync.Mutex
	worlds map[int64]v1alpha1.WorldStatus
}

// RecordWorlds starts a recorder for a job, which need not be there yet. It ends with Stop.
func (c *Cluster) RecordWorlds(ctx context.Context, job types.NamespacedName) (*WorldRecorder, error) {
	watcher, err := c.Watch(context.WithoutCancel(ctx), &v1alpha1.TrainingJobList{}, client.InNamespace(job.Namespace),
		client.MatchingFields{"metadata.name": job.Name})
	if err != nil {
		return nil, fmt.Errorf("watch job %s: %w", job, err)
	}
	r := &WorldRecorder{watcher: watcher, done: make(chan struct{}), worlds: map[int64]v1alpha1.WorldStatus{}}
	go r.record()
	return r, nil
}

func (r *WorldRecorder) record() {
	defer close(r.done)
	for event := range r.watcher.ResultChan() {
		job, ok := event.Object.(*v1alpha1.TrainingJob)
		if !ok || job.Status.World == nil || job.Status.World.Round == nil {
			continue
		}
		r.mu.Lock()
		r.worlds[*job.Status.World.Round] = *job.Status.World
		r.mu.Unlock()
	}
}

// Worlds are the worlds so far, by round.
func (r *WorldRecorder) Worlds() map[int64]v1alpha1.WorldStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	worlds := make(map[int64]v1alpha1.WorldStatus, len(r.worlds))
	for round, world := range r.worlds {
		worlds[round] = world
	}
	return worlds
}

// Stop ends the recorder.
func (r *WorldRecorder) Stop() {
	r.watcher.Stop()
	<-r.done
}
