package session

import (
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

func TestTimesFollowTheBeat(t *testing.T) {
	for _, row := range []struct {
		asked                            time.Duration
		least, most, watchdog, maxSpread time.Duration
	}{
		{0, 720 * time.Millisecond, 900 * time.Millisecond, 3 * time.Second, 0},
		{time.Second, 720 * time.Millisecond, 900 * time.Millisecond, 3 * time.Second, 0},
		{10 * time.Second, 7200 * time.Millisecond, 9 * time.Second, 30 * time.Second, 9 * time.Second},
		{time.Hour, 43200 * time.Millisecond, 54 * time.Second, 3 * time.Minute, 59 * time.Second},
	} {
		s := New(nil, nil, DefaultTiming())
		s.follow(&rendezvousv1.Directive{BeatMillis: uint32(row.asked.Milliseconds())})
		var spread time.Duration
		for range 1000 {
			if next := s.heartbeat(); next < row.least-time.Millisecond || next > row.most {
				t.Errorf("with beats of %v the next report is due after %v, want %v to %v", row.asked, next, row.least, row.most)
			}
			spread = max(spread, s.spread())
		}
		if spread > row.maxSpread || spread < row.maxSpread/2 {
			t.Errorf("with beats of %v agents come back over %v, want %v", row.asked, spread, row.maxSpread)
		}
		for range 100 {
			if again := s.pause(time.Second, false); again < time.Second/2 || again > time.Second {
				t.Errorf("with beats of %v an agent that found no operator comes again after %v, want 0.5s to 1s", row.asked, again)
			}
		}
		if got := s.watchdog(); got != row.watchdog {
			t.Errorf("with beats of %v the operator is left after %v, want %v", row.asked, got, row.watchdog)
		}
	}
}

// When the operator of a large job is lost in the middle of a change its agents come back as far apart as ever.
func TestAgentsComeBackApartInTheMiddleOfAChange(t *testing.T) {
	s := New(nil, nil, DefaultTiming())
	for _, beat := range []uint32{10_000, 2_000} {
		s.follow(&rendezvousv1.Directive{BeatMillis: beat})
	}
	var spread time.Duration
	for range 1000 {
		spread = max(spread, s.spread())
	}
	if spread < 4*time.Second || s.heartbeat() > 1800*time.Millisecond {
		t.Errorf("they come back over %v, and report after %v", spread, s.heartbeat())
	}
}
