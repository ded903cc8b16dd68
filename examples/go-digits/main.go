// Command go-digits trains a small network to read handwritten digits, on as many ranks as it is
// started with, and says how well it reads digits that it has not seen.
//
// It shows what a Go training program needs: pkg/elastic for the world and the samples, and an
// all-reduce of its own (package ring). Under Concertina every worker runs it; on its own it is a
// world of one.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	settings, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "go-digits: %v\n", err)
		os.Exit(2)
	}
	if err := train(context.Background(), settings, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "go-digits: %v\n", err)
		os.Exit(1)
	}
}

// settings is what the flags say.
type settings struct {
	epochs, batch, microBatch int
	seed                      uint64
	rate, momentum            float64
	// stepTime is the least time that a step takes, startTime how long it takes before the program joins. sampleTime is added to the
	// former for each sample of the rank: so more ranks are faster, as with a device each.
	stepTime, startTime, sampleTime time.Duration
	// failAtStep is the step at which rank 0 fails, failEverywhereAtStep the one at which all ranks do; 0
	// for none.
	failAtStep, failEverywhereAtStep uint64
	// every says how many steps lie between two lines of output.
	every uint64
	// evalEvery is the number of epochs between two evaluations, 0 for one at the end; evalTime is
	// the least time that one takes, and poll lets the world change meanwhile.
	evalEvery int
	evalTime  time.Duration
	poll      bool
	// ledger has every rank write down the samples that it uses.
	ledger bool
	// samples is how many images are trained with, 0 for all; ballast how many bytes the state has more.
	samples, ballast int
	// slowFrom is the step from which on steps take slowTime; 0 for none.
	slowFrom uint64
	slowTime time.Duration
	// absent is the name of the host whose process never joins; empty for none.
	absent string
}

func parse(arguments []string) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("go-digits", flag.ExitOnError)
	flags.IntVar(&s.epochs, "epochs", 30, "how often the training set is gone through")
	flags.IntVar(&s.batch, "batch", 64, "samples in one step of all ranks together")
	flags.IntVar(&s.microBatch, "micro-batch", 0, "samples that a rank computes at a time; 0 for all of its part")
	flags.Uint64Var(&s.seed, "seed", 1, "seed of the weights and of the order of the samples")
	flags.Float64Var(&s.rate, "rate", 0.1, "learning rate")
	flags.Float64Var(&s.momentum, "momentum", 0.9, "momentum, 0 to less than 1")
	flags.DurationVar(&s.stepTime, "step-time", 0, "least time of a step, to make the training last")
	flags.DurationVar(&s.sampleTime, "sample-time", 0, "time that each of its samples adds to that on a rank, as a device of its own would take it")
	flags.Uint64Var(&s.slowFrom, "slow-from", 0, "step from which on steps take --slow-time; 0 for none")
	flags.DurationVar(&s.slowTime, "slow-time", 0, "least time of a step from --slow-from on")
	flags.DurationVar(&s.startTime, "start-time", 0, "time before the program joins the others, as imports take it")
	flags.Uint64Var(&s.failAtStep, "fail-at-step", 0, "step at which rank 0 fails; 0 for none")
	flags.Uint64Var(&s.failEverywhereAtStep, "fail-everywhere-at-step", 0, "step at which all ranks fail; 0 for none")
	flags.Uint64Var(&s.every, "log-every", 20, "steps between two lines of output")
	flags.IntVar(&s.evalEvery, "eval-every", 0, "epochs between two evaluations; 0 for one at the end")
	flags.DurationVar(&s.evalTime, "eval-time", 0, "least time of an evaluation")
	flags.BoolVar(&s.poll, "poll", true, "let the world change during an evaluation")
	flags.BoolVar(&s.ledger, "ledger", false, "every rank writes a line with the samples of each step")
	flags.IntVar(&s.samples, "samples", 0, "images to train with, the first ones; 0 for all")
	flags.IntVar(&s.ballast, "ballast", 0, "bytes by which the state, and every snapshot, is larger than it need be")
	flags.StringVar(&s.absent, "absent", "", "name of a host on which the program never joins")
	if err := flags.Parse(arguments); err != nil {
		return s, err
	}
	switch {
	case flags.NArg() > 0:
		return s, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case s.rate <= 0 || s.momentum < 0 || s.momentum >= 1:
		return s, fmt.Errorf("--rate must be above 0 and --momentum between 0 and 1")
	case s.stepTime < 0 || s.sampleTime < 0 || s.slowTime < 0 || s.startTime < 0 || s.every == 0:
		return s, fmt.Errorf("--step-time, --sample-time, --slow-time and --start-time must not be negative and --log-every not 0")
	case s.evalEvery < 0 || s.evalTime < 0:
		return s, fmt.Errorf("--eval-every and --eval-time must not be negative")
	case s.samples < 0 || s.ballast < 0:
		return s, fmt.Errorf("--samples and --ballast must not be negative")
	}
	return s, nil
}
