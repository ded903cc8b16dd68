package lifecycle

import "testing"

// The transcripts in this file are of recoveries that go on from live state.

func leaves(slot int, what What, step uint64) Said {
	s := says(slot, what)
	s.Step, s.Clean = step, true
	return s
}

func unclean(s Said) Said { s.Clean = false; return s }

// savingAfter is an abort that asks for the state after a step.
func savingAfter(h Heard, step uint64) Heard {
	h = aborting(h, false)
	h.Directive.Abort.SaveStep = step
	return h
}

var liveTranscripts = map[string][]line{
	"all processes keep their state": inRound(
		line{1 * second, aborting(directive(1, 1, "a"), false), "abort0(1) abort1(1)"},
		line{2 * second, leaves(0, Aborted, 17), "tell tell"},
		line{2 * second, leaves(1, Faulted, 17), "tell"},
		line{3 * second, going(directive(1, 2, "b"), 17, false), "tell give0(2) tell give1(2) tell"},
	),
	"a process is one step behind": inRound(
		line{1 * second, aborting(directive(1, 1, "a"), false), "abort0(1) abort1(1)"},
		line{2 * second, leaves(0, Aborted, 16), "tell tell"},
		line{2 * second, leaves(1, Aborted, 17), "tell"},
		line{3 * second, savingAfter(directive(1, 1, "a"), 17), "save1"},
		line{3 * second, savingAfter(directive(1, 1, "a"), 17), ""},
		line{3 * second, savingAfter(directive(2, 1, "a"), 17), ""},
		line{4 * second, going(directive(2, 2, "b"), 17, false), "refuse tell"},
		line{5 * second, going(directive(2, 3, "c"), 17, true), "fetch(17) tell"},
	),
	"the first process that has it saves": inRound(
		line{1 * second, aborting(directive(1, 1, "a"), false), "abort0(1) abort1(1)"},
		line{2 * second, savingAfter(directive(1, 1, "a"), 17), ""},
		line{2 * second, leaves(1, Aborted, 17), "tell save1 tell"},
		line{2 * second, leaves(0, Aborted, 17), "tell"},
	),
	"who has it ends while it saves": inRound(
		line{1 * second, aborting(directive(1, 1, "a"), false), "abort0(1) abort1(1)"},
		line{2 * second, leaves(0, Aborted, 17), "tell tell"},
		line{2 * second, leaves(1, Aborted, 17), "tell"},
		line{3 * second, savingAfter(directive(1, 1, "a"), 17), "save0"},
		line{4 * second, says(0, Disconnected), "tell save1"},
		line{5 * second, going(directive(1, 2, "b"), 17, false), "refuse tell"},
	),
	"a process that has finished": inRound(
		line{1 * second, leaves(0, Finished, 20), "tell tell"},
		line{2 * second, savingAfter(directive(1, 1, "a"), 20), "save0 abort1(1)"},
		line{3 * second, unclean(leaves(1, Aborted, 19)), "tell"},
		line{4 * second, going(directive(1, 2, "b"), 20, false), "refuse tell"},
	),
	"a process in the middle of its update": inRound(
		line{1 * second, aborting(directive(1, 1, "a"), false), "abort0(1) abort1(1)"},
		line{2 * second, unclean(leaves(0, Aborted, 17)), "tell tell"},
		line{2 * second, leaves(1, Aborted, 17), "tell"},
		line{4 * second, going(directive(1, 2, "b"), 17, false), "refuse tell"},
	),
}

func TestLiveTranscripts(t *testing.T) {
	for name, lines := range liveTranscripts {
		t.Run(name, func(t *testing.T) { play(t, InPlace, lines) })
	}
}

// What the operator is told of a process's state is true only for the world that it has left.
func TestWhatIsToldOfLiveState(t *testing.T) {
	m := New(epoch, DefaultLimits(30*second), Shape{Programs: 2, Processes: 2})
	events := []struct {
		event Event
		clean [2]bool
	}{
		{directive(1, 1, "a"), [2]bool{}},
		{says(0, Connected), [2]bool{}},
		{says(1, Connected), [2]bool{}},
		{says(0, Joined), [2]bool{}},
		{says(1, Joined), [2]bool{}},
		{leaves(0, Faulted, 17), [2]bool{true, false}},
		{aborting(directive(1, 1, "a"), false), [2]bool{true, false}},
		{leaves(1, Aborted, 17), [2]bool{true, true}},
		{going(directive(1, 2, "b"), 16, true), [2]bool{}},
		{Fetched{Round: 2}, [2]bool{}},
	}
	for i, e := range events {
		m.Step(epoch, e.event)
		if got := [2]bool{m.Process(0).Clean, m.Process(1).Clean}; got != e.clean {
			t.Errorf("event %d, %T: the states are told as clean: %v, want %v", i, e.event, got, e.clean)
		}
	}
}

// A world that is over before its processes were in it: what they have left the one before with is told of as long as it belongs to
// the history, and they go on with that where the operator wants it.
func TestWhatIsLeftOfTheStateBefore(t *testing.T) {
	left := func(slot int, what What) Said { return leaves(slot, what, 16) }
	broken := func(round, parent, from uint64) []Event {
		begins := with(going(directive(1, round, "b"), from, true), func(d *Directive) { d.World.Parent = parent })
		return []Event{begins, aborting(begins, false)}
	}
	for name, c := range map[string]struct {
		events []Event
		step   uint64 // what both have; 0 for nothing
		goesOn bool
	}{
		"of the step before": {[]Event{left(0, Aborted), left(1, Aborted), going(directive(1, 2, "b"), 17, true), aborting(directive(1, 2, "b"), false)}, 16, true},
		"after a fault":      {[]Event{left(0, Faulted), left(1, Aborted), going(directive(1, 2, "b"), 17, true), aborting(directive(1, 2, "b"), false)}, 16, true},
		"two worlds before": {[]Event{
			left(0, Faulted), left(1, Aborted), going(directive(1, 2, "b"), 17, true), aborting(directive(1, 2, "b"), false),
			going(directive(1, 3, "c"), 17, true), aborting(directive(1, 3, "c"), false),
		}, 16, true},
		"of the world before the one before": {append([]Event{left(0, Aborted), left(1, Aborted)}, broken(3, 2, 17)...), 16, true},
		"of one before that": {
			append(append([]Event{left(0, Aborted), left(1, Aborted)}, broken(3, 2, 17)...), broken(4, 3, 17)...), 0, false,
		},
		"of one before that, twice": {
			append(append([]Event{left(0, Aborted), left(1, Aborted)}, broken(3, 2, 17)...), broken(5, 4, 17)...), 0, false,
		},
		"of one before that, though it was in none since": {
			append(append([]Event{left(0, Aborted), left(1, Aborted)}, broken(3, 2, 16)...), broken(4, 3, 17)...), 0, false,
		},
		"as far as the others, who may have made that step again": {append([]Event{left(0, Aborted), left(1, Aborted)}, broken(3, 2, 16)...), 0, false},
		"of the very step, and another one was to come": {
			[]Event{left(0, Aborted), left(1, Aborted), going(directive(1, 2, "b"), 16, true), aborting(directive(1, 2, "b"), false)}, 0, false,
		},
		"of no history": {[]Event{left(0, Aborted), left(1, Aborted), going(directive(1, 2, "b"), 12, true), aborting(directive(1, 2, "b"), false)}, 0, false},
		"not clean": {[]Event{
			unclean(left(0, Aborted)), unclean(left(1, Aborted)), going(directive(1, 2, "b"), 17, true), aborting(directive(1, 2, "b"), false),
		}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := New(epoch, DefaultLimits(30*second), Shape{Programs: 2, Processes: 2})
			for _, l := range inRound(line{1 * second, aborting(directive(1, 1, "a"), false), ""}) {
				m.Step(epoch.Add(l.at), l.event)
			}
			for i, e := range c.events {
				m.Step(epoch.Add(2*second), e)
				if heard, is := e.(Heard); is && i == len(c.events)-1 && !m.Out() {
					t.Fatalf("round %d is over, and it is not out", heard.Directive.Round)
				}
			}
			for slot := range 2 {
				of := m.Process(slot)
				if of.Clean != (c.step > 0) || of.Step != c.step || of.Waiting != WaitsAborted || !of.Entering {
					t.Errorf("of process %d it is told %+v, want the state after step %d", slot, of, c.step)
				}
			}
			round := m.In().Round
			m.Step(epoch.Add(3*second), going(directive(1, round+1, "d"), 16, false))
			if went := m.In().Round == round+1; went != c.goesOn {
				t.Errorf("it goes on with the state after step 16: %v", went)
			}
		})
	}
}
