package rendezvous

import (
	"errors"
	"testing"
	"time"
)

// outage has so much time pass in which nobody takes a record: each write fails before anything else is heard.
func (f *fleet) outage(l *modelLeader, d time.Duration) {
	fails := func() {
		if l.writing != nil {
			l.writing = nil
			_ = f.handle(l, RecordAnswered{Err: errors.New("connection refused")})
		}
	}
	for began := f.now; f.now.Sub(began) < d; {
		for _, uid := range f.uids() {
			p := f.pods[uid]
			if p.leader != l {
				f.connectTo(p, l)
			} else {
				f.tellState(p)
			}
			fails()
			for len(p.queue) > 0 {
				f.deliverTo(p)
				fails()
			}
		}
		for range 3 {
			for _, uid := range f.uids() {
				f.move(f.pods[uid])
			}
		}
		f.pass(300 * time.Millisecond)
		fails()
	}
}

// restarting is a world of two whose programs are started anew in each, and one of so many looks at no gate; 0 for none.
func restarting(t *testing.T, deaf int) (*fleet, *modelLeader) {
	f := emptyFleet(t)
	f.strategy, f.disk, f.deaf = Restart, &disk{}, deaf
	f.minimum, f.target, f.hang = 1, 2, 10*time.Minute
	f.makePod()
	f.makePod()
	f.newLeader()
	l := f.leaders[f.born]
	f.turns(l, 40)
	return f, l
}

// A worker that is about to be killed waits for no record: what its program saves by then is not lost.
func TestAWorkerThatIsKilledSoonSavesWhateverIsWritten(t *testing.T) {
	for _, deaf := range []int{0, 1} {
		f, l := restarting(t, deaf)
		p := f.pods["p01"]
		p.want.Leaving, p.want.LeaveBy = ReasonReclaimed, f.now.Add(time.Minute)
		_ = f.handle(l, GangExpected{f.gang()})
		f.outage(l, 30*time.Second)
		if !p.process.runs {
			t.Errorf("one of %d looks at no gate: half a minute before it is killed its program was stopped", deaf)
		}
		f.outage(l, 25*time.Second)
		if p.process.runs {
			t.Errorf("one of %d looks at no gate: 5 s before it is killed its program runs", deaf)
		}
	}
}

// A planned change that nobody could write down ends no program that is started anew in each world: those that look at no gate,
// and those that stop at a barrier. When there is somebody again who writes it down, it is made.
func TestNoProgramIsStoppedForARecordThatNobodyTakes(t *testing.T) {
	for name, deaf := range map[string]int{"they look at no gate": 1, "they stop at a barrier": 0} {
		t.Run(name, func(t *testing.T) {
			f, l := restarting(t, deaf)
			f.target = 3
			f.makePod()
			_ = f.handle(l, GangExpected{f.gang()})
			f.outage(l, time.Minute)
			before := f.done[1]
			f.outage(l, time.Minute)
			for _, uid := range []string{"p00", "p01"} {
				if p := &f.pods[uid].process; !p.runs || p.round != 1 {
					t.Fatalf("after two minutes without the API server: %s; the leader is %s", &f.pods[uid].worker, l.machine.State())
				}
			}
			if made := f.done[1] - before; made < 60 {
				t.Fatalf("%d steps were made in a minute without the API server", made)
			}
			f.turns(l, 400)
			if w := l.machine.world; w == nil || w.record.Round != 2 || w.record.Workers != 3 || f.done[2] == 0 {
				t.Errorf("the world does not grow: %+v, the leader is %s", f.record, l.machine.State())
			}
		})
	}
}

// A change that waited to learn whether records are taken is over once the world is left: the next one waits for no term that nobody
// needs.
func TestTheNextWorldWaitsForNoTermOfAChange(t *testing.T) {
	f, l := restarting(t, 1)
	f.target = 3
	f.makePod()
	_ = f.handle(l, GangExpected{f.gang()})
	f.outage(l, 10*time.Second)
	if !l.machine.tried {
		t.Fatalf("it is known that records are taken; the leader is %s", l.machine.State())
	}
	f.pods["p01"].exits(1)
	for range 100 {
		f.turn(l)
		if w := l.machine.writing; w != nil && w.plan != nil {
			return
		} else if w != nil && l.machine.broken != nil {
			t.Fatalf("the world is left, and written is %+v", w.Write)
		}
	}
	t.Fatalf("no next world is asked for, the leader is %s", l.machine.State())
}

// Nor does one end that was sent to a barrier when records were taken, and comes there when they are no more: before anybody is told to
// leave it is found out again. The world trains on, and changes when there is somebody again who writes it down.
func TestNoProgramLeavesABarrierForARecordThatNobodyTakes(t *testing.T) {
	f, l := restarting(t, 0)
	f.target = 3
	f.makePod()
	slow := f.pods["p01"]
	slow.process.still = true
	_ = f.handle(l, GangExpected{f.gang()})
	f.until(l, "the world is sent to a barrier", func() bool { return l.machine.change != nil })
	f.outage(l, 7*time.Second)
	slow.wake()
	before := f.done[1]
	f.outage(l, 2*time.Minute)
	for _, uid := range []string{"p00", "p01"} {
		if p := &f.pods[uid].process; !p.runs || p.round != 1 {
			t.Fatalf("after two minutes without the API server: %s; the leader is %s", &f.pods[uid].worker, l.machine.State())
		}
	}
	if made := f.done[1] - before; made < 60 {
		t.Fatalf("%d steps were made in two minutes without the API server", made)
	}
	f.turns(l, 400)
	if w := l.machine.world; w == nil || w.record.Round != 2 || w.record.Workers != 3 || f.done[2] == 0 || w.record.FromStep < f.done[1] {
		t.Errorf("the world does not grow after step %d: %+v, the leader is %s", f.done[1], f.record, l.machine.State())
	}
}

// A slow barrier: records are taken, and by the time at which all stand the last one is long ago. That is found out, and the world changes
// at its first try, though it has stood for longer than one hold may be old.
func TestABarrierThatTakesLongIsNotTriedAgain(t *testing.T) {
	f, l := restarting(t, 0)
	f.target = 3
	f.makePod()
	slow := f.pods["p01"]
	slow.process.still = true
	_ = f.handle(l, GangExpected{f.gang()})
	l.machine.gang.BarrierTimeout = time.Minute
	f.until(l, "the world is sent to a barrier", func() bool { return l.machine.change != nil })
	for began := f.now; f.now.Sub(began) < 40*time.Second; {
		f.turn(l)
	}
	slow.wake()
	f.turns(l, 100)
	if w := l.machine.world; w == nil || w.record.Round != 2 || w.record.FromStep != f.done[1] || l.machine.tries > 0 {
		t.Errorf("the world does not grow after step %d: %+v, the leader is %s: %s", f.done[1], f.record, l.machine.State(), l.machine.world.calledOff)
	}
}

// The operator is replaced at any moment of a change: nobody is told to leave twice, and no step is lost.
func TestAnOperatorThatIsReplacedInAChangeLosesNoStep(t *testing.T) {
	for _, deaf := range []int{0, 1} {
		for turns := 0; turns < 24; turns += 2 {
			f, l := restarting(t, deaf)
			f.target = 3
			f.makePod()
			_ = f.handle(l, GangExpected{f.gang()})
			f.turns(l, turns)
			l = f.succeeded(l)
			f.turns(l, 150)
			w := l.machine.world
			if w == nil || w.record.Round < 2 || w.record.Workers != 3 || f.done[w.record.Round] == 0 || len(l.machine.losses) > 0 {
				t.Fatalf("after %d turns, %d look at no gate: %+v, the leader is %s; losses %+v", turns, deaf, f.record, l.machine.State(), l.machine.losses)
			}
			if deaf == 0 && w.record.FromStep != f.done[w.record.Parent] {
				t.Errorf("after %d turns: the world goes on after step %d, and %d were made: %+v", turns, w.record.FromStep, f.done[w.record.Parent], f.record)
			}
		}
	}
}
