package rendezvous

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// grown takes a fleet of two to the world of three, before anybody has told of its first step: the survivors
// have stood still for seconds, the newcomer has come with a state of its own.
func grown(t *testing.T) (*fleet, *modelLeader) {
	t.Helper()
	f := emptyFleet(t)
	f.minimum, f.target = 1, 2
	l := f.training(2)
	f.parkedBefore(l)
	f.pass(2 * time.Second)
	f.finishWrite(l)
	for _, uid := range f.uids() {
		for p := f.pods[uid]; len(p.queue) > 0; {
			f.deliverTo(p)
		}
	}
	return f, l
}

// step has all make a step, of which nobody tells.
func (f *fleet) step() {
	for range 2 {
		for _, uid := range f.uids() {
			f.move(f.pods[uid])
		}
	}
}

// says has a pod report, with another pause than it has measured.
func (f *fleet) says(l *modelLeader, uid string, pause time.Duration) {
	r := f.pods[uid].report()
	r.Pause = pause
	_ = f.handle(l, AgentReported{uid, r})
}

// told is the change to round 2, if it is told.
func told(l *modelLeader) *Change {
	i := slices.IndexFunc(l.machine.changes, func(c Change) bool { return c.Round == 2 })
	if i < 0 {
		return nil
	}
	return &l.machine.changes[i]
}

func TestThePauseIsThatOfTheSlowest(t *testing.T) {
	f, l := grown(t)
	f.move(f.pods["p00"])
	f.move(f.pods["p02"])
	f.pass(time.Second)
	f.step()
	slowest := f.pods["p01"].report().Pause
	if slowest < 3*time.Second || slowest <= f.pods["p00"].report().Pause {
		t.Fatalf("%s and %s", slowest, f.pods["p00"].report().Pause)
	}
	f.tellState(f.pods["p00"])
	f.tellState(f.pods["p02"])
	if c := told(l); c != nil || !l.machine.Observe(f.now).Untold {
		t.Fatalf("the change is told before all have said how long they stood still: %+v", c)
	}
	f.tellState(f.pods["p01"])
	if c := told(l); c == nil || c.Pause != slowest || !c.Begun || l.machine.Observe(f.now).Untold {
		t.Errorf("the change is told as %+v, want a pause of %s", c, slowest)
	}
}

// What a newcomer says of its pause does not count: it was not there.
func TestThePauseOfANewcomer(t *testing.T) {
	f, l := grown(t)
	f.step()
	f.stood[2] = append(f.stood[2], time.Hour)
	f.says(l, "p02", time.Hour)
	f.tellState(f.pods["p00"])
	f.tellState(f.pods["p01"])
	if c := told(l); c == nil || c.Pause != f.pods["p00"].report().Pause {
		t.Errorf("the change is told as %+v", c)
	}
}

// A survivor that is not heard any more holds nothing up.
func TestThePauseThatOneDoesNotSay(t *testing.T) {
	f, l := grown(t)
	f.step()
	f.tellState(f.pods["p00"])
	f.pass(l.machine.gang.HeartbeatTimeout - time.Millisecond)
	if c := told(l); c != nil {
		t.Fatalf("the change is told too early: %+v", c)
	}
	f.pass(time.Millisecond)
	if c := told(l); c == nil || c.Pause != f.pods["p00"].report().Pause {
		t.Errorf("the change is told as %+v", c)
	}
}

// A pause that is longer than the time since there are steps is not believed, and named.
func TestAPauseThatCannotBe(t *testing.T) {
	f, l := grown(t)
	f.step()
	r := f.pods["p00"].report()
	r.Pause = f.now.Sub(time.Unix(1e9, 0)) + time.Second
	out := l.machine.Handle(f.now, AgentReported{"p00", r})
	if !slices.ContainsFunc(out.Notes, func(n note) bool { return n.Kind == notedDoubted && strings.Contains(n.Text, "p00") }) {
		t.Errorf("nothing is said of it: %v", out.Notes)
	}
	f.tellState(f.pods["p01"])
	if c := told(l); c == nil || c.Pause != f.pods["p01"].report().Pause {
		t.Errorf("the change is told as %+v", c)
	}
}

// The leader dies while the world stands: the next one hears how long that took from the agents.
func TestThePauseAcrossAChangeOfLeader(t *testing.T) {
	f, l := grown(t)
	f.kill(l)
	f.pass(40 * time.Second)
	f.newLeader()
	l = f.leaders[f.born]
	f.turns(l, 30)
	c := told(l)
	if truth := f.firstBegun[2].Sub(f.lastEnded[1]); c == nil || c.Pause != truth || !c.Inherited || truth < 40*time.Second {
		t.Errorf("a pause of %s is told as %+v", truth, c)
	}
	if n := len(l.machine.changes); n != 1 {
		t.Errorf("%d changes are told", n)
	}
}

// All are replaced, and nobody was in both worlds: how long it took is not known, and nobody is waited for.
func TestThePauseThatNobodyKnows(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target = 2, 2
	l := f.training(2)
	for _, uid := range []string{"p00", "p01"} {
		f.pods[uid].want.Leaving = ReasonNodeTainted
		f.makePod()
	}
	_ = f.handle(l, GangExpected{f.gang()})
	for range 100 {
		if f.turn(l); told(l) != nil {
			break
		}
	}
	c := told(l)
	if c == nil || c.Pause != 0 || !c.Begun || l.machine.world.ranks.rank("p00") >= 0 || l.machine.world.ranks.rank("p01") >= 0 {
		t.Fatalf("the change is told as %+v, in the world of %v", c, l.machine.world.ranks.uids)
	}
	if since := f.now.Sub(f.firstBegun[2]); since > time.Second {
		t.Errorf("it was told %s after the first step", since)
	}
}
