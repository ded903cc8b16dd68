package rendezvous

import (
	"testing"
	"time"
)

// unheardWorld has the next world be written, of which nobody hears, and another operator lead.
func unheardWorld(f *fleet, l *modelLeader) *modelLeader {
	f.t.Helper()
	for n := 0; l.machine.writing == nil || l.machine.writing.plan == nil; n++ {
		if f.calm(l); n == 2000 {
			f.t.Fatalf("the next world is not asked for: %s", l.machine.State())
		}
	}
	f.finishWrite(l)
	for _, p := range f.pods {
		p.queue = nil
	}
	return f.succeeded(l)
}

// calm is a turn in which nobody makes a step.
func (f *fleet) calm(l *modelLeader) {
	if l.writing != nil {
		f.finishWrite(l)
	}
	for _, uid := range f.uids() {
		if p := f.pods[uid]; !p.dead && !p.frozen && !p.unheard {
			f.meet(l, p)
		}
	}
	f.pass(300 * time.Millisecond)
}

// A leader goes back to a world that has made no step, since the one after it was heard of by nobody. Its only member that was in the world
// before is not heard any more, so nobody says that it has left that: it has, or there would be no world after.
func TestAWorldThatWasGoneOnFromIsFenced(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target = 1, 1
	l := f.training(1)
	f.parkedBefore(l)
	f.finishWrite(l)
	for n := 0; f.pods["p00"].in().Round != 2 || f.pods["p01"].in().Round != 2; n++ {
		if f.calm(l); n == 2000 {
			t.Fatal("they do not enter the next world")
		}
	}
	f.target++
	f.makePod()
	_ = f.handle(l, GangExpected{f.gang()})
	l = unheardWorld(f, l)
	if f.record.Round != 3 || f.record.Parent != 2 || f.record.Grandparent != 1 || f.done[2] > f.record.FromStep {
		t.Fatalf("%+v is written, and %d steps are made", f.record, f.done[2])
	}
	lost := f.pods["p00"]
	lost.dead, lost.vanished, lost.leader, lost.queue = true, true, nil, nil
	lost.want.Lost = "its node is silent"
	_ = f.handle(l, GangExpected{f.gang()})
	f.lasting(l, 3*time.Minute)
	if wrong := f.goesOn(l, 2); wrong != "" {
		t.Errorf("%s; %s", wrong, l.machine.fatal)
	}
}

// The same where one has not heard of that world either, and holds the only snapshot, which is of the world before it.
func TestTheSnapshotOfTheWorldBeforeTheOneThatIsGoneBackToServes(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target = 1, 2
	l := f.training(2)
	f.vague()
	f.parkedBefore(l)
	f.finishWrite(l)
	holder, other := f.pods["p00"], f.pods["p01"]
	if len(holder.snapshots) == 0 {
		holder, other = other, holder
	}
	made := f.record.FromStep
	holder.queue, holder.unheard = nil, true
	for n := 0; other.in().Round != 2 || f.pods["p02"].in().Round != 2; n++ {
		if f.calm(l); n == 2000 {
			t.Fatal("they do not enter the next world")
		}
	}
	f.target = 2
	f.lose(l, "p02")
	l = unheardWorld(f, l)
	holder.unheard = false
	if holder.in().Round != 1 || other.snapshots != nil || f.record.Round != 3 || f.record.Parent != 2 || f.record.Grandparent != 1 {
		t.Fatalf("%+v is written; %s; %s", f.record, &holder.worker, &other.worker)
	}
	f.lasting(l, 3*time.Minute)
	if wrong := f.goesOn(l, 2); wrong != "" || f.record.FromStep != made {
		t.Errorf("%s (%s); it goes on after step %d, and there is the state after step %d", wrong, l.machine.fatal, f.record.FromStep, made)
	}
}
