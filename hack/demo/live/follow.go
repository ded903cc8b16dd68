package live

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/concertina-dev/concertina/hack/demo/console"
)

const (
	// lookEvery is how often the job is read.
	lookEvery = 250 * time.Millisecond
	// lookPatience is how long the cluster may be out of reach before Follow gives up.
	lookPatience = 30 * time.Second
	// drainPatience bounds the wait for the last lines of a job that has ended.
	drainPatience = 5 * time.Second
)

// Follow shows a job until it has ended, and returns how it stood then. It ends with an error when
// ctx does, when the job is deleted, or when the cluster is out of reach for half a minute; the
// Model is then the last one seen.
func Follow(ctx context.Context, source *Source, to *console.Console) (Model, error) {
	defer to.Keep()
	reading, stop := context.WithCancel(ctx)
	defer stop()
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	var last Model
	answered := time.Now()
	for {
		next, err := source.Look(reading)
		switch {
		case err == nil:
			show(to, last, next)
			last, answered = next, time.Now()
		case ctx.Err() != nil:
			return last, ctx.Err()
		case apierrors.IsNotFound(err), time.Since(answered) > lookPatience:
			return last, err
		}
		if last.Outcome != Open {
			return conclude(reading, source, to, last), nil
		}
		select {
		case <-ctx.Done():
			return last, ctx.Err()
		case <-ticker.C:
		}
	}
}

// conclude waits for what the programs printed at their very end.
func conclude(ctx context.Context, source *Source, to *console.Console, last Model) Model {
	ctx, stop := context.WithTimeout(ctx, drainPatience)
	defer stop()
	source.Drain(ctx)
	if final, err := source.Look(ctx); err == nil {
		show(to, last, final)
		return final
	}
	return last
}

func show(to *console.Console, before, after Model) {
	if to.Terminal() {
		columns, rows := to.Size()
		to.Paint(Render(after, Look{Columns: columns, Rows: rows, Colour: to.Colour()}))
		return
	}
	for _, line := range Changes(before, after) {
		to.Logf("%s", line)
	}
}
