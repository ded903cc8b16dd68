package ledger

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	log, err := Parse("round 3: 2 ranks\nledger round=3 step=17 epoch=1 rank=1 ids=12,0,7\n" +
		"ledger round=3 step=18 epoch=1 rank=1 ids=\nstep 18/90 loss 0.25\nstep by step\nledger round=3 step=1")
	if err != nil {
		t.Fatal(err)
	}
	want := Log{
		Lines: []Line{
			{Round: 3, Step: 17, Epoch: 1, Rank: 1, Samples: []uint64{12, 0, 7}},
			{Round: 3, Step: 18, Epoch: 1, Rank: 1},
		},
		Losses: []Loss{{Step: 18, Steps: 90, Loss: 0.25}},
	}
	if diff := cmp.Diff(want, log); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	for _, bad := range []string{
		"ledger round=3\n",
		"ledger round=3 step=17 epoch=0 rank=1 ids=1,,2\n",
		"ledger round=3 step=99999999999999999999 epoch=0 rank=1 ids=1\n",
		"ledger round=3 step=1 epoch=0 rank=4294967296 ids=1\n",
		"ledger round=3 step=17 epoch=0 rank=1 ids=1ledger round=3 step=18 epoch=0 rank=1 ids=2\n",
		"step 1/2 loss much\n",
		"step 1/x loss 1\n",
	} {
		if _, err := Parse(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestHistory(t *testing.T) {
	for _, tc := range []struct {
		name   string
		rounds []Round
		newest uint64
		want   []Stretch
		fails  string
	}{
		{
			name:   "growth, then a loss that costs two steps",
			rounds: []Round{{1, 0, 0, 2}, {2, 1, 4, 3}, {3, 2, 5, 2}}, newest: 3,
			want: []Stretch{{1, 2, 0, 4}, {2, 3, 4, 5}, {3, 2, 5, 9}},
		},
		{
			name:   "a burned round is in nobody's past",
			rounds: []Round{{1, 0, 0, 2}, {2, 1, 4, 3}, {3, 1, 4, 2}}, newest: 3,
			want: []Stretch{{1, 2, 0, 4}, {3, 2, 4, 9}},
		},
		{
			name:   "a recovery behind the beginning of the round before",
			rounds: []Round{{1, 0, 0, 2}, {2, 1, 4, 3}, {3, 2, 3, 2}}, newest: 3,
			want: []Stretch{{1, 2, 0, 3}, {3, 2, 3, 9}},
		},
		{
			name:   "everything was lost before the first snapshot",
			rounds: []Round{{1, 0, 0, 2}, {2, 1, 0, 1}}, newest: 2,
			want: []Stretch{{2, 1, 0, 9}},
		},
		{name: "an unknown parent", rounds: []Round{{3, 2, 4, 2}}, newest: 3, fails: "no record of round 2"},
		{name: "a circle", rounds: []Round{{3, 3, 4, 2}}, newest: 3, fails: "not older"},
		{name: "a beginning in the middle", rounds: []Round{{1, 0, 2, 2}}, newest: 1, fails: "continues no other"},
		{name: "two records", rounds: []Round{{1, 0, 0, 2}, {1, 0, 0, 3}}, newest: 1, fails: "two records"},
		{name: "no ranks", rounds: []Round{{1, 0, 0, 0}}, newest: 1, fails: "0 ranks"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := History(tc.rounds, tc.newest, 9)
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) {
					t.Fatalf("error %v, want one with %q", err, tc.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("history (-want +got):\n%s", diff)
			}
		})
	}
}

// train writes the lines of a round of two ranks: 8 samples, 4 in a step, so two steps are an epoch.
// Sample s of an epoch is used in step s/4 of it, by rank s%2.
func train(logs map[string]Log, round, from, to uint64, workers ...string) {
	for step := from + 1; step <= to; step++ {
		for rank, worker := range workers {
			first := (step - 1) % 2 * 4
			line := Line{Round: round, Step: step, Epoch: (step - 1) / 2, Rank: rank}
			for sample := first; sample < first+4; sample++ {
				if sample%uint64(len(workers)) == uint64(rank) {
					line.Samples = append(line.Samples, sample)
				}
			}
			log := logs[worker]
			log.Lines = append(log.Lines, line)
			logs[worker] = log
		}
	}
}

// disturbed is a run of two ranks that grows to three after step 3, and loses step 5 and one worker.
func disturbed() Run {
	logs := map[string]Log{}
	train(logs, 1, 0, 3, "a", "b")
	train(logs, 2, 3, 5, "a", "b", "c")
	train(logs, 4, 4, 8, "b", "c")
	return Run{
		Logs: logs, Newest: 4, Steps: 8, Samples: 8,
		Rounds: []Round{{1, 0, 0, 2}, {2, 1, 3, 3}, {4, 2, 4, 2}},
	}
}

func TestCheck(t *testing.T) {
	// line returns the line of a worker in a step of a round.
	line := func(r Run, worker string, round, step uint64) *Line {
		for i := range r.Logs[worker].Lines {
			if l := &r.Logs[worker].Lines[i]; l.Round == round && l.Step == step {
				return l
			}
		}
		panic(fmt.Sprintf("worker %s has no step %d", worker, step))
	}
	for _, tc := range []struct {
		name  string
		spoil func(*Run)
		fails string
	}{
		{"a good run", func(*Run) {}, ""},
		{"a step that does not count may be cut off", func(r *Run) {
			log := r.Logs["a"]
			log.Lines = log.Lines[:len(log.Lines)-1]
			r.Logs["a"] = log
		}, ""},
		{"a rank is missing in a step", func(r *Run) {
			log := r.Logs["c"]
			log.Lines = log.Lines[:len(log.Lines)-1]
			r.Logs["c"] = log
		}, "step 8 of round 4: rank 1 stands there 0 times"},
		{"the logs of a worker are missing", func(r *Run) { delete(r.Logs, "a") }, "step 1 of round 1: rank 0"},
		{"two workers with one rank", func(r *Run) { line(*r, "c", 4, 6).Rank = 0 }, "rank 0 stands there 2 times"},
		{"a rank too many", func(r *Run) { line(*r, "c", 4, 6).Rank = 2 }, "there is a rank 2 among 2"},
		{"a negative rank does not exist, a large one is no panic", func(r *Run) { line(*r, "c", 4, 6).Rank = math.MaxInt32 }, "among 2"},
		{"ranks in two epochs", func(r *Run) { line(*r, "c", 4, 6).Epoch = 7 }, "ranks are in the epochs 2 and 7"},
		{"a sample twice", func(r *Run) { line(*r, "b", 1, 2).Samples[0] = 4 }, "epoch 0: of 8 samples 1 were not used, 1 more than once [4]"},
		{"a sample less", func(r *Run) {
			l := line(*r, "b", 4, 8)
			l.Samples = l.Samples[1:]
		}, "epoch 3: of 8 samples 1 were not used, 0 more"},
		{"a sample that does not exist", func(r *Run) { line(*r, "b", 4, 8).Samples[0] = 8 }, "1 are not of the data [8]"},
		{"the lost step counts", func(r *Run) { r.Rounds[2].FromStep = 5 }, "worker b: step 5 of round 4, which begins with step 6"},
		{"a step was lost in a planned change", func(r *Run) { r.Rounds[1].FromStep = 2 }, "step 3 of round 2"},
		{"a step too few", func(r *Run) { r.Steps = 9 }, "step 9 of round 4"},
		{"an epoch was cut", func(r *Run) { r.Steps = 7 }, "epoch 3: of 8 samples 4 were not used"},
		{"a worker skips a step", func(r *Run) {
			log := r.Logs["b"]
			log.Lines = append(append([]Line{}, log.Lines[:1]...), log.Lines[2:]...)
			r.Logs["b"] = log
		}, "worker b: step 3 comes after step 1 in round 1"},
		{"an old world comes back", func(r *Run) {
			log := r.Logs["b"]
			log.Lines = append(log.Lines, Line{Round: 2, Step: 6, Epoch: 2, Rank: 1})
			r.Logs["b"] = log
		}, "worker b: round 2 comes after round 4"},
		{"no lines at all", func(r *Run) { r.Logs = nil }, "no step counts"},
		{"no steps at all", func(r *Run) { r.Steps = 0 }, "no step counts"},
		{"epochs out of order", func(r *Run) {
			for _, worker := range []string{"b", "c"} {
				for step := uint64(5); step <= 6; step++ {
					line(*r, worker, 4, step).Epoch = 9
				}
			}
		}, "epoch 9 follows epoch 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := disturbed()
			tc.spoil(&r)
			err := r.Check()
			if (err == nil) != (tc.fails == "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
				t.Fatalf("error %v, want one with %q", err, tc.fails)
			}
		})
	}
}

func TestCompareLosses(t *testing.T) {
	undisturbed := []Loss{{1, 3, 2}, {2, 3, 1}, {3, 3, 0.5}}
	for _, tc := range []struct {
		name  string
		logs  map[string]Log
		fails string
	}{
		{"rank 0 moved, a step was made again", map[string]Log{
			"a": {Losses: []Loss{{1, 3, 2.001}, {2, 3, 1}}}, "b": {Losses: []Loss{{2, 3, 0.9995}, {3, 3, 0.5}}},
		}, ""},
		{"another loss", map[string]Log{"a": {Losses: []Loss{{1, 3, 2.003}, {2, 3, 1}, {3, 3, 0.5}}}}, "step 1 has the loss 2.003"},
		{"no number", map[string]Log{"a": {Losses: []Loss{{1, 3, math.NaN()}, {2, 3, 1}, {3, 3, 0.5}}}}, "step 1 has the loss NaN"},
		{"a loss that nobody told", map[string]Log{"a": {Losses: []Loss{{1, 3, 2}, {3, 3, 0.5}}}}, "nobody told the loss of step 2"},
		{"another length", map[string]Log{"a": {Losses: []Loss{{1, 4, 2}, {2, 3, 1}, {3, 3, 0.5}}}}, "there are 4 steps, not 3"},
		{"an unknown step", map[string]Log{"a": {Losses: []Loss{{1, 3, 2}, {2, 3, 1}, {3, 3, 0.5}, {4, 3, 0.1}}}}, "no loss of step 4"},
		{"nothing", nil, "nobody told the loss of step 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := Run{Logs: tc.logs}.CompareLosses(undisturbed, 1e-3)
			if (err == nil) != (tc.fails == "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
				t.Fatalf("error %v, want one with %q", err, tc.fails)
			}
		})
	}
	if err := (Run{}).CompareLosses(nil, 1e-3); err == nil {
		t.Error("nothing is like nothing")
	}
	lost := Run{
		Logs:   map[string]Log{"a": {Losses: []Loss{{1, 3, 2}, {3, 3, 0.5}}}},
		Rounds: []Round{{Number: 1, Ranks: 2}, {Number: 2, Parent: 1, FromStep: 2, Ranks: 1}},
	}
	if err := lost.CompareLosses(undisturbed, 1e-3); err != nil {
		t.Errorf("rank 0 was lost in a step that others made: %v", err)
	}
}
