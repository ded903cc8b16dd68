package durable

import (
	"context"

	"github.com/concertina-dev/concertina/internal/uploader"
)

// Listed is which checkpoints in the storage are the best. Its zero value is nothing yet.
type Listed struct {
	// Number is that of the order.
	Number uint64
	Best   []uploader.Kept
}

// listing is an order to say which checkpoints are the best; the zero value for none.
type listing struct {
	number uint64
	cancel context.CancelFunc
}

// List finds out which checkpoints in the storage are the best, once for each number; what it has found is in State until another
// number comes. With 0 nothing is asked.
func (k *Keeper) List(number uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx.Err() != nil || number == k.listing.number {
		return
	}
	if k.listing.cancel != nil {
		k.listing.cancel()
	}
	k.listing, k.state.Listed = listing{number: number}, Listed{}
	if number > 0 {
		ctx, cancel := context.WithCancel(k.ctx)
		k.listing.cancel = cancel
		k.work.Go(func() {
			defer cancel()
			k.list(ctx, number)
		})
	}
}

// list asks until there is an answer, or ctx has ended. What is wrong for good here may not be so elsewhere: whoever has asked asks
// another worker by and by, and ends this.
func (k *Keeper) list(ctx context.Context, number uint64) {
	for pause := k.pauses.First; ; pause = min(2*pause, k.pauses.Last) {
		answer, err := uploader.Ask(ctx, k.socket, uploader.Request{Ask: uploader.AskBest})
		k.mu.Lock()
		if ctx.Err() != nil {
			k.mu.Unlock()
			return
		}
		if err == nil {
			k.state.Listed = Listed{number, answer.Best}
		}
		k.mu.Unlock()
		if err == nil {
			k.changed()
			return
		}
		k.note("it is not known which checkpoints are the best, asking again in %v: %v", pause, err)
		k.wait(ctx, pause)
	}
}
