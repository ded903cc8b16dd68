// Package reclaim measures how soon a gang of high priority makes its first step when a job of low
// priority has grown over the whole cluster: beside the same gang in an empty cluster, and beside plain
// pods for which the stock scheduler preempts others.
//
//	ledger.go  what the low job's ranks say about their steps
//	log.go     reads programs' logs
//	gang.go    the gang of high priority
//	lender.go  the job that has borrowed all devices
//	plain.go   the same with plain pods
package reclaim

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/hack/bench/contexts"
	"github.com/concertina-dev/concertina/hack/bench/figures"
	"github.com/concertina-dev/concertina/hack/demo/kube"
	"github.com/concertina-dev/concertina/hack/demo/platform"
)

const (
	// gang is how many workers of high priority start together, least how many the low job keeps, and
	// all how many devices there are.
	gang, least, all = 4, 2, platform.Nodes * platform.GPUs
	// device is what each worker has one of.
	device corev1.ResourceName = "example.com/gpu"
	// highClass is the priority class of the gang.
	highClass, highPriority = "bench-high", 1000
	// lookEvery is how often the cluster is asked whether something that is waited for has come.
	lookEvery = 100 * time.Millisecond
	// patience is how long anything may take that is waited for.
	patience = 5 * time.Minute
)

// Bench measures on the local cluster.
type Bench struct {
	Cluster kube.Cluster
	// Job is the TrainingJob of examples/go-digits: its image and settings are those of all programs.
	Job *v1alpha1.TrainingJob
	// Times is how often each kind is measured, at least once. One more run of each warms the machine up
	// and does not count.
	Times int
	// Settle is how long the low job trains at full width before the gang comes.
	Settle time.Duration
	// Say tells the person who waits how far it is.
	Say func(format string, args ...any)
}

// sample is one run of one kind.
type sample struct {
	// firstStep is the time from the gang's submission to its first step.
	firstStep time.Duration
	// lentBack is the time from the gang's end to the low job's first step at full width, lost how many
	// steps the low job has lost by its status, and repeated how many it made again by its own ledger.
	lentBack       time.Duration
	lost, repeated int64
}

// Measure runs the whole bench. The kinds take turns, so that what else the machine does falls on all of
// them. What it makes in the cluster is gone when it returns, also after an error.
func (b Bench) Measure(ctx context.Context) (_ []figures.Figure, err error) {
	if b.Times < 1 {
		return nil, errors.New("at least one run is needed")
	}
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: highClass}, Value: highPriority}
	remove := func(ctx context.Context) error {
		return client.IgnoreNotFound(b.Cluster.Client.Delete(ctx, class.DeepCopy()))
	}
	if err := remove(ctx); err != nil {
		return nil, fmt.Errorf("delete priority class %s: %w", highClass, err)
	}
	if err := b.Cluster.Client.Create(ctx, class.DeepCopy()); err != nil {
		return nil, fmt.Errorf("create priority class %s: %w", highClass, err)
	}
	defer func() { err = errors.Join(err, contexts.Cleared(ctx, patience, remove)) }()
	kinds := []kind{{"idle", b.idle}, {"reclaim", b.reclaim}, {"preempt", b.preempt}}
	samples := map[string][]sample{}
	for run := range b.Times + 1 {
		for _, k := range kinds {
			s, err := k.once(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s, run %d of %d: %w", k.name, run, b.Times, err)
			}
			b.Say("%s, run %d of %d: first step after %.2f s%s", k.name, run, b.Times, s.firstStep.Seconds(), s.loan())
			if run > 0 {
				samples[k.name] = append(samples[k.name], s)
			}
		}
	}
	return figuresOf(samples), nil
}

// kind is one situation that the gang comes into.
type kind struct {
	name string
	once func(context.Context) (sample, error)
}

// loan is what there is to tell of the low job, if there was one.
func (s sample) loan() string {
	if s.lentBack == 0 {
		return ""
	}
	return fmt.Sprintf(", lent back after %.2f s, %d steps lost, %d made again", s.lentBack.Seconds(), s.lost, s.repeated)
}

// idle measures the gang in an empty cluster.
func (b Bench) idle(ctx context.Context) (_ sample, err error) {
	g, err := b.submit(ctx)
	if err != nil {
		return sample{}, err
	}
	defer func() { err = errors.Join(err, g.remove(ctx)) }()
	if _, err := g.ended(ctx); err != nil {
		return sample{}, err
	}
	first, err := g.firstStep(ctx)
	return sample{firstStep: first}, err
}

// reclaim measures the gang while the low job has all devices.
func (b Bench) reclaim(ctx context.Context) (_ sample, err error) {
	l, err := b.lend(ctx)
	if err != nil {
		return sample{}, err
	}
	defer func() { err = errors.Join(err, l.remove(ctx)) }()
	wide, err := l.width(ctx, 0, all)
	if err != nil {
		return sample{}, err
	}
	if err := contexts.Pause(ctx, b.Settle); err != nil {
		return sample{}, err
	}
	g, err := b.submit(ctx)
	if err != nil {
		return sample{}, err
	}
	defer func() { err = errors.Join(err, g.remove(ctx)) }()
	end, err := g.ended(ctx)
	if err != nil {
		return sample{}, err
	}
	back, err := l.width(ctx, wide.round, all)
	if err != nil {
		return sample{}, err
	}
	first, err := g.firstStep(ctx)
	if err != nil {
		return sample{}, err
	}
	lost, repeated, err := l.losses(ctx, wide.round)
	return sample{firstStep: first, lentBack: back.at.Sub(end), lost: lost, repeated: repeated}, err
}

// figuresOf makes the figures of all runs.
func figuresOf(samples map[string][]sample) []figures.Figure {
	var made []figures.Figure
	for _, name := range []string{"idle", "reclaim", "preempt"} {
		made = append(made, figures.Durations(name+"_first_step", durations(samples[name], func(s sample) time.Duration { return s.firstStep }))...)
	}
	var lost, repeated int64
	for _, s := range samples["reclaim"] {
		lost += s.lost
		repeated += s.repeated
	}
	if len(samples["reclaim"]) > 0 {
		made = append(made,
			figures.Figure{Name: "reclaim_steps_lost", Value: float64(lost), Unit: "steps"},
			figures.Figure{Name: "reclaim_steps_made_again", Value: float64(repeated), Unit: "steps"})
	}
	return append(made, figures.Durations("lent_back", durations(samples["reclaim"], func(s sample) time.Duration { return s.lentBack }))...)
}

func durations(samples []sample, of func(sample) time.Duration) []time.Duration {
	var times []time.Duration
	for _, s := range samples {
		times = append(times, of(s))
	}
	return times
}
