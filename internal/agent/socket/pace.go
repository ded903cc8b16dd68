package socket

import (
	"slices"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/gate"
)

// paces is of how many looks the median is taken.
const paces = 8

// pace is how long the steps of a process take in its world. It is seen by looking at the page, at every report: of
// long steps each by itself, of short ones the mean of those between two looks. The first step of a world tells
// nothing, since programs are compiled and links made in it; neither do looks between which it has evaluated or
// saved. How long it works in a step itself, without what it waits for others, is seen in the same way where it says so.
type pace struct {
	round uint64
	// done is how many steps had been done at the last look that saw a new one, ended the stamp of the last of
	// them, and seen when that look was: programs may write no stamps.
	done, ended uint64
	seen        time.Time
	// worked is for how long it had worked in steps that were known by then, which may be some less than are done, and since
	// how many were done when that was first seen.
	worked, since uint64
	// other is true when something else than steps was seen since.
	other     bool
	last, own []time.Duration
}

// look takes what the page of a process says that was given a world which begins after step from.
func (p *pace) look(now time.Time, round, from uint64, progress gate.Progress, stamps gate.Stamps) {
	if p.round != round || progress.Done < p.done {
		*p = pace{round: round, done: from}
	}
	p.other = p.other || progress.Phase == gate.PhaseEval || progress.Phase == gate.PhaseSaving
	if progress.Done <= p.done {
		return
	}
	took := now.Sub(p.seen)
	if stamps.Ended > 0 && p.ended > 0 {
		took = time.Duration(stamps.Ended - p.ended)
	}
	took /= time.Duration(progress.Done - p.done)
	if p.done > from && !p.other {
		p.last = withTime(p.last, took)
	}
	p.work(progress.Done, stamps.Worked)
	p.done, p.ended, p.seen, p.other = progress.Done, stamps.Ended, now, false
}

// work takes for how long the process has worked once so many steps are done. Where nothing more is known of that, the steps
// count at the look that sees more: they are in it.
func (p *pace) work(done, worked uint64) {
	known := p.worked > 0 && !p.other
	if known && worked == p.worked {
		return
	}
	if known && worked > p.worked {
		p.own = withTime(p.own, time.Duration(worked-p.worked)/time.Duration(done-p.since))
	}
	p.worked, p.since = worked, done
}

// withTime appends a time that is one, and keeps the last ones.
func withTime(all []time.Duration, took time.Duration) []time.Duration {
	if took > 0 {
		all = append(all, took)
	}
	return all[max(0, len(all)-paces):]
}

// median is that of some times; 0 of none.
func median(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[(len(sorted)-1)/2]
}
