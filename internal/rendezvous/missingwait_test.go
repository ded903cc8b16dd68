package rendezvous

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// durableAt has a checkpoint of a round of the job itself after a step in the storage, in shards as the one that the attempt has begun with,
// and a pod say that it has made it durable.
func (f *fleet) durableAt(uid string, round, step uint64, state history) checkpointed {
	c := shelved(step, 3)
	c.path, c.snapshot.Round, c.state = fmt.Sprintf("job/%d-%d", round, step), round, state
	for i := range c.parts {
		c.parts[i].Round = round
	}
	f.shelf.kept = append(f.shelf.kept, c)
	if uid != "" {
		f.pods[uid].durable = Durable{c.snapshot, c.path}
	}
	return c
}

// answers has everybody bring again what it has had no answer for.
func (f *fleet) answers() {
	f.shelf.hang, f.shelf.hangParts, f.shelf.cut = nil, nil, nil
	for _, uid := range f.uids() {
		f.pods[uid].restored.Number = 0
	}
}

// givesUp has a pod that alone has a part of the newest state be out of touch, and given up by the controller.
func (f *fleet) givesUp(l *modelLeader) (p *pod, newest Snapshot) {
	f.t.Helper()
	f.settleSteps()
	f.periodic(f.uids()...)
	f.turns(l, 3)
	newest, ok := l.machine.newestSnapshot()
	if !ok || newest.Step <= 7 {
		f.t.Fatalf("the newest is %+v", newest)
	}
	p = f.pods["p02"]
	p.unheard, p.apart = true, true
	f.drop(p, l)
	f.until(l, "it is lost", func() bool { return l.machine.broken != nil })
	p.want.Lost = "it was not heard"
	_ = f.handle(l, GangExpected{f.gang()})
	return p, newest
}

// Whom the controller has given up, and who has not ended, comes back with a later state than the storage has.
func TestWhoIsGivenUpIsWaitedFor(t *testing.T) {
	f, l := restoredFleet(t)
	p, newest := f.givesUp(l)
	f.turns(l, 20)
	if r := l.machine.restoring; r.of != nil || l.machine.State() != StateRegrouping {
		t.Errorf("it is %s, and %+v is brought", l.machine.State(), r)
	}
	p.unheard, p.apart = false, false
	f.goesOnFrom(l, newest.Step, 2)
}

// Who does not come back is waited for half of the time that the job may regroup, and what the storage has is gone back to then.
func TestWhoDoesNotComeBackIsNotWaitedForForEver(t *testing.T) {
	f, l := restoredFleet(t)
	f.givesUp(l)
	began := f.now
	f.goesOnFrom(l, 7, 2)
	if waited := f.now.Sub(began); waited < 30*time.Second || waited > time.Minute {
		t.Errorf("it was waited for %s", waited)
	}
}

// The newest checkpoint turns out to be damaged, and the one before it is older than what somebody has who is away.
func TestWhoIsAwayHasMoreThanAnOlderCheckpoint(t *testing.T) {
	for _, comes := range []bool{true, false} {
		f, l := restoredFleet(t)
		_ = f.handle(l, GangExpected{f.gang()})
		f.settleSteps()
		f.periodic(f.uids()...)
		f.turns(l, 3)
		newest, _ := l.machine.newestSnapshot()
		f.turns(l, 10)
		made := l.machine.furthest()
		f.durableAt("", 1, 7, make(history, 7))
		c := f.durableAt("p00", 1, made-1, nil)
		f.shelf.damaged = []string{c.path}
		f.turns(l, 1)
		p := f.pods["p02"]
		p.unheard, p.apart = true, true
		f.drop(p, l)
		f.until(l, "it is lost", func() bool { return l.machine.broken != nil })
		f.turns(l, 60)
		if l.machine.State() != StateRegrouping {
			t.Errorf("it is %s", l.machine.State())
		}
		if !comes {
			f.goesOnFrom(l, 7, 2)
			continue
		}
		p.unheard, p.apart = false, false
		f.goesOnFrom(l, newest.Step, 3)
	}
}

// What status.checkpoint knows of is of steps that were thrown away, or is there no more: the attempt has begun with an older one, and
// goes back to that.
func TestAnOlderCheckpointThanWasKnownOf(t *testing.T) {
	for _, known := range []Snapshot{{}, {Round: 1, Step: 5}, {Round: 1, Step: 100}} {
		f, l := shelvedFleet(t, shelved(7, 3))
		f.shelf.kept = nil
		f.durableAt("", 1, 7, make(history, 7))
		f.storage.Own, f.storage.From = true, ""
		f.storage.Known, f.storage.KnownRound = known.Step, known.Round
		f.minimum = 1
		_ = f.handle(l, GangExpected{f.gang()})
		for _, uid := range f.uids() {
			f.pods[uid].copyless = true
		}
		f.until(l, "they have made steps", func() bool { return l.machine.world != nil && l.machine.furthest() > 8 })
		f.durableAt("", 1, 100, make(history, 100)) // it can be read again
		f.lose(l, "p01")
		f.goesOnFrom(l, 7, 2)
	}
}

// Somebody still says of a checkpoint that it has found it, which others found damaged: an older one was begun with.
func TestADamagedCheckpointIsNotRemembered(t *testing.T) {
	f, l := shelvedFleet(t, shelved(5, 2), shelved(7, 3))
	f.shelf.badFor = map[string]string{"p01": "other/0-7"}
	f.minimum = 1
	for _, uid := range f.uids() {
		f.pods[uid].copyless = true
	}
	f.until(l, "they have made steps", func() bool { return l.machine.world != nil && l.machine.furthest() > 7 })
	f.lose(l, "p01")
	f.lose(l, "p00")
	f.goesOnFrom(l, 5, 1)
}

// A round is burned, and the one before it adopted, of which the record does not tell with which step it began.
func TestAParentOfWhichTheRecordDoesNotTell(t *testing.T) {
	f, l := restoredFleet(t)
	f.parkedBefore(l)
	write := *l.writing
	write.Next.ParentFromStep = 0
	_ = f.apply(l.id, write)
	l.writing = nil
	l = f.succeeded(l)
	f.until(l, "adopted", func() bool { return l.machine.world != nil })
	if w := l.machine.world.record; w.FromStep != 0 {
		t.Fatalf("the world is %+v", w)
	}
	f.target = 3
	f.lose(l, "p01")
	f.goesOnFrom(l, 7, 3)
}

// A later checkpoint becomes durable while an older one is brought: that is gone back to, also after the next loss.
func TestANewerCheckpointMeanwhile(t *testing.T) {
	for _, successor := range []bool{false, true} {
		f, l := restoredFleet(t)
		f.storage.Own = true
		_ = f.handle(l, GangExpected{f.gang()})
		f.shelf.hangParts = map[string]bool{"p00": true, "p02": true}
		made := f.pods["p00"].process.state
		f.lose(l, "p01")
		f.until(l, "they bring", func() bool { r := l.machine.restoring; return r.of != nil && r.place != "" })
		step := uint64(len(made))
		f.durableAt("p00", 1, step, slices.Clone(made))
		f.turns(l, 3)
		seen := l.machine.Observe(f.now).Durable.Snapshot
		f.storage.Known, f.storage.KnownRound = seen.Step, seen.Round
		_ = f.handle(l, GangExpected{f.gang()})
		f.answers()
		f.goesOnFrom(l, step, 2)
		if successor {
			l = f.succeeded(l)
			f.turns(l, 5)
		}
		f.lose(l, "p02")
		f.goesOnFrom(l, step, 1)
	}
}

// One alone has no answer, and another one brings its shards: that is no job that waits for the storage.
func TestWhoIsAtItIsNotWaitedForAsForTheStorage(t *testing.T) {
	f, l := shelvedFleet(t, shelved(7, 6))
	for range 3 {
		f.makePod()
	}
	f.minimum, f.target = 1, 6
	_ = f.handle(l, GangExpected{f.gang()})
	for _, uid := range f.uids() {
		f.pods[uid].copyless = true
	}
	f.until(l, "they have made steps", func() bool { return l.machine.world != nil && l.machine.furthest() > 8 })
	f.shelf.cut = map[string]string{"p01": "no route to host"}
	for _, uid := range []string{"p00", "p02", "p03"} {
		f.lose(l, uid)
	}
	for range 300 {
		if r := l.machine.restoring; r.of != nil && r.stuck["p01"] {
			break
		}
		f.turn(l)
	}
	f.shelf.hangParts = map[string]bool{"p04": true, "p05": true} // it takes its time
	f.turns(l, 5)
	if phase := l.machine.Observe(f.now).Phase; phase != PhaseRecovering {
		t.Errorf("it is %s", phase)
	}
	f.answers()
	f.goesOnFrom(l, 7, 3)
}

// A worker whose agent knows no parts comes before what is missing is brought, or while it is: it is in no world for now.
func TestAnOlderAgentComesMeanwhile(t *testing.T) {
	for _, before := range []bool{true, false} {
		f, l := restoredFleet(t)
		older := func() {
			f.sharded, f.shares = false, false
			f.makePod()
			f.sharded = true
			_ = f.handle(l, GangExpected{f.gang()})
			f.turns(l, 4)
		}
		if before {
			older()
		}
		f.shelf.hangParts = map[string]bool{"p00": true, "p02": true}
		f.lose(l, "p01")
		f.turns(l, 30)
		if !before {
			older()
		}
		f.answers()
		f.goesOnFrom(l, 7, 2)
	}
}

// All of a later checkpoint is in the storage, and somebody is writing its manifest: it is waited for, and not for ever.
func TestAManifestThatIsBeingWritten(t *testing.T) {
	for _, comes := range []bool{true, false} {
		f, l := restoredFleet(t)
		made := slices.Clone(f.pods["p00"].process.state)
		step := uint64(len(made))
		f.shelf.away = true
		l.machine.uploading = &uploading{snapshot: Snapshot{Round: 1, Step: step}, by: "p00", puts: []put{{done: true}}, since: f.now, writing: f.now}
		f.lose(l, "p01")
		f.until(l, "it regroups", func() bool { return l.machine.State() == StateRegrouping })
		if !comes {
			f.goesOnFrom(l, 7, 2)
			continue
		}
		f.durableAt("p00", 1, step, made)
		f.goesOnFrom(l, step, 2)
	}
}

// Of a world whose members were never heard it is not known that they know parts: who comes is in the one that follows.
func TestNobodyIsLeftOutOfAWorldThatWasNeverHeard(t *testing.T) {
	f, l := stored(t, Storage{Interval: time.Hour, Keep: 3, From: "other"})
	f.turns(l, 12)
	m := l.machine
	m.broken = &recovery{}
	m.restoring = m.newRestoring("")
	m.restoring.of = m.broken
	for _, uid := range m.world.ranks.uids {
		m.members[uid].joined = false
	}
	if m.isLeftOut(&member{joined: true}) {
		t.Error("it is left out")
	}
}
