package ledger_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/concertina-dev/concertina/test/e2e/ledger"
)

// trained are the lines of a world that makes these steps of 6 samples, of which there are 12: step 3 uses what step 1 did.
func trained(round, size, first, last int) []string {
	var lines []string
	for step := first; step <= last; step++ {
		for rank := range size {
			var samples []string
			for i := rank; i < 6; i += size {
				samples = append(samples, fmt.Sprint((step-1)%2*6+i))
			}
			lines = append(lines, fmt.Sprintf(`{"step": %d, "round": %d, "rank": %d, "size": %d, "loss": %g, "samples": [%s]}`,
				step, round, rank, size, 1/float64(step), strings.Join(samples, ", ")))
		}
	}
	return lines
}

func points(worlds ...[]string) ledger.Points {
	return ledger.Points{Told: ledger.ParsePoints(slices.Concat(worlds...)), Samples: 12, Batch: 6, Steps: 8, Every: 3}
}

func TestPointsThatWerePassedOn(t *testing.T) {
	// Stopped after step 2, lost after step 5 with a checkpoint of step 3. What others print, and what is cut off, is no matter.
	p := points([]string{"hello", `{"step": 1, "rou`}, trained(1, 2, 1, 2), trained(4, 3, 3, 5), trained(5, 2, 4, 8))
	if err := p.CheckOnce(); err != nil {
		t.Error(err)
	}
	if err := p.CheckNothingLost(4); err != nil {
		t.Error(err)
	}
	if err := p.CompareLosses(points(trained(1, 1, 1, 8)), 1e-9); err != nil {
		t.Error(err)
	}
	if err := points(trained(1, 2, 1, 5), trained(2, 1, 4, 8)).CheckNewestCheckpoints(); err != nil {
		t.Error(err)
	}
}

func TestPointsAreListed(t *testing.T) {
	want := "round 1 step 1: 2 of 2 ranks, loss 1.000000\nround 1 step 2: 2 of 2 ranks, loss 0.500000\nround 2 step 2: 1 of 1 ranks, loss 0.500000\n"
	if got := points(trained(1, 2, 1, 2), trained(2, 1, 2, 2)).String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestPointsWhoseCheckpointWasNotWhole(t *testing.T) {
	for _, first := range []int{4, 7} {
		if err := points(trained(1, 2, 1, 6), trained(2, 2, first, 8)).CheckNothingLost(1); err != nil {
			t.Errorf("lost while step 6 is saved, on with %d: %v", first, err)
		}
	}
}

func TestPointsThatAreWrong(t *testing.T) {
	losses := func(p ledger.Points) error { return p.CompareLosses(points(trained(1, 1, 1, 8)), 1e-3) }
	nothingLost := func(p ledger.Points) error { return p.CheckNothingLost(0) }
	whole := trained(1, 2, 1, 8)
	again := strings.Replace(trained(1, 1, 8, 8)[0], "[6, 7", "[6, 6", 1)
	tests := []struct {
		name  string
		lines []string
		check func(ledger.Points) error
		want  string
	}{
		{"a step is missing", trained(1, 2, 1, 7), ledger.Points.CheckOnce, "step 8: nobody"},
		{"a rank is missing", whole[:len(whole)-1], ledger.Points.CheckOnce, "step 8: 1 of 2 ranks"},
		{"a rank twice", append(slices.Clone(whole), whole[0]), ledger.Points.CheckOnce, "step 1: rank 0 of 2"},
		{"a step too many", trained(1, 2, 1, 9), ledger.Points.CheckOnce, "step 9"},
		{"a sample twice", append(trained(1, 1, 1, 7), again), ledger.Points.CheckOnce, "sample 6 of epoch 3"},
		{"a sample left out", append(trained(1, 1, 1, 7), strings.Replace(again, "6, 6,", "6,", 1)), ledger.Points.CheckOnce, "epoch 3 has used 11 of 12"},
		{"a step is made again", slices.Concat(trained(1, 2, 1, 5), trained(2, 1, 5, 8)), nothingLost, "round 1 made steps 1 to 5, and round 2 goes on with 5"},
		{"a step is left out", slices.Concat(trained(1, 2, 1, 5), trained(2, 1, 7, 8)), nothingLost, "loses no step"},
		{
			"not from its newest checkpoint", slices.Concat(trained(1, 2, 1, 5), trained(2, 1, 1, 8)),
			ledger.Points.CheckNewestCheckpoints, "newest checkpoint",
		},
		{
			"nor from where it had begun", slices.Concat(trained(1, 2, 1, 4), trained(2, 1, 5, 5), trained(3, 1, 4, 8)),
			func(p ledger.Points) error { return p.CheckNothingLost(2) }, "newest checkpoint",
		},
		{"another loss", append(trained(1, 1, 1, 7), strings.Replace(again, "0.125", "0.127", 1)), losses, "step 8 has loss 0.127"},
		{"no loss", trained(1, 1, 1, 5), losses, "step 6 has loss NaN"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if err := test.check(points(test.lines)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
