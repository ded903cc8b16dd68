package snapshots

import (
	"slices"

	"github.com/concertina-dev/concertina/internal/checkpoint"
)

// span is the steps of one round that belong to a history: those up to last.
type span struct{ round, last uint64 }

// history is the rounds that led to the present one, oldest first. Its zero value holds nothing.
type history struct {
	spans []span
	// named is the snapshot that the history begins with, made somewhere else; nil for none.
	named *checkpoint.ID
}

const (
	// unbounded is the last step of the present round.
	unbounded = ^uint64(0)
	// maxSpans bounds the memory of a worker that lives through many worlds; no snapshot is kept that
	// long.
	maxSpans = 64
)

// enter is the history after another world has begun.
func (h history) enter(round, fromStep uint64, continues bool, named *checkpoint.ID) history {
	next := history{named: named}
	if continues {
		if named == nil {
			next.named = h.named
		}
		for _, s := range h.spans {
			next.spans = append(next.spans, span{s.round, min(s.last, fromStep)})
		}
		if len(next.spans) >= maxSpans {
			next.spans = next.spans[len(next.spans)-maxSpans+1:]
		}
	}
	next.spans = append(next.spans, span{round, unbounded})
	return next
}

// with is the history with the steps of an earlier round up to last.
func (h history) with(round, last uint64) history {
	spans := slices.Clone(h.spans)
	for i := range spans {
		if spans[i].round == round {
			spans[i].last = max(spans[i].last, last)
			return history{spans, h.named}
		}
	}
	return history{slices.Insert(spans, max(0, len(spans)-1), span{round, last}), h.named}
}

// endsIn says whether a round is the present one.
func (h history) endsIn(round uint64) bool {
	return len(h.spans) > 0 && h.spans[len(h.spans)-1].round == round
}

// holds is true when a snapshot belongs to the history.
func (h history) holds(id checkpoint.ID) bool {
	if h.named != nil && *h.named == id.State() {
		return true
	}
	for _, s := range h.spans {
		if s.round == id.Round {
			return id.Step <= s.last
		}
	}
	return false
}
