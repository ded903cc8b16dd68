package storage

import (
	"testing"

	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/checkpoint/storage"
	"github.com/concertina-dev/concertina/internal/score"
)

// A state that was evaluated again in later attempts, with the same score, takes the place of no other one.
func TestCopiesOfAStateCountOnce(t *testing.T) {
	s := open(t, "file://"+t.TempDir())
	best := score.Best{Metric: "accuracy", Keep: 3}
	put := func(attempt int32, round, step uint64, value float64) {
		place := storage.Place{Job: job, Attempt: attempt, ID: checkpoint.ID{Round: round, Step: step}}
		if err := s.Score(t.Context(), place, best.Metric, value); err != nil {
			t.Fatal(err)
		}
		save(t, s, place, state(step, 1000))
		if _, err := s.Collect(t.Context(), job, 2, best); err != nil {
			t.Fatal(err)
		}
	}
	put(1, 1, 10, .7)
	put(1, 1, 20, .8)
	put(1, 1, 30, .9)
	put(2, 2, 30, .9)
	put(3, 3, 30, .9)
	there := map[uint64]int{}
	for _, p := range find(t, s, "team/llama") {
		there[p.Step]++
	}
	if there[10] != 1 || there[20] != 1 || there[30] != 2 { // the newest two stay in any case
		t.Errorf("how many there are by their steps: %v", there)
	}
}
