package rendezvous

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestStoredAgainstModel plays the histories of TestChangesAgainstModel with a storage that is away at times, and with
// wishes that all workers go, which come and are taken back; its attempt may begin with another job's checkpoint, and checkpoints are damaged. Besides
// what must hold there: a world that counts as parked makes no step, and a checkpoint has all that it has done; and a recovery goes back no
// further than the newest checkpoint that somebody knows of who is heard, while the storage answers.
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
		vague := rapid.Bool().Draw(t, "vague")
		for _, p := range f.pods {
			p.shelf, p.vague = f.shelf, p.vague || vague
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
			"vague":   f.with(func(f *fleet) { f.pickPod().vague = true }),
			"forget":  f.with((*fleet).forget),
			"damage": f.with(func(f *fleet) {
				if n := len(f.shelf.kept); n > 0 && strings.HasPrefix(f.shelf.kept[n-1].path, "job/") {
					f.shelf.damaged = append(f.shelf.damaged, f.shelf.kept[n-1].path)
				}
			}),
			"restore": f.with(func(f *fleet) {
				f.shelf.turnedAt = f.now
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

// forget has everybody find the files of the newest state altered, and drop them; but for those whose processes were just told where they
// are, and have them open.
func (f *fleet) forget() {
	var last Snapshot
	for _, p := range f.pods {
		for _, s := range p.snapshots {
			if newest(s, last) < 0 {
				last = s
			}
		}
	}
	for _, p := range f.pods {
		if p.process.loads == nil {
			p.snapshots = slices.DeleteFunc(slices.Clone(p.snapshots), func(s Snapshot) bool { return sameState(s, last) })
		}
	}
}

// checkStored checks that a recovery goes back no further than a checkpoint of the world's history that can be had, and that its leader has heard of.
func (f *fleet) checkStored(l *modelLeader, next Record, plan *plan) {
	m, of := l.machine, f.historyOf(next.Parent)
	if f.shelf == nil || len(f.shelf.hang) > 0 || f.shelf.silent != "" || f.shelf.broken != "" || !f.shelf.turnedAt.Before(plan.broken.began) {
		return
	}
	if m.isAtRisk(f.now, plan) {
		return // it is gone on from what is held while it can be had
	}
	if r := m.restoring; m.bringsFor(plan.broken) && r.later && r.found != nil && plan.snapshot != nil && sameState(*plan.snapshot, *r.found) {
		return // it was brought, and what has become durable since is not waited for
	}
	heard := func(c *checkpointed) bool {
		for _, mem := range m.members {
			if r := &mem.report; r.Durable.Path == c.path || r.Restored.Found && r.Restored.Path == c.path {
				return true
			}
		}
		return false
	}
	for i := range f.shelf.kept {
		c := &f.shelf.kept[i]
		step := uint64(len(c.state))
		if step > next.FromStep && step <= uint64(len(of)) && slices.Equal(c.state, of[:step]) && !slices.Contains(f.shelf.damaged, c.path) && heard(c) {
			f.t.Fatalf("round %d begins after step %d, and the storage has %s of the history of round %d", next.Round, next.FromStep, c.path, next.Parent)
		}
	}
}

// isAtRisk says whether what a plan begins with can be had no more soon, or some of its members leave soon, as its leader knows of them.
func (m *Machine) isAtRisk(now time.Time, p *plan) bool {
	return !m.staysHeld(now, p, p.fromStep)
}

// historyOf is the longest state that anybody has, or had, of a round.
func (f *fleet) historyOf(round uint64) (of history) {
	for _, p := range f.pods {
		if p.process.round == round && len(p.process.state) > len(of) {
			of = p.process.state
		}
	}
	return of
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

// A worker whose process has just been told where its shards are loads these, though everybody else finds theirs altered.
func TestWhatIsBeingLoadedIsNotForgotten(t *testing.T) {
	f, l := shelvedFleet(t, shelved(7, 3))
	p := f.pods["p02"]
	p.process.still = true
	f.until(l, "it is given its world", func() bool { return len(p.process.inbox) > 0 && l.machine.world != nil })
	if p.wake(); p.process.loads == nil {
		t.Fatal("it is told of no shards")
	}
	f.forget()
	if f.turns(l, 5); l.machine.furthest() <= 7 {
		t.Errorf("it makes no steps: %s", l.machine.State())
	}
}
