package durable

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/share"
	"github.com/concertina-dev/concertina/internal/uploader"
)

// restoreAll carries the newest order out until it is.
func (k *Keeper) restoreAll() {
	for {
		k.mu.Lock()
		order := k.asked
		if order.Number == 0 || order.Number == k.state.Restored.Number || k.ctx.Err() != nil {
			told := k.state.Waiting != ""
			k.restoring, k.state.Waiting = nil, ""
			k.mu.Unlock()
			if told {
				k.changed()
			}
			return
		}
		ctx, cancel := context.WithCancel(k.ctx)
		k.restoring = &bringing{order, cancel}
		k.mu.Unlock()
		k.restore(ctx, order)
		cancel()
	}
}

// restore carries one order out, as often as it takes, until it gives way to another one. The uploader may be a moment later
// than the agent: that keeps nobody waiting for long, and is nothing to tell.
func (k *Keeper) restore(ctx context.Context, order Restore) {
	patience := quietTries * k.pauses.Quiet
	for pause := k.pauses.First / 16; ; pause, patience = min(2*pause, k.pauses.Last), min(2*patience, longest) {
		result, err := k.bring(ctx, order, patience)
		k.mu.Lock()
		if ctx.Err() != nil {
			k.mu.Unlock()
			if result.Snapshot != nil {
				k.forget(result.ids()...)
			}
			return
		}
		passes := errors.Is(err, uploader.ErrPassing)
		switch {
		case err == nil:
		case !passes:
			result = Restored{Why: err.Error()}
		case pause >= k.pauses.First:
			k.state.Waiting = err.Error()
		}
		if !passes {
			result.Number = k.asked.Number // for the same: another one would have ended this
			k.state.Restored, k.state.Waiting = result, ""
		}
		k.mu.Unlock()
		k.changed()
		if !passes {
			return
		}
		k.note("no checkpoint yet, trying again in %v: %s", pause, err.Error())
		k.wait(ctx, pause)
	}
}

// ids are what was taken over.
func (r *Restored) ids() []checkpoint.ID {
	ids := []checkpoint.ID{r.Snapshot.ID}
	for _, part := range r.Parts {
		ids = append(ids, part.ID)
	}
	return ids
}

// forget lets go of what a restore has taken that nobody wants any more. When a world begins it stays: the world may load the same
// state, and relies on what it has found here; what it does not need goes with its next snapshots.
func (k *Keeper) forget(ids ...checkpoint.ID) {
	k.mu.Lock()
	begun := k.asked.Number == 0
	k.mu.Unlock()
	if !begun {
		k.holder.Forget(ids...)
	}
}

// leave lets go of what was brought of a checkpoint that cannot be used, as others have found: it has no room beside the next one.
func (k *Keeper) leave(order *Restore) {
	k.mu.Lock()
	before := k.portion
	gone := before.Snapshot != nil && (slices.Contains(order.Without, before.Path) || len(order.Parts) > 0 && order.Path != before.Path)
	if gone {
		k.portion = Restored{}
	}
	k.mu.Unlock()
	if gone {
		k.forget(before.ids()...)
	}
}

// keep notes what was brought of a checkpoint in parts.
func (k *Keeper) keep(now *Restored) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.portion.Path != now.Path {
		k.portion = Restored{Path: now.Path, Snapshot: now.Snapshot}
	}
	k.portion.Parts = append(k.portion.Parts, now.Parts...)
}

// brought are files of a checkpoint that is being brought back, by their parts; the one of "" is for one that is one file.
type brought map[string]*os.File

// bring carries a restore out. Files of a checkpoint that turns out to be unusable, and all when nothing comes of it, are
// discarded. A request of which nothing has come for longer than patience is broken off.
func (k *Keeper) bring(ctx context.Context, order Restore, patience time.Duration) (_ Restored, err error) {
	k.leave(&order)
	request := uploader.Request{Ask: uploader.AskRestore, Path: order.Path, Apart: order.Apart, Without: order.Without}
	here := Restored{Path: order.Path}
	for _, part := range order.Parts {
		if k.holder.Has(part) {
			here.Parts = append(here.Parts, part)
		} else {
			request.Parts = append(request.Parts, uploader.PartOf(part))
		}
	}
	if len(here.Parts) > 0 && len(request.Parts) == 0 {
		here.Snapshot = &checkpoint.Snapshot{ID: here.Parts[0].State()}
		return here, nil
	}
	file, err := k.holder.Make()
	if err != nil {
		return Restored{}, err
	}
	files, from := brought{"": file}, ""
	defer func() { k.discard(files) }()
	var last *os.File
	heard := k.listen(ctx, patience)
	heard.from(file)
	maker := func(path, part string) (_ *os.File, err error) {
		if path != from {
			whole := files[""]
			delete(files, "")
			k.discard(files)
			files, from = brought{"": whole}, path
		}
		if last != nil {
			_ = last.Close() // the uploader asks for the next when this one has come: there may be hundreds
		}
		last, err = k.holder.Make()
		if err == nil {
			files[part] = last
			heard.from(last)
		}
		return last, err
	}
	answer, err := uploader.AskForParts(heard.ctx, k.socket, request, maker, k.measured, file)
	if heard.ctx.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: nothing has come from the storage for %s, and no error", uploader.ErrPassing, patience)
	}
	heard.stop()
	if err != nil {
		return Restored{}, err
	}
	return k.takeOver(ctx, &order, here.Parts, answer, files)
}

// takeOver takes over what the uploader has brought, beside the parts that were here; nothing of it when one part is not what it should be.
func (k *Keeper) takeOver(ctx context.Context, order *Restore, here []checkpoint.Snapshot, answer *uploader.Answer, files brought) (_ Restored, err error) {
	result := Restored{Path: answer.Path, Refused: answer.Refused}
	var taken []checkpoint.ID
	defer func() {
		if err != nil {
			k.forget(taken...)
		}
	}()
	if answer.Snapshot == nil {
		if len(order.Parts) > 0 {
			result.Path = order.Path // nothing is said of others
		}
		return result, nil
	}
	id := answer.Snapshot.Snapshot().ID
	if !answer.Own {
		// Its round is one of another job.
		id.Round = 0
	}
	if len(answer.Parts)+len(answer.Of) == 0 {
		held, err := k.take(ctx, files, id, answer.Snapshot.Bytes)
		result.Snapshot = &held
		return result, err
	}
	result.Snapshot, result.Parts = &checkpoint.Snapshot{ID: id}, here
	for i := range answer.Parts {
		part := answer.Parts[i].Of(id)
		held, err := k.take(ctx, files, part.ID, part.Bytes)
		if err != nil {
			return Restored{}, err
		}
		taken = append(taken, part.ID)
		if held != part {
			return Restored{}, fmt.Errorf("part %s of checkpoint %s came altered", part.Part, answer.Path)
		}
		result.Parts = append(result.Parts, held)
	}
	if order.Apart && len(answer.Of) > 0 {
		result.Of = slices.Clone(result.Parts)
		for i := range answer.Of {
			result.Of = append(result.Of, answer.Of[i].Of(id))
		}
	}
	k.keep(&result)
	return result, nil
}

// measured notes how large a checkpoint is that is about to be brought, also when there is no room for it.
func (k *Keeper) measured(size wire.Size) {
	k.holder.Announced(share.Size{State: size.State, Own: size.Own, Shards: size.Shards})
}

// take has a file that was brought be a snapshot, or a part of one.
func (k *Keeper) take(ctx context.Context, files brought, id checkpoint.ID, bytes uint64) (checkpoint.Snapshot, error) {
	if ctx.Err() != nil {
		return checkpoint.Snapshot{}, ctx.Err()
	}
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
		_ = os.Truncate(file.Name(), 0) // the uploader may have it open for a moment more, with all of its memory
		_ = file.Close()
		k.holder.Discard(filepath.Base(file.Name()))
	}
}
