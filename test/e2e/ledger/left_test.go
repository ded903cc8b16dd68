package ledger

import (
	"strings"
	"testing"
)

func TestCheckLeft(t *testing.T) {
	r := Run{Logs: map[string]Log{
		"a": {Lines: []Line{{Round: 1, Step: 1}, {Round: 1, Step: 2}, {Round: 1, Step: 3}}},
		"b": {Lines: []Line{{Round: 1, Step: 1}, {Round: 1, Step: 2}}},
		"d": {Lines: []Line{{Round: 1, Step: 4}, {Round: 1, Step: 5}}},
	}, Rounds: []Round{{Number: 1, Ranks: 2}, {Number: 2, Parent: 1, FromStep: 2, Ranks: 2}}}
	both := map[string]uint64{"a": 0, "b": 0}
	for _, tc := range []struct {
		name  string
		left  Left
		fails string
	}{
		{"the step that the loss hit", Left{Round: 2, Parent: 1, FromStep: 2, Survivors: both, Safe: 2, Durable: 1}, ""},
		{"a barrier", Left{Round: 2, Parent: 1, FromStep: 3, Survivors: both}, ""},
		{"one survivor was further", Left{Round: 2, Parent: 1, FromStep: 1, Survivors: both}, "after step 1, and there was step 2, which worker a had done"},
		{"nobody of them was", Left{Round: 2, Parent: 1, FromStep: 1, Survivors: map[string]uint64{"b": 0}}, ""},
		{"it was another program's", Left{Round: 2, Parent: 1, FromStep: 1, Survivors: map[string]uint64{"a": 2}}, ""},
		{"a world without a step", Left{Round: 3, Parent: 2, FromStep: 2, Survivors: map[string]uint64{"d": 1}}, ""},
		{"a world without a step, and back", Left{Round: 3, Parent: 2, FromStep: 1, Survivors: map[string]uint64{"d": 1}}, "there was step 2, which worker d had done"},
		{"who is not known", Left{Round: 2, Parent: 1, FromStep: 0, Survivors: map[string]uint64{"c": 0}}, ""},
		{"a snapshot", Left{Round: 2, Parent: 1, FromStep: 1, Safe: 2}, "there was step 2, of which there was a snapshot"},
		{"a checkpoint", Left{Round: 2, FromStep: 1, Durable: 2}, "there was step 2, of which there was a checkpoint"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := r.CheckLeft([]Left{tc.left})
			if (err == nil) != (tc.fails == "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
				t.Fatalf("error %v, want one with %q", err, tc.fails)
			}
		})
	}
}
