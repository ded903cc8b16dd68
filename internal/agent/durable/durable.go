// Package durable is what the agent does about checkpoints in storage: it has the uploader beside it save the snapshot
// that the operator has chosen, and bring back the one that a first world is to begin with.
package durable

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/uploader"
)

// Save is a snapshot that is to be made durable, or what this worker does of that, and how many checkpoints to keep.
type Save struct {
	Snapshot checkpoint.Snapshot
	Keep     int
	// Put are the parts that it puts into the storage, Manifest all that there are, once they were put and this worker is to
	// write the manifest. Without either the snapshot is one file, which it makes durable by itself.
	Put, Manifest []checkpoint.Snapshot
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
	// Snapshot is what the worker holds now; nil when there is no checkpoint, or Why says what went wrong for good. Parts are
	// what it is made of; it has neither size nor hash then.
	Snapshot *checkpoint.Snapshot
	Parts    []checkpoint.Snapshot
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
	// Open opens files that are held, and Make makes one for a snapshot that is not yet.
	Open(ids ...checkpoint.ID) ([]*os.File, error)
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
	// Put are the parts of the last Save that were put.
	Put []checkpoint.Snapshot
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
	if save != nil && (len(k.state.Put) == 0 || k.state.Put[0].State() != save.Snapshot.State()) {
		k.state.Put = nil
	}
	if save != nil && !k.saving && !k.done(save) {
		k.saving = true
		k.work.Go(k.saveAll)
	}
	if restore != nil && restore.Number != k.asked {
		k.asked = restore.Number
		order := *restore
		k.work.Go(func() { k.restore(order) })
	}
}

// done says whether nothing of an order is left to do.
func (k *Keeper) done(save *Save) bool {
	if len(save.Put) > 0 && len(save.Manifest) == 0 {
		return len(k.left(save)) == 0
	}
	return k.state.Saved != nil && k.state.Saved.Snapshot == save.Snapshot
}

// left are the parts that are still to be put.
func (k *Keeper) left(save *Save) []checkpoint.Snapshot {
	return slices.DeleteFunc(slices.Clone(save.Put), func(part checkpoint.Snapshot) bool { return slices.Contains(k.state.Put, part) })
}

// saveAll saves what is wanted until nothing is.
func (k *Keeper) saveAll() {
	pause := k.pauses.First
	for {
		k.mu.Lock()
		if k.wanted == nil || k.done(k.wanted) || k.ctx.Err() != nil {
			k.saving = false
			k.mu.Unlock()
			return
		}
		order := *k.wanted
		k.mu.Unlock()
		path, err := k.carryOut(order)
		k.mu.Lock()
		if err != nil {
			k.state.Failure = err.Error()
		} else {
			k.state.Failure, pause = "", k.pauses.First
		}
		if path != "" {
			k.state.Saved = &Saved{order.Snapshot, path}
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

// carryOut does what an order asks for. The path is empty as long as that is not all of the checkpoint.
func (k *Keeper) carryOut(order Save) (path string, err error) {
	if len(order.Put) == 0 && len(order.Manifest) == 0 {
		return k.save(order)
	}
	if err := k.put(order); err != nil || len(order.Manifest) == 0 {
		return "", err
	}
	request := uploader.Request{Ask: uploader.AskFinish, Snapshot: uploader.SnapshotOf(order.Snapshot), Keep: order.Keep}
	for _, part := range order.Manifest {
		request.Parts = append(request.Parts, uploader.PartOf(part))
	}
	answer, err := uploader.Ask(k.ctx, k.socket, request)
	if err != nil {
		return "", err
	}
	return answer.Path, nil
}

// save makes a snapshot durable that is one file.
func (k *Keeper) save(order Save) (path string, err error) {
	files, err := k.holder.Open(order.Snapshot.ID)
	if err != nil {
		return "", err
	}
	defer func() { _ = files[0].Close() }()
	request := uploader.Request{Ask: uploader.AskSave, Snapshot: uploader.SnapshotOf(order.Snapshot), Keep: order.Keep}
	answer, err := uploader.Ask(k.ctx, k.socket, request, files[0])
	if err != nil {
		return "", err
	}
	return answer.Path, nil
}

// put puts what is left of an order's parts. All of them are opened first: what is held no more meanwhile can be read on.
func (k *Keeper) put(order Save) error {
	k.mu.Lock()
	parts := k.left(&order)
	k.mu.Unlock()
	ids := make([]checkpoint.ID, len(parts))
	for i := range parts {
		ids[i] = parts[i].ID
	}
	files, err := k.holder.Open(ids...)
	if err != nil {
		return err
	}
	defer func() {
		for _, file := range files {
			_ = file.Close()
		}
	}()
	for i, part := range parts {
		request := uploader.Request{Ask: uploader.AskPut, Snapshot: uploader.SnapshotOf(order.Snapshot), Parts: []uploader.Part{uploader.PartOf(part)}}
		if _, err := uploader.Ask(k.ctx, k.socket, request, files[i]); err != nil {
			return err
		}
		k.mu.Lock()
		if k.wanted == nil || k.wanted.Snapshot.State() == part.State() {
			k.state.Put = append(k.state.Put, part)
		}
		k.mu.Unlock()
		k.changed()
	}
	return nil
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
		asked := k.asked == order.Number
		if asked && pause >= k.pauses.First {
			k.state.Waiting = err.Error()
		}
		k.mu.Unlock()
		if !asked {
			return // another leader has asked since
		}
		k.changed()
		k.note("no checkpoint yet, trying again in %v: %s", pause, err.Error())
		k.wait(pause)
		if k.ctx.Err() != nil {
			return
		}
	}
}

// brought are files of a checkpoint that is being brought back, by their parts; the one of "" is for one that is one file.
type brought map[string]*os.File

// bring carries a restore out. Files of a checkpoint that turns out to be unusable, and all when nothing comes of it, are
// discarded.
func (k *Keeper) bring(order Restore) (_ Restored, err error) {
	file, err := k.holder.Make()
	if err != nil {
		return Restored{}, err
	}
	files, from := brought{"": file}, ""
	defer func() { k.discard(files) }()
	maker := func(path, part string) (*os.File, error) {
		if path != from {
			whole := files[""]
			delete(files, "")
			k.discard(files)
			files, from = brought{"": whole}, path
		}
		made, err := k.holder.Make()
		if err == nil {
			files[part] = made
		}
		return made, err
	}
	answer, err := uploader.AskForParts(k.ctx, k.socket, uploader.Request{Ask: uploader.AskRestore, Path: order.Path}, maker, file)
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
	if len(answer.Parts) == 0 {
		held, err := k.take(files, id, answer.Snapshot.Bytes)
		result.Snapshot = &held
		return result, err
	}
	result.Snapshot = &checkpoint.Snapshot{ID: id}
	for i := range answer.Parts {
		part := answer.Parts[i].Of(id)
		held, err := k.take(files, part.ID, part.Bytes)
		if err != nil {
			return Restored{}, err
		}
		if held != part {
			return Restored{}, fmt.Errorf("part %s of checkpoint %s came altered", part.Part, answer.Path)
		}
		result.Parts = append(result.Parts, held)
	}
	return result, nil
}

// take has a file that was brought be a snapshot, or a part of one.
func (k *Keeper) take(files brought, id checkpoint.ID, bytes uint64) (checkpoint.Snapshot, error) {
	file := files[id.Part]
	if file == nil {
		return checkpoint.Snapshot{}, fmt.Errorf("the uploader has brought no %v", id)
	}
	held, err := k.holder.Restored(id, filepath.Base(file.Name()), bytes)
	if err == nil {
		_ = file.Close()
		delete(files, id.Part)
	}
	return held, err
}

func (k *Keeper) discard(files brought) {
	for _, file := range files {
		_ = file.Close()
		k.holder.Discard(filepath.Base(file.Name()))
	}
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
