// Package start measures how long a training takes to its first step: as a TrainingJob, from its
// submission on, and beside it the same program in pods made by hand, which is as fast as it can be, and
// under stock torchrun, from the start of its agents on.
//
//	marks.go     when something happened, from what programs print
//	timeline.go  the phases of one start
//	job.go       one start as a TrainingJob
//	bare.go      one start in pods made by hand
//	torchrun.go  one start under torchrun
package start

import (
	"context"
	"fmt"
	"time"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/hack/bench/figures"
	"github.com/concertina-dev/concertina/hack/demo/kube"
)

const (
	// patience is how long one start may take.
	patience = 3 * time.Minute
	// workers is how many workers start together.
	workers = 2
)

// Bench measures on one cluster.
type Bench struct {
	Cluster kube.Cluster
	// Job is the TrainingJob that is measured; its image and settings are used for torchrun too.
	Job *v1alpha1.TrainingJob
	// Plain is the command under torchrun, a program that knows nothing of Concertina.
	Plain []string
	// Runs and TorchrunRuns say how often each way is measured, TorchrunRuns for torchrun with its
	// defaults, which takes long; both are at least 1. One more run of each warms the machine up
	// and does not count.
	Runs, TorchrunRuns int
	// Say tells the person who waits how far it is.
	Say func(format string, args ...any)
}

// Measure runs the whole bench. The ways take turns, so that what else the machine does meanwhile
// falls on all of them. What it starts in the cluster is gone when it returns, also after an error.
func (b Bench) Measure(ctx context.Context) ([]figures.Figure, error) {
	if b.Runs < 1 || b.TorchrunRuns < 1 {
		return nil, fmt.Errorf("%d and %d runs: at least one of each is needed", b.Runs, b.TorchrunRuns)
	}
	ways := []*way{
		{figure: "start", title: "TrainingJob", runs: b.Runs, once: func() (timeline, error) { return b.startJob(ctx) }},
		{figure: "bare", title: "pods made by hand", runs: b.Runs, once: func() (timeline, error) { return b.startBare(ctx) }},
		{figure: "torchrun", title: "torchrun", runs: b.TorchrunRuns, once: func() (timeline, error) { return b.startTorchrun(ctx) }},
		{figure: "torchrun_tuned", title: "torchrun, last_call_timeout=1", runs: b.Runs, once: func() (timeline, error) {
			return b.startTorchrun(ctx, "--rdzv-conf=last_call_timeout=1")
		}},
	}
	for run := range max(b.Runs, b.TorchrunRuns) + 1 {
		for _, w := range ways {
			if err := w.measure(run, b.Say); err != nil {
				return nil, err
			}
		}
	}
	var all []figures.Figure
	for _, w := range ways {
		all = append(all, phases(w.figure, w.measured)...)
	}
	return all, nil
}

// way is one way to start a training.
type way struct {
	// figure begins the names of its figures, title is for people.
	figure, title string
	// runs is how many starts count.
	runs     int
	once     func() (timeline, error)
	measured []timeline
}

// measure starts once; run 0 does not count, and there is nothing to do beyond the last.
func (w *way) measure(run int, say func(string, ...any)) error {
	if run > w.runs {
		return nil
	}
	t, err := w.once()
	switch {
	case err != nil:
		return fmt.Errorf("%s, run %d of %d: %w", w.title, run, w.runs, err)
	case run == 0:
		say("%s, warming up: %s", w.title, t)
	default:
		say("%s, run %d of %d: %s", w.title, run, w.runs, t)
		w.measured = append(w.measured, t)
	}
	return nil
}
