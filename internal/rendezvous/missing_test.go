package rendezvous

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/share"
)

// restoredFleet is a world that has begun with a checkpoint in three shards, and has made steps since; nobody has copies of another's.
func restoredFleet(t *testing.T) (*fleet, *modelLeader) {
	t.Helper()
	f, l := shelvedFleet(t, shelved(7, 3))
	f.minimum = 1
	for _, uid := range f.uids() {
		f.pods[uid].copyless = true
	}
	f.until(l, "they have made steps", func() bool { return l.machine.world != nil && l.machine.furthest() > 8 })
	return f, l
}

// goesOnFrom checks that a world of so many has followed on another one, after a step, and trains.
func (f *fleet) goesOnFrom(l *modelLeader, step uint64, workers int32) {
	f.t.Helper()
	m := l.machine
	for range 400 {
		f.turn(l)
		if w := m.world; m.fatal != "" || w != nil && w.record.Parent > 0 && w.record.Workers == workers && m.furthest() > step && m.broken == nil {
			break
		}
	}
	if w := m.world; m.fatal != "" || w == nil || w.record.Parent == 0 || w.record.FromStep != step || w.record.Workers != workers || m.furthest() <= step {
		f.t.Fatalf("the world is %+v: %s; %q", w, m.State(), m.fatal)
	}
}

// Whoever is lost before there are copies of what the attempt began with: the others have what is missing brought from the storage
// once more, and keep what they have.
func TestALossBeforeTheFirstCopies(t *testing.T) {
	for _, uid := range []string{"p00", "p01", "p02"} {
		t.Run(uid, func(t *testing.T) {
			f, l := restoredFleet(t)
			held := map[string][]Snapshot{}
			for _, other := range f.uids() {
				for _, s := range f.pods[other].snapshots {
					if share.IsShard(s.Part) {
						held[other] = append(held[other], s)
					}
				}
			}
			made := l.machine.furthest()
			for _, other := range f.uids() {
				f.pods[other].portion = nil
			}
			f.lose(l, uid)
			f.goesOnFrom(l, 7, 2)
			brought := map[Snapshot]int{}
			for _, other := range f.uids() {
				if other == uid {
					continue
				}
				for _, s := range f.pods[other].portion {
					brought[s]++
				}
			}
			for _, s := range held[uid] {
				if brought[s] != 1 {
					t.Errorf("%v was brought %d times", s.Part, brought[s])
				}
				delete(brought, s)
			}
			for s := range brought {
				if share.IsShard(s.Part) {
					t.Errorf("%v was brought, and somebody had it", s.Part)
				}
			}
			seen := l.machine.Observe(f.now)
			if !strings.Contains(seen.Restored, "from step 7") || !strings.Contains(seen.Restored, "other/0-7") {
				t.Errorf("it says %q", seen.Restored)
			}
			for _, c := range seen.Changes {
				if c.Round == l.machine.base.Round && c.StepsLost < made-7 {
					t.Errorf("%+v, and %d steps were made", c, made)
				}
			}
		})
	}
}

// Others are lost while what is missing is brought.
func TestALossWhileTheMissingIsBrought(t *testing.T) {
	f, l := restoredFleet(t)
	f.shelf.cut = map[string]string{"p01": "slow", "p02": "slow"}
	f.lose(l, "p00")
	f.until(l, "they bring", func() bool { r := l.machine.restoring; return r.of != nil && r.place != "" })
	f.lose(l, "p01")
	f.shelf.cut = nil
	f.goesOnFrom(l, 7, 1)
}

// Another operator comes while what is missing is brought, and before; it knows what the attempt began with from what members say.
func TestTheNextLeaderHasTheMissingBrought(t *testing.T) {
	for name, when := range map[string]func(f *fleet, l *modelLeader) bool{
		"before the loss":         func(*fleet, *modelLeader) bool { return true },
		"before anybody looks":    func(_ *fleet, l *modelLeader) bool { return l.machine.broken != nil },
		"while somebody looks":    func(_ *fleet, l *modelLeader) bool { r := l.machine.restoring; return r.of != nil && r.place == "" },
		"while the shard comes":   func(_ *fleet, l *modelLeader) bool { r := l.machine.restoring; return r.of != nil && r.place != "" },
		"when it has come":        func(_ *fleet, l *modelLeader) bool { r := l.machine.restoring; return r.of != nil && r.over },
		"when the round is there": func(_ *fleet, l *modelLeader) bool { return l.machine.base.Round > 1 },
	} {
		t.Run(name, func(t *testing.T) {
			f, l := restoredFleet(t)
			if !when(f, l) {
				f.lose(l, "p01")
				f.until(l, name, func() bool { return when(f, l) })
				l = f.succeeded(l)
			} else {
				l = f.succeeded(l)
				f.turns(l, 2)
				f.lose(l, "p01")
			}
			f.goesOnFrom(l, 7, 2)
		})
	}
}

// One alone tells of another job's checkpoint, of which another operator has no other word, and is named no more while others look for it.
func TestTheMissingIsBroughtWithoutWhoKnewOfIt(t *testing.T) {
	f, l := restoredFleet(t)
	for _, uid := range []string{"p00", "p02"} {
		f.pods[uid].restored = Restored{}
	}
	l = f.succeeded(l)
	f.turns(l, 2)
	f.shelf.cut = map[string]string{"p00": "slow", "p02": "slow"}
	f.lose(l, "p01")
	f.until(l, "it is brought", func() bool { return l.machine.restoring != nil && l.machine.restoring.of != nil })
	f.nameNoMore("p01")
	_ = f.handle(l, GangExpected{f.gang()})
	f.turns(l, 5)
	f.shelf.cut = nil
	f.goesOnFrom(l, 7, 2)
}

// The newest checkpoint of its own is brought where nobody has a later state any more, and not the one that the attempt began with.
func TestTheNewestCheckpointIsBrought(t *testing.T) {
	f, l := restoredFleet(t)
	for _, uid := range f.uids() {
		f.pods[uid].copyless = false
	}
	f.settleSteps()
	f.periodic(f.uids()...)
	l.machine.nextUpload = f.now
	f.until(l, "a checkpoint is durable", func() bool { return l.machine.durable.Snapshot.Step > 7 })
	durable := l.machine.durable.Snapshot.Step
	f.shelf.away = true
	for _, uid := range f.uids() {
		f.pods[uid].snapshots = nil
	}
	f.turns(l, 1)
	f.lose(l, "p02")
	f.goesOnFrom(l, durable, 2)
}

// As long as a later state may come back it is waited for.
func TestALaterStateIsWaitedFor(t *testing.T) {
	f, l := restoredFleet(t)
	f.settleSteps()
	f.periodic(f.uids()...)
	f.turns(l, 3)
	newest, ok := l.machine.newestSnapshot()
	if !ok || newest.Step <= 7 {
		t.Fatalf("the newest is %+v", newest)
	}
	p := f.pods["p02"]
	p.unheard, p.apart = true, true
	f.drop(p, l)
	f.until(l, "it is lost", func() bool { return l.machine.broken != nil && l.machine.State() == StateRegrouping })
	if r := l.machine.restoring; r.of != nil {
		t.Errorf("%+v is brought", r)
	}
	p.unheard, p.apart = false, false
	f.goesOnFrom(l, newest.Step, 3)
}

// A state that is whole, and is with nobody any more: those who are left and have none that serves go on from the storage.
func TestAWholeStateIsBroughtAgain(t *testing.T) {
	f, l := stored(t, Storage{Interval: time.Hour, Keep: 3, From: "other"})
	f.minimum = 1
	for _, uid := range f.uids() {
		f.pods[uid].vague = true
	}
	f.until(l, "they have made steps", func() bool { return l.machine.world != nil && l.machine.furthest() > 8 })
	for _, uid := range f.uids() {
		f.pods[uid].snapshots = nil // in the memory of somebody who is gone
	}
	f.turns(l, 1)
	f.lose(l, "p00")
	f.goesOnFrom(l, 7, 2)
}

// What is there no more, or cannot be used, or is of steps that were thrown away, is not gone back to: the attempt ends, as there is nothing.
func TestNothingIsLeftInTheStorage(t *testing.T) {
	for name, spoil := range map[string]func(f *fleet, l *modelLeader){
		"it is gone": func(f *fleet, _ *modelLeader) { f.shelf.kept = nil },
		"it was thrown away": func(f *fleet, l *modelLeader) {
			f.shelf.kept = nil
			f.durableAt("p00", 1, 1<<30, nil)
			l.machine.durable.Snapshot.Step = 1 << 30
		},
		"it is damaged": func(f *fleet, _ *modelLeader) { f.shelf.damaged = []string{"other/0-7"} },
		"nobody can bring": func(f *fleet, _ *modelLeader) {
			f.shelf.failing = map[string]string{"p00": "no room", "p02": "no room"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, l := restoredFleet(t)
			spoil(f, l)
			f.lose(l, "p01")
			for range 100 {
				f.turn(l)
			}
			if why := l.machine.fatal; !strings.Contains(why, "no snapshot is left to go on from") {
				t.Errorf("it is %s, and ends with %q", l.machine.State(), why)
			}
		})
	}
}

// A storage that answers nobody is waited for as those are who are lost: the controller says for how long.
func TestAStorageThatIsAwayWhenItIsNeeded(t *testing.T) {
	f, l := restoredFleet(t)
	f.shelf.silent = "503 Slow Down"
	f.lose(l, "p01")
	f.until(l, "somebody looks", func() bool { return l.machine.restoring.of != nil })
	f.turns(l, 5)
	if state, why := l.machine.State(), l.machine.Observe(f.now).Why; state != StateLeaving || !strings.Contains(why, "is brought from the storage") {
		t.Errorf("it is %s: %q", state, why)
	}
	f.turns(l, 300)
	seen := l.machine.Observe(f.now)
	if seen.Phase != PhaseRegrouping || !strings.Contains(seen.Storage, "503 Slow Down") || seen.Fatal != "" {
		t.Errorf("it is %s, and says %q, %q", seen.Phase, seen.Storage, seen.Fatal)
	}
	f.shelf.silent = ""
	f.goesOnFrom(l, 7, 2)
}

// Who looks for the checkpoint, and has no answer, gives way to another one, again and again: the way may be back where it was not.
func TestWhoLooksGivesWay(t *testing.T) {
	f, l := shelvedFleet(t, shelved(7, 3))
	f.shelf.mute = map[string]string{"p00": "no route to host", "p01": "no route to host", "p02": "no route to host"}
	asked := map[string]int{}
	for range 2000 {
		f.turn(l)
		if r := l.machine.restoring; r != nil && r.who != "" {
			asked[r.who]++
		}
	}
	if len(asked) != 3 || l.machine.world != nil || l.machine.fatal != "" {
		t.Fatalf("asked: %v; the world is %+v; %s", asked, l.machine.world, l.machine.fatal)
	}
	if seen := l.machine.Observe(f.now); !strings.Contains(seen.Storage, "tries again: no route to host") {
		t.Errorf("it says %q", seen.Storage)
	}
	delete(f.shelf.mute, "p01")
	f.turns(l, 2000)
	if w := l.machine.world; w == nil || w.record.FromStep != 7 || len(w.ranks.uids) != 3 || l.machine.furthest() <= 7 {
		t.Fatalf("the world is %+v: %s; %s", w, l.machine.State(), l.machine.fatal)
	}
}

// One worker alone has no way to the storage, and is the one that is asked first.
func TestTheFirstWhoLooksHasNoWay(t *testing.T) {
	for _, whole := range []bool{false, true} {
		t.Run(fmt.Sprint("whole ", whole), func(t *testing.T) {
			f, l := shelvedFleet(t, shelved(7, 3))
			if whole {
				f, l = stored(t, Storage{Interval: time.Hour, Keep: 3, From: "other"})
			}
			f.shelf.mute = map[string]string{"p00": "no route to host"}
			f.turns(l, 60)
			if r := l.machine.restoring; r == nil || r.who != "p00" || l.machine.world != nil {
				t.Fatalf("after some seconds: %+v", r)
			}
			f.turns(l, 200)
			if w := l.machine.world; w == nil || w.record.FromStep != 7 || len(w.ranks.uids) != 3 || l.machine.furthest() <= 7 {
				t.Fatalf("the world is %+v: %s; %s", w, l.machine.State(), l.machine.fatal)
			}
		})
	}
}
