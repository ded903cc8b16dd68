package rendezvous

import (
	"slices"
	"testing"
	"time"
)

// shrunk takes a world of five in shards to the first step of one of three; copies come no more from when it is made on. The state
// with all its copies is that of an earlier step.
func shrunk(t *testing.T) (f *fleet, l *modelLeader, copied Memory) {
	t.Helper()
	f, l = cutUp(t, 5)
	m := l.machine
	copied = copiedOnce(f, l)
	for _, uid := range []string{"p03", "p04"} {
		f.pods[uid].want.Leaving = ReasonScaledDown
	}
	f.target = 3
	_ = f.handle(l, GangExpected{f.gang()})
	for range 60 {
		if m.world.record.Round == 2 {
			for _, uid := range []string{"p00", "p01", "p02"} {
				f.pods[uid].full = true
			}
			if m.hasBegun() {
				break
			}
		}
		f.turn(l)
	}
	if w := m.world; w.record.Round != 2 || w.record.Workers != 3 || !m.hasBegun() {
		t.Fatalf("the world is %+v: %s", w.record, m.State())
	}
	return f, l, copied
}

// What those who leave hold of a state in shards is needed until those who stay have copies of it: they are let go then.
func TestALossWhileWhatLeaversHoldIsCopied(t *testing.T) {
	f, l, copied := shrunk(t)
	m := l.machine
	f.turns(l, 2)
	for _, uid := range []string{"p03", "p04"} {
		if p := f.pods[uid]; p.released {
			f.end(p)
		}
	}
	f.end(f.pods["p00"])
	f.pods["p00"].want.Lost, f.pods["p00"].want.Ended = "it has ended", true
	_ = f.handle(l, GangExpected{f.gang()})
	f.pods["p01"].full, f.pods["p02"].full = false, false
	f.turns(l, 30)
	if w := m.world; m.fatal != "" || w == nil || w.record.Round < 3 || w.record.FromStep < copied.Step || !m.hasBegun() {
		t.Fatalf("%q; the world is %+v: %s", m.fatal, m.world.record, m.State())
	}
	f.turns(l, 10)
	for _, uid := range []string{"p03", "p04"} {
		if p := f.pods[uid]; p != nil && !p.dead && !p.released {
			t.Errorf("%s is not let go: %s", uid, m.State())
		}
	}
}

func releasedOf(l *modelLeader, uid string) bool {
	d, _ := l.machine.Directive(uid)
	return d.Released
}

// They are let go when the copies are there, when these do not come, and before they are killed.
func TestLeaversThatHoldShardsAreLetGo(t *testing.T) {
	t.Run("when there are copies", func(t *testing.T) {
		f, l, _ := shrunk(t)
		for _, uid := range []string{"p00", "p01", "p02"} {
			f.pods[uid].full = false
		}
		f.turns(l, 10)
		if p := f.pods["p03"]; p != nil && !releasedOf(l, "p03") {
			t.Errorf("it is not let go: %s", l.machine.State())
		}
		if got := l.machine.memory(); got.Copies != 2 || got.Step < l.machine.world.record.FromStep {
			t.Errorf("there is %+v", got)
		}
	})
	t.Run("when they do not come", func(t *testing.T) {
		f, l, _ := shrunk(t)
		f.turns(l, 10)
		out := func() bool { return l.machine.Observe(f.now).Members["p03"].Out }
		if releasedOf(l, "p03") || releasedOf(l, "p04") || out() {
			t.Errorf("they are let go at once, or their pods may be deleted: %t", out())
		}
		l.machine.out.Changed = false
		l.machine.watchLeavers(f.now.Add(copyTimeout))
		if !releasedOf(l, "p03") || !releasedOf(l, "p04") || !out() || !l.machine.out.Changed {
			t.Errorf("they are never let go, or their pods stay: %t", !out())
		}
	})
	t.Run("before they are killed", func(t *testing.T) {
		f, l, _ := shrunk(t)
		by := f.now.Add(copyTimeout / 2)
		f.pods["p03"].want.LeaveBy = by
		_ = f.handle(l, GangExpected{f.gang()})
		l.machine.watchLeavers(by.Add(-leaveMargin))
		if !releasedOf(l, "p03") || releasedOf(l, "p04") {
			t.Errorf("let go are p03 %t and p04 %t", releasedOf(l, "p03"), releasedOf(l, "p04"))
		}
	})
}

// goLeavers ends whoever was let go, as its agent does.
func (f *fleet) goLeavers() {
	for _, uid := range f.uids() {
		if p := f.pods[uid]; p.released && !p.dead {
			f.end(p)
		}
	}
}

// As long as there are no copies of the state that a world began with, the one before is all that a loss leaves, and those who have left hold
// some of that. Another planned change does not let them go: it waits for the copies.
func TestALossAfterTwoChangesInARow(t *testing.T) {
	f, l := cutUp(t, 5)
	m := l.machine
	copied := copiedOnce(f, l)
	for _, uid := range f.uids() {
		f.pods[uid].copyless = true
	}
	leave := func(target int32, uids ...string) {
		for _, uid := range uids {
			f.pods[uid].want.Leaving = ReasonScaledDown
		}
		f.target = target
		_ = f.handle(l, GangExpected{f.gang()})
		for range 40 {
			f.turn(l)
			f.goLeavers()
		}
	}
	leave(3, "p03", "p04")
	leave(2, "p02")
	f.lose(l, "p00")
	for _, uid := range f.uids() {
		f.pods[uid].copyless = false
	}
	for range 40 {
		f.turn(l)
		f.goLeavers()
	}
	if w := m.world; m.fatal != "" || w == nil || w.record.FromStep < copied.Step || !m.hasBegun() {
		t.Errorf("%q; of step %d there were copies, and the world is %+v: %s", m.fatal, copied.Step, m.world.record, m.State())
	}
	f.turns(l, 60)
	if w := m.world; w.record.Workers != 1 {
		t.Errorf("the world is %+v in the end: %s", w.record, m.State())
	}
}

// The next change waits for the copies, but not for ever, and not where who leaves is killed before.
func TestTheNextChangeWaitsForCopies(t *testing.T) {
	for name, soon := range map[string]bool{"for a while": false, "it cannot wait": true} {
		t.Run(name, func(t *testing.T) {
			f, l, _ := shrunk(t)
			for _, uid := range f.uids() {
				f.pods[uid].full, f.pods[uid].copyless = false, true
			}
			f.pods["p02"].want.Leaving, f.target = ReasonScaledDown, 2
			if soon {
				f.pods["p02"].want.LeaveBy = f.now.Add(15 * time.Second)
			}
			_ = f.handle(l, GangExpected{f.gang()})
			f.turns(l, 30)
			m := l.machine
			if changed := m.world.record.Round > 2; changed != soon {
				t.Fatalf("the world is %+v: %s", m.world.record, m.State())
			}
			m.watchLeavers(f.now.Add(copyTimeout))
			f.turns(l, 30)
			if w := m.world; w.record.Workers != 2 || !m.hasBegun() {
				t.Errorf("the world is %+v: %s", w.record, m.State())
			}
		})
	}
}

// Who has left stays for what it holds of the state that is relied on, or of the newest, and not for what it holds of an older one, however
// many worlds are made meanwhile.
func TestWhoLeftLongAgoIsLetGo(t *testing.T) {
	f, l, _ := shrunk(t)
	m := l.machine
	m.watchLeavers(f.now)
	mem := m.members["p03"]
	mem.report.Snapshots = []Snapshot{{Round: 1, Step: 2, Part: mem.report.Snapshots[0].Part}}
	m.tally = tally{}
	if releasedOf(l, "p03") || releasedOf(l, "p04") {
		t.Fatal("they are let go at once")
	}
	m.world.begunAt = f.now.Add(copyTimeout / 2) // another world since
	m.watchLeavers(f.now.Add(copyTimeout))
	if !releasedOf(l, "p03") || releasedOf(l, "p04") {
		t.Errorf("let go are p03 %t and p04 %t", releasedOf(l, "p03"), releasedOf(l, "p04"))
	}
}

// Who leaves is let go once all have what they load, and there are copies of it, though the first step may take long: it is compiled for that.
func TestWhoLeavesIsNotKeptForTheFirstStep(t *testing.T) {
	f, l := cutUp(t, 4)
	m := l.machine
	f.turns(l, 4)
	f.pods["p01"].want.Leaving, f.target = ReasonScaledDown, 3
	_ = f.handle(l, GangExpected{f.gang()})
	loaded := func() bool {
		return m.world.record.Round == 2 && !slices.ContainsFunc(m.world.ranks.uids, func(uid string) bool {
			p := &f.pods[uid].process
			return p.round != 2 || p.wants != nil
		})
	}
	for range 100 {
		f.turnWithoutSteps(l)
		if loaded() {
			break
		}
		if m.world.record.Round == 1 {
			f.settleSteps()
		}
	}
	for range 20 {
		f.turnWithoutSteps(l)
	}
	if !loaded() || m.hasBegun() {
		t.Fatalf("the world is %+v: %s", m.world, m.State())
	}
	if seen := m.Observe(f.now); !seen.Members["p01"].Out || seen.Memory.Copies < 2 {
		t.Errorf("it is kept: %+v; in memory %+v", seen.Members["p01"], seen.Memory)
	}
	f.goLeavers()
	f.turns(l, 20)
	if w := m.world; w.record.Round != 2 || m.furthest() <= w.record.FromStep {
		t.Errorf("the world is %+v: %s", w, m.State())
	}
}

// turnWithoutSteps is a turn in which no step begins.
func (f *fleet) turnWithoutSteps(l *modelLeader) {
	if l.writing != nil {
		f.finishWrite(l)
	}
	for _, uid := range f.uids() {
		if p := f.pods[uid]; !p.dead {
			f.meet(l, p)
		}
	}
	f.pass(300 * time.Millisecond)
}

// The session of one who stays breaks while what they lack is copied: the newest state cannot be had for a moment, and an older one says
// nothing of who leaves. It is let go once the copies are there.
func TestABrokenSessionLetsNobodyGoWhoLeaves(t *testing.T) {
	for name, older := range map[string]bool{"no other state": false, "an older state": true} {
		t.Run(name, func(t *testing.T) { breakWhileCopied(t, older) })
	}
}

func breakWhileCopied(t *testing.T, older bool) {
	f, l := cutUp(t, 4)
	m := l.machine
	if older {
		_ = copiedOnce(f, l)
	} else {
		f.turns(l, 4)
	}
	full := func(are bool) {
		for _, uid := range m.world.ranks.uids {
			f.pods[uid].full = are
		}
	}
	f.leavesAndNoStepIsMade(l, func() { full(true) })                 // copies take their time
	out := func() bool { return m.Observe(f.now).Members["p01"].Out } // its pod may be deleted then
	f.drop(f.pods["p02"], l)
	f.pass(100 * time.Millisecond)
	if out() {
		t.Error("it is let go when the session breaks")
	}
	if older { // of that state copies come meanwhile
		full(false)
		f.copiesWithout(l, "p02")
	}
	for turn := 0; turn < 3 || older && turn < 20 && m.copying != nil && m.copying.Step < m.world.record.FromStep; turn++ {
		f.turnWithoutSteps(l)
		if there := m.memory(); out() && (there.Copies < 2 || there.Step < m.world.record.FromStep) {
			t.Fatalf("it is let go once the session is there again; in memory %+v", there)
		}
	}
	if m.copying == nil && !older {
		t.Error("once the session is there again nothing is copied")
	}
	m.copyAnew() // whoever had no room is asked again, as after a while
	full(false)
	for range 20 {
		f.turnWithoutSteps(l)
	}
	if seen := m.Observe(f.now); !seen.Members["p01"].Out || seen.Memory.Copies < 2 || seen.Memory.Step < m.world.record.FromStep {
		t.Errorf("it is let go: %t; in memory %+v", seen.Members["p01"].Out, seen.Memory)
	}
}

// leavesAndNoStepIsMade has p01 leave, as far as the next world: all have what they load, copies are to be made of that as said, and
// none are there yet.
func (f *fleet) leavesAndNoStepIsMade(l *modelLeader, copies func()) {
	f.t.Helper()
	m := l.machine
	f.pods["p01"].want.Leaving, f.target = ReasonScaledDown, 3
	_ = f.handle(l, GangExpected{f.gang()})
	for range 400 {
		if m.world.record.Round == 2 {
			copies()
		}
		f.turnWithoutSteps(l)
		if m.world.record.Round == 2 && m.allSupplied() && m.copying != nil {
			break
		}
		if m.world.record.Round == 1 {
			f.settleSteps()
		}
	}
	if m.world.record.Round != 2 || m.copying == nil || m.hasBegun() {
		f.t.Fatalf("the world is %+v, and %+v is copied", m.world.record, m.copying)
	}
}

// A first step may take long, and whoever has no room for copies beside what is loaded makes them after it. So the time for which they are
// waited for begins with it: who leaves takes along what a loss before would need.
func TestWhoLeavesIsKeptForTheFirstStepWithoutCopies(t *testing.T) {
	prepare := func(t *testing.T) (f *fleet, l *modelLeader, out func() bool) {
		t.Helper()
		f, l = cutUp(t, 4)
		f.hang = 2 * time.Hour
		_ = copiedOnce(f, l)
		f.leavesAndNoStepIsMade(l, func() {
			for _, uid := range l.machine.world.ranks.uids {
				f.pods[uid].copyless = true
			}
		})
		return f, l, func() bool { return releasedOf(l, "p01") || l.machine.Observe(f.now).Members["p01"].Out }
	}
	t.Run("another one is lost", func(t *testing.T) {
		f, l, out := prepare(t)
		l.machine.copyShards(f.now.Add(copyTimeout))
		if out() || l.machine.copying == nil {
			t.Errorf("it is let go: %t; copied is %+v", out(), l.machine.copying)
		}
		f.goLeavers()
		f.lose(l, "p00")
		for _, p := range f.pods {
			p.copyless = false
		}
		f.turns(l, 60)
		if w := l.machine.world; l.machine.fatal != "" || w.record.FromStep == 0 || !l.machine.hasBegun() {
			t.Errorf("%q; the world is %+v: %s", l.machine.fatal, w.record, l.machine.State())
		}
	})
	t.Run("the step is made", func(t *testing.T) {
		f, l, out := prepare(t)
		l.machine.copying.since = f.now.Add(-copyTimeout)
		f.turns(l, 10)
		if m := l.machine; !m.hasBegun() || out() || m.copying == nil {
			t.Fatalf("the world is %+v; it is let go: %t; copied is %+v", m.world.record, out(), m.copying)
		}
		if l.machine.copyShards(f.now.Add(copyTimeout)); !out() {
			t.Error("it is never let go")
		}
	})
	t.Run("it never is", func(t *testing.T) {
		f, l, out := prepare(t)
		if l.machine.watchLeavers(f.now.Add(supplyTimeout)); !out() {
			t.Error("it is never let go")
		}
	})
}

// copiesWithout are turns in which no step begins, and one member is out of touch; the state that is copied then is older than its world.
func (f *fleet) copiesWithout(l *modelLeader, away string) {
	f.t.Helper()
	for range 3 {
		for _, uid := range f.uids() {
			if p := f.pods[uid]; !p.dead && uid != away {
				f.meet(l, p)
			}
		}
		f.pass(300 * time.Millisecond)
	}
	if c := l.machine.copying; c == nil || c.Step >= l.machine.world.record.FromStep {
		f.t.Fatalf("%+v is copied", c)
	}
}

// Who was to be killed, and is wanted again before it has heard that it is let go, is kept like any other for what it holds when it leaves the next
// time. And nobody is let go who is to stay, whatever was said of it before.
func TestWhoWasToGoIsKeptTheNextTime(t *testing.T) {
	f, l := cutUp(t, 5)
	m, p := l.machine, f.pods["p03"]
	_ = copiedOnce(f, l)
	tell := func(leaving Reason, by time.Time, target int32) {
		p.want.Leaving, p.want.LeaveBy, f.target = leaving, by, target
		_ = f.handle(l, GangExpected{f.gang()})
	}
	of := func(workers int32) func() bool {
		return func() bool { return m.world.record.Workers == workers && m.hasBegun() }
	}
	tell(ReasonScaledDown, f.now.Add(time.Minute), 4)
	f.until(l, "it is out", func() bool {
		if m.world.record.Workers == 4 && !p.unheard {
			p.unheard = true
			f.drop(p, l)
		}
		return of(4)()
	})
	m.watchLeavers(p.want.LeaveBy)
	if !m.members["p03"].mustGo || p.released {
		t.Fatal("it is not about to be killed, or has heard of it")
	}
	tell("", time.Time{}, 5)
	if f.turns(l, 1); m.members["p03"].mustGo || releasedOf(l, "p03") {
		t.Error("it is let go, and is to stay")
	}
	p.unheard = false
	f.until(l, "it is back", of(5))
	for _, uid := range f.uids() {
		f.pods[uid].copyless = true
	}
	tell(ReasonScaledDown, time.Time{}, 4)
	f.until(l, "it is out again", of(4))
	if seen := m.Observe(f.now).Members["p03"]; seen.Out || releasedOf(l, "p03") {
		t.Errorf("it is let go with what nobody else has: %+v", seen)
	}
}
