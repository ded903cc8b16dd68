package recordtest

import (
	"errors"
	"testing"

	"github.com/concertina-dev/concertina/internal/rendezvous"
)

func term(n uint64) rendezvous.Record { return rendezvous.Record{Term: n} }

func TestHistoriesThatHaveAnOrder(t *testing.T) {
	unclear := errors.New("timeout")
	for name, c := range map[string]struct {
		play    func(*History)
		ordered bool
	}{
		"one after the other": {func(h *History) {
			h.Wrote(term(0), term(1))(term(1), nil)
			h.Wrote(term(1), term(2))(term(2), nil)
		}, true},
		"two writers believe that a term is theirs": {func(h *History) {
			a, b := h.Wrote(term(0), term(1)), h.Wrote(term(0), term(1))
			a(term(1), nil)
			b(term(1), nil)
		}, false},
		"a write that nobody has answered lands late": {func(h *History) {
			h.Wrote(term(0), term(1))(rendezvous.Record{}, unclear)
			h.Wrote(term(1), term(2))(term(2), nil)
		}, true},
		"it never lands": {func(h *History) {
			h.Wrote(term(0), term(1))(rendezvous.Record{}, unclear)
			h.Wrote(term(0), term(5))(term(5), nil)
		}, true},
		"it lands before it was asked for": {func(h *History) {
			h.Wrote(term(1), term(2))(term(2), nil)
			h.Wrote(term(0), term(1))(rendezvous.Record{}, unclear)
		}, false},
		"one is refused for what nobody has written": {func(h *History) {
			h.Wrote(term(0), term(1))(term(7), rendezvous.ErrDeposed)
		}, false},
		"one is refused although it finds what it expects": {func(h *History) {
			h.Wrote(term(0), term(1))(term(0), rendezvous.ErrDeposed)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := &History{}
			c.play(h)
			if _, _, err := h.Check(); (err == nil) != c.ordered {
				t.Errorf("it has an order: %v, want %v", err, c.ordered)
			}
		})
	}
}
