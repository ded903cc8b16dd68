package lifecycle

import "testing"

// The transcripts in this file are of programs that are started anew in each world, and leave theirs at a barrier.

func connected(slot int) Said {
	s := says(slot, Connected)
	s.Leaves = true
	return s
}

func hasLeft(slot int, step uint64) Said { s := says(slot, Left); s.Step = step; return s }

func leaving(h Heard, step uint64) Heard {
	return with(h, func(d *Directive) { d.Abort = &Abort{Reason: "it grows", Planned: true, LeaveStep: step} })
}

// atBarrier begins a transcript with both processes at the barrier after step 17 of round 1.
func atBarrier(rest ...line) []line {
	return append([]line{
		{0, directive(1, 1, "a"), "start(1) tell"},
		{0, connected(0), "tell"},
		{0, connected(1), "tell"},
		{1 * second, armedAt(directive(1, 1, "a"), 1, 17), "arm0(17) arm1(17)"},
		{1 * second, Armed{0, 17}, "tell"},
		{1 * second, Armed{1, 17}, "tell"},
		{2 * second, parked(0, 17), "tell"},
		{2 * second, parked(1, 17), "tell"},
	}, rest...)
}

var leavingTranscripts = map[string][]line{
	"all save and end": atBarrier(
		line{3 * second, leaving(directive(1, 1, "a"), 17), "leave0 leave1 tell"},
		line{3 * second, leaving(directive(1, 1, "a"), 17), ""},
		line{4 * second, hasLeft(0, 17), "tell"},
		line{4 * second, says(0, Disconnected), "tell"},
		line{4 * second, Exited{0, 0}, "tell"},
		line{5 * second, hasLeft(1, 17), "tell"},
		line{5 * second, Exited{1, 0}, "tell kill tell"},
		line{6 * second, directive(1, 2, "b"), "start(2) tell"},
		line{7 * second, connected(0), "tell"},
	),
	"one ends with code 0 and says nothing": atBarrier(
		line{3 * second, leaving(directive(1, 1, "a"), 17), "leave0 leave1 tell"},
		line{4 * second, says(0, Disconnected), "tell"},
		line{4 * second, Exited{0, 0}, "tell"},
		line{4 * second, hasLeft(1, 17), "tell"},
		line{4 * second, Exited{1, 0}, "tell kill tell"},
	),
	"all have saved, and one does not end": atBarrier(
		line{3 * second, leaving(directive(1, 1, "a"), 17), "leave0 leave1 tell"},
		line{4 * second, hasLeft(0, 17), "tell"},
		line{4 * second, hasLeft(1, 17), "tell"},
		line{4 * second, Exited{0, 0}, "tell"},
		line{8 * second, Tick{}, ""},
		line{9 * second, Tick{}, "kill"},
		line{9 * second, Exited{1, 137}, "tell kill tell"},
	),
	"one fails while it saves": atBarrier(
		line{3 * second, leaving(directive(1, 1, "a"), 17), "leave0 leave1 tell"},
		line{4 * second, Exited{0, 1}, "tell"},
		line{4 * second, hasLeft(1, 17), "tell"},
		line{4 * second, Exited{1, 0}, "tell kill tell"},
		line{5 * second, directive(1, 2, "b"), "start(2) tell"},
	),
	"one takes too long to save": atBarrier(
		line{3 * second, leaving(directive(1, 1, "a"), 17), "leave0 leave1 tell"},
		line{4 * second, hasLeft(0, 17), "tell"},
		line{4 * second, Exited{0, 0}, "tell"},
		line{62 * second, Tick{}, ""},
		line{63 * second, Tick{}, "term[1]"},
		line{68 * second, Tick{}, "kill"},
		line{68 * second, Exited{1, 137}, "tell kill tell"},
	),
	"one was let go meanwhile": atBarrier(
		line{3 * second, directive(1, 1, "a"), "lift0 tell go0 tell lift1 tell go1 tell"},
		line{4 * second, leaving(directive(1, 1, "a"), 17), "checkpoint"},
		line{5 * second, hasLeft(0, 17), ""},
		line{5 * second, Checkpointed{Round: 1}, "term[0 1]"},
	),
	"one speaks to nobody": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{0, connected(0), "tell"},
		{1 * second, armedAt(directive(1, 1, "a"), 1, 17), "arm0(17)"},
		{1 * second, Armed{0, 17}, "tell"},
		{2 * second, parked(0, 17), "tell"},
		{3 * second, leaving(directive(1, 1, "a"), 17), "checkpoint lift0 tell go0 tell"},
	},
	"another operator knows nothing of it": atBarrier(
		line{3 * second, leaving(directive(1, 1, "a"), 17), "leave0 leave1 tell"},
		line{4 * second, directive(2, 1, "a"), ""},
		line{5 * second, hasLeft(0, 17), "tell"},
		line{5 * second, leaving(directive(2, 1, "a"), 17), ""},
		line{6 * second, hasLeft(1, 17), "tell"},
		line{6 * second, Exited{0, 0}, "tell"},
		line{6 * second, Exited{1, 0}, "tell kill tell"},
	),
	"the hold ends while they save": atBarrier(
		line{3 * second, held(armedAt(directive(1, 1, "a"), 1, 17), 1, 3*second), ""},
		line{4 * second, leaving(directive(1, 1, "a"), 17), "leave0 leave1 tell"},
		line{34 * second, Tick{}, ""},
		line{35 * second, hasLeft(0, 17), "tell"},
	),
	"a worker is lost while they save": atBarrier(
		line{3 * second, leaving(directive(1, 1, "a"), 17), "leave0 leave1 tell"},
		line{4 * second, aborting(directive(1, 1, "a"), false), "term[0 1]"},
	),
	"the pod is told to end as well": atBarrier(
		line{3 * second, Terminated{}, "tell"},
		line{3 * second, leaving(directive(1, 1, "a"), 17), "leave0 leave1 tell"},
		line{4 * second, hasLeft(0, 17), "tell"},
		line{4 * second, hasLeft(1, 17), "tell"},
		line{4 * second, Exited{0, 0}, "tell"},
		line{4 * second, Exited{1, 0}, "tell kill leave(143)"},
	),
	"it ends by itself": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{0, connected(0), "tell"},
		{0, connected(1), "tell"},
		{1 * second, hasLeft(0, 17), ""},
		{1 * second, Exited{0, 0}, "tell"},
		{1 * second, Exited{1, 0}, "tell kill leave(0)"},
	},
}

func TestLeavingTranscripts(t *testing.T) {
	for name, lines := range leavingTranscripts {
		t.Run(name, func(t *testing.T) { play(t, Restart, lines) })
	}
}

// What the operator is told of those that leave, up to the end of the agent: nothing else says that their state is saved.
func TestWhatIsToldOfThoseThatLeave(t *testing.T) {
	m := New(epoch, DefaultLimits(30*second), Shape{Programs: 1, Processes: 2, Strategy: Restart})
	for _, l := range atBarrier(line{3 * second, leaving(directive(1, 1, "a"), 17), ""}) {
		m.Step(epoch.Add(l.at), l.event)
	}
	for i := range 2 {
		if p := m.Process(i); !p.Leaves || p.Leaving != 17 || p.Clean || p.Waiting != WaitsParked {
			t.Errorf("process %d was told to leave, and is told as %+v", i, p)
		}
	}
	m.Step(epoch, hasLeft(0, 17))
	m.Step(epoch, Terminated{})
	m.Step(epoch, Exited{0, 0}) // the launcher
	for i := range 2 {
		if p := m.Process(i); !p.Clean || p.Step != 17 || p.Waiting != WaitsAborted {
			t.Errorf("process %d has left, and is told as %+v", i, p)
		}
	}
	if code, ended := m.Exit(0); !m.Out() || !ended || code != ExitTerminated {
		t.Errorf("the program ended with %d (%v), out %v: it must not count as finished", code, ended, m.Out())
	}
}
