package rendezvous

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/share"
)

// bringPortion brings the parts of an order, and nothing else.
func (w *worker) bringPortion(r *restore) {
	w.restored, w.restoredParts, w.restoredOf = Restored{Number: r.Number, Error: w.shelf.failing[w.uid]}, nil, nil
	if w.shelf.old[w.uid] {
		return
	}
	w.restored.Path = r.Path
	for _, c := range w.shelf.kept {
		switch {
		case c.path != r.Path || w.restored.Error != "":
		case slices.Contains(w.shelf.damaged, c.path) || w.shelf.badFor[w.uid] == c.path:
			w.restored.Refused = "checkpoint " + c.path + ": it is damaged"
		default:
			w.restored.Found, w.restored.Durable = true, Durable{Snapshot{Round: c.snapshot.Round, Step: c.snapshot.Step}, c.path}
			w.restoredParts, w.portion = r.Parts, append(w.portion, r.Parts...)
			for _, part := range r.Parts {
				w.states[part] = c.state
			}
		}
	}
}

// shelved is a checkpoint of another job after a step, in the shards of so many ranks.
func shelved(step uint64, ranks int) checkpointed {
	c := checkpointed{path: fmt.Sprintf("other/0-%d", step), snapshot: Snapshot{Step: step}, state: make(history, step)}
	for i := range ranks {
		key := share.Key{Shard: true, Index: i, Of: ranks, Layout: "0123456789abcdef"}
		c.parts = append(c.parts, Snapshot{Step: step, Bytes: 10, Hash: [32]byte{byte(step), byte(1 + i)}, Part: key.String()})
	}
	key := share.Key{Rank: true, Of: ranks, Layout: "0123456789abcdef"}
	c.parts = append(c.parts, Snapshot{Step: step, Bytes: 1, Hash: [32]byte{byte(step)}, Part: key.String()})
	return c
}

// shelvedFleet is an attempt of three workers with a state in shards, whose job begins with another one's.
func shelvedFleet(t *testing.T, kept ...checkpointed) (*fleet, *modelLeader) {
	t.Helper()
	f := emptyFleet(t)
	f.sharded, f.minimum, f.target = true, 3, 3
	f.storage = &Storage{Interval: time.Hour, Keep: 3, From: "other"}
	f.shelf = &shelf{kept: kept}
	for range 3 {
		f.makePod()
	}
	f.newLeader()
	return f, f.leaders[f.born]
}

// broughtBy is how many shards each pod has brought.
func (f *fleet) shardsBrought() (brought []int) {
	for _, uid := range f.uids() {
		n := 0
		for _, part := range f.pods[uid].restoredParts {
			if share.IsShard(part.Part) {
				n++
			}
		}
		brought = append(brought, n)
	}
	return brought
}

// Each member brings the shards back that its rank is to have, and nobody all of them.
func TestShardsAreBroughtByAll(t *testing.T) {
	for _, c := range []struct {
		ranks int
		want  []int
	}{{3, []int{1, 1, 1}}, {8, []int{3, 3, 2}}, {2, []int{1, 1, 0}}, {1, []int{1, 0, 0}}} {
		t.Run(fmt.Sprint(c.ranks), func(t *testing.T) {
			f, l := shelvedFleet(t, shelved(7, c.ranks))
			f.turns(l, 20)
			if w := l.machine.world; w == nil || w.record.FromStep != 7 || l.machine.furthest() <= 7 {
				t.Fatalf("the world is %+v: %s", w, l.machine.State())
			}
			if got := f.shardsBrought(); !slices.Equal(got, c.want) {
				t.Errorf("shards were brought by %v, not by %v", got, c.want)
			}
			if seen := l.machine.Observe(f.now); seen.Durable.Path != "other/0-7" || !strings.Contains(seen.Restored, "step 7") {
				t.Errorf("it says %q, and what is durable is %+v", seen.Restored, seen.Durable)
			}
		})
	}
}

// What one member cannot bring another one does, whether that fails or is lost, before all is there or after it.
func TestAPortionIsBroughtByAnother(t *testing.T) {
	lose := func(f *fleet, l *modelLeader, uid string) {
		f.minimum = 2
		f.pods[uid].want.Lost, f.pods[uid].want.Ended = "its node is gone", true
		_ = f.handle(l, GangExpected{f.gang()})
		f.drop(f.pods[uid], l)
	}
	for name, trouble := range map[string]func(f *fleet, l *modelLeader){
		"one has no room": func(f *fleet, _ *modelLeader) { f.shelf.failing = map[string]string{"p01": "no space left on device"} },
		"one is lost": func(f *fleet, l *modelLeader) {
			f.until(l, "they bring", func() bool { return len(l.machine.restoring.bringing()) > 1 })
			lose(f, l, "p01")
		},
		"who has looked is lost": func(f *fleet, l *modelLeader) {
			f.until(l, "they bring", func() bool { return len(l.machine.restoring.bringing()) > 1 })
			lose(f, l, l.machine.restoring.who)
		},
		"one is lost when all is there": func(f *fleet, l *modelLeader) {
			f.until(l, "all is there", func() bool { return l.machine.restoring.over })
			lose(f, l, "p02")
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, l := shelvedFleet(t, shelved(7, 3))
			f.until(l, "somebody looks", func() bool { return l.machine.restoring != nil && l.machine.restoring.who != "" })
			trouble(f, l)
			f.turns(l, 40)
			if w := l.machine.world; w == nil || w.record.FromStep != 7 || l.machine.furthest() <= 7 {
				t.Fatalf("the world is %+v: %s; %s", w, l.machine.State(), l.machine.fatal)
			}
		})
	}
}

// A checkpoint of which a shard turns out to be damaged is named, and the one before it serves; without one the attempt fails.
func TestAShardThatCannotBeUsed(t *testing.T) {
	f, l := shelvedFleet(t, shelved(5, 3), shelved(7, 3))
	f.shelf.damaged = []string{"other/0-7"}
	f.turns(l, 40)
	if w := l.machine.world; w == nil || w.record.FromStep != 5 || l.machine.furthest() <= 5 {
		t.Fatalf("the world is %+v: %s", w, l.machine.State())
	}
	if said := l.machine.Observe(f.now).Restored; !strings.Contains(said, "not used: checkpoint other/0-7: it is damaged") {
		t.Errorf("it says %q", said)
	}
	f, l = shelvedFleet(t, shelved(7, 3))
	f.shelf.damaged = []string{"other/0-7"}
	f.turns(l, 40)
	if why := l.machine.fatal; !strings.Contains(why, "there is no checkpoint other to begin with; not used: checkpoint other/0-7") || l.machine.world != nil {
		t.Errorf("it ends with %q", why)
	}
}

// Nobody could bring a shard: the attempt ends, and says why.
func TestAShardThatNobodyCanBring(t *testing.T) {
	f, l := shelvedFleet(t, shelved(7, 3))
	f.shelf.failing = map[string]string{"p00": "no room", "p01": "no room", "p02": "no room"}
	f.turns(l, 40)
	if why := l.machine.fatal; !strings.Contains(why, "no worker could bring the job's checkpoint back: no room") || l.machine.world != nil {
		t.Errorf("it ends with %q", why)
	}
}

// Who cannot reach the storage, and tries for ever, gives way to those who can, and is in the world all the same.
func TestWhoCannotReachTheStorageGivesWay(t *testing.T) {
	for name, cut := range map[string][]string{"one": {"p01"}, "most": {"p01", "p02"}} {
		t.Run(name, func(t *testing.T) {
			f, l := shelvedFleet(t, shelved(7, 3))
			f.shelf.cut = map[string]string{}
			for _, uid := range cut {
				f.shelf.cut[uid] = "no route to host"
			}
			f.turns(l, 20)
			if seen := l.machine.Observe(f.now); !strings.Contains(seen.Storage, "p01 looks for the job's checkpoint, and tries again: no route to host") {
				t.Errorf("it says %q", seen.Storage)
			}
			f.turns(l, 400)
			if w := l.machine.world; w == nil || w.record.FromStep != 7 || len(w.ranks.uids) != 3 || l.machine.furthest() <= 7 {
				t.Fatalf("the world is %+v: %s; %s", w, l.machine.State(), l.machine.fatal)
			}
		})
	}
}

// A storage that answers nobody for a while is waited for: those who have brought theirs are not given what all others were to bring.
func TestAnOutageWhileShardsAreBrought(t *testing.T) {
	f, l := shelvedFleet(t, shelved(7, 24))
	f.minimum, f.target = 12, 12
	for range 9 {
		f.makePod()
	}
	_ = f.handle(l, GangExpected{f.gang()})
	f.shelf.cut = map[string]string{}
	for _, uid := range f.uids()[1:] {
		f.shelf.cut[uid] = "no route to host"
	}
	f.until(l, "one has brought its own", func() bool {
		r := l.machine.restoring
		return r != nil && r.place != "" && r.portions["p00"].done && len(r.portions) > 1
	})
	f.shelf.cut["p00"] = "no route to host"
	f.turns(l, 400)
	if l.machine.world != nil || l.machine.fatal != "" {
		t.Fatalf("the world is %+v; %s", l.machine.world, l.machine.fatal)
	}
	for uid, of := range l.machine.restoring.portions {
		if len(of.parts) > 3+2*mostVain {
			t.Errorf("%s is to bring %d parts of 25", uid, len(of.parts))
		}
	}
	f.shelf.cut = nil
	f.turns(l, 400)
	if w := l.machine.world; w == nil || w.record.FromStep != 7 || l.machine.furthest() <= 7 {
		t.Fatalf("the world is %+v: %s; %s", w, l.machine.State(), l.machine.fatal)
	}
}

// What is under way is not begun anew since another one is lost: the shards of that one wait for somebody who has nothing to do.
func TestAPortionUnderWayIsLeftAlone(t *testing.T) {
	f, l := shelvedFleet(t, shelved(7, 3))
	f.shelf.cut = map[string]string{"p01": "slow", "p02": "slow"}
	f.until(l, "they bring", func() bool { return l.machine.restoring != nil && len(l.machine.restoring.portions) > 2 })
	under := l.machine.restoring.portions["p01"].number
	f.minimum = 2
	f.pods["p02"].want.Lost, f.pods["p02"].want.Ended = "its node is gone", true
	_ = f.handle(l, GangExpected{f.gang()})
	f.drop(f.pods["p02"], l)
	f.turns(l, 20)
	if of := l.machine.restoring.portions["p01"]; of == nil || of.number != under || of.done {
		t.Errorf("the portion of p01 had the number %d, and is %+v", under, of)
	}
	f.shelf.cut = nil
	f.turns(l, 40)
	if w := l.machine.world; w == nil || w.record.FromStep != 7 || l.machine.furthest() <= 7 {
		t.Fatalf("the world is %+v: %s; %s", w, l.machine.State(), l.machine.fatal)
	}
}

// An agent of an older version finds nothing where it is asked for shards: that says nothing of the checkpoint.
func TestAnOlderAgentBringsNoShards(t *testing.T) {
	f, l := shelvedFleet(t, shelved(5, 3), shelved(7, 3))
	f.shelf.old = map[string]bool{"p01": true}
	f.turns(l, 40)
	if w := l.machine.world; w == nil || w.record.FromStep != 7 || l.machine.furthest() <= 7 {
		t.Fatalf("the world is %+v: %s; %s", w, l.machine.State(), l.machine.fatal)
	}
}

// That a checkpoint was not there when an earlier leader asked for shards of it does not mean that the job has none of its own.
func TestAShardThatWasNotThereIsNotNothing(t *testing.T) {
	f, l := shelvedFleet(t, shelved(7, 3))
	f.storage.Own = true
	_ = f.handle(l, GangExpected{f.gang()})
	f.until(l, "somebody looks", func() bool { return l.machine.restoring != nil })
	r, mem := &restoring{paths: []string{"", "other"}, failed: map[string]string{}}, l.machine.members["p02"]
	l.machine.restoring = r
	mem.report.Restored = Restored{Number: 1, Durable: Durable{Path: "job/1-5"}}
	if l.machine.hearRestored(mem); len(r.paths) != 2 {
		t.Errorf("it looks only in %q", r.paths)
	}
	mem.report.Restored = Restored{Number: 1}
	if l.machine.hearRestored(mem); len(r.paths) != 1 {
		t.Errorf("it looks in %q", r.paths)
	}
}

// Another leader comes while members bring their portions.
func TestTheNextLeaderHasShardsBrought(t *testing.T) {
	f, l := shelvedFleet(t, shelved(7, 3))
	f.until(l, "they bring", func() bool { return l.machine.restoring != nil && l.machine.restoring.place != "" })
	f.turns(l, 1)
	l = f.succeeded(l)
	f.turns(l, 40)
	if w := l.machine.world; w == nil || w.record.FromStep != 7 || l.machine.furthest() <= 7 {
		t.Fatalf("the world is %+v: %s", w, l.machine.State())
	}
}
