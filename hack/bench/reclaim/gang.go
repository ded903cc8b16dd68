package reclaim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/hack/bench/contexts"
)

const (
	highName = "bench-high"
	// shortTraining ends within a second of its first step.
	shortTraining = "--epochs=1"
	stepTime      = "--step-time=20ms"
)

// firstSteps notes when each pod has printed its first step.
type firstSteps map[string]time.Time

var firstStep = regexp.MustCompile(`^step 1/\d+ `)

// line takes in a line of a log with timestamps.
func (f firstSteps) line(pod, text string) {
	stamp, said, _ := strings.Cut(text, " ")
	at, err := time.Parse(time.RFC3339Nano, stamp)
	if err != nil || !firstStep.MatchString(said) {
		return
	}
	if _, known := f[pod]; !known {
		f[pod] = at
	}
}

// last is when the last of so many pods has printed its own.
func (f firstSteps) last(pods int) (time.Time, error) {
	if len(f) < pods {
		return time.Time{}, fmt.Errorf("%d pods have printed a first step, not %d", len(f), pods)
	}
	return slices.MaxFunc(slices.Collect(maps.Values(f)), time.Time.Compare), nil
}

// running is a gang of high priority that was submitted.
type running struct {
	Bench
	job   *v1alpha1.TrainingJob
	begin time.Time
}

// submit submits the gang.
func (b Bench) submit(ctx context.Context) (*running, error) {
	job := b.program(highName, gang, gang, shortTraining, stepTime, "--log-every=1")
	job.Spec.Workers.Template.Spec.PriorityClassName = highClass
	if err := b.Cluster.Delete(ctx, job); err != nil {
		return nil, err
	}
	g := &running{Bench: b, job: job, begin: time.Now()}
	if err := b.Cluster.Client.Create(ctx, job); err != nil {
		return nil, fmt.Errorf("submit TrainingJob %s: %w", job.Name, err)
	}
	return g, nil
}

// firstStep is how long after its submission the gang, which has ended, made its first step; one rank prints it
// for all.
func (g *running) firstStep(ctx context.Context) (time.Duration, error) {
	steps := firstSteps{}
	if err := g.read(ctx, client.MatchingLabels{v1alpha1.LabelJob: g.job.Name}, steps.line); err != nil {
		return 0, err
	}
	at, err := steps.last(1)
	if err != nil {
		return 0, fmt.Errorf("TrainingJob %s: %w", g.job.Name, err)
	}
	return at.Sub(g.begin), nil
}

// ended waits until the gang's job is complete, and returns when that was seen.
func (g *running) ended(ctx context.Context) (time.Time, error) {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	for {
		job := &v1alpha1.TrainingJob{}
		if err := g.Cluster.Client.Get(ctx, client.ObjectKeyFromObject(g.job), job); err != nil {
			return time.Time{}, fmt.Errorf("wait for the end of TrainingJob %s: %w", g.job.Name, err)
		}
		if meta.IsStatusConditionTrue(job.Status.Conditions, v1alpha1.ConditionComplete) {
			return time.Now(), nil
		}
		if failed := meta.FindStatusCondition(job.Status.Conditions, v1alpha1.ConditionFailed); failed != nil && failed.Status == "True" {
			return time.Time{}, fmt.Errorf("TrainingJob %s has failed: %s: %s", job.Name, failed.Reason, failed.Message)
		}
		if err := contexts.Pause(ctx, lookEvery); err != nil {
			return time.Time{}, errors.Join(fmt.Errorf("TrainingJob %s does not end: %w", job.Name, err), g.situation(g.job))
		}
	}
}

func (g *running) remove(ctx context.Context) error {
	return contexts.Cleared(ctx, patience, func(ctx context.Context) error { return g.Cluster.Delete(ctx, g.job) })
}

// situation tells what a job says of itself when something has not come.
func (b Bench) situation(job *v1alpha1.TrainingJob) error {
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	now := &v1alpha1.TrainingJob{}
	if err := b.Cluster.Client.Get(ctx, client.ObjectKeyFromObject(job), now); err != nil {
		return err
	}
	var said []string
	for _, c := range now.Status.Conditions {
		said = append(said, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	return fmt.Errorf("TrainingJob %s has %s workers and says: %s", now.Name, now.Status.Workers.Summary, strings.Join(said, "; "))
}

// program is the example's job with a device for each worker and these flags of its program.
func (b Bench) program(name string, least, most int32, flags ...string) *v1alpha1.TrainingJob {
	job := b.Job.DeepCopy()
	job.Name = name
	job.Spec.Workers.Min, job.Spec.Workers.Max, job.Spec.Workers.Sizes = ptr.To(least), ptr.To(most), nil
	trainer := &job.Spec.Workers.Template.Spec.Containers[0]
	trainer.Command = append([]string{trainer.Command[0]}, flags...)
	trainer.Args = nil
	wantDevice(trainer)
	return job
}

// wantDevice gives a container one device.
func wantDevice(c *corev1.Container) {
	for _, list := range []*corev1.ResourceList{&c.Resources.Requests, &c.Resources.Limits} {
		if *list == nil {
			*list = corev1.ResourceList{}
		}
		(*list)[device] = resource.MustParse("1")
	}
}
