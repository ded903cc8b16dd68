package resize

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/hack/bench/contexts"
	"github.com/concertina-dev/concertina/hack/containers"
)

const (
	jobName = "bench-resize"
	// clearPatience bounds the clearing up, also after an interrupt.
	clearPatience = 3 * time.Minute
)

// measureJob takes one TrainingJob through all changes.
func (b Bench) measureJob(ctx context.Context) (_ samples, err error) {
	job := measured(b.Job)
	if err := b.Cluster.Delete(ctx, job); err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, contexts.Cleared(ctx, clearPatience, func(ctx context.Context) error { return b.Cluster.Delete(ctx, job) }))
	}()
	if err := b.Cluster.Client.Create(ctx, job); err != nil {
		return nil, fmt.Errorf("submit TrainingJob %s: %w", job.Name, err)
	}
	t := newTrial(b, job.Namespace, client.MatchingLabels{v1alpha1.LabelJob: job.Name}, job.Spec.Workers.Template.Spec.Containers[0].Name)
	defer func() { err = errors.Join(err, t.close()) }()
	t.open(ctx)
	if err := t.settle(ctx, 0, small); err != nil {
		return nil, err
	}
	kinds := samples{}
	for run := range b.Runs {
		for _, c := range []struct {
			kind  string
			ranks int
			cause func(context.Context) error
		}{
			{"grow", large, func(ctx context.Context) error { return b.scale(ctx, job, large) }},
			{"shrink", small, func(ctx context.Context) error { return b.scale(ctx, job, small) }},
			{"", large, func(ctx context.Context) error { return b.scale(ctx, job, large) }},
			{"recovery_exit", small, func(ctx context.Context) error { return t.strike(ctx, syscall.SIGKILL, false) }},
			{"recovery_exit_full", large, func(context.Context) error { return nil }},
			{"recovery_silence", small, func(ctx context.Context) error { return t.strike(ctx, syscall.SIGSTOP, true) }},
			{"", large, func(ctx context.Context) error { return t.bury() }},
			{"", small, func(ctx context.Context) error { return b.scale(ctx, job, small) }},
		} {
			s, err := t.change(ctx, c.ranks, c.cause)
			if err != nil {
				return nil, fmt.Errorf("TrainingJob, run %d of %d, %s to %d: %w", run+1, b.Runs, c.kind, c.ranks, err)
			}
			if c.kind != "" {
				kinds[c.kind] = append(kinds[c.kind], s)
				b.Say("TrainingJob, run %d of %d, %s: %.3f s, %d steps lost", run+1, b.Runs, c.kind, s.pause.Seconds(), s.lost)
			}
		}
	}
	return kinds, nil
}

// measured is the job of the example, training for as long as it takes, with so much state.
func measured(example *v1alpha1.TrainingJob) *v1alpha1.TrainingJob {
	job := example.DeepCopy()
	job.Name = jobName
	job.Spec.Workers.Min, job.Spec.Workers.Max = ptr.To[int32](small), ptr.To[int32](small)
	job.Spec.Workers.Sizes = nil
	job.Spec.Failure.MaxRestarts = ptr.To[int32](1000)
	job.Spec.Checkpoint.Memory = v1alpha1.MemorySize(fmt.Sprintf("%dMi", 5*stateMiB))
	trainer := &job.Spec.Workers.Template.Spec.Containers[0]
	trainer.Command = append(trainer.Command, trainingFlags()...)
	return job
}

func trainingFlags() []string {
	return []string{"--epochs", "100000", "--step-times", "--ballast", strconv.Itoa(stateMiB)}
}

func (b Bench) scale(ctx context.Context, job *v1alpha1.TrainingJob, workers int) error {
	patch := fmt.Appendf(nil, `{"spec":{"workers":{"max":%d}}}`, workers)
	if err := b.Cluster.Client.Patch(ctx, job.DeepCopy(), client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("scale TrainingJob %s to %d: %w", job.Name, workers, err)
	}
	return nil
}

// trial is a training that is being changed.
type trial struct {
	Bench
	namespace string
	labels    client.MatchingLabels
	container string

	stamps *stamps
	round  uint64
	// large is the last one of all ranks.
	large uint64
	// struck is the container that was stopped, to be ended later.
	struck []containers.Process
	// spared is a pod that is never struck.
	spared string

	group *errgroup.Group
	stop  context.CancelFunc
}

func newTrial(b Bench, namespace string, labels client.MatchingLabels, container string) *trial {
	return &trial{Bench: b, namespace: namespace, labels: labels, container: container, stamps: newStamps()}
}

// open starts to read the logs of all workers that there are and will be.
func (t *trial) open(ctx context.Context) {
	ctx, t.stop = context.WithCancel(ctx)
	t.group, ctx = errgroup.WithContext(ctx)
	following := map[types.UID]bool{}
	t.group.Go(func() error {
		return wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			pods, err := t.pods(ctx)
			if err != nil {
				return false, client.IgnoreNotFound(ctx.Err())
			}
			for i := range pods {
				pod := &pods[i]
				if !following[pod.UID] && running(pod, t.container) {
					following[pod.UID] = true
					t.group.Go(func() error { return t.stamps.follow(ctx, t.Cluster.Core, pod, t.container) })
				}
			}
			return false, nil
		})
	})
}

func (t *trial) close() error {
	t.stop()
	if err := t.group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (t *trial) pods(ctx context.Context) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := t.Cluster.Client.List(ctx, &list, client.InNamespace(t.namespace), t.labels); err != nil {
		return nil, fmt.Errorf("list the workers: %w", err)
	}
	return list.Items, nil
}

func running(pod *corev1.Pod, container string) bool {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == container && status.State.Running != nil {
			return true
		}
	}
	return false
}

// settle waits until a world of so many ranks after a round has made some steps.
func (t *trial) settle(ctx context.Context, above uint64, ranks int) error {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	round, err := t.stamps.await(ctx, above, ranks)
	if err != nil {
		return err
	}
	t.round = round
	return t.stamps.steps(ctx, round, between)
}

// change causes a change and waits for the world that follows.
func (t *trial) change(ctx context.Context, ranks int, cause func(context.Context) error) (sample, error) {
	if err := cause(ctx); err != nil {
		return sample{}, err
	}
	before := t.round
	if err := t.settle(ctx, before, ranks); err != nil {
		return sample{}, err
	}
	s := sample{pause: t.stamps.pause(before, t.round), lost: t.stamps.lost(before, t.round)}
	if ranks == large {
		if t.large > 0 {
			s.small = t.stamps.pause(t.large, t.round)
		}
		t.large = t.round
	}
	return s, nil
}

// strike sends a signal to the program of one worker, or to everything in its container.
func (t *trial) strike(ctx context.Context, signal syscall.Signal, everything bool) error {
	pods, err := t.pods(ctx)
	if err != nil {
		return err
	}
	for i := range pods {
		pod := &pods[i]
		if !running(pod, t.container) || pod.DeletionTimestamp != nil || pod.Name == t.spared {
			continue
		}
		find := containers.Children
		if everything {
			find = containers.Processes
		}
		processes, err := find(pod, t.container)
		if err != nil {
			return err
		}
		t.struck = processes
		return containers.Signal(processes, signal)
	}
	return errors.New("no worker runs")
}

// bury ends what was only stopped.
func (t *trial) bury() error {
	struck := t.struck
	t.struck = nil
	return containers.Signal(struck, syscall.SIGKILL)
}
