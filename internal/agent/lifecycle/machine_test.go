package lifecycle

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func worldOf(digest string) World {
	return World{Digest: digest, WorkerRank: 0, Workers: 2, Processes: 2, MasterAddress: "10.0.0.1", MasterPort: 61001}
}

func directive(term, round uint64, digest string) Heard {
	d := Directive{Term: term, Round: round}
	if round > 0 {
		d.World = worldOf(digest)
	}
	return Heard{Directive: d, Sent: epoch}
}

func released(h Heard) Heard {
	h.Directive.Released = true
	return h
}

// text writes effects down, one word each.
func text(effects []Effect) string {
	var words []string
	for _, effect := range effects {
		switch e := effect.(type) {
		case Start:
			word := fmt.Sprintf("start(%d)", e.Round)
			if e.Check {
				word += "check"
			}
			words = append(words, word)
		case Remember:
			words = append(words, "remember")
		case Trust:
			words = append(words, "trust")
		case Fetch:
			words = append(words, fmt.Sprintf("fetch(%d)", e.World.Snapshot.Step))
		case FetchAhead:
			words = append(words, fmt.Sprintf("ahead(%d)", e.Snapshot.Step))
		case FetchShards:
			word := fmt.Sprintf("shards%d(%d)", e.Slot, len(e.Parts))
			if e.Ranges != nil {
				word += fmt.Sprint(e.Ranges)
			}
			words = append(words, word)
		case Hand:
			words = append(words, fmt.Sprintf("hand%d(%d)", e.Slot, e.Round))
		case Give:
			words = append(words, fmt.Sprintf("give%d(%d)", e.Slot, e.Start.Round))
		case Deny:
			words = append(words, fmt.Sprintf("deny%d", e.Slot))
		case Arm:
			words = append(words, fmt.Sprintf("arm%d(%d)", e.Slot, e.Step))
		case Lift:
			words = append(words, fmt.Sprintf("lift%d", e.Slot))
		case Interrupt:
			words = append(words, fmt.Sprintf("abort%d(%d)", e.Slot, e.Round))
		case Word:
			words = append(words, fmt.Sprintf("%s%d", []string{"go", "save", "raise", "end", "leave"}[e.Say], e.Slot))
		case Checkpoint:
			words = append(words, "checkpoint")
		case Refuse:
			words = append(words, "refuse")
		case Terminate:
			words = append(words, fmt.Sprintf("term%v", e.Programs))
		case Kill:
			words = append(words, "kill")
		case Look:
			words = append(words, fmt.Sprintf("look%v", e.Slots))
		case Tell:
			words = append(words, "tell")
		case Leave:
			words = append(words, fmt.Sprintf("leave(%d)", e.Code))
		case Note:
		}
	}
	return strings.Join(words, " ")
}

// line is one line of a transcript: at a time since the start something happens, and this follows.
type line struct {
	at    time.Duration
	event Event
	want  string
}

const second = time.Second

// Every transcript is of a worker with two processes, launched PerProcess, with 30 s of grace.
var transcripts = map[string][]line{
	"to completion": {
		{0, directive(1, 0, ""), ""},
		{1 * second, directive(1, 1, "a"), "start(1) tell"},
		{2 * second, directive(1, 1, "a"), ""},
		{3 * second, Exited{0, 0}, "tell"},
		{4 * second, Exited{1, 0}, "tell kill leave(0)"},
		{5 * second, directive(1, 2, "b"), ""},
	},
	"one fails: the others are stopped, and the first code counts": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{1 * second, Exited{1, 3}, "tell term[0]"},
		{2 * second, Exited{0, 143}, "tell kill leave(3)"},
	},
	"one fails and the other does not stop": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{1 * second, Exited{1, 3}, "tell term[0]"},
		{5 * second, Tick{}, ""},
		{6 * second, Tick{}, "kill"},
		{6 * second, Exited{0, 137}, "tell kill leave(3)"},
	},
	"one is done, then the other fails": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{1 * second, Exited{0, 0}, "tell"},
		{2 * second, Exited{1, 1}, "tell kill leave(1)"},
	},
	"a command that does not exist": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{0, Exited{0, 127}, "tell term[1]"},
		{0, Exited{1, 127}, "tell kill leave(127)"},
	},
	"a higher round starts the program anew": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{1 * second, directive(1, 2, "b"), "term[0 1]"},
		{2 * second, Exited{0, 143}, "tell"},
		{3 * second, directive(1, 2, "b"), ""},
		{4 * second, Exited{1, 143}, "tell kill start(2) tell"},
		{5 * second, Exited{0, 0}, "tell"},
		{5 * second, Exited{1, 0}, "tell kill leave(0)"},
	},
	"a program whose device is broken is not started for the next round": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{1 * second, directive(1, 2, "b"), "term[0 1]"},
		{2 * second, Exited{0, ExitDevice}, "tell"},
		{3 * second, Exited{1, 143}, "tell kill leave(113)"},
	},
	"a program that does not stop for the next round is killed": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{1 * second, directive(1, 2, "b"), "term[0 1]"},
		{6 * second, Tick{}, "kill"},
		{6 * second, Exited{0, 137}, "tell"},
		{6 * second, Exited{1, 137}, "tell kill start(2) tell"},
	},
	"a round is overtaken while the program stops": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{1 * second, directive(1, 2, "b"), "term[0 1]"},
		{2 * second, directive(2, 3, "c"), ""},
		{2 * second, directive(2, 2, "b"), "refuse"},
		{3 * second, Exited{0, 143}, "tell"},
		{3 * second, Exited{1, 143}, "tell kill start(3) tell"},
	},
	"a new leader adopts the world": {
		{0, directive(1, 4, "a"), "start(4) tell"},
		{1 * second, directive(2, 0, ""), ""},
		{2 * second, directive(2, 4, "a"), ""},
		{3 * second, directive(2, 4, ""), ""},
		{4 * second, directive(1, 5, "b"), "refuse"},
	},
	"what is refused": {
		{0, directive(3, 4, "a"), "start(4) tell"},
		{1 * second, directive(2, 4, "a"), "refuse"},
		{1 * second, directive(2, 0, ""), "refuse"},
		{1 * second, directive(3, 3, "a"), "refuse"},
		{1 * second, directive(9, 4, "other members"), "refuse"},
		{1 * second, Heard{Directive: Directive{Term: 3, Round: 5, World: World{Digest: "b", Workers: 1, Processes: 1, MasterAddress: "a", MasterPort: 1}}}, "refuse"},
		{1 * second, Heard{Directive: Directive{Term: 3, Round: 5, World: World{Digest: "b", WorkerRank: 2, Workers: 2, Processes: 2, MasterAddress: "a", MasterPort: 1}}}, "refuse"},
		{1 * second, Heard{Directive: Directive{Term: 3, Round: 5, World: World{Digest: "b", Workers: 2, Processes: 2, MasterPort: 1}}}, "refuse"},
		{1 * second, Heard{Directive: Directive{Term: 3, Round: 5}}, "refuse"},
		{2 * second, directive(3, 4, "a"), ""},
	},
	"SIGTERM waits for the release": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{1 * second, Terminated{}, "tell"},
		{1 * second, Terminated{}, ""},
		{2 * second, directive(1, 1, "a"), ""},
		{3 * second, released(directive(1, 1, "a")), "term[0 1]"},
		{4 * second, Exited{0, 0}, "tell"},
		{4 * second, Exited{1, 0}, "tell kill leave(0)"},
	},
	"a release alone stops nothing": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{1 * second, released(directive(1, 1, "a")), ""},
		{2 * second, directive(1, 1, "a"), ""},
		{3 * second, Terminated{}, "tell term[0 1]"},
	},
	"SIGTERM of a job that is gone": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{1 * second, Gone{}, ""},
		{2 * second, Terminated{}, "tell term[0 1]"},
	},
	"a job that was gone and is there again": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{1 * second, Gone{}, ""},
		{2 * second, directive(1, 1, "a"), ""},
		{2 * second, Terminated{}, "tell"},
		{3 * second, Gone{}, "term[0 1]"},
	},
	"SIGTERM while the operator is away": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{10 * second, Terminated{}, "tell"},
		{29 * second, Tick{}, ""},
		{30 * second, Tick{}, "term[0 1]"},
	},
	"another operator leads before the agent decides alone": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{10 * second, Terminated{}, "tell"},
		{27 * second, directive(2, 1, "a"), ""},
		{30 * second, Tick{}, ""},
		{32 * second, released(directive(2, 1, "a")), "term[0 1]"},
	},
	"the operator goes away after SIGTERM": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{10 * second, Terminated{}, "tell"},
		{11 * second, directive(1, 1, "a"), ""},
		{30 * second, Tick{}, ""},
		{31 * second, Tick{}, "term[0 1]"},
	},
	"the grace period ends without a release": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{100 * second, Terminated{}, "tell"},
		{122 * second, directive(1, 1, "a"), ""},
		{123 * second, directive(1, 1, "a"), "term[0 1]"},
		{127 * second, directive(1, 1, "a"), ""},
		{128 * second, Tick{}, "kill"},
		{128 * second, Exited{0, 137}, "tell"},
		{128 * second, Exited{1, 137}, "tell kill leave(137)"},
	},
	"SIGTERM before there is a world": {
		{0, directive(1, 0, ""), ""},
		{1 * second, Terminated{}, "tell leave(143)"},
	},
	"a released worker starts nothing": {
		{0, released(directive(1, 0, "")), ""},
		{1 * second, released(directive(1, 1, "a")), ""},
	},
	"a released worker is wanted again": {
		{0, released(directive(1, 0, "")), ""},
		{1 * second, directive(1, 1, "a"), "start(1) tell"},
		{2 * second, Terminated{}, "tell"},
	},
	"SIGTERM while the program stops for the next round": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{1 * second, directive(1, 2, "b"), "term[0 1]"},
		{2 * second, Terminated{}, "tell"},
		{3 * second, Exited{0, 143}, "tell"},
		{3 * second, Exited{1, 0}, "tell kill leave(143)"},
	},
	"SIGTERM starts no other round": {
		{0, directive(1, 1, "a"), "start(1) tell"},
		{1 * second, Terminated{}, "tell"},
		{2 * second, directive(1, 2, "b"), ""},
		{3 * second, Exited{0, 0}, "tell"},
		{3 * second, Exited{1, 0}, "tell kill leave(0)"},
	},
}

func TestTranscripts(t *testing.T) {
	for name, lines := range transcripts {
		t.Run(name, func(t *testing.T) { play(t, InPlace, lines) })
	}
	for name, lines := range restartTranscripts {
		t.Run("Restart: "+name, func(t *testing.T) { play(t, Restart, lines) })
	}
	for name, lines := range inPlaceTranscripts {
		t.Run("InPlace: "+name, func(t *testing.T) { play(t, InPlace, lines) })
	}
}

func play(t *testing.T, strategy Strategy, lines []line) {
	t.Helper()
	m := New(epoch, DefaultLimits(30*second), Shape{Programs: 2, Processes: 2, Strategy: strategy})
	for i, l := range lines {
		if got := text(m.Step(epoch.Add(l.at), l.event)); got != l.want {
			t.Fatalf("line %d, at %v: %T%v leads to %q, want %q", i, l.at, l.event, l.event, got, l.want)
		}
	}
}

func TestATickIsAskedForWhenItMatters(t *testing.T) {
	m := New(epoch, DefaultLimits(30*second), Shape{Programs: 1, Processes: 2})
	due := func(want time.Duration) {
		t.Helper()
		at, ok := m.Deadline()
		if want < 0 {
			if ok {
				t.Fatalf("a tick is due at %v, want none", at.Sub(epoch))
			}
			return
		}
		if !ok || at.Sub(epoch) != want {
			t.Fatalf("a tick is due at %v (%v), want %v", at.Sub(epoch), ok, want)
		}
	}
	due(-1)
	m.Step(epoch, directive(1, 1, "a"))
	due(-1)
	m.Step(epoch.Add(10*second), Terminated{})
	due(30 * second)
	m.Step(epoch.Add(11*second), directive(1, 1, "a"))
	due(31 * second)
	m.Step(epoch.Add(31*second), Tick{})
	due(38 * second)
	m.Step(epoch.Add(38*second), Tick{})
	due(-1)
}

func TestShortGracePeriodsLeaveTimeForTheProgram(t *testing.T) {
	for _, grace := range []time.Duration{second, 5 * second, 30 * second, 600 * second} {
		l := DefaultLimits(grace)
		if pass, kill := l.passAfter(), l.killAfter(); pass <= 0 || pass >= kill || kill >= grace {
			t.Errorf("grace %v: the program is told after %v and killed after %v", grace, pass, kill)
		}
	}
}
