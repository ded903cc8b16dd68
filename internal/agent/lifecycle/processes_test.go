package lifecycle

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// actor is a process that obeys docs/program-protocol.md: what it may say depends on what it was told.
type actor struct {
	connection uint64
	// does is what it is busy with, or waits for.
	does What
	// world is the round that it was given last, told the last that it was told to leave.
	world, told uint64
	stop        uint64
	step        uint64
	// mustLeave is set while it owes the agent an answer to an abort, saves while it owes one to a save.
	mustLeave, saves bool
}

// trains is what an actor does that waits for nothing; no process says that.
const trains = What(-1)

// stageOf runs two actors against a machine and checks what it tells them.
type stageOf struct {
	t       *rapid.T
	m       *Machine
	now     time.Time
	round   uint64
	actors  [2]actor
	next    uint64
	running bool
	killed  bool
	left    bool
	barrier Barrier
	abort   bool
	// live is true of a round that goes on with the state after step from, refused of a directive.
	live    bool
	from    uint64
	refused bool
	// late is when the first answer is due.
	late time.Time
	// fell is the newest round by the time at which the programs have failed, restarts how often they may be started
	// anew.
	fell, restarts uint64
}

func (s *stageOf) step(event Event) {
	effects := s.m.Step(s.now, event)
	for len(effects) > 0 {
		effect := effects[0]
		effects = effects[1:]
		switch e := effect.(type) {
		case Start:
			if s.running && !s.killed {
				s.t.Fatal("the programs are started while they run")
			}
			s.running, s.killed = true, false
			s.actors = [2]actor{}
		case Refuse:
			s.refused = true
		case Give:
			s.given(e)
		case Arm:
			a := &s.actors[e.Slot]
			a.stop = max(e.Step, a.step+uint64(len(effects)%2))
			effects = append(effects, s.m.Step(s.now, Armed{Slot: e.Slot, Stop: a.stop})...)
		case Deny:
			s.actors[e.Slot] = actor{}
		case Lift:
			s.actors[e.Slot].stop = 0
		case Interrupt:
			s.interrupted(e)
		case Word:
			s.word(e)
		case Fetch:
			if e.Round != s.round {
				s.t.Fatalf("fetches for round %d in round %d", e.Round, s.round)
			}
		case Kill, Terminate:
			s.killed = true
		case Leave:
			s.left = true
		}
	}
	if due, ok := s.m.Deadline(); ok && !due.After(s.now) {
		s.t.Fatalf("after %T a tick is due at once: the loop would spin", event)
	}
	if s.m.Out() && s.m.In() == nil {
		s.t.Fatal("out of no world")
	}
}

func (s *stageOf) given(e Give) {
	a := &s.actors[e.Slot]
	if a.connection != e.Connection || a.does == trains || a.does == Connected {
		s.t.Fatalf("process %d, which does %d on connection %d, is given round %d on %d", e.Slot, a.does, a.connection, e.Start.Round, e.Connection)
	}
	if a.mustLeave {
		s.t.Fatalf("process %d is given round %d before it has answered the abort of round %d", e.Slot, e.Start.Round, a.told)
	}
	if a.saves {
		s.t.Fatalf("process %d is given round %d before it has written the snapshot that it was asked for", e.Slot, e.Start.Round)
	}
	if e.Start.Round <= s.fell {
		s.t.Fatalf("process %d is given round %d, which its worker has left with round %d", e.Slot, e.Start.Round, s.fell)
	}
	if e.Start.Round != s.round || s.abort || a.world == e.Start.Round {
		s.t.Fatalf("process %d of round %d is given round %d; the operator wants %d (abort %v)", e.Slot, a.world, e.Start.Round, s.round, s.abort)
	}
	a.does, a.world, a.stop, a.step = trains, e.Start.Round, 0, e.Start.World.FromStep
}

func (s *stageOf) interrupted(e Interrupt) {
	a := &s.actors[e.Slot]
	if e.Round != a.world || a.told == e.Round {
		s.t.Fatalf("process %d of round %d is told to leave round %d, the last was %d", e.Slot, a.world, e.Round, a.told)
	}
	if e.Round == s.round && !s.abort {
		s.t.Fatalf("process %d is told to leave round %d, which goes on", e.Slot, e.Round)
	}
	a.told, a.mustLeave = e.Round, a.does == trains || a.does == Parked
	if s.late.IsZero() {
		s.late = s.now.Add(5 * second)
	}
}

func (s *stageOf) word(e Word) {
	a := &s.actors[e.Slot]
	want := map[Say]What{SayGo: Parked, SaySave: Parked, SayRaise: Faulted, SayEnd: Finished}[e.Say]
	if a.does != want || a.connection != e.Connection {
		s.t.Fatalf("process %d, which does %d, is told %d", e.Slot, a.does, e.Say)
	}
	a.saves = a.saves || e.Say == SaySave
	if e.Say == SayGo {
		if a.stop != 0 && a.step >= a.stop {
			s.t.Fatalf("process %d stands at step %d of %d and is told to go on", e.Slot, a.step, a.stop)
		}
		a.does = trains
	}
}

// act has one actor do something that it may do now.
func (s *stageOf) act(t *rapid.T) {
	i := rapid.IntRange(0, 1).Draw(t, "process")
	a := &s.actors[i]
	if !s.running || s.killed || s.left {
		return
	}
	say := func(what What) {
		a.does = what
		s.step(Said{Slot: i, Connection: a.connection, What: what, Step: a.step})
	}
	switch {
	case a.saves:
		a.saves = false
		s.step(Said{Slot: i, Connection: a.connection, What: Saved, Step: a.step})
	case a.connection == 0:
		s.next++
		a.connection = s.next
		say(Connected)
	case a.does == Connected:
		say(Joined)
	case a.mustLeave:
		a.mustLeave = false
		say(rapid.SampledFrom([]What{Aborted, Faulted}).Draw(t, "answer"))
	case a.does == trains && a.stop != 0 && a.step >= a.stop:
		say(Parked)
	case a.does == trains:
		switch rapid.IntRange(0, 5).Draw(t, "what") {
		case 0:
			say(Faulted)
		case 1:
			say(Finished)
		default:
			a.step++
		}
	}
}

func (s *stageOf) directive() Heard {
	d := going(directive(1, s.round, "a"), s.from, !s.live)
	d.Directive.Barrier, d.Directive.Restarts = s.barrier, &s.restarts
	if s.abort {
		d.Directive.Abort = &Abort{Reason: "a worker was lost"}
	}
	return d
}

// nextRound takes the machine to another round. One that is live must be refused, with nobody told a thing,
// unless both processes stand where it begins.
func (s *stageOf) nextRound(live bool) {
	before := *s
	stand := true
	for _, a := range s.actors {
		stand = stand && a.does == Parked && a.world == s.round && !a.mustLeave && a.step == s.actors[0].step && a.stop == a.step
	}
	s.round++
	s.live, s.from, s.barrier, s.abort, s.refused = live, s.actors[0].step+1, Barrier{}, false, false
	if live {
		s.from--
	}
	s.step(s.directive())
	if s.left || s.killed {
		return
	}
	if s.refused != (live && !stand) {
		s.t.Fatalf("round %d is refused: %v; it is live: %v, and all stand after step %d: %v", s.round, s.refused, live, s.from, stand)
	}
	if s.refused {
		if s.actors != before.actors {
			s.t.Fatalf("round %d is refused, and processes were told: %+v, now %+v", s.round, before.actors, s.actors)
		}
		if s.m.Refused() != s.round {
			s.t.Fatalf("round %d is refused, and round %d reported", s.round, s.m.Refused())
		}
		s.round, s.live, s.from, s.barrier, s.abort = before.round, before.live, before.from, before.barrier, before.abort
	}
}

func TestAnyHistoryOfProcesses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &stageOf{t: t, now: epoch, m: New(epoch, DefaultLimits(30*second), Shape{Programs: 2, Processes: 2})}
		if rapid.Bool().Draw(t, "standby") {
			s.step(standby(directive(1, 0, "")))
		}
		s.round, s.from = 1, 1
		s.step(s.directive())
		t.Repeat(map[string]func(*rapid.T){
			"act":  s.act,
			"act2": s.act,
			"fetched": func(*rapid.T) {
				s.step(Fetched{Round: s.round})
			},
			"barrier": func(t *rapid.T) {
				s.barrier = Barrier{Attempt: s.barrier.Attempt + 1, Step: s.barrier.Step + rapid.Uint64Range(1, 3).Draw(t, "step")}
				s.step(s.directive())
			},
			"save": func(*rapid.T) {
				s.barrier.Save = s.barrier.Attempt > 0
				s.step(s.directive())
			},
			"lift": func(*rapid.T) {
				attempt := s.barrier.Attempt
				s.barrier = Barrier{}
				s.step(s.directive())
				s.barrier.Attempt = attempt
			},
			"abort": func(*rapid.T) {
				s.abort = true
				s.step(s.directive())
			},
			"raise": func(*rapid.T) { s.step(raising(s.directive())) },
			"end":   func(*rapid.T) { s.step(finishing(s.directive())) },
			"round": func(*rapid.T) {
				s.nextRound(rapid.Bool().Draw(t, "live"))
			},
			"fail": func(*rapid.T) { s.fail() },
			"restart": func(*rapid.T) {
				s.restarts = s.m.Restarts() + 1
				s.step(s.directive())
			},
			"time": func(t *rapid.T) {
				s.now = s.now.Add(time.Duration(rapid.IntRange(0, 1500).Draw(t, "ms")) * time.Millisecond)
				s.step(Tick{})
			},
			"": func(*rapid.T) { s.check() },
		})
		s.finish()
	})
}

// fail ends both programs, as the kernel does when there is no memory left.
func (s *stageOf) fail() {
	if !s.running || s.left || s.killed {
		return
	}
	s.killed = true
	s.step(Exited{0, 137})
	if s.killed {
		s.step(Exited{1, 137})
	}
	s.fell = max(s.fell, s.round)
}

// check is what holds at every moment.
func (s *stageOf) check() {
	for i, a := range s.actors {
		if a.mustLeave && !s.killed && !s.now.Before(s.late.Add(10*second)) {
			s.t.Fatalf("process %d was told to leave round %d long ago and lives", i, a.told)
		}
	}
	if !slices.ContainsFunc(s.actors[:], func(a actor) bool { return a.mustLeave }) {
		s.late = time.Time{}
	}
}

// finish checks that processes that answer all get to the next world.
func (s *stageOf) finish() {
	if s.actors[0].connection == 0 && s.running && !s.killed {
		s.next++
		s.actors[0] = actor{connection: s.next}
		s.step(Said{Slot: 0, Connection: s.next, What: Connected})
	}
	if s.killed || s.left {
		return
	}
	// That goes back to a snapshot, which suits processes that have just come.
	s.round += 2 - s.round%2
	s.barrier, s.abort, s.live = Barrier{}, false, false
	s.step(s.directive())
	for i := range s.actors {
		a := &s.actors[i]
		say := func(what What) {
			a.does = what
			s.step(Said{Slot: i, Connection: a.connection, What: what, Step: a.step})
		}
		if a.connection == 0 {
			s.next++
			a.connection = s.next
			say(Connected)
		}
		if a.does == Connected {
			say(Joined)
		}
		if a.saves {
			a.saves = false
			s.step(Said{Slot: i, Connection: a.connection, What: Saved, Step: a.step})
		}
		if a.mustLeave {
			a.mustLeave = false
			say(Aborted)
		}
	}
	s.step(Fetched{Round: s.round})
	for i, a := range s.actors {
		if a.world != s.round {
			s.t.Fatalf("process %d is in round %d, and not in %d", i, a.world, s.round)
		}
	}
}
