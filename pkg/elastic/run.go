package elastic

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
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
}

// Run is one process's part in a training. Its methods are for one goroutine, Report excepted.
type Run struct {
	shape samples.Shape
	slot  *gate.Slot
	phase gate.Phase

	world   func(context.Context) (World, error)
	ctx     context.Context
	trained bool

	rank, ranks int
	entered     uint64
	next        uint64
	err         error
	step        Step
	indices     []uint64

	mu       sync.Mutex
	agent    *agent
	metrics  map[string]float64
	lastSent time.Time
}

// Join makes this process part of the training that its environment describes. Errors: options out
// of range, an environment that makes no sense, an agent that does not answer within ten seconds or
// refuses (another process of the worker has the same LOCAL_RANK).
//
// ctx bounds the wait for the world; when it ends, Steps ends too.
func Join(ctx context.Context, options Options) (*Run, error) {
	shape := samples.Shape{
		Samples: options.Samples, Epochs: options.Epochs, GlobalBatch: options.GlobalBatch,
		MicroBatch: options.MicroBatch, Seed: options.Seed,
	}
	if err := shape.Check(); err != nil {
		return nil, fmt.Errorf("elastic.Options: %w", err)
	}
	r := &Run{shape: shape, ctx: ctx, next: 1, slot: gate.Private()}
	r.world = func(ctx context.Context) (World, error) { return worldFromEnvironment(ctx, os.Getenv) }
	if path := os.Getenv("CONCERTINA_SOCKET"); path != "" {
		localRank, err := countFrom(os.Getenv, "LOCAL_RANK", 0, maxRanks, "0")
		if err != nil {
			return nil, err
		}
		if r.agent, r.slot, err = dialAgent(ctx, path, localRank); err != nil {
			return nil, err
		}
		r.world = r.agent.join
	}
	r.setPhase(gate.PhaseForming)
	r.slot.SetLastStep(shape.Steps())
	return r, nil
}

// ErrTrained is returned by Train when it was called before.
var ErrTrained = errors.New("elastic: Train was called before on this Run")

// Train waits for the world and calls train in it, once. When train returns nil the training is
// over, and the operator is told so; any other error, and a panic, is reported as the fault that
// ends this process, unless the context of Join has ended. Train returns what train returned, and
// panics when it did.
//
// The context that train gets ends with that of Join.
func (r *Run) Train(train func(context.Context, World) error) (err error) {
	if r.trained {
		return ErrTrained
	}
	r.trained = true
	defer r.Close()
	world, err := r.world(r.ctx)
	if err != nil {
		return err
	}
	if world.MasterListener != nil {
		defer func() { _ = world.MasterListener.Close() }()
	}
	r.rank, r.ranks = world.Rank, world.Size
	r.agentDo(func(a *agent) { a.tell(wire.Progress{Type: wire.TypeProgress, TotalSteps: r.shape.Steps()}) })
	defer func() {
		if p := recover(); p != nil {
			r.fault(fmt.Sprintf("panic: %v\n\n%s", p, debug.Stack()))
			panic(p)
		}
	}()
	err = train(r.ctx, world)
	switch {
	case err == nil:
		r.finish()
	case r.ctx.Err() == nil:
		r.fault(err.Error())
	}
	return err
}

// Close leaves the training without having finished. It is only needed when Train is never called.
func (r *Run) Close() { r.agentDo((*agent).close) }

func (r *Run) agentDo(do func(*agent)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	do(r.agent)
}

func (r *Run) finish() {
	r.setPhase(gate.PhaseFinished)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sendMetrics()
	r.agent.tell(wire.Finished{Type: wire.TypeFinished})
}

func (r *Run) fault(message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sendMetrics()
	r.agent.tell(wire.Fault{
		Type: wire.TypeFault, Step: r.entered, Message: wire.TailOf(message, wire.MaxFault),
	})
}

// Phase is what a process is busy with outside of steps.
type Phase int

// The phases that a program can name; the others are known from Steps.
const (
	// Evaluating means that the model is tested.
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

// sendMetrics sends all metrics, those that did not change included. The lock is held.
func (r *Run) sendMetrics() {
	if len(r.metrics) == 0 {
		return
	}
	r.lastSent = time.Now()
	r.agent.tell(wire.Progress{Type: wire.TypeProgress, TotalSteps: r.shape.Steps(), Metrics: r.metrics})
}
