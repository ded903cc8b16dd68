package lifecycle

import (
	"testing"
	"time"
)

// staying is a directive of an operator that lets programs be started anew so often.
func staying(h Heard, restarts uint64) Heard {
	return with(h, func(d *Directive) { d.Restarts = &restarts })
}

// sayAgain says of a process of the n-th start the same as says does of one of the first.
func sayAgain(n uint64, slot int, what What) Said {
	return Said{Slot: slot, Connection: 10*n + uint64(slot), What: what}
}

// fell is a transcript in which a process of round 1 is killed at 10 s, and its worker stays.
func fell(rest ...line) []line {
	return inRound(append([]line{
		{9 * second, staying(directive(1, 1, "a"), 0), ""},
		{10 * second, Exited{0, 137}, "tell term[1]"},
		{10 * second, Exited{1, 143}, "tell kill tell"},
	}, rest...)...)
}

// begun is one in which the programs were started anew at 11 s, and ask for a world.
func begun(rest ...line) []line {
	return fell(append([]line{
		{11 * second, staying(directive(1, 1, "a"), 1), "remember start(0) tell"},
		{12 * second, sayAgain(1, 0, Connected), "tell"},
		{12 * second, sayAgain(1, 1, Connected), "tell"},
		{13 * second, sayAgain(1, 0, Joined), "tell"},
		{13 * second, sayAgain(1, 1, Joined), "tell"},
	}, rest...)...)
}

var againTranscripts = map[string][]line{
	"a worker whose program has failed stays until it is told": fell(
		line{11 * second, staying(directive(1, 1, "a"), 0), ""},
		line{time.Hour, Tick{}, ""},
		line{time.Hour, staying(directive(1, 1, "a"), 1), "remember start(0) tell"},
	),
	"it joins a later world": begun(
		line{14 * second, staying(aborting(directive(1, 1, "a"), false), 1), ""},
		line{15 * second, going(staying(directive(1, 3, "c"), 1), 20, true), "fetch(20) tell"},
		line{16 * second, Fetched{Round: 3}, "give0(3) tell give1(3) tell"},
		line{17 * second, Exited{0, 0}, "tell"},
		line{17 * second, Exited{1, 0}, "tell kill leave(0)"},
	),
	"it never goes on with a state that it does not have": begun(
		line{14 * second, going(staying(directive(1, 2, "b"), 1), 20, false), "refuse tell"},
	),
	"another leader lets it wait": fell(
		line{11 * second, staying(directive(2, 0, ""), 0), ""},
		line{12 * second, staying(directive(2, 0, ""), 1), "remember start(0) tell"},
	),
	"its operator lets nobody stay":               fell(line{11 * second, directive(1, 1, "a"), "leave(137)"}),
	"an older operator leads":                     fell(line{11 * second, directive(2, 0, ""), "leave(137)"}),
	"it is released":                              fell(line{11 * second, released(staying(directive(1, 1, "a"), 0)), "leave(137)"}),
	"its job is over":                             fell(line{11 * second, Gone{}, "leave(137)"}),
	"SIGTERM ends one that has failed":            fell(line{11 * second, Terminated{}, "tell leave(137)"}),
	"SIGTERM reaches what was started anew":       begun(line{14 * second, Terminated{}, "tell term[0 1]"}),
	"what was there before is not heard any more": fell(line{11 * second, says(1, Joined), ""}, line{11 * second, Exited{0, 0}, ""}),
	"a world that it is named in is told that it is missing": fell(
		line{11 * second, going(staying(directive(1, 2, "b"), 0), 20, true), "tell"},
		line{12 * second, Fetched{Round: 2}, ""},
		line{13 * second, staying(directive(1, 2, "b"), 1), "remember start(0) tell"},
		line{14 * second, sayAgain(1, 0, Connected), "tell"},
		line{14 * second, sayAgain(1, 0, Joined), "tell"},
	),
	"a program that fails again has its pause, and the third time ends the worker": begun(
		line{14 * second, Exited{0, 1}, "tell term[1]"},
		line{14 * second, Exited{1, 143}, "tell kill tell"},
		line{15 * second, staying(directive(1, 1, "a"), 2), ""},
		line{18 * second, Tick{}, ""},
		line{19 * second, Tick{}, "start(0) tell"},
		line{20 * second, Exited{0, 3}, "tell term[1]"},
		line{20 * second, Exited{1, 143}, "tell kill leave(3)"},
	),
	"failures long ago do not count": begun(
		line{14 * second, Exited{0, 1}, "tell term[1]"},
		line{14 * second, Exited{1, 143}, "tell kill tell"},
		line{19 * second, staying(directive(1, 1, "a"), 2), "start(0) tell"},
		line{14*second + 10*time.Minute, Exited{0, 3}, "tell term[1]"},
		line{14*second + 10*time.Minute, Exited{1, 143}, "tell kill tell"},
	),
	"what fails in no world fails by itself": begun(
		line{14 * second, sayAgain(1, 0, Faulted), "tell raise0"},
	),
	"a process that does not leave its world is killed, and started anew": inRound(
		line{1 * second, staying(aborting(directive(1, 1, "a"), false), 0), "abort0(1) abort1(1)"},
		line{1 * second, Interrupted{Slot: 0, Forming: true}, ""},
		line{1 * second, Interrupted{Slot: 1, Apart: true}, ""},
		line{2 * second, says(0, Aborted), "tell tell"},
		line{30 * second, Tick{}, "look[1]"},
		line{31 * second, Tick{}, "kill"},
		line{31 * second, Exited{0, 137}, "tell"},
		line{31 * second, Exited{1, 137}, "tell kill tell"},
		line{32 * second, staying(aborting(directive(1, 1, "a"), false), 1), "remember start(0) tell"},
	),
	"one that may be compiling has a minute": inRound(
		line{1 * second, staying(aborting(directive(1, 1, "a"), false), 0), "abort0(1) abort1(1)"},
		line{1 * second, Interrupted{Slot: 0, Forming: true, Apart: true}, ""},
		line{1 * second, Interrupted{Slot: 1}, ""},
		line{2 * second, says(1, Aborted), "tell tell"},
		line{60 * second, Tick{}, "look[0]"},
		line{61 * second, Tick{}, "kill"},
	),
	"programs that have not spoken to the agent end it": {
		{0, staying(directive(1, 1, "a"), 0), "start(1) tell"},
		{0, says(0, Connected), "tell"},
		{1 * second, Exited{0, 1}, "tell term[1]"},
		{1 * second, Exited{1, 143}, "tell kill leave(1)"},
	},
	"one that was ended as libraries do looks at its device": inRound(
		line{9 * second, staying(directive(1, 1, "a"), 1), ""},
		line{10 * second, Exited{0, 134}, "tell term[1]"},
		line{11 * second, Exited{1, 143}, "tell kill tell remember start(0)check tell"},
		line{12 * second, Exited{0, 1}, "tell term[1]"},
		line{12 * second, Exited{1, 143}, "tell kill tell"},
		line{17 * second, staying(directive(1, 1, "a"), 2), "start(0) tell"},
	),
	"one with a broken device ends, whatever it may do": inRound(
		line{9 * second, staying(directive(1, 1, "a"), 5), ""},
		line{10 * second, Exited{0, ExitDevice}, "tell term[1]"},
		line{11 * second, Exited{1, 143}, "tell kill leave(113)"},
	),
	"one that looks at its device may do so when another has ended": inRound(
		line{9 * second, staying(directive(1, 1, "a"), 5), ""},
		line{9 * second, faultOfDevice(0), "tell tell"},
		line{9 * second, faultOfDevice(1), "tell"},
		line{10 * second, Exited{1, 1}, "tell term[0]"},
		line{15 * second, Tick{}, ""},
		line{29 * second, Exited{0, ExitDevice}, "tell kill leave(113)"},
	),
	"not for ever": inRound(
		line{9 * second, staying(directive(1, 1, "a"), 5), ""},
		line{9 * second, faultOfDevice(0), "tell tell"},
		line{10 * second, Exited{1, 1}, "tell term[0]"},
		line{69 * second, Tick{}, ""},
		line{70 * second, Tick{}, "kill"},
	),
	"the others may have failed by the device": inRound(
		line{9 * second, staying(directive(1, 1, "a"), 5), ""},
		line{10 * second, Exited{1, 1}, "tell term[0]"},
		line{11 * second, Exited{0, ExitDevice}, "tell kill leave(113)"},
	),
	"so do those that were in no world": {
		{0, staying(standby(directive(1, 0, "")), 0), "start(0) tell"},
		{0, says(0, Connected), "tell"},
		{0, says(1, Connected), "tell"},
		{1 * second, Exited{0, 1}, "tell term[1]"},
		{1 * second, Exited{1, 143}, "tell kill leave(1)"},
	},
}

func faultOfDevice(slot int) Said {
	fault := says(slot, Faulted)
	fault.Device = true
	return fault
}

func TestProgramsAreStartedAnew(t *testing.T) {
	for name, lines := range againTranscripts {
		t.Run(name, func(t *testing.T) { play(t, InPlace, lines) })
	}
}

// What was started anew is out of its world, has nothing of it, and says how it left.
func TestWhatIsStartedAnewIsNotWhatItWas(t *testing.T) {
	m := New(epoch, DefaultLimits(30*second), Shape{Programs: 2, Processes: 2})
	for _, l := range begun() {
		m.Step(epoch.Add(l.at), l.event)
	}
	if !m.Out() || m.In().Round != 1 || m.Ready() || !m.Stays() || m.Restarts() != 1 {
		t.Fatalf("out %v of round %d, ready %v, stays %v, started anew %d times", m.Out(), m.In().Round, m.Ready(), m.Stays(), m.Restarts())
	}
	if got, want := m.LastFailure(), (Failure{Round: 1, Code: 137}); got != want {
		t.Fatalf("it failed as %+v, want %+v", got, want)
	}
	for i := range 2 {
		if got, want := m.Process(i), (Standing{Elastic: true, Entering: true, Waiting: WaitsAborted}); got != want {
			t.Errorf("process %d: %+v, want %+v", i, got, want)
		}
		if _, ended := m.Exit(i); ended {
			t.Errorf("process %d has ended", i)
		}
	}
}

// A worker whose operator has doubts about the devices of its node has its first programs look at them, and no others.
func TestTheFirstProgramsOfAWorkerLook(t *testing.T) {
	for _, strategy := range []Strategy{InPlace, Restart} {
		m := New(epoch, DefaultLimits(30*second), Shape{Programs: 1, Processes: 1, Strategy: strategy, Check: true})
		if got := text(m.Step(epoch, alone(directive(1, 1, "a")))); got != "start(1)check tell" {
			t.Errorf("%v begins with %q", strategy, got)
		}
		if strategy == InPlace {
			continue
		}
		m.Step(epoch.Add(second), alone(aborting(directive(1, 1, "a"), false)))
		m.Step(epoch.Add(2*second), Exited{0, 143})
		if got := text(m.Step(epoch.Add(3*second), alone(directive(1, 2, "b")))); got != "start(2) tell" {
			t.Errorf("the next world begins with %q", got)
		}
	}
	m := New(epoch, DefaultLimits(30*second), Shape{Programs: 1, Processes: 1, Check: true})
	if got := text(m.Step(epoch, standby(directive(1, 0, "")))); got != "start(0)check tell" {
		t.Errorf("a standby begins with %q", got)
	}
}

// alone is a directive for a worker with one process.
func alone(h Heard) Heard {
	h.Directive.World.Processes = 1
	return h
}
