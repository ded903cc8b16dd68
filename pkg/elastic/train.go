package elastic

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/gate"
	"github.com/concertina-dev/concertina/internal/agent/wire"
)

// ErrTrained is returned by Train when it was called before.
var ErrTrained = errors.New("elastic: Train was called before on this Run")

// Train waits for a world and calls train in it, and again for every world that follows, with the
// state that this world begins with. What lives only as long as a world, such as connections to other
// ranks, is made in train; what lives longer is made before and belongs to Options.State.
//
// When train returns nil the training is over, and Train returns nil once all other ranks have
// finished too; when one of them is lost before that, train is called again. Any other error, and a
// panic, is told to the operator as a fault. When it was another rank's loss that caused it, train is
// called again in the next world; otherwise Train returns what train returned, and panics when it did.
//
// The context that train gets ends when the world does, or with that of Join: what train waits for
// has to end then, and context.Cause says why. What train returns after the end of its world, be it a
// panic, is no fault.
//
// Errors besides those of train: the context of Join has ended, or the agent has gone away while this
// process waited for it.
func (r *Run) Train(train func(context.Context, World) error) error {
	if r.trained {
		return ErrTrained
	}
	r.trained = true
	defer r.Close()
	if r.link == nil {
		return r.trainAlone(train)
	}
	r.keepInitial()
	r.link.say(wire.Join{Type: wire.TypeJoin})
	next, err := r.awaitWorld()
	if err != nil {
		return fmt.Errorf("join the world: %w", err)
	}
	r.link.tell(wire.Progress{Type: wire.TypeProgress, TotalSteps: r.shape.Steps()})
	for next != nil {
		if next, err = r.trainIn(next, train); err != nil {
			return err
		}
	}
	return nil
}

// trainAlone trains in the world of the environment, the only one.
func (r *Run) trainAlone(train func(context.Context, World) error) error {
	world, err := worldFromEnvironment(r.ctx, os.Getenv)
	if err != nil {
		return err
	}
	if world.MasterListener != nil {
		defer func() { _ = world.MasterListener.Close() }()
	}
	r.world = world
	r.beginShards(true)
	if err := train(r.ctx, world); err != nil {
		return err
	}
	r.setPhase(gate.PhaseFinished)
	return nil
}

// trainIn trains in one world, and returns the next; nil when there is none and the training is over.
func (r *Run) trainIn(a *arrival, train func(context.Context, World) error) (next *arrival, err error) {
	defer a.drop()
	if err := a.check(); err != nil {
		return nil, err
	}
	ctx, leave := context.WithCancelCause(r.ctx)
	defer leave(nil)
	r.world, r.err, r.arrived, r.leave = a.view(), nil, nil, leave
	r.writer = (a.Writer && r.state != nil || len(r.shards) > 0) && r.snaps.folder != ""
	r.worlds++
	r.setPhase(gate.PhaseForming)
	r.link.enter(a.Round, leave)
	defer r.link.exit()
	restored := r.restore(a)
	err = call(func() error {
		if restored != nil || ctx.Err() != nil {
			return restored
		}
		r.snaps.start(r.done(), time.Now())
		return train(ctx, r.world)
	}, func(failure error) (err error) {
		r.link.exit()
		over := ctx.Err() != nil
		leave(nil)
		next, err = r.outcome(over, failure)
		return err
	})
	return next, err
}

// panicked is a panic of the training function.
type panicked struct {
	value any
	stack []byte
}

func (p panicked) Error() string { return fmt.Sprintf("panic: %v\n\n%s", p.value, p.stack) }

// call calls do, and after with do's error or panic, and returns what after returns. When that is the
// panic it panics on, with the first one's stack below it.
func call(do func() error, after func(error) error) (err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		p := recover()
		if p == nil {
			return // the goroutine ends
		}
		if err = after(panicked{p, debug.Stack()}); errors.As(err, new(panicked)) {
			panic(p)
		}
	}()
	err = do()
	returned = true
	return after(err)
}

// outcome tells the agent how the training function has ended, and waits for what follows. over means
// that the world had ended before it.
func (r *Run) outcome(over bool, err error) (*arrival, error) {
	r.snaps.flush()
	switch {
	case r.arrived != nil:
		return r.arrived, nil
	case r.ctx.Err() != nil:
		// The end of a world is no reason to end for good.
		if err == nil || errors.Is(err, ErrWorldEnded) {
			err = context.Cause(r.ctx)
		}
		return nil, err
	case over:
		r.link.say(wire.Aborted{Type: wire.TypeAborted, Step: r.done(), Clean: !r.dirty})
		return r.awaitWorld()
	case err != nil:
		return r.fault(err)
	default:
		return r.finish()
	}
}

// awaitWorld waits for a world after the one that the process was in last.
func (r *Run) awaitWorld() (a *arrival, err error) {
	err = r.awaitAfter(&a, func(*inbox) bool { return false })
	return a, err
}

// awaitAfter waits for the world after the one that the process was in last, or a verdict. Meanwhile it saves
// the state that it has left its world with, for those that do not have it.
func (r *Run) awaitAfter(a **arrival, verdict func(*inbox) bool) error {
	for {
		save := false
		err := r.link.await(r.ctx, func(in *inbox) bool {
			*a = in.takeWorld(r.world.Round)
			save, in.save = in.save, false
			return save || *a != nil || verdict(in)
		})
		if err != nil || *a != nil || !save {
			return err
		}
		r.saveNow()
	}
}

// takeWorld takes the next world out of the inbox.
func (in *inbox) takeWorld(after uint64) *arrival {
	a := in.world
	if a == nil || a.Round <= after {
		return nil
	}
	in.world = nil
	return a
}

// fault reports an error, and returns it when it was this process's own.
func (r *Run) fault(failure error) (*arrival, error) {
	var a *arrival
	r.link.forgetVerdicts()
	r.sendLastMetrics()
	r.link.say(wire.Fault{
		Type: wire.TypeFault, Step: r.done(), Clean: !r.dirty, Message: wire.TailOf(failure.Error(), wire.MaxFault),
	})
	err := r.awaitAfter(&a, func(in *inbox) bool { return in.raise })
	if a != nil {
		return a, nil
	}
	if err != nil && r.ctx.Err() == nil {
		failure = fmt.Errorf("%w (%w)", failure, err)
	}
	return nil, failure
}

// finish says that the training is over, and waits until it is for all.
func (r *Run) finish() (*arrival, error) {
	var a *arrival
	r.setPhase(gate.PhaseFinished)
	r.link.forgetVerdicts()
	r.sendLastMetrics()
	r.link.say(wire.Finished{Type: wire.TypeFinished, Step: r.done(), Clean: !r.dirty})
	err := r.awaitAfter(&a, func(in *inbox) bool { return in.end })
	if a != nil {
		return a, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the training is finished here, and whether it is elsewhere is not known: %w", err)
	}
	return nil, nil
}

func (l *link) forgetVerdicts() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.in.raise, l.in.end = false, false
}

// park waits at the barrier. When it returns and r.err is nil the training goes on.
func (r *Run) park() {
	r.snaps.flush()
	r.link.say(wire.Parked{Type: wire.TypeParked, Step: r.done()})
	for r.err == nil {
		var save bool
		var over error
		err := r.link.await(r.ctx, func(in *inbox) bool {
			r.arrived = in.takeWorld(r.world.Round)
			over = in.over(r.world.Round)
			ready := in.save || in.look || r.arrived != nil || over != nil
			save, in.save, in.look = in.save, false, in.look && in.save
			return ready
		})
		switch stop := r.slot.Stop(); {
		case err != nil:
			r.err = err
		case r.arrived != nil:
			r.err = fmt.Errorf("%w: another follows", ErrWorldEnded)
			r.leave(r.err)
		case over != nil:
			r.err = over
		case save:
			r.saveNow()
		case stop == 0 || stop > r.done():
			return
		default:
			// Still, or again.
			r.link.say(wire.Parked{Type: wire.TypeParked, Step: r.done()})
		}
	}
}

func (r *Run) saveNow() {
	defer r.setPhase(r.phase)
	r.setPhase(gate.PhaseSaving)
	if r.dirty {
		r.link.say(failed(r.done(), errHalfStep))
		return
	}
	pieces, err := r.pieces(r.done())
	if err != nil {
		r.link.say(failed(r.done(), err))
		return
	}
	r.link.say(r.snaps.now(r.done(), pieces))
}

// keepInitial keeps the state that the program was started with, if it can be encoded.
func (r *Run) keepInitial() {
	if r.state == nil && len(r.shards) == 0 {
		r.initialErr = errNoState
		return
	}
	var copied bytes.Buffer
	if r.state != nil {
		r.initialErr = r.state.Save(&copied)
	}
	if r.initialErr == nil {
		r.initial = append([]byte{}, copied.Bytes()...)
	}
}

var errHalfStep = errors.New("the process is in the middle of a step")

// restore brings the process to the state that its world begins with.
func (r *Run) restore(a *arrival) error {
	if err := r.checkRanks(); err != nil {
		return err
	}
	// Loading may fail half-way.
	r.dirty = r.dirty || a.Restore || len(a.Shards) > 0
	if err := r.load(a); err != nil {
		return err
	}
	r.dirty = false
	r.next, r.entered = a.FromStep+1, a.FromStep
	if a.FromStep > 0 {
		r.initial = nil
	}
	r.slot.Rewind(a.FromStep, r.shape.Used(a.FromStep))
	return nil
}

func (r *Run) load(a *arrival) error {
	if a.FromStep > r.shape.Steps() {
		return fmt.Errorf("the world begins after step %d, and the training has %d", a.FromStep, r.shape.Steps())
	}
	if len(a.Shards) > 0 || len(r.shards) > 0 && a.FromStep > 0 {
		return r.loadShards(a)
	}
	r.beginShards(true)
	switch {
	case !a.Restore && a.FromStep != r.done():
		return fmt.Errorf("the world goes on after step %d with the state after step %d", a.FromStep, r.done())
	case !a.Restore && r.dirty:
		return fmt.Errorf("the world goes on after step %d, and this process has left its last one in the middle of the next", a.FromStep)
	case !a.Restore:
		return nil
	case a.Snapshot != "":
		if err := r.loadFile(a.Snapshot, a.FromStep); err != nil {
			return fmt.Errorf("load snapshot %s: %w", a.Snapshot, err)
		}
		return nil
	case a.FromStep > 0:
		return fmt.Errorf("the world begins after step %d, and there is no snapshot of it", a.FromStep)
	case r.initial != nil && r.worlds > 1 && r.state == nil:
		return nil
	case r.initial != nil && r.worlds > 1:
		return r.state.Load(bytes.NewReader(r.initial))
	case r.entered == 0:
		return nil // the state is still what it was
	default:
		return fmt.Errorf("the training begins anew, and the state that it began with is not kept: %w",
			cmp.Or(r.initialErr, errStepMade))
	}
}

var errStepMade = errors.New("a step has been made from it")

func (r *Run) loadFile(path string, step uint64) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return readSnapshot(file, headerOf(r.shape, step), r.state)
}
