package rendezvous

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// follows is which states may follow on each, as in the table of docs/rounds.md: by what is heard of the gang, of
// agents and of the time, and by the answer to a write. A decision takes one event as far as it goes, so states in
// between may be passed over. What the controller says of the gang may lead anywhere but into the middle of a change:
// it may name nobody any more, somebody again, or another attempt; it may release the job, and expect it anew.
var follows = map[State]struct{ heard, answered []State }{
	StateExpecting: {},
	StateClaiming: {answered: []State{StateInheriting, StateGathering, StateFounding, StateEntering, StateTraining,
		StateLeaving}},
	StateInheriting: {heard: []State{StateGathering, StateFounding, StateEntering, StateTraining, StateLeaving}},
	StateGathering: {heard: []State{StateInheriting, StateFounding, StateEntering, StateTraining, StateLeaving, StateFailed},
		answered: []State{StateClaiming}},
	StateFounding: {answered: []State{StateGathering, StateEntering, StateLeaving, StateRegrouping, StateRenewing, StateFailed}},
	StateEntering: {heard: []State{StateInheriting, StateTraining, StateArming, StateLeaving, StateRegrouping, StateRenewing, StateFinishing,
		StateFailed}},
	StateTraining: {heard: []State{StateArming, StateLeaving, StateRegrouping, StateRenewing, StateFinishing, StateFailed}},
	StateArming:   {heard: []State{StateTraining, StateParked, StateCommitting, StateLeaving, StateRegrouping, StateRenewing, StateFailed}},
	StateParked:   {heard: []State{StateTraining, StateArming, StateCommitting, StateLeaving, StateRegrouping, StateRenewing, StateFailed}},
	StateCommitting: {heard: []State{StateTraining, StateLeaving, StateRegrouping, StateFailed},
		answered: []State{StateParked, StateArming, StateTraining, StateEntering, StateLeaving, StateFailed}},
	StateLeaving:    {heard: []State{StateInheriting, StateRegrouping, StateRenewing, StateFailed}},
	StateRegrouping: {heard: []State{StateInheriting, StateLeaving, StateRenewing, StateFailed}},
	StateRenewing: {heard: []State{StateFailed}, answered: []State{StateInheriting, StateLeaving, StateRegrouping, StateEntering,
		StateFailed}},
	StateFinishing: {},
	StateFailed:    {},
	StateOver:      {},
}

// mayFollow says whether an event may lead from one state to another.
func mayFollow(before State, ev Event, after State) bool {
	switch ev.(type) {
	case GangExpected:
		if before == StateOver || before == StateExpecting || after == StateExpecting || after == StateGathering || after == StateInheriting {
			return true
		}
	case GangReleased:
		return after == StateOver
	case RecordAnswered:
		// Time has passed until it came, so what follows by that may follow by it as well.
		if after == StateOver || slices.Contains(follows[before].answered, after) {
			return true
		}
	}
	return after == before || slices.Contains(follows[before].heard, after)
}

// An answer to a write is also a moment at which time has passed: here the one by which a leader has its term raised
// while the world is left, and a member has not come in time.
func TestWhatFollowsByTimeFollowsByAnAnswer(t *testing.T) {
	if !mayFollow(StateLeaving, RecordAnswered{}, StateRegrouping) || mayFollow(StateLeaving, RecordAnswered{}, StateTraining) {
		t.Error("by an answer follows what follows by time, and nothing else")
	}
}

// followed checks what an event has led to.
func followed(t rapid.TB, before State, ev Event, after State) {
	t.Helper()
	if !mayFollow(before, ev, after) {
		t.Fatalf("a leader that was %s is %s after %T", before, after, ev)
	}
}

// TestTheTableOfStates holds the table of the docs to the one above.
func TestTheTableOfStates(t *testing.T) {
	text, err := os.ReadFile("../../docs/rounds.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `([A-Z][a-z]+)` \\|[^|]*\\|([^|]*)\\|([^|]*)\\|$")
	told := map[State][2][]State{}
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		told[State(m[1])] = [2][]State{states(m[2]), states(m[3])}
	}
	if len(told) != len(follows) {
		t.Errorf("the docs tell of %d states, there are %d", len(told), len(follows))
	}
	for _, state := range slices.Sorted(maps.Keys(follows)) {
		is, says := follows[state], told[state]
		if !slices.Equal(says[0], sorted(is.heard)) || !slices.Equal(says[1], sorted(is.answered)) {
			t.Errorf("%s: the docs tell that %v follow, and it is %v", state, says, is)
		}
	}
}

// states are the words in backquotes of a cell.
func states(cell string) []State {
	var found []State
	for _, m := range regexp.MustCompile("`([A-Za-z]+)`").FindAllStringSubmatch(cell, -1) {
		found = append(found, State(strings.TrimSpace(m[1])))
	}
	return sorted(found)
}

func sorted(s []State) []State { return slices.Sorted(slices.Values(s)) }
