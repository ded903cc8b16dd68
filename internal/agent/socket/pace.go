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
// saved.
type pace struct {
	round uint64
	// done is how many steps had been done at the last look that saw a new one, ended the stamp of the last of
	// them, and seen when that look was: programs may write no stamps.
	done, ended uint64
	seen        time.Time
	// other is true when something else than steps was seen since.
	other bool
	last  []time.Duration
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
	if p.done > from && !p.other && took > 0 {
		p.last = append(p.last, took)
		p.last = p.last[max(0, len(p.last)-paces):]
	}
	p.done, p.ended, p.seen, p.other = progress.Done, stamps.Ended, now, false
}

// median is how long a step takes; 0 while it is not known.
func (p *pace) median() time.Duration {
	if len(p.last) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(p.last))
	return sorted[(len(sorted)-1)/2]
}
