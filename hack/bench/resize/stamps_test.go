package resize

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/hack/bench/steps"
)

func at(millisecond int64) time.Time { return time.UnixMilli(millisecond) }

// collected is a world of two ranks that made the steps 1 and 2, and one of three that began anew
// with step 2.
func collected() *stamps {
	s := newStamps()
	s.add(steps.Stamp{Round: 1, Step: 1, Rank: 0, Begun: at(0), Done: at(10)})
	s.add(steps.Stamp{Round: 1, Step: 1, Rank: 1, Begun: at(0), Done: at(11)})
	s.add(steps.Stamp{Round: 1, Step: 2, Rank: 1, Begun: at(11), Done: at(25)})
	s.add(steps.Stamp{Round: 1, Step: 2, Rank: 0, Begun: at(11), Done: at(20)})
	s.add(steps.Stamp{Round: 3, Step: 2, Rank: 2, Begun: at(70), Done: at(80)})
	s.add(steps.Stamp{Round: 3, Step: 2, Rank: 0, Begun: at(60), Done: at(80)})
	s.add(steps.Stamp{Round: 3, Step: 2, Rank: 1, Begun: at(61), Done: at(80)})
	return s
}

func TestPauseIsThatOfTheSlowestRank(t *testing.T) {
	s := collected()
	if got, want := s.pause(1, 3), 45*time.Millisecond; got != want {
		t.Errorf("pause %s, want %s", got, want)
	}
	if got := s.lost(1, 3); got != 1 {
		t.Errorf("%d steps lost, want 1", got)
	}
}

func TestAwaitNeedsAllRanksOfALaterRound(t *testing.T) {
	s := collected()
	if round, err := s.await(t.Context(), 0, 3); err != nil || round != 3 {
		t.Errorf("round %d, %v", round, err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if round, err := s.await(ended, 3, 2); err == nil {
		t.Errorf("round %d came after the last", round)
	}
	go s.add(steps.Stamp{Round: 4, Step: 3, Rank: 0, Begun: at(90), Done: at(99)})
	if round, err := s.await(t.Context(), 3, 1); err != nil || round != 4 {
		t.Errorf("round %d, %v", round, err)
	}
}

func TestMeasureNeedsRuns(t *testing.T) {
	for _, b := range []Bench{{TunedRuns: 1, TorchrunRuns: 1}, {Runs: 1, TorchrunRuns: 1}, {Runs: 1, TunedRuns: 1}} {
		if _, err := b.Measure(t.Context()); err == nil {
			t.Errorf("%s is measured", fmt.Sprint(b.Runs, b.TunedRuns, b.TorchrunRuns))
		}
	}
}
