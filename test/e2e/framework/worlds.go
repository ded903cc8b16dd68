package framework

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// WorldRecorder keeps every world that a job's status has told of, and the rest of it as well. The API server tells of every
// write, so none is missed.
type WorldRecorder struct {
	watcher *toolswatch.RetryWatcher
	done    chan struct{}

	mu     sync.Mutex
	worlds map[int64]v1alpha1.WorldStatus
	writes []*v1alpha1.TrainingJob
	broken error
}

// RecordWorlds starts a recorder for a job, which need not be there yet. It ends with Stop.
func (c *Cluster) RecordWorlds(ctx context.Context, job types.NamespacedName) (*WorldRecorder, error) {
	var list v1alpha1.TrainingJobList
	if err := c.List(ctx, &list, client.InNamespace(job.Namespace)); err != nil {
		return nil, fmt.Errorf("list jobs of namespace %s: %w", job.Namespace, err)
	}
	source := &toolscache.ListWatch{WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		return c.Watch(ctx, &v1alpha1.TrainingJobList{}, &client.ListOptions{Namespace: job.Namespace, Raw: &options},
			client.MatchingFields{"metadata.name": job.Name})
	}}
	watcher, err := toolswatch.NewRetryWatcherWithContext(context.WithoutCancel(ctx), list.ResourceVersion, source)
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
		r.mu.Lock()
		switch object := event.Object.(type) {
		case *v1alpha1.TrainingJob:
			r.writes = append(r.writes, object)
			// The term of a job is written before its first round.
			if world := object.Status.World; world != nil && world.Round != nil && *world.Round > 0 {
				r.worlds[*world.Round] = *world
			}
		default:
			r.broken = fmt.Errorf("the watch brought %s %v", event.Type, event.Object)
		}
		r.mu.Unlock()
	}
}

// Worlds are the worlds so far, by round. It is an error when some may be missing.
func (r *WorldRecorder) Worlds() (map[int64]v1alpha1.WorldStatus, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.worlds), r.broken
}

// Writes are the job as it was after every write so far, oldest first. It is an error when some may be missing.
func (r *WorldRecorder) Writes() ([]*v1alpha1.TrainingJob, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.writes), r.broken
}

// Stop ends the recorder.
func (r *WorldRecorder) Stop() {
	r.watcher.Stop()
	<-r.done
}
