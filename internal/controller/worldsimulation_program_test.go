package controller

import (
	"crypto/sha256"
	"slices"
	"strconv"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// simProcess is a training process that follows the protocol of programs, with its words of the gate page.
type simProcess struct {
	runs       bool
	connection uint64
	// round is that of the world that it was given last, with its place there.
	round         uint64
	rank, workers int
	fromStep      uint64
	writer        bool
	// entered and done are its own words of the page, stop the agent's; armed is what the agent remembers of it.
	entered, done, stop, armed uint64
	// state is what it has computed: for each step the round in which it was made.
	state   []uint64
	waiting lifecycle.Waiting
	fault   string
	// stepping is true while it is in a step, given once it has given its part of it to the others, ending once it
	// has theirs, and writing while it changes its state by them. clean is what it has said of that state when it left
	// its world.
	stepping, given, ending, writing, clean bool
	// still ones do nothing; inbox is what they would have done.
	still bool
	inbox []func()
	// said is when the agent hears what it has said last, told when it hears what it was told last.
	said, told time.Time
}

// end ends the process.
func (p *simProcess) end() { p.runs, p.stepping, p.inbox = false, false, nil }

// begunStep is the last step that it has begun, as the agent reads it in the page.
func (p *simProcess) begunStep() uint64 {
	if p.armed > 0 {
		return min(p.entered, p.armed)
	}
	return p.entered
}

// trains says whether it is in a world, in a step or between two.
func (p *simProcess) trains() bool {
	return p.runs && p.round > 0 && p.waiting == lifecycle.WaitsNot
}

// does has the process on a connection do something in a while, or once it stands still no more.
func (a *simAgent) does(connection uint64, in time.Duration, what func()) {
	a.training.after(in, func() { a.now(connection, what) })
}

func (a *simAgent) now(connection uint64, what func()) {
	p := &a.process
	switch {
	case a.ended || !p.runs || p.connection != connection:
	case p.still:
		p.inbox = append(p.inbox, what)
	default:
		what()
	}
}

// wake has a process go on that stood still.
func (a *simAgent) wake() {
	p := &a.process
	inbox := p.inbox
	p.still, p.inbox = false, nil
	for _, what := range inbox {
		a.now(p.connection, what)
	}
}

// tellProcess sends the process a message.
func (a *simAgent) tellProcess(connection uint64, what func()) {
	a.does(connection, a.inOrder(&a.process.told), what)
}

// inOrder is how long a message takes that comes after what was sent before it.
func (a *simAgent) inOrder(last *time.Time) time.Duration {
	at := time.Now().Add(a.training.span(50*time.Microsecond, 2*time.Millisecond))
	if !at.After(last.Add(100 * time.Microsecond)) {
		at = last.Add(200 * time.Microsecond)
	}
	*last = at
	return time.Until(at)
}

// speak tells the agent something.
func (a *simAgent) speak(what lifecycle.What, step uint64) {
	p := &a.process
	said := lifecycle.Said{Slot: 0, Connection: p.connection, What: what, Step: step, Clean: p.clean}
	left := simLeft{}
	if what == lifecycle.Faulted || what == lifecycle.Aborted || what == lifecycle.Parked {
		left = simLeft{round: p.round, step: p.done, clean: p.clean || what == lifecycle.Parked}
	}
	a.training.after(a.inOrder(&p.said), func() {
		if left.round > 0 {
			a.left = left
		}
		a.step(said)
	})
}

// startProcess starts a process: it connects, and asks for a world.
func (a *simAgent) startProcess() {
	if a.ended || a.process.runs {
		return
	}
	a.connections++
	a.process = simProcess{runs: true, connection: a.connections, waiting: lifecycle.WaitsJoin, said: a.process.said, told: a.process.told}
	a.speak(lifecycle.Connected, 0)
	a.speak(lifecycle.Joined, 0)
}

// exit ends the process.
func (a *simAgent) exit(code int) {
	p := &a.process
	if !p.runs {
		return
	}
	p.end()
	a.left = simLeft{}
	a.training.leaves(a)
	a.training.after(a.inOrder(&p.said), func() { a.step(lifecycle.Exited{Code: code}) })
}

// leavesWorld has the process leave its world, for what it waits for then.
func (a *simAgent) leavesWorld(what lifecycle.What, waiting lifecycle.Waiting) {
	p := &a.process
	p.clean = !p.writing
	p.waiting, p.stepping, p.given, p.ending, p.writing = waiting, false, false, false, false
	a.training.leaves(a)
	a.speak(what, p.done)
}

// fail is an exception in the training function.
func (a *simAgent) fail(text string) {
	if a.process.trains() {
		a.process.fault = text
		a.leavesWorld(lifecycle.Faulted, lifecycle.WaitsFault)
	}
}

// abort has the process leave its world, unless it has done so.
func (a *simAgent) abort() {
	if p := &a.process; p.waiting == lifecycle.WaitsNot || p.waiting == lifecycle.WaitsParked {
		a.leavesWorld(lifecycle.Aborted, lifecycle.WaitsAborted)
	}
}

// hear has the process hear a word.
func (a *simAgent) hear(word lifecycle.Word) {
	p := &a.process
	switch {
	case word.Say == lifecycle.SayGo && p.waiting == lifecycle.WaitsParked:
		p.waiting, a.left = lifecycle.WaitsNot, simLeft{}
		a.beginStep()
	case word.Say == lifecycle.SaySave && (p.waiting == lifecycle.WaitsParked || p.clean):
		a.save()
	case word.Say == lifecycle.SaySave:
		a.speak(lifecycle.Saved, word.Step)
	case word.Say == lifecycle.SayRaise && p.waiting == lifecycle.WaitsFault:
		a.exit(1)
	case word.Say == lifecycle.SayEnd && p.waiting == lifecycle.WaitsFinished:
		a.exit(0)
	}
}

// save takes a snapshot of what is done.
func (a *simAgent) save() {
	p := &a.process
	s := rendezvous.Snapshot{Round: p.round, Step: p.done, Bytes: 8 * p.done, Hash: sha256.Sum256(strconv.AppendUint(nil, p.done, 10))}
	state, connection := slices.Clone(p.state), p.connection
	a.training.after(a.training.span(time.Millisecond, time.Second), func() {
		if a.ended || !p.runs || p.connection != connection {
			return
		}
		if p.round == s.Round {
			a.keep(s, state)
			a.report()
		}
		a.speak(lifecycle.Saved, s.Step)
	})
}

// take has the process enter a world.
func (a *simAgent) take(start lifecycle.Start) {
	p, world := &a.process, start.World
	a.left = simLeft{}
	t := a.training
	switch {
	case world.Restore && world.Snapshot == nil, !world.Restore && p.waiting == lifecycle.WaitsJoin:
		if world.FromStep != 0 {
			t.fail("%s: round %d begins after step %d without a snapshot", a.pod.Name, start.Round, world.FromStep)
		}
		p.state = nil
	case world.Restore:
		p.state = slices.Clone(a.states[simSnapshot(*world.Snapshot)])
	case p.waiting != lifecycle.WaitsParked && !p.clean:
		t.fail("%s: goes from round %d to %d with the state that it has, and waits as %d", a.pod.Name, p.round, start.Round, p.waiting)
	}
	if uint64(len(p.state)) != world.FromStep {
		t.fail("%s: round %d begins after step %d, and its state is that after %d", a.pod.Name, start.Round, world.FromStep, len(p.state))
	}
	p.waiting, p.fault, p.stepping, p.given, p.ending, p.writing, p.clean = lifecycle.WaitsNot, "", false, false, false, false, false
	p.round, p.rank, p.workers, p.fromStep, p.writer = start.Round, world.WorkerRank, world.Workers, world.FromStep, world.Writer
	a.inStep(t.span(time.Millisecond, 300*time.Millisecond), a.beginStep)
}

// inStep does something in a while, if the process is still where it is.
func (a *simAgent) inStep(in time.Duration, what func()) {
	round, done := a.process.round, a.process.done
	a.does(a.process.connection, in, func() {
		if p := &a.process; p.trains() && p.round == round && p.done == done {
			what()
		}
	})
}

// beginStep is the gate before a step, and its beginning.
func (a *simAgent) beginStep() {
	p, t := &a.process, a.training
	if !p.trains() || p.stepping {
		return
	}
	if p.done >= t.lastStep {
		a.leavesWorld(lifecycle.Finished, lifecycle.WaitsFinished)
		return
	}
	p.entered = p.done + 1
	if p.stop != 0 && p.done >= p.stop {
		p.waiting = lifecycle.WaitsParked
		a.speak(lifecycle.Parked, p.done)
		return
	}
	p.stepping = true
	if a.begun.IsZero() {
		a.begun = time.Now()
	}
	a.inStep(t.span(t.step*9/10, t.step*11/10), func() {
		p.given = true
		t.exchange(p.round, p.done+1)
	})
}

// endStep changes the process's state by what the ranks have exchanged.
func (a *simAgent) endStep() {
	p, t := &a.process, a.training
	p.given, p.ending = false, true
	a.inStep(t.span(0, t.step/20), func() {
		p.writing = true
		a.inStep(t.span(0, t.step/20), func() {
			p.stepping, p.ending, p.writing = false, false, false
			p.done++
			p.state = append(p.state, p.round)
			if p.done > p.fromStep+1 {
				a.took = append(a.took[max(0, len(a.took)-7):], time.Since(a.lastEnded))
			}
			a.lastEnded = time.Now()
			if p.writer && p.done%t.memoryInterval == 0 {
				a.save()
			}
			a.beginStep()
		})
	})
}
