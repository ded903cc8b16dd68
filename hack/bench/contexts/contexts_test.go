package contexts

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestAnEndedContextEndsAPauseAndNoClearing(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := Pause(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("the pause ended with %v", err)
	}
	if err := Cleared(ctx, time.Hour, func(ctx context.Context) error { return ctx.Err() }); err != nil {
		t.Errorf("what clears up was stopped: %v", err)
	}
	if err := Cleared(ctx, 0, func(ctx context.Context) error { return ctx.Err() }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without time the clearing up ended with %v", err)
	}
	if err := Pause(t.Context(), 0); err != nil {
		t.Errorf("a pause of nothing ended with %v", err)
	}
}
