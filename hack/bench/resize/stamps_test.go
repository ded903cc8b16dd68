package resize

import (
	"context"
	"fmt"
	"testing"
	"time"
)

func at(millisecond int64) time.Time { return time.UnixMilli(millisecond) }

// collected is a world of two ranks that made the steps 1 and 2, and one of three that began anew
// with step 2.
func collected() *stamps {
	s := newStamps()
	s.add(stamp{round: 1, step: 1, rank: 0, begun: at(0), done: at(10)})
	s.add(stamp{round: 1, step: 1, rank: 1, begun: at(0), done: at(11)})
	s.add(stamp{round: 1, step: 2, rank: 1, begun: at(11), done: at(25)})
	s.add(stamp{round: 1, step: 2, rank: 0, begun: at(11), done: at(20)})
	s.add(stamp{round: 3, step: 2, rank: 2, begun: at(70), done: at(80)})
	s.add(stamp{round: 3, step: 2, rank: 0, begun: at(60), done: at(80)})
	s.add(stamp{round: 3, step: 2, rank: 1, begun: at(61), done: at(80)})
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
	go s.add(stamp{round: 4, step: 3, rank: 0, begun: at(90), done: at(99)})
	if round, err := s.await(t.Context(), 3, 1); err != nil || round != 4 {
		t.Errorf("round %d, %v", round, err)
	}
}

func TestParseStamp(t *testing.T) {
	got, ok := parseStamp("stamp 4 17 2 1000000000 1000000005")
	want := stamp{round: 4, step: 17, rank: 2, begun: time.Unix(1, 0), done: time.Unix(1, 5)}
	if !ok || got != want {
		t.Errorf("%+v, %v", got, ok)
	}
	for _, line := range []string{"", "stamp", "stamp 1 2 3 4", "stamp 1 2 3 4 x", "stamp 1 -2 3 4 5", "step 1/9 loss 2", "stamp 1 2 3 4 5 6"} {
		if _, ok := parseStamp(line); ok {
			t.Errorf("%q is taken for a stamp", line)
		}
	}
}

func TestMeasureNeedsRuns(t *testing.T) {
	for _, b := range []Bench{{TunedRuns: 1, TorchrunRuns: 1}, {Runs: 1, TorchrunRuns: 1}, {Runs: 1, TunedRuns: 1}} {
		if _, err := b.Measure(t.Context()); err == nil {
			t.Errorf("%s is measured", fmt.Sprint(b.Runs, b.TunedRuns, b.TorchrunRuns))
		}
	}
}
