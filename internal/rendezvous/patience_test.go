package rendezvous

import (
	"slices"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
)

// One rank has finished, as when it stops early by a metric of its own; the other begins the next step, and waits in it for
// the first.
func TestOneFinishesAndTheOthersGoOn(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target, f.hang = 2, 2, 10*time.Minute
	l := f.training(2)
	p := f.pods["p00"]
	for p.process.stepping {
		f.move(f.pods["p00"])
		f.move(f.pods["p01"])
	}
	p.process.waiting = waitingFinished
	p.machine.Step(f.now, lifecycle.Said{Slot: 0, Connection: p.process.connection, What: lifecycle.Finished, Step: p.process.done, Clean: true})
	f.move(f.pods["p01"])
	f.move(f.pods["p01"])
	for began := f.now; f.now.Sub(began) < 12*time.Minute && len(l.machine.losses) == 0; {
		f.slow(l, "", 60)
		f.move(f.pods["p01"])
	}
	losses := l.machine.losses
	if len(losses) != 1 || losses[0].UID != "p00" || !losses[0].Program {
		t.Errorf("the losses are %+v, state %s", losses, l.machine.State())
	}
}

// A barrier waits for the steps that are under way, however long they take, and no longer than it may once all stand.
func TestABarrierWaitsForTheStepsUnderWay(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target = 2, 2
	l := f.training(2)
	for _, p := range f.pods {
		p.stepTime = 10 * time.Minute
	}
	f.pass(time.Second)
	f.turn(l)
	m := l.machine
	began, limit := f.now, m.gang.BarrierTimeout
	m.change = &change{began: began}
	w := &wish{leave: true}
	if late := m.lateAt(w); late.Sub(began) < 20*time.Minute || late.Sub(began) > time.Hour {
		t.Errorf("a barrier among steps of 10 minutes may take %s", late.Sub(began))
	}
	m.change.arrived, m.change.arrivedAt = true, began.Add(8*time.Minute)
	if late := m.lateAt(w); late.Sub(m.change.arrivedAt) != limit {
		t.Errorf("all stand, and may stand for %s, not %s", late.Sub(m.change.arrivedAt), limit)
	}
	w.by = m.change.arrivedAt.Add(limit / 2)
	if late := m.lateAt(w); !late.Equal(w.by.Add(-leaveMargin)) {
		t.Errorf("one is killed at %s, and it may take until %s", w.by.Sub(began), late.Sub(began))
	}
}

// However many could save the state, those who wait for it do not stand for the sum of their time.
func TestSaversAreNotAskedForEver(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target = 8, 8
	l := f.training(8)
	m, began := l.machine, f.now
	m.broken = &recovery{failed: map[string]bool{}, began: began}
	could := &live{step: m.furthest(), savers: slices.Clone(m.world.ranks.uids)}
	now := began
	for m.saveLive(now, could) && now.Sub(began) < time.Hour {
		now = now.Add(time.Second)
	}
	if took := now.Sub(began); took > (saversAtMost+1)*m.gang.BarrierTimeout {
		t.Errorf("eight of whom none answers are asked for %s", took)
	}
	if m.saveLive(now.Add(time.Second), could) {
		t.Error("they are asked once more")
	}
}

// All of a world are cut off from the operator and train on; that it hears one that waits to join is no evidence.
func TestAStandbyThatIsHeardSaysNothingOfTheWorld(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target, f.hang = 2, 2, 10*time.Minute
	l := f.training(2)
	f.makePod()
	f.turns(l, 5)
	for _, uid := range []string{"p00", "p01"} {
		p := f.pods[uid]
		p.stepTime = time.Second
		f.tellState(p)
		f.cut(p, false)
		f.drop(p, l)
		p.want.NodeNotReady = true
	}
	_ = f.handle(l, GangExpected{f.gang()})
	before := f.done[1]
	f.turns(l, 200)
	if n := len(l.machine.losses); n > 0 || f.done[1] <= before {
		t.Errorf("%d are lost, while %d steps were made: %+v", n, f.done[1]-before, l.machine.losses)
	}
	for _, uid := range []string{"p00", "p01"} {
		f.pods[uid].unheard, f.pods[uid].want.NodeNotReady = false, false
	}
	_ = f.handle(l, GangExpected{f.gang()})
	f.turns(l, 40)
	if f.record.Round != 1 || l.machine.State() != StateTraining {
		t.Errorf("healed, it is %s in round %d", l.machine.State(), f.record.Round)
	}
}
