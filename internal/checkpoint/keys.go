package checkpoint

import (
	"slices"
	"sync"
	"time"

	"github.com/concertina-dev/concertina/internal/ticket"
)

// maxKeys is how many terms' keys are held: more changes of the leader within the life of a ticket are no
// usual ones.
const maxKeys = 8

// keys are those with which a holder checks tickets, newest first. An older one stays as long as a ticket may
// live that was made with it: a transfer that began under one leader goes on, and to its next holder, under
// another.
type keys struct {
	mu   sync.Mutex
	held []heldKey
}

type heldKey struct {
	term uint64
	key  []byte
	// until is when no ticket of it is valid any more; zero for the newest.
	until time.Time
}

// set takes over the key of a term. One of an older term is ignored.
func (k *keys) set(term uint64, key []byte, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case len(k.held) > 0 && term < k.held[0].term:
	case len(k.held) > 0 && term == k.held[0].term:
		k.held[0].key = key
	default:
		if len(k.held) > 0 {
			k.held[0].until = now.Add(ticket.Life)
		}
		k.held = append([]heldKey{{term: term, key: key}}, k.held...)
		k.held = slices.DeleteFunc(k.held, func(h heldKey) bool { return h.over(now) })
		k.held = k.held[:min(len(k.held), maxKeys)]
	}
}

func (h *heldKey) over(now time.Time) bool { return !h.until.IsZero() && !now.Before(h.until) }

// of is the key of a term; nil when it is not held. early says that the operator has not told it yet.
func (k *keys) of(term uint64, now time.Time) (key []byte, early bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.held {
		if h := &k.held[i]; h.term == term && !h.over(now) {
			return h.key, false
		}
	}
	return nil, len(k.held) == 0 || term > k.held[0].term
}
