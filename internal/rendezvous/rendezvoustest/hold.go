package rendezvoustest

import (
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// hold is the right of an operator to keep the program standing, as agents keep it.
type hold struct {
	number uint64
	// until is when the program is let go; zero for never.
	until time.Time
	// sent is when the reports of this session were sent that no directive has answered yet, by their sequence.
	sent map[uint64]time.Time
}

// renew takes the hold of a directive, which counts from when the report was sent that it answers.
func (h *hold) renew(d *rendezvousv1.Directive, newTerm bool, stand time.Duration) {
	sent, ok := h.sent[d.GetSequence()]
	if !ok {
		sent = time.Now()
	}
	for sequence := range h.sent {
		if sequence < d.GetSequence() {
			delete(h.sent, sequence)
		}
	}
	if newTerm {
		h.number = 0
	}
	switch {
	case d.GetHold() > h.number:
		h.number, h.until = d.GetHold(), sent.Add(stand)
	case d.GetHold() == 0 && d.GetBarrier().GetAttempt() > 0:
		h.number, h.until = 0, time.Time{} // an operator that knows no holds
	}
}

// lapse has the program go on when nobody has renewed the hold, and says whether it does.
func (p *program) lapse(h *hold, now time.Time) bool {
	if p.stop == 0 || h.until.IsZero() || now.Before(h.until) {
		return false
	}
	p.lapsed = true
	p.park(nil)
	return true
}
