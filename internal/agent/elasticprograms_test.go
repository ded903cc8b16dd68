package agent_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/concertina-dev/concertina/examples/go-digits/ring"
	"github.com/concertina-dev/concertina/pkg/elastic"
)

// train is a program with the SDK: it proves that the master listener works, does two of three
// steps, and goes on to the end when SIGUSR1 comes.
func train() int {
	stop := signalled(syscall.SIGUSR1)
	run, err := elastic.Join(context.Background(), options)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	err = run.Train(func(ctx context.Context, w elastic.World) error {
		if err := answerOne(w); err != nil {
			return err
		}
		for step := range run.Steps(ctx) {
			step.Report(1 / float64(step.Number()))
			if step.Number() == 3 {
				write("ready", fmt.Sprintf("rank %d of %d in round %d", w.Rank, w.Size, w.Round))
				wait(stop)
			}
		}
		return run.Err()
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func answerOne(w elastic.World) error {
	if w.MasterListener == nil {
		return errors.New("rank 0 has no master listener")
	}
	conn, err := net.Dial("tcp", w.MasterAddress)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	accepted, err := w.MasterListener.Accept()
	if err != nil {
		return err
	}
	return accepted.Close()
}

// fault fails in its second step.
func fault() int {
	run, err := elastic.Join(context.Background(), options)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	err = run.Train(func(ctx context.Context, _ elastic.World) error {
		for step := range run.Steps(ctx) {
			if step.Number() == 2 {
				return errors.New("the loss is not a number")
			}
		}
		return run.Err()
	})
	if err != nil {
		return 3
	}
	return 0
}

// counts makes 400 steps of two milliseconds, in whatever worlds there are, and fails when a step is
// missing in its state in the end, or was made twice. It writes down how long it stood still before each world.
func counts() int {
	var made []uint64
	var ended time.Time
	o := options
	o.Samples, o.State = 1600, elastic.Gob(&made)
	run, err := elastic.Join(context.Background(), o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	err = run.Train(func(ctx context.Context, w elastic.World) error {
		all, err := ring.Dial(ctx, w)
		if err != nil {
			return err
		}
		defer all.Close()
		first := !ended.IsZero()
		for step := range run.Steps(ctx) {
			if first {
				addLine("pauses", fmt.Sprint(w.Round, " ", time.Since(ended).Nanoseconds()))
				first = false
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(2 * time.Millisecond):
			}
			// A step takes all ranks.
			if err := all.AllReduce([]float64{1}); err != nil {
				return err
			}
			step.BeginUpdate()
			made, ended = append(made, step.Number()), time.Now()
		}
		return run.Err()
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	if len(made) != 400 {
		return 4
	}
	for i, step := range made {
		if step != uint64(i+1) {
			return 5
		}
	}
	return 0
}
