package rendezvous

import (
	"fmt"
	"testing"
	"time"
)

// replaced takes a world of one worker to the one that has taken its place, and gets nothing from it yet.
func replaced(t *testing.T) (*fleet, *modelLeader) {
	t.Helper()
	f := emptyFleet(t)
	f.minimum, f.target = 1, 1
	l := f.training(1)
	f.makePod()
	f.pods["p01"].starved = true
	f.pods["p00"].want.Leaving = ReasonMoved
	_ = f.handle(l, GangExpected{f.gang()})
	for turn := 0; f.record.Round < 2 && turn < 300; turn++ {
		f.turn(l)
	}
	if f.record.Round != 2 || f.record.Workers != 1 || f.record.FromStep == 0 {
		t.Fatalf("the record is %+v", f.record)
	}
	f.turns(l, 2)
	return f, l
}

// succeed kills a leader, and returns the next one once it has taken over.
func (f *fleet) succeed(l *modelLeader) *modelLeader {
	f.kill(l)
	f.newLeader()
	l = f.leaders[f.born]
	for turn := 0; l.machine.world == nil && turn < 100; turn++ {
		f.turn(l)
	}
	if l.machine.world == nil {
		f.t.Fatalf("the next leader has no world: %s", l.machine.State())
	}
	return l
}

// stands says whether a worker that leaves is out, and whether it is released.
func stands(f *fleet, l *modelLeader, uid string) string {
	return fmt.Sprintf("out %t, released %t", l.machine.Observe(f.now).Members[uid].Out, releasedOf(l, uid))
}

// Who alone has the state that a planned change goes on from is neither out nor let go before the others have it, whoever leads.
func TestWhoHasTheStateStays(t *testing.T) {
	for leaders := range 3 {
		t.Run(fmt.Sprintf("%d leaders end", leaders), func(t *testing.T) {
			f, l := replaced(t)
			from := f.record.FromStep
			for range leaders {
				l = f.succeed(l)
			}
			if got := stands(f, l, "p00"); got != "out false, released false" {
				t.Fatalf("while the other one has not got it: %s", got)
			}
			f.pods["p01"].starved = false
			l.machine.out.Changed = false
			f.turns(l, 60)
			if w := l.machine.world; w == nil || !l.machine.hasBegun() || f.record.FromStep < from || l.machine.fatal != "" {
				t.Fatalf("the record is %+v, %q: %s", f.record, l.machine.fatal, l.machine.State())
			}
			if got := stands(f, l, "p00"); got != "out true, released true" {
				t.Errorf("once the other one trains: %s", got)
			}
		})
	}
}

// Its room is another's as soon as all have the state, though they may take long to make their first step.
func TestWhoHasGivenTheStateIsOut(t *testing.T) {
	f, l := replaced(t)
	f.pods["p01"].starved, f.pods["p01"].process.still = false, true
	for turn := 0; len(f.pods["p01"].snapshots) == 0 && turn < 100; turn++ {
		f.turn(l)
	}
	f.turns(l, 2)
	if got := stands(f, l, "p00"); l.machine.hasBegun() || got != "out true, released false" {
		t.Errorf("the world has begun %t: %s", l.machine.hasBegun(), got)
	}
}

// There is an end of it, by which nobody is told late.
func TestWhoHasTheStateStaysNotForEver(t *testing.T) {
	f, l := replaced(t)
	m := l.machine
	m.watchSuppliers(f.now)
	m.out, m.tally = Effects{}, tally{}
	m.watchSuppliers(m.members["p00"].outAt.Add(supplyTimeout - 1))
	if got := stands(f, l, "p00"); got != "out false, released false" || m.out.Changed {
		t.Fatalf("before: %s", got)
	}
	m.watchSuppliers(m.members["p00"].outAt.Add(supplyTimeout))
	if got := stands(f, l, "p00"); got != "out true, released true" || !m.out.Changed || !m.out.Publish {
		t.Errorf("then: %s", got)
	}
}

// Nor does one that is lost meanwhile, and does not leave: it is let go as well.
func TestALostHolderStaysNotForEver(t *testing.T) {
	f, l := replaced(t)
	m := l.machine
	f.pods["p00"].want.Leaving, f.pods["p00"].want.Lost = "", "its node is gone"
	_ = f.handle(l, GangExpected{f.gang()})
	m.watchSuppliers(f.now)
	m.watchSuppliers(f.now.Add(supplyTimeout - time.Second))
	if releasedOf(l, "p00") {
		t.Fatal("it is let go at once")
	}
	m.watchSuppliers(f.now.Add(supplyTimeout))
	if !releasedOf(l, "p00") {
		t.Error("it is never let go")
	}
}

// Of a state in shards nobody says which it wants, nor does who trains on: before the first reports of its world too.
func TestShardsAreAwaitedFromTheStart(t *testing.T) {
	f, l := cutUp(t, 5)
	f.pods["p04"].want.Leaving, f.target = ReasonScaledDown, 4
	_ = f.handle(l, GangExpected{f.gang()})
	f.until(l, "the next world is asked for", func() bool { return l.machine.writing != nil && l.machine.writing.plan != nil })
	f.finishWrite(l)
	if w := l.machine.world; w.record.Round != 2 || w.snapshot == nil || !l.machine.awaitsState() {
		t.Errorf("nothing is awaited in %+v", w.record)
	}
}

// A part is no state: in an adopted world one file, or all shares of one, are.
func TestSharesAreAStateTogether(t *testing.T) {
	files := func(parts ...string) (all []Snapshot) {
		for _, part := range parts {
			all = append(all, Snapshot{Round: 1, Step: 7, Bytes: 1, Part: part})
		}
		return all
	}
	const one, other = ".2.0123456789abcdef", ".2.fedcba9876543210"
	for name, c := range map[string]struct {
		step  uint64
		files []Snapshot
		whole bool
	}{
		"a file":                 {7, files(""), true},
		"of another step":        {8, files(""), false},
		"a share":                {7, files("s0" + one), false},
		"all shares":             {7, files("r0"+one, "s0"+one, "s1"+one), true},
		"one share twice":        {7, files("s0"+one, "s0"+one), false},
		"shares of two layouts":  {7, files("s0"+one, "s1"+other), false},
		"a rank's files":         {7, files("r0"+one, "r1"+one), false},
		"shards":                 {7, files("d0"+one, "d1"+one), false},
		"what cannot be read":    {7, files("x"), false},
		"shares and then a file": {7, files("s0"+one, ""), true},
	} {
		if got := (&member{report: Report{Snapshots: c.files}}).hasWhole(c.step); got != c.whole {
			t.Errorf("%s: %t", name, got)
		}
	}
}
