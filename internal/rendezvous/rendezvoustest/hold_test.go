package rendezvoustest

import (
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// A program stands until its hold ends, and for ever where the operator that has it stand knows no holds, as with the agent.
func TestHowLongAProgramStands(t *testing.T) {
	sent := time.Now()
	barrier := &rendezvousv1.Barrier{Attempt: 1}
	for name, test := range map[string]struct {
		told  []*rendezvousv1.Directive
		until time.Time
	}{
		"one hold":                         {[]*rendezvousv1.Directive{{Sequence: 1, Hold: 3, Barrier: barrier}}, sent.Add(time.Second)},
		"the same again":                   {[]*rendezvousv1.Directive{{Sequence: 1, Hold: 3, Barrier: barrier}, {Sequence: 2, Hold: 3, Barrier: barrier}}, sent.Add(time.Second)},
		"a newer one":                      {[]*rendezvousv1.Directive{{Sequence: 1, Hold: 3, Barrier: barrier}, {Sequence: 2, Hold: 4, Barrier: barrier}}, sent.Add(2 * time.Second)},
		"none without a barrier":           {[]*rendezvousv1.Directive{{Sequence: 1, Hold: 3}, {Sequence: 2}}, sent.Add(time.Second)},
		"of an operator that knows none":   {[]*rendezvousv1.Directive{{Sequence: 1, Barrier: barrier}}, time.Time{}},
		"of one that does, and of another": {[]*rendezvousv1.Directive{{Sequence: 1, Hold: 3, Barrier: barrier}, {Sequence: 2, Barrier: barrier}}, time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			h := hold{sent: map[uint64]time.Time{1: sent, 2: sent.Add(time.Second)}}
			for _, d := range test.told {
				h.renew(d, false, time.Second)
			}
			if !h.until.Equal(test.until) {
				t.Errorf("it stands until %v, not %v", h.until, test.until)
			}
		})
	}
}
