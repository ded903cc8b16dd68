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
		"one of a hundred that nobody has answered lands, and is expected": {func(h *History) {
			for n := range uint64(100) {
				h.Wrote(term(0), term(n+1))(rendezvous.Record{}, unclear)
			}
			h.Wrote(term(50), term(101))(term(101), nil)
		}, true},
		"one of a hundred that ask for the same, and that nobody has answered, lands": {func(h *History) {
			for range 100 {
				h.Wrote(term(0), term(1))(rendezvous.Record{}, unclear)
			}
			h.Wrote(term(1), term(2))(term(2), nil)
			h.Wrote(term(2), term(3))(term(2), unclear)
			h.Wrote(term(2), term(4))(term(3), rendezvous.ErrDeposed)
		}, true},
		"the same lands twice, since the record went back in between": {func(h *History) {
			for range 100 {
				h.Wrote(term(0), term(1))(rendezvous.Record{}, unclear)
			}
			h.Wrote(term(1), term(0))(term(0), nil)
			h.Wrote(term(1), term(2))(term(2), nil)
		}, true},
		"two of a hundred that nobody has answered are found, and they exclude each other": {func(h *History) {
			for n := range uint64(100) {
				h.Wrote(term(0), term(n+1))(rendezvous.Record{}, unclear)
			}
			h.Wrote(term(0), term(101))(term(50), rendezvous.ErrDeposed)
			h.Wrote(term(0), term(102))(term(60), rendezvous.ErrDeposed)
		}, false},
		"one that lands leads to another, and nobody has answered either": {func(h *History) {
			h.Wrote(term(0), term(1))(rendezvous.Record{}, unclear)
			h.Wrote(term(1), term(2))(rendezvous.Record{}, unclear)
			h.Wrote(term(0), term(3))(term(2), rendezvous.ErrDeposed)
		}, true},
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
