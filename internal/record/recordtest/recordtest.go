// Package recordtest checks that what writers of a job's record were told has an order: that each write which was
// confirmed has found just what it expected, and each that was refused what it was shown, whatever became of those
// that nobody has answered.
package recordtest

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// swap is one compare-and-swap, answer what came of it.
type (
	swap   struct{ prev, next rendezvous.Record }
	answer struct {
		found            rendezvous.Record
		written, refused bool // neither: nobody knows
	}
)

// model is a register that is compared and swapped. A write that nobody has answered may have its effect at any later
// time, or none: it never returns, and so it may come after all that others have seen.
var model = porcupine.Model{
	Init: func() any { return rendezvous.Record{} },
	Step: func(state, input, output any) (bool, any) {
		now, op, got := state.(rendezvous.Record), input.(swap), output.(answer)
		same := now == op.prev
		switch {
		case got.written:
			return same, op.next
		case got.refused:
			return !same && now == got.found, now
		case same:
			return true, op.next
		}
		return true, now
	},
}

// History is what writers have asked for and were told. It is safe for use by many at once.
type History struct {
	mu         sync.Mutex
	clock      int64
	operations []porcupine.Operation
	unclear    int
}

// Wrote notes an event of the clock that orders calls and returns, for the beginning of a write.
func (h *History) Wrote(prev, next rendezvous.Record) (answered func(found rendezvous.Record, err error)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clock++
	i := len(h.operations)
	h.operations = append(h.operations, porcupine.Operation{
		Input: swap{timeless(prev), timeless(next)}, Call: h.clock, Output: answer{}, Return: math.MaxInt64,
	})
	h.unclear++
	return func(found rendezvous.Record, err error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		refused := errors.Is(err, rendezvous.ErrDeposed)
		if err != nil && !refused {
			return
		}
		h.clock++
		h.unclear--
		h.operations[i].Output = answer{found: timeless(found), written: err == nil, refused: refused}
		h.operations[i].Return = h.clock
	}
}

// timeless is a record without the time of its writing, which loses its fraction on the way.
func timeless(r rendezvous.Record) rendezvous.Record {
	r.StartedAt = time.Time{}
	return r
}

// Check says what is wrong with the history; nil when it has an order. It also returns how many writes there were, and how many of them
// nobody has answered.
func (h *History) Check() (writes, unclear int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch result := porcupine.CheckOperationsTimeout(model, seen(h.operations), time.Minute); result {
	case porcupine.Ok:
	case porcupine.Unknown:
		err = fmt.Errorf("no order of %d writes was found in a minute", len(h.operations))
	default:
		err = fmt.Errorf("what %d writers were told has no order: %+v", len(h.operations), h.operations)
	}
	return len(h.operations), h.unclear, err
}

// seen are the writes without those of which nobody was told anything and that need not have an effect: each may come
// last, where it changes nothing, so the others have an order with them if they have one without. While an API server is
// silent a writer asks again and again, and the search would try each of these everywhere. None is needed whose record
// nobody has found or expected, and of those that ask for the same no more than there are ways to what they expect.
func seen(operations []porcupine.Operation) []porcupine.Operation {
	for {
		known, ways := map[rendezvous.Record]bool{}, map[rendezvous.Record]int{{}: 1}
		for i := range operations {
			op, got := operations[i].Input.(swap), operations[i].Output.(answer)
			known[op.prev] = true
			if ways[op.next]++; got.refused {
				known[got.found] = true
				ways[op.next]--
			}
		}
		same := map[swap]int{}
		left := slices.DeleteFunc(slices.Clone(operations), func(o porcupine.Operation) bool {
			op, got := o.Input.(swap), o.Output.(answer)
			if got.written || got.refused {
				return false
			}
			same[op]++
			return !known[op.next] || same[op] > ways[op.prev]
		})
		if len(left) == len(operations) {
			return left
		}
		operations = left
	}
}
