package snapshots

import (
	"context"
	"errors"

	"github.com/concertina-dev/concertina/internal/checkpoint"
)

// Copy gets copies of what other workers have alone of a state, behind the training, and has what is here of it stay
// meanwhile; with nothing wanted it only stays. It is called as long as the copies are not there: what has failed is tried
// again by the next call. Another state ends what was copied before, and the zero value ends all.
func (k *Keeper) Copy(of checkpoint.ID, want []checkpoint.Wanted) {
	if k.store == nil {
		return
	}
	k.store.Copy(of)
	k.mu.Lock()
	defer k.mu.Unlock()
	if f := k.copying; f != nil && f.of() != of {
		f.cancel(errors.New("copies of another state are wanted"))
		k.copying = nil
	}
	if len(want) == 0 || k.uncopiedOf != of.State() {
		k.uncopied, k.uncopiedOf = "", of.State()
	}
	if k.copying != nil || len(want) == 0 || k.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancelCause(k.ctx)
	now := &fetching{want, ctx, cancel, make(chan struct{})}
	k.copying = now
	k.working.Go(func() {
		defer cancel(nil)
		// What is relied on by now has made others needless, and has no room beside them. What is left to the program stays: the room
		// is reckoned for what it writes and for copies, and each state has some.
		if err := k.store.TrimBeside(); err != nil {
			k.note("%v", err)
		}
		err := k.store.FetchBeside(ctx, k.identity, want...)
		k.mu.Lock()
		mine := k.copying == now
		if mine {
			k.copying = nil
		}
		again := err != nil && k.uncopied == err.Error()
		if mine {
			k.uncopied = ""
			if err != nil {
				k.uncopied = err.Error()
			}
		}
		k.mu.Unlock()
		if err != nil && mine && !again {
			k.note("no copy yet of what others have alone: %v", err)
		}
		k.changed()
	})
}

// Uncopied is why the last try to get copies has come to nothing, and of which state; empty where none has.
func (k *Keeper) Uncopied() (of checkpoint.ID, why string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.uncopiedOf, k.uncopied
}
