package rendezvous

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
)

func TestAgentsStandAsLongAsTheProtocolSays(t *testing.T) {
	if stand := lifecycle.DefaultLimits(time.Minute).Stand; stand != holdTime {
		t.Errorf("agents stand for %s, the operator counts on %s", stand, holdTime)
	}
}

// parkedPair is a world of two that stands at a barrier, with the write of the next one under way.
func parkedPair(t *testing.T) (*fleet, *modelLeader) {
	t.Helper()
	f := emptyFleet(t)
	f.minimum, f.target = 1, 2
	l := f.training(2)
	f.parkedBefore(l)
	return f, l
}

// hear lets workers and their leader hear each other, so many times within a second, and no write be answered.
func (f *fleet) hear(l *modelLeader, times int, uids ...string) {
	for range times {
		for _, uid := range uids {
			p := f.pods[uid]
			if p.leader != l {
				f.connectTo(p, l)
			} else {
				f.tellState(p)
			}
			for len(p.queue) > 0 {
				f.deliverTo(p)
			}
		}
		f.pass(time.Second / 2)
	}
}

func (f *fleet) standing(uid string) bool { return f.pods[uid].process.waiting == waitingParked }

// A world does not stand for a record of which nobody says whether it was written. That it was is found out
// later, and harms nothing.
func TestAWorldDoesNotStandForAnUnclearWrite(t *testing.T) {
	f, l := parkedPair(t)
	f.hear(l, 9, "p00", "p01", "p02")
	if !f.standing("p00") || !f.standing("p01") {
		t.Fatal("they do not stand while the record is being written")
	}
	f.hear(l, 4, "p00", "p01", "p02")
	if f.standing("p00") || f.standing("p01") || l.machine.change != nil {
		t.Fatalf("the barrier is not lifted: %s, %s", &f.pods["p00"].worker, &f.pods["p01"].worker)
	}
	if why := l.machine.Observe(f.now).Why; !strings.Contains(why, "whether the job's record was written") {
		t.Errorf("why it was called off: %q", why)
	}
	before := f.done[1]
	f.finishWrite(l)
	f.turns(l, 4)
	if w := l.machine.world; w.record.Round != 1 || f.done[1] <= before {
		t.Errorf("round %d is at step %d, after %d", w.record.Round, f.done[1], before)
	}
	f.pass(time.Minute)
	f.turns(l, 20)
	if w := l.machine.world; w.record.Workers != 3 || f.losses(l) != "" {
		t.Errorf("the next try leads to %d workers, %s", w.record.Workers, f.losses(l))
	}
}

// Nor does it for one that nobody takes, and that fails before anything else is heard: not at the first try, nor at a later one.
func TestAWorldDoesNotStandForARecordThatNobodyTakes(t *testing.T) {
	f, l := parkedPair(t)
	fails := func() {
		if l.writing != nil {
			l.writing = nil
			_ = f.handle(l, RecordAnswered{Err: errors.New("connection refused")})
		}
	}
	fails()
	tries, since := 1, f.now
	for tries < 3 {
		for _, p := range f.pods {
			f.tellState(p)
			fails()
			for len(p.queue) > 0 {
				f.deliverTo(p)
				fails()
			}
			f.move(p)
		}
		f.pass(100 * time.Millisecond)
		fails()
		switch stands := f.standing("p00") && f.standing("p01"); {
		case !stands && !since.IsZero():
			tries, since = tries+1, time.Time{}
		case stands && since.IsZero():
			since = f.now
		case stands && f.now.Sub(since) > unclearTime+time.Second:
			t.Fatalf("at try %d it stands for %s: %s", tries, f.now.Sub(since), &f.pods["p00"].worker)
		}
	}
}

// A leave that hurries does not have the world stand again at once while records cannot be written.
func TestAHurryDoesNotStopAWorldAgainWhileNothingIsWritten(t *testing.T) {
	f, l := parkedPair(t)
	f.pods["p01"].want.Leaving, f.pods["p01"].want.LeaveBy = ReasonDeleted, f.now.Add(20*time.Second)
	_ = f.handle(l, GangExpected{f.gang()})
	f.hear(l, 16, "p00", "p01", "p02")
	if l.machine.change != nil || f.standing("p00") || f.standing("p01") {
		t.Errorf("it stands again: %s", &f.pods["p00"].worker)
	}
}

// When one worker may go on by itself soon, because no renewal comes through to it, all go on.
func TestABarrierIsLiftedForAll(t *testing.T) {
	f, l := parkedPair(t)
	l.machine.change.askedFor = f.now.Add(time.Hour) // the write is not what this is about
	deaf := f.pods["p01"]
	for range 20 {
		f.hear(l, 1, "p00", "p02")
		f.tellState(deaf)
		deaf.queue = nil
	}
	if l.machine.change == nil || !f.standing("p00") || !f.standing("p01") {
		t.Fatal("they do not stand")
	}
	for range 20 {
		f.hear(l, 1, "p00", "p02")
		f.tellState(deaf)
		deaf.queue = nil
	}
	if l.machine.change != nil || f.standing("p00") {
		t.Errorf("the barrier is not lifted: %s", &f.pods["p00"].worker)
	}
	if !f.standing("p01") {
		t.Error("who hears nothing goes on before its hold has ended")
	}
}

// An operator that slept while its write was under way publishes nothing: the holds are about to end.
func TestNothingIsPublishedWhenHoldsAreAboutToEnd(t *testing.T) {
	f, l := parkedPair(t)
	f.hear(l, 2, "p00", "p01", "p02")
	f.now = f.now.Add(holdTime - holdMargin)
	f.finishWrite(l)
	if round := l.machine.world.record.Round; round != 1 {
		t.Errorf("round %d is published", round)
	}
}

// A leader that does not know yet which world there is keeps those standing who stand, as long as that may take.
func TestANewLeaderRenewsWhatAnOlderOneHolds(t *testing.T) {
	f, l := parkedPair(t)
	f.finishWrite(l) // durable, and nobody hears of it
	f.kill(l)
	for range 25 {
		f.pass(time.Second)
	}
	f.newLeader()
	l = f.leaders[f.born]
	f.finishWrite(l)
	f.hear(l, 20, "p00")
	switch {
	case l.machine.world != nil:
		t.Fatal("the leader knows the world")
	case !f.standing("p00"):
		t.Error("it is let go while a leader finds out which world there is")
	case f.standing("p01"):
		t.Error("who has heard of no leader stands")
	}
}

// An agent of a version without holds stands until it is told otherwise, and holds up nobody.
func TestAgentsThatKnowNoHolds(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target = 1, 2
	l := f.training(2)
	f.pods["p01"].ignorant = true
	f.parkedBefore(l)
	l.machine.change.askedFor = f.now.Add(time.Hour)
	f.hear(l, 50, "p00", "p01", "p02")
	if !f.standing("p00") || !f.standing("p01") {
		t.Fatal("they do not stand")
	}
	f.finishWrite(l)
	if round := l.machine.world.record.Round; round != 2 {
		t.Errorf("round %d stands where round 2 should be published", round)
	}
}

// When nobody of a world goes on, it is left before the next one begins: at a barrier it would train on when its
// holds end.
func TestAWorldThatIsReplacedAsAWholeIsLeft(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target = 1, 1
	l := f.training(1)
	f.makePod()
	f.pods["p00"].want.Leaving = ReasonScaledDown
	for range 100 {
		_ = f.handle(l, GangExpected{f.gang()})
		if f.turn(l); l.machine.world.record.Round == 2 {
			break
		}
	}
	switch w := l.machine.world; {
	case w.record.Round != 2 || w.ranks.rank("p01") != 0:
		t.Fatalf("the world is %+v", w.record)
	case !f.pods["p00"].machine.Out():
		t.Errorf("it may go on: %s", &f.pods["p00"].worker)
	case w.record.FromStep != f.done[1] || f.losses(l) != "":
		t.Errorf("step %d of %d is kept, %s", w.record.FromStep, f.done[1], f.losses(l))
	}
}

// Both that are to go on are cut off before they hear of the next world, and may train on together. The newcomer,
// that has entered it, begins no other world until they are known not to.
func TestACutOffWorldIsNotForgottenByTheOneAfterIt(t *testing.T) {
	f, l := parkedPair(t)
	f.finishWrite(l)
	f.drop(f.pods["p00"], l)
	f.drop(f.pods["p01"], l)
	f.hear(l, 100, "p02")
	if w := l.machine.world; w.record.Round != 2 || l.machine.broken == nil || f.pods["p02"].in().Round != 2 {
		t.Fatalf("round 2 was not entered and left: %+v, %s", w.record, &f.pods["p02"].worker)
	}
	if w := l.writing; w != nil {
		t.Fatalf("round %d is asked for while the two train on", w.Next.Round)
	}
	for range 10 {
		f.move(f.pods["p00"])
		f.move(f.pods["p01"])
	}
	if !f.pods["p00"].trains() || f.done[1] == l.machine.world.record.FromStep {
		t.Errorf("it does not train on: %s", &f.pods["p00"].worker)
	}
	f.turns(l, 60)
	if w := l.machine.world; w.record.Round < 3 || f.done[w.record.Round] <= w.record.FromStep {
		t.Errorf("when they are back the job does not get on: %+v", w.record)
	}
}

// Members of a large job report seldom. A barrier that they need half a minute to reach is not taken for one that some of
// them do not hear of.
func TestALargeWorldIsHeldLikeASmallOne(t *testing.T) {
	c := newThrong(t, 5001, 1)
	c.gang.Members[1].Leaving = ReasonScaledDown
	c.Handle(c.now, GangExpected{c.gang})
	if c.change == nil {
		t.Fatal("no change has begun")
	}
	told, due := map[string]Directive{}, map[string]time.Time{}
	for range 30 {
		for _, uid := range c.world.ranks.uids {
			d, before := told[uid], c.members[uid].report
			now, _ := c.Directive(uid)
			if c.now.Before(due[uid]) && d.Barrier != nil && now.Beat >= d.Beat {
				continue
			}
			before.Hold, before.Processes = d.Hold, []Process{{Elastic: true, ProgramPhase: phaseStep, Entered: 2, Done: 1}}
			if d.Barrier != nil {
				before.Processes[0].Barrier, before.Processes[0].Stop = d.Barrier.Attempt, d.Barrier.Step
			}
			c.Absorb(c.now, AgentReported{UID: uid, Report: before})
			told[uid], _ = c.Directive(uid)
			due[uid] = c.now.Add(max(time.Second, told[uid].Beat) / 10 * 9)
		}
		c.Handle(c.now, TimePassed{})
		if c.now = c.now.Add(time.Second); c.change == nil {
			t.Fatalf("after %s: %s", c.now.Sub(c.stepAt), c.world.calledOff)
		}
	}
}

// An operator dies while its world stands at a barrier, and one agent finds the next late, held there by the old one as long as the
// protocol says. Nobody is lost by that, and the newcomer that waits, and is heard as late, was in no world that could miss it.
func TestWhoIsHeldByAnOlderLeaderIsNotLost(t *testing.T) {
	for _, late := range []time.Duration{16 * time.Second, 22 * time.Second, 25 * time.Second} {
		f, l := parkedPair(t)
		f.hang = 10 * time.Minute
		for _, p := range f.pods {
			p.stepTime = 100 * time.Millisecond
		}
		f.apply(l.id, *l.writing)
		f.kill(l)
		l = f.next()
		f.finishWrite(l)
		f.hears(l, late, "p00")
		if !f.standing("p01") {
			t.Fatalf("after %s nobody holds it at the barrier any more", late)
		}
		f.turns(l, 100)
		if len(l.machine.losses) > 0 || l.machine.State() != StateTraining || f.record.Reason.recovers() {
			t.Errorf("heard after %s: the leader is %s, the record %+v, losses %+v", late, l.machine.State(), f.record, l.machine.losses)
		}
	}
}

// The one that is held does not come: it is lost once nobody holds it, and the newcomer that is not heard either is not.
func TestANewcomerIsNotMissedInTheWorldBefore(t *testing.T) {
	f, l := parkedPair(t)
	f.hang = 10 * time.Minute
	for _, p := range f.pods {
		p.stepTime = 100 * time.Millisecond
	}
	f.apply(l.id, *l.writing)
	f.kill(l)
	f.pods["p01"].frozen, f.pods["p02"].unheard = true, true
	l = f.next()
	f.hears(l, time.Minute, "p00")
	if losses := l.machine.losses; len(losses) != 1 || losses[0].Name != "p01" {
		t.Errorf("the losses are %+v", losses)
	}
}
