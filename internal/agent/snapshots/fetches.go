package snapshots

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/concertina-dev/concertina/internal/checkpoint"
)

// fetching is one fetch, of files of one state.
type fetching struct {
	want   []checkpoint.Wanted
	ctx    context.Context
	cancel context.CancelCauseFunc
	// done is closed when it has ended.
	done chan struct{}
}

// of is the state that is fetched.
func (f *fetching) of() checkpoint.ID {
	if len(f.want) == 0 {
		return checkpoint.ID{}
	}
	return f.want[0].State()
}

// Fetch gets files of one state, or some of them, from their holders, but for those that are held already, and then calls done.
// What is fetched last ends what was fetched before; but if that is of the same state, it is waited for first.
func (k *Keeper) Fetch(want []checkpoint.Wanted, done func(error)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := slices.Clone(k.fetches)
	now := k.beginFetch(want)
	k.working.Go(func() {
		err := k.get(now, before)
		k.endFetch(now)
		k.changed() // a file of ours that was altered is gone, whatever came of it
		done(err)
		if err == nil {
			k.trim(false)
		}
	})
}

// get fetches, after earlier fetches have ended.
func (k *Keeper) get(now *fetching, before []*fetching) error {
	if k.store == nil {
		return errNoMemory
	}
	for _, f := range before {
		select {
		case <-f.done:
		case <-now.ctx.Done():
			return fmt.Errorf("fetch snapshot %v: %w", now.of(), context.Cause(now.ctx))
		}
	}
	for {
		err := k.store.Fetch(now.ctx, k.identity, now.want...)
		if !errors.Is(err, checkpoint.ErrDropped) || now.ctx.Err() != nil {
			return err // otherwise it is wanted as before
		}
	}
}

// FetchAhead gets what Fetch may soon be asked for. If it cannot be had, Fetch tries again.
func (k *Keeper) FetchAhead(want []checkpoint.Wanted) {
	k.Fetch(want, func(error) {})
}

// beginFetch ends the fetches of anything else; k.mu is held.
func (k *Keeper) beginFetch(want []checkpoint.Wanted) *fetching {
	ctx, cancel := context.WithCancelCause(k.ctx)
	next := &fetching{want, ctx, cancel, make(chan struct{})}
	k.endFetches(errors.New("another snapshot is wanted"), func(of checkpoint.ID) bool { return of == next.of() })
	k.fetches = append(k.fetches, next)
	return next
}

// endFetches ends those that are under way, but for those of some states: of each process of the worker there may be one. k.mu is held.
func (k *Keeper) endFetches(why error, but func(of checkpoint.ID) bool) {
	for _, f := range k.fetches {
		if !but(f.of()) {
			f.cancel(why)
		}
	}
}

// endFetch notes that a fetch is over.
func (k *Keeper) endFetch(f *fetching) {
	f.cancel(nil)
	k.mu.Lock()
	k.fetches = slices.DeleteFunc(k.fetches, func(one *fetching) bool { return one == f })
	k.mu.Unlock()
	close(f.done)
}
