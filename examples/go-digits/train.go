package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/concertina-dev/concertina/examples/go-digits/digits"
	"github.com/concertina-dev/concertina/examples/go-digits/model"
	"github.com/concertina-dev/concertina/examples/go-digits/ring"
	"github.com/concertina-dev/concertina/pkg/elastic"
)

// train is the whole program of one rank.
func train(ctx context.Context, s settings, out io.Writer) error {
	training, test, err := digits.Load()
	if err != nil {
		return err
	}
	run, err := elastic.Join(ctx, elastic.Options{
		Samples: uint64(len(training)), Epochs: s.epochs,
		GlobalBatch: s.batch, MicroBatch: s.microBatch, Seed: s.seed,
	})
	if err != nil {
		return err
	}
	return run.Train(func(ctx context.Context, world elastic.World) error {
		peers, err := ring.Dial(ctx, world)
		if err != nil {
			return err
		}
		defer peers.Close()
		if world.Rank != 0 {
			out = io.Discard
		}
		fmt.Fprintf(out, "round %d: %d ranks, %d images to train with\n", world.Round, world.Size, len(training))
		net := model.New(s.seed)
		learner := learner{settings: s, world: world, peers: peers, net: net, images: training}
		if err := learner.learn(ctx, run, out); err != nil {
			return err
		}
		return run.During(elastic.Evaluating, func() error {
			accuracy := net.Accuracy(test)
			fmt.Fprintf(out, "test accuracy %.4f\n", accuracy)
			return run.Report(map[string]float64{"accuracy": accuracy})
		})
	})
}

// learner is one rank's part of the training.
type learner struct {
	settings settings
	world    elastic.World
	peers    *ring.Ring
	net      *model.Net
	images   []digits.Image
	// sums holds the gradient, and in one element more the loss: one all-reduce serves both.
	sums []float64
}

func (l *learner) learn(ctx context.Context, run *elastic.Run, out io.Writer) error {
	l.sums = make([]float64, model.Parameters+1)
	for step := range run.Steps(ctx) {
		begun := time.Now()
		if step.Number() == l.settings.failAtStep && l.world.Rank == 0 {
			return fmt.Errorf("failing in step %d, as --fail-at-step says", step.Number())
		}
		l.gradient(step)
		if err := l.peers.AllReduce(l.sums); err != nil {
			return fmt.Errorf("step %d: %w", step.Number(), err)
		}
		for i := range l.sums {
			l.sums[i] /= float64(l.world.Size)
		}
		l.net.Update(l.sums, l.settings.rate, l.settings.momentum)
		loss := l.sums[model.Parameters]
		if math.IsNaN(loss) || math.IsInf(loss, 0) {
			return fmt.Errorf("step %d: the loss is %v: try a smaller --rate", step.Number(), loss)
		}
		step.Report(loss)
		if step.Number()%l.settings.every == 0 || step.Number() == run.TotalSteps() {
			fmt.Fprintf(out, "step %d/%d loss %.6f\n", step.Number(), run.TotalSteps(), loss)
		}
		if err := pause(ctx, l.settings.stepTime-time.Since(begun)); err != nil {
			return err
		}
	}
	return run.Err()
}

// gradient puts this rank's weighted part of the gradient, and of the loss, into sums.
func (l *learner) gradient(step *elastic.Step) {
	clear(l.sums)
	for indices, weight := range step.MicroBatches() {
		scale := weight / float64(len(indices))
		for _, i := range indices {
			l.sums[model.Parameters] += scale * l.net.AddGradient(&l.images[i], scale, l.sums)
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
