package lifecycle

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// launcherSays is what the launcher of a connection says.
func launcherSays(connection uint64, what LauncherWord) Launched {
	return Launched{Connection: connection, What: what}
}

func launcherText(effects []Effect) string {
	words := ""
	add := func(word string) {
		if words != "" && word != "" {
			words += " "
		}
		words += word
	}
	for _, effect := range effects {
		switch effect.(type) {
		case Lead:
			add("lead")
		case Relaunch:
			add("relaunch")
		case Rest:
			add("rest")
		default:
			add(text([]Effect{effect}))
		}
	}
	return words
}

// A launcher with two processes, which speaks to the agent, is told its world at once.
func TestLaunchers(t *testing.T) {
	led := []line{
		{0, directive(1, 1, "a"), "start(1) tell"},
		{0, launcherSays(7, LauncherConnected), "lead"},
	}
	over := aborting(directive(1, 1, "a"), true)
	asked := []line{
		{1 * second, over, "checkpoint"},
		{2 * second, Checkpointed{Round: 1}, "rest"},
	}
	for name, lines := range map[string][]line{
		"it stays from world to world": {
			{3 * second, launcherSays(7, LauncherStopped), "tell"},
			{4 * second, directive(1, 2, "b"), "relaunch tell"},
			{5 * second, Exited{0, 0}, "tell kill leave(0)"},
		},
		"the next world is there before it has stopped": {
			{3 * second, directive(1, 2, "b"), ""},
			{4 * second, launcherSays(7, LauncherStopped), "relaunch tell"},
		},
		"what a stranger says means nothing": {
			{3 * second, launcherSays(8, LauncherStopped), ""},
			{4 * second, launcherSays(8, LauncherDisconnected), ""},
			{5 * second, launcherSays(7, LauncherStopped), "tell"},
		},
		"one that does not stop is killed, and another is started": {
			{6 * second, Tick{}, ""},
			{7 * second, Tick{}, "kill"},
			{7 * second, Exited{0, 137}, "tell kill tell"},
			{8 * second, directive(1, 2, "b"), "start(2) tell"},
			{9 * second, launcherSays(9, LauncherConnected), "lead"},
		},
		"one that ends while it rests is started anew": {
			{3 * second, launcherSays(7, LauncherStopped), "tell"},
			{4 * second, Exited{0, 1}, ""},
			{4 * second, launcherSays(7, LauncherDisconnected), ""},
			{5 * second, directive(1, 2, "b"), "start(2) tell"},
		},
		"one that speaks no more while it rests is killed, and started anew": {
			{3 * second, launcherSays(7, LauncherStopped), "tell"},
			{4 * second, launcherSays(7, LauncherDisconnected), "kill"},
			{5 * second, directive(1, 2, "b"), ""},
			{6 * second, Exited{0, 137}, "tell kill start(2) tell"},
		},
		"SIGTERM while it rests": {
			{3 * second, launcherSays(7, LauncherStopped), "tell"},
			{4 * second, Terminated{}, "tell kill leave(143)"},
		},
		"SIGTERM before it has stopped": {
			{3 * second, Terminated{}, "tell"},
			{4 * second, launcherSays(7, LauncherStopped), "kill leave(143)"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := New(epoch, DefaultLimits(30*second), Shape{Programs: 1, Processes: 2, Strategy: Restart})
			for i, l := range append(append(led[:2:2], asked...), lines...) {
				if got := launcherText(m.Step(epoch.Add(l.at), l.event)); got != l.want {
					t.Fatalf("line %d, at %v: %T%v leads to %q, want %q", i, l.at, l.event, l.event, got, l.want)
				}
			}
		})
	}
}

func TestALauncherOfAProgramThatFailsIsStopped(t *testing.T) {
	m := New(epoch, DefaultLimits(30*second), Shape{Programs: 1, Processes: 2, Strategy: Restart})
	for i, l := range []line{
		{0, directive(1, 1, "a"), "start(1) tell"},
		{0, launcherSays(7, LauncherConnected), "lead"},
		{1 * second, aborting(directive(1, 1, "a"), false), "rest"},
		{1 * second, Exited{0, 1}, "tell kill tell"},
		{2 * second, directive(1, 2, "b"), "start(2) tell"},
		{3 * second, launcherSays(7, LauncherDisconnected), ""},
		{3 * second, Terminated{}, "tell"},
		{4 * second, released(directive(1, 2, "b")), "term[0]"},
	} {
		if got := launcherText(m.Step(epoch.Add(l.at), l.event)); got != l.want {
			t.Fatalf("line %d, at %v: %T%v leads to %q, want %q", i, l.at, l.event, l.event, got, l.want)
		}
	}
}

// launcherHistory checks what must hold for every sequence of events around a launcher.
type launcherHistory struct {
	t       *rapid.T
	machine *Machine
	now     time.Time
	running bool
	left    bool
	// connection is the newest; told is true while a stop is not answered, rests while the launcher has answered it.
	connection  uint64
	told, rests bool
}

func (h *launcherHistory) step(event Event) {
	killed := false
	for _, effect := range h.machine.Step(h.now, event) {
		switch e := effect.(type) {
		case Start:
			if h.running {
				h.t.Fatalf("%T starts the command in round %d while it runs", event, e.Round)
			}
			h.running, h.told, h.rests = true, false, false
		case Relaunch:
			if !h.running || !h.rests || e.Connection != h.connection {
				h.t.Fatalf("%T gives round %d to connection %d: running %v, at rest %v, connection %d", event, e.Start.Round, e.Connection, h.running, h.rests, h.connection)
			}
			h.told, h.rests = false, false
		case Rest:
			if e.Connection != h.connection || h.rests {
				h.t.Fatalf("%T tells connection %d to stop: at rest %v, connection %d", event, e.Connection, h.rests, h.connection)
			}
			h.told = true
		case Kill:
			killed = true
		case Leave:
			if h.running && !killed {
				h.t.Fatalf("%T: the agent leaves a launcher behind", event)
			}
			h.left = true
		}
	}
	if due, ok := h.machine.Deadline(); ok && !h.left && !due.After(h.now) {
		h.t.Fatalf("after %T a tick is due at once: the loop would spin", event)
	}
}

func TestAnyHistoryOfALauncher(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &launcherHistory{t: t, now: epoch, machine: New(epoch, DefaultLimits(30*second), Shape{Programs: 1, Processes: 2, Strategy: Restart})}
		t.Repeat(map[string]func(*rapid.T){
			"hear": func(t *rapid.T) {
				d := directive(1, rapid.Uint64Range(0, 6).Draw(t, "round"), "a")
				if d.Directive.Round > 0 && rapid.Bool().Draw(t, "over") {
					d = aborting(d, rapid.Bool().Draw(t, "planned"))
				}
				h.step(d)
			},
			"saved": func(t *rapid.T) { h.step(Checkpointed{Round: rapid.Uint64Range(1, 6).Draw(t, "round")}) },
			"connect": func(*rapid.T) {
				if h.running && !h.rests {
					h.connection++
					h.step(launcherSays(h.connection, LauncherConnected))
				}
			},
			"stop": func(*rapid.T) {
				if h.running && h.told {
					h.told, h.rests = false, true
					h.step(launcherSays(h.connection, LauncherStopped))
				}
			},
			"disconnect": func(*rapid.T) { h.step(launcherSays(h.connection, LauncherDisconnected)) },
			"exit": func(t *rapid.T) {
				if h.running {
					h.running, h.told, h.rests = false, false, false
					h.step(Exited{0, rapid.IntRange(0, 1).Draw(t, "code")})
				}
			},
			"time": func(t *rapid.T) {
				h.now = h.now.Add(time.Duration(rapid.IntRange(0, 4000).Draw(t, "ms")) * time.Millisecond)
				h.step(Tick{})
			},
		})
		h.finish(t)
	})
}

// finish checks that every history ends once SIGTERM has come and the command obeys SIGKILL.
func (h *launcherHistory) finish(t *rapid.T) {
	h.step(Terminated{})
	for range 10 {
		due, ok := h.machine.Deadline()
		if !ok || h.left {
			break
		}
		h.now = due
		h.step(Tick{})
	}
	if h.running && !h.left {
		h.running = false
		h.step(Exited{0, 137})
	}
	if !h.left {
		t.Fatal("the agent did not leave")
	}
}
