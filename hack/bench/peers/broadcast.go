package peers

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/concertina-dev/concertina/hack/bench/figures"
)

// bareTimes is how often that is measured.
const bareTimes = 10

// broadcast has as many ranks as there are members broadcast as many bytes as the state has, and says how long it took each time.
func (p place) broadcast(ctx context.Context, mib int) (all []time.Duration, err error) {
	m, err := p.start("broadcast", nil, "python3", source+"/python/benchmarks/broadcast.py", strconv.Itoa(size), strconv.Itoa(mib), strconv.Itoa(bareTimes))
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	select {
	case <-m.read:
	case <-ctx.Done():
		_ = m.kill()
		return nil, fmt.Errorf("a broadcast of %d MiB does not end: %w\n%s", mib, ctx.Err(), m.lastLines())
	}
	<-m.ended
	if all, err = broadcasts(m.lastLines()); err == nil && len(all) != bareTimes {
		err = fmt.Errorf("%d were made, not %d", len(all), bareTimes)
	}
	if err != nil {
		return nil, fmt.Errorf("broadcast %d MiB: %w\n%s", mib, err, m.lastLines())
	}
	return all, nil
}

// broadcasts are the times in what python/benchmarks/broadcast.py has printed.
func broadcasts(text string) (all []time.Duration, err error) {
	for line := range strings.Lines(text) {
		said, found := strings.CutPrefix(strings.TrimSpace(line), "broadcast ")
		if !found {
			continue
		}
		took, err := time.ParseDuration(said + "s")
		if err != nil {
			return nil, err
		}
		all = append(all, took)
	}
	return all, nil
}

// overBroadcast are the figures of a growth beside a bare broadcast of as many bytes.
func overBroadcast(mib int, grown []sample, bare []time.Duration) []figures.Figure {
	var pauses []time.Duration
	for _, s := range grown {
		pauses = append(pauses, s.pause)
	}
	found := figures.Durations("broadcast", bare)
	for i := range found {
		found[i].Name += suffix(mib)
	}
	least := figures.Median(bare)
	if len(pauses) == 0 || least <= 0 {
		return found
	}
	return append(found, figures.Figure{
		Name: "grow" + suffix(mib) + "_over_broadcast", Value: float64(figures.Median(pauses)) / float64(least), Unit: "ratio",
	})
}
