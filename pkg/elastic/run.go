package elastic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/gate"
	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/pkg/elastic/samples"
)

// Options says what the training does with its data set.
type Options struct {
	// Samples is the number of samples in the training set, 1 to 2^62.
	Samples uint64
	// Epochs is how often the training set is gone through, at least 1.
	Epochs int
	// GlobalBatch is the number of samples in one step of all ranks together, 1 to 2^31. It does
	// not depend on the number of ranks, and need not divide by it.
	GlobalBatch int
	// MicroBatch is the largest number of samples that a rank computes at a time, 1 to 2^31. 0
	// means all of its part of a step at once.
	MicroBatch int
	// Seed selects the order of the samples.
	Seed uint64
	// State is what a process needs to go on from a snapshot: one that joins later, and after a loss
	// everyone. It is in memory twice until the first step is done, and where snapshots are written.
	// Without State a world can only become smaller, and a loss after the first step ends the job.
	State State
	// Shards are what each rank has only its own interval of, such as an optimizer's moments, or the parameters of a model that
	// is too large for one. When the number of ranks changes each gets another interval, from a snapshot that all have written.
	// After a loss all go back to one, whatever BeginUpdate says: what the lost rank had is nowhere else. Snapshots hold at most
	// 128 ranks.
	Shards []Shard
}

// Run is one process's part in a training. Its methods are for one goroutine, Report excepted.
type Run struct {
	shape  samples.Shape
	state  State
	shards []Shard
	slot   *gate.Slot
	phase  gate.Phase
	ctx    context.Context
	link   *link
	snaps  snapshots
	// best is the metric by which the job keeps its best checkpoints; empty for none.
	best string
	// scored is the step after which the state has last had a value of that; zero for none yet.
	scored uint64

	trained bool
	// initial is the state that the program was started with, until a step has been made from it.
	initial    []byte
	initialErr error

	// worlds counts those that the process was in. What follows is of the one it is in.
	worlds int
	world  World
	// writer is true in a process that writes snapshots: one on every node, two where all are on one.
	writer bool
	// next is the step to make, entered the last that was begun.
	next, entered uint64
	// dirty is true while the state may be another than the one after the last step that was done. marked is
	// true once the program has said where in a step it changes the state.
	dirty, marked bool
	// arrived is the next world, when the process has left its own at the barrier for it.
	arrived *arrival
	// leave ends the context of the training function.
	leave context.CancelCauseFunc
	err   error

	step    Step
	indices []uint64

	mu       sync.Mutex
	metrics  map[string]float64
	lastSent time.Time
}

// Join makes this process part of the training that its environment describes. Errors: options out
// of range, an environment that makes no sense, an agent that does not answer within ten seconds or
// refuses (another process of the worker has the same LOCAL_RANK).
//
// ctx bounds the whole training: when it ends, Steps and every wait end too.
func Join(ctx context.Context, options Options) (*Run, error) {
	shape := samples.Shape{
		Samples: options.Samples, Epochs: options.Epochs, GlobalBatch: options.GlobalBatch,
		MicroBatch: options.MicroBatch, Seed: options.Seed,
	}
	if err := shape.Check(); err != nil {
		return nil, fmt.Errorf("elastic.Options: %w", err)
	}
	if err := checkShards(options.Shards); err != nil {
		return nil, fmt.Errorf("elastic.Options: %w", err)
	}
	r := &Run{shape: shape, state: options.State, shards: options.Shards, ctx: ctx, next: 1, slot: gate.Private()}
	if path := os.Getenv("CONCERTINA_SOCKET"); path != "" {
		if err := r.connect(ctx, path); err != nil {
			return nil, err
		}
	}
	r.setPhase(gate.PhaseForming)
	r.slot.SetLastStep(shape.Steps())
	return r, nil
}

func (r *Run) connect(ctx context.Context, path string) error {
	localRank, err := countFrom(os.Getenv, "LOCAL_RANK", 0, maxRanks, "0")
	if err != nil {
		return err
	}
	l, welcome, slot, err := dialAgent(ctx, path, wire.Hello{LocalRank: localRank, Sharded: len(r.shards) > 0})
	if err != nil {
		return err
	}
	if len(r.shards) > 0 && !welcome.Sharded {
		l.close()
		return errors.New("the agent knows no state in shards: Options.Shards needs one of a newer version")
	}
	interval, err := parseInterval(welcome.Interval)
	if err != nil {
		l.close()
		return err
	}
	r.link, r.slot = l, slot
	r.snaps.folder, r.snaps.interval, r.best = welcome.Snapshots, interval, welcome.Best
	return nil
}

// Close leaves the training without having finished. It is only needed when Train is never called.
func (r *Run) Close() {
	r.snaps.end()
	r.link.close()
}

// Phase is what a process is busy with outside of steps.
type Phase int

// The phases that a program can name; the others are known from Steps.
const (
	// Evaluating means that the model is tested, as in Evaluate.
	Evaluating Phase = iota
	// Saving means that state is written somewhere.
	Saving
)

// During tells the operator what the process is busy with while do runs, and returns do's error.
func (r *Run) During(phase Phase, do func() error) error {
	busy := gate.PhaseEval
	if phase == Saving {
		busy = gate.PhaseSaving
	}
	defer r.setPhase(r.phase)
	r.setPhase(busy)
	return do()
}

// Poll lets the world change during something long: evaluation, start-up, saving. It is called by the
// goroutine that trains, in Train, and costs one look at memory. When the operator wants the world to
// change, Poll waits; when another world follows it returns an error that is ErrWorldEnded, which
// train returns like any other. It returns the cause when ctx has ended.
//
// In the body of a step Poll does not wait: that step has to be done first.
func (r *Run) Poll(ctx context.Context) error {
	for r.err == nil && ctx.Err() == nil {
		stop := r.slot.Stop()
		if stop == 0 || stop > r.done() {
			return nil
		}
		r.park()
	}
	return cmp.Or(r.err, context.Cause(ctx))
}

// Report shows numbers to whoever watches the job: up to 8, with names of 1 to 32 letters, digits
// or _. Numbers of the same name replace each other. They are sent at most once a second, the last
// ones at the end; the operator shows those of rank 0. Errors: a name or a number out of bounds,
// or too many names; nothing of such a call is sent. Report may be called from any goroutine.
func (r *Run) Report(metrics map[string]float64) error {
	for name, value := range metrics {
		if err := wire.CheckMetric(name, value); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	fresh := 0
	for name := range metrics {
		if _, known := r.metrics[name]; !known {
			fresh++
		}
	}
	if len(r.metrics)+fresh > wire.MaxMetrics {
		return fmt.Errorf("%d metrics are reported: at most %d can be", len(r.metrics)+fresh, wire.MaxMetrics)
	}
	if r.metrics == nil {
		r.metrics = map[string]float64{}
	}
	for name, value := range metrics {
		r.metrics[name] = value
	}
	if time.Since(r.lastSent) >= time.Second {
		r.sendMetrics()
	}
	return nil
}

func (r *Run) sendLastMetrics() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sendMetrics()
}

// sendMetrics sends all metrics, those that did not change included. The lock is held.
func (r *Run) sendMetrics() {
	if len(r.metrics) == 0 {
		return
	}
	r.lastSent = time.Now()
	r.link.tell(wire.Progress{Type: wire.TypeProgress, TotalSteps: r.shape.Steps(), Metrics: r.metrics})
}
