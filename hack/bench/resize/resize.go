// Package resize measures how long a training stands still when its world changes: as a TrainingJob,
// and beside it under stock torchrun, with the same model and the same amount of state.
//
//	stamps.go    what the programs say about their own steps
//	job.go       the changes of one TrainingJob
//	torchrun.go  those of a torchrun
package resize

import (
	"context"
	"fmt"
	"time"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/hack/bench/figures"
	"github.com/concertina-dev/concertina/hack/demo/kube"
)

const (
	// small and large are the sizes between which worlds change.
	small, large = 2, 3
	// stateMiB is how much state there is at least.
	stateMiB = 100
	// patience is how long one change may take, newcomers' start included.
	patience = 3 * time.Minute
	// between is how many steps a world makes before it is changed.
	between = 20
)

// Bench measures on the local cluster, whose processes it reaches.
type Bench struct {
	Cluster kube.Cluster
	// Job is the TrainingJob that is measured; its image and settings are used for torchrun too.
	Job *v1alpha1.TrainingJob
	// Twin is the program that torchrun runs: the same training without Concertina.
	Twin []string
	// Runs is how many changes of each kind are made, TunedRuns and TorchrunRuns the same under
	// torchrun, tuned and with its defaults; all at least 1.
	Runs, TunedRuns, TorchrunRuns int
	// Say tells the person who waits how far it is.
	Say func(format string, args ...any)
}

// sample is one change.
type sample struct {
	pause time.Duration
	lost  uint64
	// small is how long ago, when a world of all ranks begins, the last one of as many had ended.
	small time.Duration
}

// samples are changes by kind: grow, shrink, recovery_exit, recovery_exit_full, recovery_silence, recovery.
type samples map[string][]sample

// Measure runs the whole bench. What it starts in the cluster is gone when it returns, also after an
// error.
func (b Bench) Measure(ctx context.Context) ([]figures.Figure, error) {
	if b.Runs < 1 || b.TunedRuns < 1 || b.TorchrunRuns < 1 {
		return nil, fmt.Errorf("%d, %d and %d runs: at least one of each is needed", b.Runs, b.TunedRuns, b.TorchrunRuns)
	}
	ours, err := b.measureJob(ctx)
	if err != nil {
		return nil, err
	}
	all := figuresOf(ours)
	tuned, err := b.measureTorchrun(ctx, b.TunedRuns, "--rdzv-conf=last_call_timeout=1")
	if err != nil {
		return nil, err
	}
	plain, err := b.measureTorchrun(ctx, b.TorchrunRuns)
	if err != nil {
		return nil, err
	}
	for _, kind := range []string{"grow", "recovery"} {
		all = append(all, figures.Durations("torchrun_"+kind+"_pause", pauses(plain[kind]))...)
		all = append(all, figures.Durations("torchrun_tuned_"+kind+"_pause", pauses(tuned[kind]))...)
	}
	return all, nil
}

func figuresOf(ours samples) []figures.Figure {
	var all []figures.Figure
	for _, kind := range []string{"grow", "shrink", "recovery_exit", "recovery_silence"} {
		all = append(all, figures.Durations(kind+"_pause", pauses(ours[kind]))...)
	}
	var small []time.Duration
	for _, s := range ours["recovery_exit_full"] {
		small = append(small, s.small)
	}
	all = append(all, figures.Durations("recovery_exit_full", small)...)
	var planned, recovered []time.Duration
	var sum uint64
	for _, kind := range []string{"grow", "shrink"} {
		for _, s := range ours[kind] {
			sum += s.lost
			planned = append(planned, s.pause)
		}
	}
	for _, kind := range []string{"recovery_exit", "recovery_silence"} {
		for _, s := range ours[kind] {
			recovered = append(recovered, time.Duration(s.lost))
		}
	}
	if len(planned) > 0 {
		all = append(all, figures.Figure{Name: "planned_steps_lost", Value: float64(sum), Unit: "steps"})
	}
	if len(recovered) > 0 {
		all = append(all, figures.Figure{Name: "recovery_steps_lost_p50", Value: float64(figures.Median(recovered)), Unit: "steps"})
	}
	return all
}

func pauses(all []sample) []time.Duration {
	var pauses []time.Duration
	for _, s := range all {
		pauses = append(pauses, s.pause)
	}
	return pauses
}
