package rendezvous

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestStoredAgainstModel plays the histories of TestChangesAgainstModel with a storage that is away at times, and with
// wishes that all workers go, which come and are taken back; its attempt may begin with another job's checkpoint. Besides what must hold there: a world that counts as parked
// makes no step, and a checkpoint has all that it has done.
func TestStoredAgainstModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := newFleet(t)
		f.storage, f.shelf = &Storage{Interval: 20 * time.Second, Keep: 3, Own: rapid.Bool().Draw(t, "own")}, &shelf{}
		if rapid.Bool().Draw(t, "from") && f.strategy == InPlace {
			f.storage.From = "other"
			f.shelf.kept = []checkpointed{{"other/0-7", Snapshot{Step: 7, Bytes: 1, Hash: [32]byte{7}}, make(history, 7), nil}}
			if rapid.Bool().Draw(t, "cut") {
				f.shares, f.sharded, f.shelf.kept = false, true, []checkpointed{shelved(7, rapid.IntRange(1, 4).Draw(t, "ranks"))}
				for _, p := range f.pods {
					p.shares, p.sharded = false, true
				}
			}
		}
		for _, p := range f.pods {
			p.shelf = f.shelf
		}
		f.more = map[string]func(*rapid.T){
			"park": f.with(func(f *fleet) {
				wanted := *f.storage
				if wanted.Park == "" {
					wanted.Park = "all are to go"
				} else {
					wanted.Park = ""
				}
				f.storage = &wanted
				f.tellGang()
			}),
			"storage": f.with(func(f *fleet) { f.shelf.away = !f.shelf.away }),
			"restore": f.with(func(f *fleet) {
				if f.shelf.silent == "" {
					f.shelf.silent = "503 Slow Down"
				} else {
					f.shelf.silent = ""
				}
			}),
		}
		f.play(t)
	})
}

// checkParked looks at what a leader says of a world that all are to leave.
func (f *fleet) checkParked(l *modelLeader) {
	if f.shelf == nil || l.machine.base.Term != f.record.Term || !l.machine.isParked() {
		return
	}
	step, round := l.machine.change.step, l.machine.world.record.Round
	for uid, p := range f.pods {
		if !p.dead && !p.frozen && p.in().Round == round && p.process.done > step {
			f.t.Fatalf("leader %d says that round %d stands after step %d, and %s has done %d", l.id, round, step, uid, p.process.done)
		}
	}
	if !slices.ContainsFunc(f.shelf.kept, func(c checkpointed) bool { return uint64(len(c.state)) == step && c.snapshot.Step == step }) {
		f.t.Fatalf("leader %d says that step %d of round %d is durable; there is %+v", l.id, step, round, f.shelf.kept)
	}
}

// A world of which one has entered alone is burned, and the next one begins with the checkpoint of another job as that was to: who is
// in the first has no more than that, though a world before them, of which nobody is left, had made steps.
func TestWhatAnAttemptBeginsWithIsBroughtAgain(t *testing.T) {
	f := emptyFleet(t)
	f.storage = &Storage{Interval: 20 * time.Second, Keep: 3, From: "other"}
	f.shelf = &shelf{kept: []checkpointed{{"other/0-7", Snapshot{Step: 7, Bytes: 1, Hash: [32]byte{7}}, make(history, 7), nil}}}
	f.kill(f.training(1))
	f.end(f.pods["p00"])
	f.notice()
	f.target = 2
	f.makePod()
	f.makePod()
	asks := func(round uint64) *modelLeader {
		f.newLeader()
		l := f.leaders[f.born]
		for n := 0; l.writing == nil || l.writing.Next.Round < round; n++ {
			if f.turn(l); n == 1000 {
				t.Fatalf("nobody asks for round %d: the leader is %s, of %+v", round, l.machine.State(), f.record)
			}
		}
		return l
	}
	l := asks(2)
	f.pods["p02"].frozen = true
	f.turn(l)
	f.pods["p02"].frozen = false
	f.kill(l)
	l = asks(3)
	f.turns(l, 20)
	if wrong := f.goesOn(l, 2); wrong != "" || f.record.Parent != 0 || f.record.FromStep != 7 {
		t.Errorf("%s; there is %+v", wrong, f.record)
	}
}
