// Package durable is what the agent does about checkpoints in storage: it has the uploader beside it save the snapshot
// that the operator has chosen, and bring back the one that a first world is to begin with.
package durable

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/uploader"
)

// Save is a snapshot that is to be made durable, and how many checkpoints to keep.
type Save struct {
	Snapshot checkpoint.Snapshot
	Keep     int
}

// Saved is the newest snapshot that this worker has made durable, and where it is.
type Saved struct {
	Snapshot checkpoint.Snapshot
	Path     string
}

// Restore asks for the newest checkpoint below a path of the storage; of this job when it is empty. A number is
// carried out once.
type Restore struct {
	Number uint64
	Path   string
}

// Restored is what has come of a Restore. Its zero value is nothing yet.
type Restored struct {
	Number uint64
	// Snapshot is what the worker holds now; nil when there is no checkpoint, or Why says what went wrong for good.
	Snapshot *checkpoint.Snapshot
	Path     string
	// Refused are newer checkpoints that could not be used, in words.
	Refused []string
	Why     string
}

// Pauses are the waits before what failed is tried again; they double from First to Last.
type Pauses struct{ First, Last time.Duration }

// DefaultPauses are those of a worker.
func DefaultPauses() Pauses { return Pauses{time.Second, 30 * time.Second} }

// Holder is the store of the worker's snapshots.
type Holder interface {
	// Open opens a snapshot that is held, and Make the file for one that is not yet.
	Open(id checkpoint.ID) (*os.File, error)
	Make() (*os.File, error)
	// Restored takes over a file of Make as a snapshot, Discard removes it.
	Restored(id checkpoint.ID, file string, bytes uint64) (checkpoint.Snapshot, error)
	Discard(file string)
}

// Keeper carries out the newest orders, one save and one restore at a time. Its methods return at once, but for Close.
type Keeper struct {
	// socket is that of the uploader.
	socket string
	holder Holder
	pauses Pauses
	note   func(format string, arguments ...any)
	// changed is called when State has changed.
	changed func()

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu sync.Mutex
	// wanted is what is to be saved; nil for nothing. saving is true while a save runs.
	wanted *Save
	saving bool
	state  State
	asked  uint64
}

// State is what is reported.
type State struct {
	// Saved is nil before the first.
	Saved *Saved
	// Failure is why the last save has not come to an end yet; empty for none.
	Failure  string
	Restored Restored
	// Waiting is why the last restore has not come to an end yet; empty for none.
	Waiting string
}

// New makes a Keeper that speaks to the uploader at a socket.
func New(socket string, holder Holder, pauses Pauses, note func(string, ...any), changed func()) *Keeper {
	k := &Keeper{socket: socket, holder: holder, pauses: pauses, note: note, changed: changed}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	return k
}

// Close breaks off what is under way.
func (k *Keeper) Close() error {
	k.mu.Lock()
	k.cancel()
	k.mu.Unlock()
	k.work.Wait()
	return nil
}

// State is what has come of the orders so far.
func (k *Keeper) State() State {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state
}

// Ask takes the orders of a directive: all that is wanted now. A save that runs goes on to its end also when another
// one is wanted by then: one that is broken off for ever never ends.
func (k *Keeper) Ask(save *Save, restore *Restore) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx.Err() != nil {
		return
	}
	k.wanted = save
	if save != nil && !k.saving && !k.saved(save) {
		k.saving = true
		k.work.Go(k.saveAll)
	}
	if restore != nil && restore.Number != k.asked {
		k.asked = restore.Number
		order := *restore
		k.work.Go(func() { k.restore(order) })
	}
}

func (k *Keeper) saved(save *Save) bool {
	return k.state.Saved != nil && k.state.Saved.Snapshot == save.Snapshot
}

// saveAll saves what is wanted until nothing is.
func (k *Keeper) saveAll() {
	pause := k.pauses.First
	for {
		k.mu.Lock()
		if k.wanted == nil || k.saved(k.wanted) || k.ctx.Err() != nil {
			k.saving = false
			k.mu.Unlock()
			return
		}
		order := *k.wanted
		k.mu.Unlock()
		path, err := k.save(order)
		k.mu.Lock()
		if err == nil {
			k.state.Saved, k.state.Failure = &Saved{order.Snapshot, path}, ""
			pause = k.pauses.First
		} else {
			k.state.Failure = err.Error()
		}
		k.mu.Unlock()
		k.changed()
		if err != nil {
			k.note("checkpoint of step %d is not durable, trying again in %v: %s", order.Snapshot.Step, pause, err.Error())
			k.wait(pause)
			pause = min(2*pause, k.pauses.Last)
		}
	}
}

func (k *Keeper) save(order Save) (path string, err error) {
	file, err := k.holder.Open(order.Snapshot.ID)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	answer, err := uploader.Ask(k.ctx, k.socket, uploader.Request{
		Ask: uploader.AskSave, Snapshot: uploader.SnapshotOf(order.Snapshot), Keep: order.Keep,
	}, file)
	if err != nil {
		return "", err
	}
	return answer.Path, nil
}

// restore carries one order out, as often as it takes. The uploader may be a moment later than the agent: that keeps nobody
// waiting for long, and is nothing to tell.
func (k *Keeper) restore(order Restore) {
	for pause := k.pauses.First / 16; ; pause = min(2*pause, k.pauses.Last) {
		result, err := k.bring(order)
		if err == nil || !errors.Is(err, uploader.ErrPassing) {
			if err != nil {
				result = Restored{Number: order.Number, Why: err.Error()}
			}
			k.mu.Lock()
			if k.asked == order.Number {
				k.state.Restored, k.state.Waiting = result, ""
			}
			k.mu.Unlock()
			k.changed()
			return
		}
		k.mu.Lock()
		if k.asked == order.Number && pause >= k.pauses.First {
			k.state.Waiting = err.Error()
		}
		k.mu.Unlock()
		k.changed()
		k.note("no checkpoint yet, trying again in %v: %s", pause, err.Error())
		k.wait(pause)
		if k.ctx.Err() != nil {
			return
		}
	}
}

func (k *Keeper) bring(order Restore) (_ Restored, err error) {
	file, err := k.holder.Make()
	if err != nil {
		return Restored{}, err
	}
	name := filepath.Base(file.Name())
	taken := false
	defer func() {
		_ = file.Close()
		if !taken {
			k.holder.Discard(name)
		}
	}()
	answer, err := uploader.Ask(k.ctx, k.socket, uploader.Request{Ask: uploader.AskRestore, Path: order.Path}, file)
	if err != nil {
		return Restored{}, err
	}
	result := Restored{Number: order.Number, Path: answer.Path, Refused: answer.Refused}
	if answer.Snapshot == nil {
		return result, nil
	}
	id := answer.Snapshot.Snapshot().ID
	if !answer.Own {
		// Its round is one of another job.
		id.Round = 0
	}
	held, err := k.holder.Restored(id, name, answer.Snapshot.Bytes)
	if err != nil {
		return Restored{}, err
	}
	taken, result.Snapshot = true, &held
	return result, nil
}

// wait waits, at most until the end.
func (k *Keeper) wait(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-k.ctx.Done():
	case <-timer.C:
	}
}
