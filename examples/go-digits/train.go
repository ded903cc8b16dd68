package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
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
	if s.samples > len(training) {
		return fmt.Errorf("--samples must be at most %d: there are no more images to train with", len(training))
	}
	if s.samples > 0 {
		training = training[:s.samples]
	}
	if err := stayAway(ctx, s.absent); err != nil {
		return err
	}
	if err := pause(ctx, s.startTime); err != nil {
		return err
	}
	net := model.New(s.seed)
	run, err := elastic.Join(ctx, elastic.Options{
		Samples: uint64(len(training)), Epochs: s.epochs,
		GlobalBatch: s.batch, MicroBatch: s.microBatch, Seed: s.seed,
		State: state(net, s.ballast),
	})
	if err != nil {
		return err
	}
	// Once per world.
	return run.Train(func(ctx context.Context, world elastic.World) error {
		peers, err := ring.Dial(ctx, world)
		if err != nil {
			return err
		}
		defer peers.Close()
		l := learner{
			settings: s, world: world, peers: peers, net: net, training: training, test: test,
			ledger: io.Discard, log: io.Discard, sums: make([]float64, model.Parameters+1),
		}
		if s.ledger {
			l.ledger = out
		}
		if world.Rank == 0 {
			l.log = out
		}
		fmt.Fprintf(l.log, "round %d: %d ranks, %d images to train with\n", world.Round, world.Size, len(training))
		for epoch := range run.Epochs(ctx) {
			if err := l.learn(ctx, run, epoch); err != nil {
				return err
			}
			if err := l.evaluate(ctx, run, int(epoch.Number())+1); err != nil {
				return err
			}
		}
		return run.Err()
	})
}

// state is all that a process needs to go on: the network and, to make snapshots larger, some bytes.
func state(net *model.Net, ballast int) elastic.State {
	if ballast == 0 {
		return elastic.Gob(net)
	}
	bytes := make([]byte, ballast)
	return elastic.Gob(net, &bytes)
}

// stayAway waits until ctx ends, or for ever, if this is the host that is to be absent.
func stayAway(ctx context.Context, absent string) error {
	if absent == "" {
		return nil
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("tell for --absent which host this is: %w", err)
	}
	if host != absent {
		return nil
	}
	// A timer keeps the runtime from taking the wait for a deadlock.
	for {
		if err := pause(ctx, time.Hour); err != nil {
			return err
		}
	}
}

// learner is one rank's part of the training in one world.
type learner struct {
	settings       settings
	world          elastic.World
	peers          *ring.Ring
	net            *model.Net
	training, test []digits.Image
	ledger, log    io.Writer
	// sums holds the gradient, and in one element more the loss: one all-reduce serves both.
	sums []float64
}

func (l *learner) learn(ctx context.Context, run *elastic.Run, epoch *elastic.Epoch) error {
	for step := range epoch.Steps(ctx) {
		begun := time.Now()
		if step.Number() == l.settings.failAtStep && l.world.Rank == 0 {
			return fmt.Errorf("failing in step %d, as --fail-at-step says", step.Number())
		}
		if step.Number() == l.settings.failEverywhereAtStep {
			return fmt.Errorf("failing in step %d, as --fail-everywhere-at-step says", step.Number())
		}
		samples := l.gradient(step)
		least := l.settings.stepTime + time.Duration(samples)*l.settings.sampleTime
		if from := l.settings.slowFrom; from > 0 && step.Number() >= from {
			least = l.settings.slowTime
		}
		if err := pause(ctx, least-time.Since(begun)); err != nil {
			return err
		}
		if err := l.peers.AllReduce(l.sums); err != nil {
			return fmt.Errorf("step %d: %w", step.Number(), err)
		}
		for i := range l.sums {
			l.sums[i] /= float64(l.world.Size)
		}
		step.BeginUpdate()
		l.net.Update(l.sums, l.settings.rate, l.settings.momentum)
		loss := l.sums[model.Parameters]
		if math.IsNaN(loss) || math.IsInf(loss, 0) {
			return fmt.Errorf("step %d: the loss is %v: try a smaller --rate", step.Number(), loss)
		}
		step.Report(loss)
		if step.Number()%l.settings.every == 0 || step.Number() == run.TotalSteps() {
			fmt.Fprintf(l.log, "step %d/%d loss %.9g\n", step.Number(), run.TotalSteps(), loss)
		}
	}
	return run.Err()
}

// pollEvery is how long a pause within an evaluation is: so long a change of the world waits.
const pollEvery = 10 * time.Millisecond

// evaluate says how well the network reads digits that it has not seen, after so many epochs.
func (l *learner) evaluate(ctx context.Context, run *elastic.Run, epochs int) error {
	last := epochs == l.settings.epochs
	if !last && (l.settings.evalEvery == 0 || epochs%l.settings.evalEvery != 0) {
		return nil
	}
	return run.Evaluate(func() (map[string]float64, error) {
		end := time.Now().Add(l.settings.evalTime)
		accuracy := l.net.Accuracy(l.test)
		for left := l.settings.evalTime; left > 0; left = time.Until(end) {
			if l.settings.poll {
				if err := run.Poll(ctx); err != nil {
					return nil, err
				}
			}
			if err := pause(ctx, min(left, pollEvery)); err != nil {
				return nil, err
			}
		}
		if last {
			fmt.Fprintf(l.log, "test accuracy %.4f\n", accuracy)
		} else {
			fmt.Fprintf(l.log, "epoch %d: test accuracy %.4f\n", epochs, accuracy)
		}
		return map[string]float64{"accuracy": accuracy}, nil
	})
}

// gradient puts this rank's weighted part of the gradient, and of the loss, into sums. The ledger
// comes before the sum over the ranks: a step that counts is in the ledger of every rank, and one
// that is in it may have been lost. It returns how many samples they are.
func (l *learner) gradient(step *elastic.Step) (samples int) {
	clear(l.sums)
	line := fmt.Appendf(nil, "ledger round=%d step=%d epoch=%d rank=%d ids=",
		l.world.Round, step.Number(), step.Epoch(), l.world.Rank)
	first := true
	for indices, weight := range step.MicroBatches() {
		scale := weight / float64(len(indices))
		for _, i := range indices {
			l.sums[model.Parameters] += scale * l.net.AddGradient(&l.training[i], scale, l.sums)
			if weight == 0 {
				continue // a filler
			}
			if !first {
				line = append(line, ',')
			}
			first = false
			samples++
			line = strconv.AppendUint(line, i, 10)
		}
	}
	_, _ = l.ledger.Write(append(line, '\n'))
	return samples
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
