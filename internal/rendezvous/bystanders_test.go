package rendezvous

import (
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
)

// A newcomer that is not heard yet, and is not named by the record, has no part in what became of the round: the world
// before it is adopted as soon as its members are heard.
func TestAnUnheardNewcomerHoldsNoAdoptionUp(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target, f.hang = 1, 2, 10*time.Minute
	l := f.training(2)
	f.pods["p01"].want.Leaving = ReasonNodeTainted
	_ = f.handle(l, GangExpected{f.gang()})
	for range 100 {
		if w := l.machine.writing; w != nil && w.plan != nil {
			break
		}
		f.turn(l)
	}
	f.finishWrite(l) // it is durable, and what was published is on its way
	for _, p := range f.pods {
		p.queue = nil
	}
	f.kill(l)
	f.makePod()
	f.pods["p02"].want.Starting, f.pods["p02"].unheard = true, true
	f.newLeader()
	l = f.leaders[f.born]
	f.turns(l, 60)
	if w := l.machine.world; w == nil || !f.pods["p00"].trains() || l.machine.furthest() <= 20 {
		t.Errorf("after 18 s the leader is %s, world %v, and %s", l.machine.State(), w, &f.pods["p00"].worker)
	}
}

// Who has left a broken world and is heard no more holds nobody up, also when its peers reach it.
func TestWhoIsOutAndUnheardHoldsNoRecoveryUp(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target, f.hang = 1, 3, 10*time.Minute
	l := f.training(3)
	f.pods["p00"].save(lifecycle.Staging{})
	f.turns(l, 3)
	f.lose(l, "p01")
	for l.machine.broken == nil {
		f.turn(l)
	}
	for !f.pods["p02"].machine.Out() {
		f.visit(l, "p02")
	}
	f.tellState(f.pods["p02"])
	f.cut(f.pods["p02"], false)
	f.drop(f.pods["p02"], l)
	began := f.now
	for l.machine.broken != nil && f.now.Sub(began) < 5*time.Minute {
		if l.writing != nil {
			f.finishWrite(l)
		}
		f.visit(l, "p00")
		f.pass(time.Second)
	}
	if took := f.now.Sub(began); took > 2*outTimeout || l.machine.world.record.Round != 2 {
		t.Errorf("after %s round %d stands (%s)", took, l.machine.world.record.Round, l.machine.State())
	}
}

// While nobody leads one of two is deleted by force, and a newcomer that had no rank ends: its end says nothing of the
// world, whose members may train on.
func TestTheEndOfANewcomerIsNotThatOfTheWorld(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target, f.hang = 1, 2, 10*time.Minute
	l := f.training(2)
	f.turns(l, 10)
	f.kill(l)
	delete(f.pods, "p01")
	f.makePod() // p02 has ended before anybody heard it
	f.end(f.pods["p02"])
	f.pods["p02"].want.Lost, f.pods["p02"].want.Ended = "it has ended", true
	f.makePod() // p03 is ready for another world
	f.newLeader()
	l = f.leaders[f.born]
	for range 60 {
		if l.writing != nil {
			f.finishWrite(l)
		}
		p := f.pods["p00"]
		switch {
		case l.machine.world != nil && !p.unheard:
			p.queue = nil
			f.cut(p, false)
			f.drop(p, l)
		case !p.unheard && p.leader != l:
			f.connectTo(p, l)
		case !p.unheard:
			f.tellState(p)
		}
		p.queue = nil
		f.visit(l, "p03")
		f.pass(time.Second)
	}
	if lost, ended := l.machine.lostOnes(); f.record.Round != 1 || ended {
		t.Errorf("round %d is there; %d of round 1 are lost, one is known to have ended: %v", f.record.Round, lost, ended)
	}
}

// All members are taken for lost, and train on. Back again, they go on from the state that they have, and not from the
// snapshot of long ago.
func TestWhoWasTakenForLostKeepsItsState(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target, f.hang = 2, 2, 10*time.Minute
	l := f.training(2)
	f.pods["p00"].save(lifecycle.Staging{})
	f.turns(l, 3)
	f.makePod()
	f.turns(l, 100)
	for _, uid := range []string{"p00", "p01"} {
		f.cut(f.pods[uid], false)
		f.drop(f.pods[uid], l)
		l.machine.lose(f.now, uid, l.machine.members[uid], false, "nobody reaches it")
	}
	l.machine.breakWorld(f.now, &recovery{reason: ReasonWorkerLost, why: "nobody reaches them"})
	_ = f.handle(l, GangExpected{f.gang()})
	f.turns(l, 100)
	for _, uid := range []string{"p00", "p01"} {
		f.pods[uid].unheard = false
	}
	_ = f.handle(l, GangExpected{f.gang()})
	f.turns(l, 60)
	if was := f.done[1]; f.record.Round != 2 || f.record.FromStep+1 < was || l.machine.State() != StateTraining {
		t.Errorf("the world was at step %d; round %d begins after step %d (%s)", was, f.record.Round, f.record.FromStep, l.machine.State())
	}
}

// The only survivor is out of the operator's hearing while it should say that it has left the world: lost, it is back a
// moment later, with its state.
func TestASurvivorThatIsHeardTooLateKeepsItsState(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target, f.hang = 2, 2, 10*time.Minute
	l := f.training(2)
	f.pods["p00"].save(lifecycle.Staging{})
	f.turns(l, 100)
	f.cut(f.pods["p00"], false)
	f.drop(f.pods["p00"], l)
	f.lose(l, "p01")
	for range 12 {
		f.pass(time.Second)
	}
	f.pods["p00"].unheard = false
	f.turns(l, 10)
	f.makePod()
	_ = f.handle(l, GangExpected{f.gang()})
	f.turns(l, 60)
	if was := f.done[1]; f.record.Round != 2 || f.record.FromStep+1 < was {
		t.Errorf("the world was at step %d; round %d begins after step %d", was, f.record.Round, f.record.FromStep)
	}
}
