package elastic_test

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/pkg/elastic"
)

// BenchmarkGate is the cost of the gate: entering and leaving one step, on a page that is shared
// with an agent, in a process that writes snapshots. The aim is at most 100 ns. What it reports is the
// median over pieces of 1000 steps: they are shorter than a time slice, so that other work on the
// machine counts as little as it can.
func BenchmarkGate(b *testing.B) {
	const piece = 1000
	a := begin(b)
	run, p := a.join(context.Background(), elastic.Options{
		Samples: 1 << 40, Epochs: math.MaxInt16, GlobalBatch: 128, Seed: 1, State: elastic.Gob(&counter{}),
	})
	training := goTrain(b, run, func(ctx context.Context, _ elastic.World) error {
		b.ResetTimer()
		steps, begun := 0, time.Now()
		var pieces []float64
		for range run.Steps(ctx) {
			if steps++; steps%piece == 0 || steps == b.N {
				now := time.Now()
				pieces = append(pieces, float64(now.Sub(begun).Nanoseconds())/float64((steps-1)%piece+1))
				begun = now
			}
			if steps == b.N {
				break
			}
		}
		b.StopTimer()
		slices.Sort(pieces)
		b.ReportMetric(pieces[len(pieces)/2], "ns/op")
		return run.Err()
	})
	p.expects(wire.Join{Type: wire.TypeJoin})
	// A writer of snapshots, but none is due.
	p.world(wire.World{Round: 1, Restore: true, Writer: true})
	for message := p.hears(); ; message = p.hears() {
		if _, over := message.(wire.Finished); over {
			break
		}
		if _, first := message.(wire.Snapshot); !first {
			b.Fatalf("the program says %+v", message)
		}
	}
	p.says(wire.End{Type: wire.TypeEnd})
	if err := training.ends(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkMicroBatch is the cost of dealing out one sample.
func BenchmarkMicroBatch(b *testing.B) {
	environment(b, nil)
	const batch = 1024
	run := join(b, elastic.Options{Samples: 1<<40 - 1, Epochs: 1, GlobalBatch: batch, Seed: 1})
	err := run.Train(func(ctx context.Context, _ elastic.World) error {
		b.ResetTimer()
		dealt := 0
		for step := range run.Steps(ctx) {
			for indices := range step.MicroBatches() {
				dealt += len(indices)
			}
			if dealt >= b.N {
				break
			}
		}
		b.StopTimer()
		return run.Err()
	})
	if err != nil {
		b.Fatal(err)
	}
}
