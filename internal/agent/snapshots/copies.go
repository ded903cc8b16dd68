package snapshots

import (
	"context"
	"errors"
	"time"

	"github.com/concertina-dev/concertina/internal/checkpoint"
)

// firstWait and lastWait bound how long no copies of a state are tried to be got that had no room here: until then they would come, and go
// again, with each call. It doubles from one to the next.
const (
	firstWait = time.Second
	lastWait  = time.Minute
)

// Copy gets copies of what other workers have alone of a state, behind the training, and has what is here of it stay
// meanwhile; with nothing wanted it only stays. It is called as long as the copies are not there: what has failed is tried
// again by the next call, or by one some time later where there was no room. Another state ends what was copied before, and the zero
// value ends all.
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
		k.uncopied, k.uncopiedOf, k.noRoom, k.waits = "", of.State(), 0, time.Time{}
	}
	beside := k.store.HasExcerpts()
	if k.crowded = k.crowded && beside; k.crowded || k.copying != nil || len(want) == 0 || k.ctx.Err() != nil || time.Now().Before(k.waits) {
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
		if k.copied(now, beside, err) {
			k.note("no copy yet of what others have alone: %v", err)
		}
		k.changed()
	})
}

// copied notes what came of a try to get copies, beside what programs still load or not, and says whether that is news.
func (k *Keeper) copied(now *fetching, beside bool, err error) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.copying != now {
		return false // others are wanted by now
	}
	k.copying = nil
	if beside && errors.Is(err, checkpoint.ErrLocal) {
		k.crowded = true // what programs still load goes soon: who has no room beside that is not full
		return false
	}
	if err == nil {
		k.uncopied = ""
		return false
	}
	known := k.uncopied == err.Error()
	k.uncopied = err.Error()
	if errors.Is(err, checkpoint.ErrLocal) {
		k.waits = time.Now().Add(min(firstWait<<min(k.noRoom, 8), lastWait))
		k.noRoom++
	}
	return !known
}

// Uncopied is why the last try to get copies has come to nothing, and of which state; empty where none has.
func (k *Keeper) Uncopied() (of checkpoint.ID, why string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.uncopiedOf, k.uncopied
}
