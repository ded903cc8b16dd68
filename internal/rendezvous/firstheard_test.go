package rendezvous

import (
	"slices"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
)

// ended has a worker end, and the controller know of it.
func (f *fleet) ended(uid string) {
	f.end(f.pods[uid])
	f.pods[uid].want.Lost, f.pods[uid].want.Ended = "it has ended", true
}

// A worker of the first world ends while nobody leads, and another pod takes its place. The job goes on from the survivor's state,
// whoever of them is heard first.
func TestANewcomerThatIsHeardFirstEndsNoWorld(t *testing.T) {
	for _, first := range []string{"p00", "p02"} {
		f := emptyFleet(t)
		f.minimum, f.target = 1, 2
		l := f.training(2)
		f.pods["p00"].save(lifecycle.Staging{})
		f.turns(l, 40)
		made := f.done[1]
		f.kill(l)
		f.ended("p01")
		f.makePod()
		l = f.next()
		f.finishWrite(l)
		f.connectTo(f.pods[first], l)
		f.turns(l, 60)
		if r := f.record; r.Round != 2 || r.Parent != 1 || r.FromStep+1 < made || f.done[2] <= r.FromStep {
			t.Errorf("%s is heard first, %d steps were made, and the job goes on with %+v", first, made, r)
		}
	}
}

// All of a first world have ended while nobody led: nothing is waited for, and nobody has anything of it.
func TestAFirstWorldThatHasEndedIsNotWaitedFor(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target = 1, 2
	f.kill(f.training(2))
	f.ended("p00")
	f.ended("p01")
	f.makePod()
	l := f.next()
	f.turns(l, 10)
	if f.record.Round != 2 || f.done[2] == 0 {
		t.Errorf("the leader is %s, the record %+v", l.machine.State(), f.record)
	}
}

// A world was made durable that a newcomer is to join, and its leader has died. The next one hears the newcomer alone for longer
// than agents need to find an operator, and then the others: nothing that was trained is lost, and nobody was let go.
func TestOnlyTheNewcomerIsHeardForAWhile(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(*fleet, *modelLeader) // until a world is asked for
		told    []string                   // who has heard of it
	}{
		"of a planned change that nobody has heard of": {prepare: (*fleet).parkedBefore},
		"of a planned change that one has heard of":    {prepare: (*fleet).parkedBefore, told: []string{"p00"}},
		"of a recovery that nobody has heard of":       {prepare: (*fleet).recoveryBefore},
	} {
		t.Run(name, func(t *testing.T) {
			f := emptyFleet(t)
			f.minimum, f.target, f.hang = 1, 2, 10*time.Minute
			l := f.training(2)
			f.pods["p00"].save(lifecycle.Staging{})
			f.turns(l, 40)
			c.prepare(f, l)
			f.finishWrite(l)
			for uid, p := range f.pods {
				for len(p.queue) > 0 && slices.Contains(c.told, uid) {
					f.deliverTo(p)
				}
			}
			made := f.done[1]
			f.kill(l)
			l = f.next()
			f.finishWrite(l)
			f.hears(l, 20*time.Second, "p02")
			if !l.machine.Observe(f.now).Adopting {
				t.Errorf("nobody was heard who can tell what has become of the world, and the leader, %s, takes it for known", l.machine.State())
			}
			f.pods["p00"].want.Leaving = ReasonScaledDown
			_ = f.handle(l, GangExpected{f.gang()})
			if d, _ := l.machine.Directive("p00"); d.Released {
				t.Error("one is let go who may train, and the others with it")
			}
			f.pods["p00"].want.Leaving = ""
			_ = f.handle(l, GangExpected{f.gang()})
			f.turns(l, 200)
			if l.machine.State() != StateTraining || f.record.FromStep < made || f.record.Parent == 0 || f.done[f.record.Round] <= f.record.FromStep {
				t.Errorf("%d steps were made, the leader is %s, and the record %+v", made, l.machine.State(), f.record)
			}
			if slices.ContainsFunc(l.machine.losses, func(one Loss) bool { return one.Program }) {
				t.Errorf("a program is charged: %+v", l.machine.losses)
			}
		})
	}
}

// A planned change was told to one of two, and its leader has died. Only who is to join is heard for as long as agents need to find the
// next one, and then the two, one soon after the other: the change goes on as it would have otherwise, whoever of them is first.
func TestWhoIsHeardLateIsWaitedForWithTheOthers(t *testing.T) {
	for _, first := range []string{"p00", "p01"} {
		f := emptyFleet(t)
		f.minimum, f.target, f.hang = 1, 2, 10*time.Minute
		l := f.training(2)
		f.parkedBefore(l)
		f.finishWrite(l)
		for uid, p := range f.pods {
			for len(p.queue) > 0 && uid == "p00" {
				f.deliverTo(p)
			}
		}
		f.kill(l)
		l = f.next()
		f.finishWrite(l)
		f.hears(l, 16*time.Second, "p02")
		f.hears(l, 3*time.Second, "p02", first)
		f.turns(l, 20)
		if w := l.machine.world; w == nil || f.record.Round != 2 || f.done[2] <= f.record.FromStep || len(l.machine.losses) > 0 {
			t.Errorf("%s is heard first: the leader is %s, the record %+v, and lost are %+v", first, l.machine.State(), f.record, l.machine.losses)
		}
	}
}

// The one that leaves is heard alone, still where it stood in the world before, while the others train in the newest: nothing that it can
// say decides what has become of that, so it is waited for, and who stands is kept standing.
func TestOnlyTheLeaverIsHeardForAWhile(t *testing.T) {
	for name, c := range map[string]struct {
		target  int32
		reason  Reason
		joining bool
	}{
		"of a shrink": {target: 2, reason: ReasonScaledDown},
		"of a move":   {target: 3, reason: ReasonMoved, joining: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := emptyFleet(t)
			f.minimum, f.target, f.hang = 1, 3, 10*time.Minute
			l := f.training(3)
			if c.joining {
				f.makePod()
			}
			f.pods["p02"].want.Leaving, f.target = c.reason, c.target
			_ = f.handle(l, GangExpected{f.gang()})
			f.until(l, "the next world is asked for", func() bool { return l.machine.writing != nil && l.machine.writing.plan != nil })
			f.pods["p02"].unheard = true // or it is told that it may go
			f.until(l, "the others train without it", func() bool { return f.record.Round == 2 && f.done[2] > f.record.FromStep })
			made := f.done[2]
			f.kill(l)
			f.pods["p02"].unheard = false
			l = f.next()
			f.finishWrite(l)
			f.hears(l, 80*time.Second, "p02")
			if !l.machine.Observe(f.now).Adopting || l.machine.State() != StateInheriting {
				t.Errorf("nobody was heard who can tell what has become of the world, and the leader, %s, takes it for known", l.machine.State())
			}
			if p := f.pods["p02"]; !f.standing("p02") || p.released {
				t.Errorf("the one that leaves is let go, or goes on alone: %s", &p.worker)
			}
			f.turns(l, 60)
			if w := l.machine.world; w == nil || f.record.Round != 2 || w.record.Round != 2 || f.done[2] <= made {
				t.Errorf("%d steps were made, the leader is %s, and the record %+v", made, l.machine.State(), f.record)
			}
		})
	}
}

// recoveryBefore takes a leader to the moment before it asks for the world that follows on a loss, and that one more pod joins.
func (f *fleet) recoveryBefore(l *modelLeader) {
	f.ended("p01")
	f.makePod()
	_ = f.handle(l, GangExpected{f.gang()})
	for range 100 {
		if w := l.writing; w != nil && l.machine.writing.plan != nil {
			return
		}
		f.turn(l)
	}
	f.t.Fatal("no next world is asked for")
}

// Who may know what has become of a world is not waited for longer than a world that gives no sign, nor where its node is not ready.
func TestWhoMayKnowOfAWorldIsNotWaitedForForEver(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Member)
		waits  time.Duration
	}{
		"nothing is known of it":      {func(*Member) {}, time.Minute},
		"its node is not ready":       {func(want *Member) { want.NodeNotReady = true }, 15 * time.Second},
		"its pod is gone":             {func(want *Member) { want.Gone = true }, 15 * time.Second},
		"it is only about to be here": {func(want *Member) { want.Starting = true }, 15 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			f := emptyFleet(t)
			f.minimum, f.target, f.hang = 1, 2, time.Minute
			l := f.training(2)
			f.parkedBefore(l)
			f.finishWrite(l)
			f.kill(l)
			c.change(&f.pods["p00"].want)
			c.change(&f.pods["p01"].want)
			l = f.next()
			f.finishWrite(l)
			began := f.now
			f.hears(l, c.waits-time.Second, "p02")
			if !l.machine.Observe(f.now).Adopting {
				t.Errorf("it is given up after %s", f.now.Sub(began))
			}
			f.hears(l, 2*time.Second, "p02")
			if l.machine.Observe(f.now).Adopting {
				t.Errorf("it is waited for after %s", f.now.Sub(began))
			}
		})
	}
}

// The record of a world in which one takes another one's place was written, and published to nobody, when its leader dies. The next one
// hears only who goes on, so that the parent does. Who has frozen is lost in that, and not who was to take its place, and has never been in it.
func TestWhoWasToTakeAPlaceIsNotLostInTheParent(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target, f.hang = 1, 2, time.Minute
	l := f.training(2)
	f.pods["p00"].save(lifecycle.Staging{})
	f.makePod()
	f.pods["p01"].want.Leaving = ReasonMoved
	_ = f.handle(l, GangExpected{f.gang()})
	f.until(l, "the next world is asked for", func() bool { return l.machine.writing != nil && l.machine.writing.plan != nil })
	f.finishWrite(l)
	for _, p := range f.pods {
		p.queue = nil
	}
	f.kill(l)
	f.pods["p01"].frozen, f.pods["p02"].unheard = true, true
	l = f.next()
	f.hears(l, 2*time.Minute, "p00")
	f.pods["p02"].unheard = false
	f.turns(l, 60)
	var lost []string
	for _, loss := range l.machine.losses {
		lost = append(lost, loss.Name)
	}
	if !slices.Equal(lost, []string{"p01"}) {
		t.Errorf("lost are %v", lost)
	}
	if w := l.machine.world; w == nil || w.record.Round < 3 || w.record.Workers != 2 || f.done[w.record.Round] <= w.record.FromStep {
		t.Errorf("the leader is %s, the record %+v", l.machine.State(), f.record)
	}
}
