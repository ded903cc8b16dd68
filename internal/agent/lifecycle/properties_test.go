package lifecycle

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// history checks what must hold for every sequence of events.
type history struct {
	t       *rapid.T
	machine *Machine
	now     time.Time
	running map[int]bool
	round   uint64
	left    bool
	// mayStop says whether something has happened that lets the programs be stopped.
	mayStop bool
}

func (h *history) step(event Event) {
	effects := h.machine.Step(h.now, event)
	if h.left && len(effects) > 0 {
		h.t.Fatalf("%T leads to %q after the end", event, text(effects))
	}
	for _, effect := range effects {
		switch e := effect.(type) {
		case Start:
			if len(h.running) > 0 {
				h.t.Fatalf("round %d starts while %v still run", e.Round, h.running)
			}
			if e.Round <= h.round {
				h.t.Fatalf("round %d starts after round %d", e.Round, h.round)
			}
			h.round = e.Round
			h.running = map[int]bool{0: true, 1: true}
			h.mayStop = false
		case Terminate:
			if !h.mayStop {
				h.t.Fatalf("%T stops the programs without a reason", event)
			}
			for _, i := range e.Programs {
				if !h.running[i] {
					h.t.Fatalf("program %d gets SIGTERM and does not run", i)
				}
			}
		case Leave:
			if len(h.running) > 0 {
				h.t.Fatalf("the agent leaves while %v run", h.running)
			}
			h.left = true
		}
	}
	if due, ok := h.machine.Deadline(); ok && !due.After(h.now) {
		h.t.Fatalf("after %T a tick is due at once: the loop would spin", event)
	}
}

func TestAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &history{t: t, now: epoch, machine: New(epoch, DefaultLimits(30*second), Shape{Programs: 2, Processes: 2}), running: map[int]bool{}}
		term := uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"hear": func(t *rapid.T) {
				d := directive(rapid.Uint64Range(0, 3).Draw(t, "term"), rapid.Uint64Range(0, 4).Draw(t, "round"), "a")
				d.Sent = h.now.Add(-time.Duration(rapid.IntRange(0, 9).Draw(t, "on its way")) * time.Second)
				d.Directive.Hold = rapid.Uint64Range(0, 3).Draw(t, "hold")
				if d.Directive.Round > 0 {
					d.Directive.Barrier = Barrier{Attempt: rapid.Uint64Range(0, 2).Draw(t, "barrier"), Step: 9}
				}
				d.Directive.Released = rapid.IntRange(0, 9).Draw(t, "released") == 0
				if d.Directive.Round > h.round || d.Directive.Released {
					h.mayStop = true
				}
				h.step(d)
				if h.machine.Term() < term {
					t.Fatalf("the term went back from %d to %d", term, h.machine.Term())
				}
				term = h.machine.Term()
			},
			"exit": func(t *rapid.T) {
				var alive []int
				for i := range 2 {
					if h.running[i] {
						alive = append(alive, i)
					}
				}
				if len(alive) == 0 {
					return
				}
				i := rapid.SampledFrom(alive).Draw(t, "program")
				delete(h.running, i)
				code := rapid.IntRange(0, 2).Draw(t, "code")
				if code != 0 {
					h.mayStop = true
				}
				h.step(Exited{i, code})
			},
			"terminated": func(t *rapid.T) {
				h.mayStop = true
				h.step(Terminated{})
			},
			"gone": func(*rapid.T) { h.step(Gone{}) },
			"time": func(t *rapid.T) {
				h.now = h.now.Add(time.Duration(rapid.IntRange(0, 4000).Draw(t, "ms")) * time.Millisecond)
				h.step(Tick{})
			},
		})
		h.finish(t)
	})
}

// finish checks that every history ends once SIGTERM has come and the programs obey SIGKILL.
func (h *history) finish(t *rapid.T) {
	h.mayStop = true
	h.step(Terminated{})
	for range 10 {
		due, ok := h.machine.Deadline()
		if !ok {
			break
		}
		h.now = due
		h.step(Tick{})
	}
	for i := range 2 {
		if h.running[i] {
			delete(h.running, i)
			h.step(Exited{i, 137})
		}
	}
	if !h.left {
		t.Fatal("the agent did not leave")
	}
}
