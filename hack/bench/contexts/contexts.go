// Package contexts is what the benches do with a context that may end at any time.
package contexts

import (
	"context"
	"time"
)

// Cleared clears up even when ctx has ended, and takes no longer than bound for it.
func Cleared(ctx context.Context, bound time.Duration, clear func(context.Context) error) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), bound)
	defer stop()
	return clear(ctx)
}

// Pause waits for so long, unless ctx ends: then it returns the context's error.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
