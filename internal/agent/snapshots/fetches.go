package snapshots

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/share"
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

// ofShards says whether it is of shards, for a process that waits for them in a world.
func (f *fetching) ofShards() bool {
	return slices.ContainsFunc(f.want, func(w checkpoint.Wanted) bool { return share.IsShard(w.Part) })
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
	return k.store.Fetch(now.ctx, k.identity, now.want...)
}

// FetchAhead gets what Fetch may soon be asked for. If it cannot be had, Fetch tries again.
func (k *Keeper) FetchAhead(want []checkpoint.Wanted) {
	k.Fetch(want, func(error) {})
}

// beginFetch ends the fetches of anything else; k.mu is held.
func (k *Keeper) beginFetch(want []checkpoint.Wanted) *fetching {
	ctx, cancel := context.WithCancelCause(k.ctx)
	next := &fetching{want, ctx, cancel, make(chan struct{})}
	k.endFetches(errors.New("another snapshot is wanted"), func(f *fetching) bool { return f.of() == next.of() })
	k.fetches = append(k.fetches, next)
	return next
}

// endFetches ends those that are under way, but for some: of each process of the worker there may be one. k.mu is held.
func (k *Keeper) endFetches(why error, but func(*fetching) bool) {
	for _, f := range k.fetches {
		if !but(f) {
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
