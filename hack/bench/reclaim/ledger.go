package reclaim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// entry says that one rank makes a step.
type entry struct {
	round, step uint64
	rank        int
	at          time.Time
}

// parseEntry reads a line of a log with timestamps, as `--ledger` has each rank write one for every step:
// `TIME ledger round=1 step=2 epoch=0 rank=3 ids=4,5`.
func parseEntry(line string) (entry, bool) {
	stamp, text, _ := strings.Cut(line, " ")
	at, err := time.Parse(time.RFC3339Nano, stamp)
	if err != nil {
		return entry{}, false
	}
	e := entry{at: at}
	var epoch uint64
	_, err = fmt.Sscanf(text, "ledger round=%d step=%d epoch=%d rank=%d ids=", &e.round, &e.step, &epoch, &e.rank)
	return e, err == nil
}

// world is what the ranks of one round have written down.
type world struct {
	// begun is when each rank wrote its first entry.
	begun       map[int]time.Time
	first, last uint64
}

// ledger collects the entries of all ranks. What is read twice counts once.
type ledger struct {
	worlds map[uint64]*world
}

func newLedger() *ledger { return &ledger{worlds: map[uint64]*world{}} }

// line takes in a line of a log.
func (l *ledger) line(text string) {
	e, ok := parseEntry(text)
	if !ok {
		return
	}
	w := l.worlds[e.round]
	if w == nil {
		w = &world{begun: map[int]time.Time{}, first: e.step}
		l.worlds[e.round] = w
	}
	w.first, w.last = min(w.first, e.step), max(w.last, e.step)
	if at, known := w.begun[e.rank]; !known || e.at.Before(at) {
		w.begun[e.rank] = e.at
	}
}

// wide is a world that has reached a number of ranks.
type wide struct {
	round uint64
	// at is when the last of its ranks began its first step.
	at time.Time
}

// reached is the first world after a round in which so many ranks make steps; the zero world when there is none.
func (l *ledger) reached(above uint64, ranks int) (found wide) {
	for round, w := range l.worlds {
		if round <= above || len(w.begun) < ranks || found.round > 0 && found.round < round {
			continue
		}
		found = wide{round: round, at: slices.MaxFunc(slices.Collect(maps.Values(w.begun)), time.Time.Compare)}
	}
	return found
}

// repeated is how many steps a round made that an earlier one had begun already.
func (l *ledger) repeated(round uint64) int64 {
	w := l.worlds[round]
	if w == nil {
		return 0
	}
	var done uint64
	for earlier, other := range l.worlds {
		if earlier < round {
			done = max(done, other.last)
		}
	}
	if w.first > done {
		return 0
	}
	return int64(done - w.first + 1)
}
