package rendezvous

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
	"github.com/concertina-dev/concertina/internal/score"
	"github.com/concertina-dev/concertina/internal/share"
)

// shelf is a job's storage, with what was saved last at the end.
type shelf struct {
	kept []checkpointed
	// broken is what it says instead of what it has.
	broken string
	// silent is why it answers nobody who restores yet; empty when it does. away is true while it takes nothing.
	silent string
	away   bool
	// turnedAt is when silent has begun, or ended last.
	turnedAt time.Time
	// failing says of pods why their uploaders fail, mute why they have no answer yet, cut when they are to bring shards, old whose
	// agents do not know of that.
	failing, mute, cut map[string]string
	// hang: no answer and no word; badFor: who finds a checkpoint damaged, by uid and path.
	hang, hangParts map[string]bool
	// mum are those that do not list it, lists counts those who have.
	mum map[string]bool
	// best is which of them uploaders keep for their scores.
	best   score.Best
	lists  int
	badFor map[string]string
	old    map[string]bool
	// scores are those that lie beside checkpoints, by their paths.
	scores map[string]float64
	// asked counts the restores.
	asked int
	// parts were put, by anybody, of these states.
	parts  []Snapshot
	states []history
	// refused is the step of a checkpoint that cannot be finished.
	refused uint64
	// damaged are the paths of checkpoints of which a shard is, as is seen once it is read.
	damaged []string
}

type checkpointed struct {
	path     string
	snapshot Snapshot
	state    history
	// parts are what it is made of; nil for one that is one file.
	parts []Snapshot
}

// store does what a directive says about the storage.
func (w *worker) store(d *Directive) {
	if w.shelf == nil {
		return
	}
	if d.Upload != nil {
		w.uploadError = w.shelf.failing[w.uid]
	}
	w.scoredState = Snapshot{}
	if d.Scored != nil {
		w.scoredState = *d.Scored
	}
	defer func() {
		if u := d.Upload; u != nil {
			w.mark(u)
		}
	}()
	if u := d.Upload; u != nil && u.Durable {
		if w.uploadError == "" && !w.shelf.away {
			w.durable = Durable{u.Snapshot, fmt.Sprintf("job/%d-%d", u.Snapshot.Round, u.Snapshot.Step)}
		}
	} else if u != nil && (u.Put != nil || u.Manifest != nil) {
		w.put(u)
	} else if u != nil && w.uploadError == "" && !w.shelf.away && w.durable.Snapshot != u.Snapshot && (u.Parts != nil || slices.Contains(w.snapshots, u.Snapshot)) {
		w.durable = Durable{u.Snapshot, fmt.Sprintf("job/%d-%d", u.Snapshot.Round, u.Snapshot.Step)}
		w.shelf.kept = append(w.shelf.kept, checkpointed{w.durable.Path, u.Snapshot, w.states[u.Snapshot], nil})
	}
	w.list(d)
	r := d.Restore
	if r == nil || r.Number == w.restored.Number {
		return
	}
	if w.shelf.hang[w.uid] || r.Parts != nil && w.shelf.hangParts[w.uid] {
		w.uploadError = ""
		return
	}
	w.uploadError = cmp.Or(w.shelf.silent, w.shelf.mute[w.uid])
	if r.Parts != nil && w.uploadError == "" {
		w.uploadError = w.shelf.cut[w.uid]
	}
	if w.uploadError != "" {
		return
	}
	w.shelf.asked++
	if r.Parts != nil {
		w.bringPortion(r)
		return
	}
	w.restored, w.restoredParts, w.restoredOf = Restored{Number: r.Number, Error: w.shelf.broken}, nil, nil
	kept := slices.Clone(w.shelf.kept)
	slices.SortStableFunc(kept, func(a, b checkpointed) int { return -newest(a.snapshot, b.snapshot) })
	for _, c := range slices.Backward(kept) {
		if slices.Contains(r.Without, c.path) {
			continue
		}
		own := strings.HasPrefix(c.path, "job/")
		if c.parts == nil && slices.Contains(w.shelf.damaged, c.path) {
			w.restored.Refused = "checkpoint " + c.path + ": it is damaged"
			continue
		}
		if w.shelf.broken == "" && (r.Path == "" && own || r.Path != "" && strings.HasPrefix(c.path+"/", r.Path+"/")) {
			w.restored.Found, w.restored.Durable = true, Durable{c.snapshot, c.path}
			w.states[c.snapshot] = c.state
			for _, part := range c.parts {
				if !r.Apart || !share.IsShard(part.Part) {
					w.restoredParts = append(w.restoredParts, part)
				}
				w.states[part] = c.state
			}
			if len(w.restoredParts) < len(c.parts) {
				w.restoredOf = c.parts
			}
			if c.parts != nil {
				w.restored.Snapshot = Snapshot{Round: c.snapshot.Round, Step: c.snapshot.Step}
			}
			return
		}
	}
}

// stored is a fleet of three pods whose job has a storage with a state of seven steps of another job.
func stored(t *testing.T, storage Storage) (*fleet, *modelLeader) {
	t.Helper()
	f := emptyFleet(t)
	f.minimum, f.target, f.storage = 3, 3, &storage
	f.shelf = &shelf{kept: []checkpointed{{"other/0-7", Snapshot{Step: 7, Bytes: 1, Hash: [32]byte{7}}, make(history, 7), nil}}}
	for range 3 {
		f.makePod()
	}
	f.newLeader()
	return f, f.leaders[f.born]
}

// nextIntervals passes so many intervals of ten seconds, at the beginning of which everybody takes a snapshot.
func (f *fleet) nextIntervals(l *modelLeader, n int) {
	for range n {
		for _, uid := range f.uids() {
			f.pods[uid].save(lifecycle.Staging{})
		}
		f.pass(10 * time.Second)
		f.turns(l, 8)
		f.expectAgain(l)
	}
}

// expectAgain has the controller say the same again, as it does whenever it looks at the job.
func (f *fleet) expectAgain(l *modelLeader) { _ = f.handle(l, GangExpected{Gang: l.machine.gang}) }

func TestTheFirstWorldBeginsWithACheckpoint(t *testing.T) {
	f, l := stored(t, Storage{Interval: time.Minute, Keep: 3, From: "other"})
	f.turns(l, 12)
	w := l.machine.world
	if w == nil || w.record.FromStep != 7 || w.record.Parent != 0 || l.machine.furthest() <= 7 {
		t.Fatalf("the world is %+v, after %d restores", w, f.shelf.asked)
	}
	if f.shelf.asked != 1 {
		t.Errorf("%d members have brought it back, and the others have it from the first", f.shelf.asked)
	}
	if seen := l.machine.Observe(f.now).Durable; seen.Path != "other/0-7" || l.machine.Observe(f.now).UploadTook > 0 {
		t.Errorf("what is durable: %+v", seen)
	}
}

func TestAJobWithoutACheckpointBeginsAtZero(t *testing.T) {
	f, l := stored(t, Storage{Interval: time.Minute, Keep: 3, Own: true})
	f.turns(l, 12)
	if w := l.machine.world; w == nil || w.record.FromStep != 0 || l.machine.furthest() == 0 || f.shelf.asked != 1 {
		t.Fatalf("the world is %+v, after %d restores", w, f.shelf.asked)
	}
}

func TestOwnCheckpointsComeFirst(t *testing.T) {
	f, l := stored(t, Storage{Interval: time.Minute, Keep: 3, Own: true, From: "other"})
	f.turns(l, 12)
	if w := l.machine.world; w == nil || w.record.FromStep != 7 || f.shelf.asked != 2 {
		t.Fatalf("the world is %+v, after %d restores: the job has none of its own", w, f.shelf.asked)
	}
}

func TestNothingBeginsWithoutTheCheckpointThatItNeeds(t *testing.T) {
	for name, c := range map[string]struct {
		storage Storage
		broken  string
		want    string
	}{
		"that of another job is not there": {Storage{From: "third"}, "", "there is no checkpoint third"},
		"its own is gone":                  {Storage{Own: true, Known: 9}, "", "checkpoint of step 9 is in the storage no more"},
		"the storage refuses":              {Storage{From: "other"}, "access denied", "access denied"},
	} {
		t.Run(name, func(t *testing.T) {
			f, l := stored(t, c.storage)
			f.shelf.broken = c.broken
			f.turns(l, 20)
			if why := l.machine.fatal; !strings.Contains(why, c.want) || l.machine.world != nil {
				t.Errorf("it ends with %q, world %v", why, l.machine.world)
			}
		})
	}
}

// Who was asked to bring the checkpoint back is lost: another is asked.
func TestTheCheckpointIsBroughtByWhoIsThere(t *testing.T) {
	f, l := stored(t, Storage{Interval: time.Minute, Keep: 3, From: "other"})
	f.minimum = 2
	_ = f.handle(l, GangExpected{f.gang()})
	for range 100 {
		if r := l.machine.restoring; r != nil && r.who != "" {
			break
		}
		f.turn(l)
	}
	first := l.machine.restoring.who
	f.pods[first].want.Lost, f.pods[first].want.Ended = "its node is gone", true
	_ = f.handle(l, GangExpected{f.gang()})
	f.drop(f.pods[first], l)
	f.turns(l, 12)
	if w := l.machine.world; w == nil || w.record.FromStep != 7 || w.record.Workers != 2 {
		t.Fatalf("the world is %+v", w)
	}
}

// While a world trains, the newest snapshot is made durable as often as the job says, by one member.
func TestTheNewestSnapshotIsMadeDurable(t *testing.T) {
	f, l := stored(t, Storage{Interval: 20 * time.Second, Keep: 3})
	f.turns(l, 12)
	if n := len(f.shelf.kept); n != 1 {
		t.Fatalf("%d checkpoints after 12 turns: %v", n, f.shelf.kept)
	}
	for range 3 {
		before := len(f.shelf.kept)
		f.pass(20 * time.Second)
		f.turns(l, 8)
		if n := len(f.shelf.kept); n != before+1 {
			t.Fatalf("%d checkpoints, and there were %d", n, before)
		}
		newest := f.shelf.kept[before]
		if seen := l.machine.Observe(f.now).Durable; seen.Snapshot != newest.snapshot || uint64(len(newest.state)) != newest.snapshot.Step {
			t.Errorf("%+v is durable, and %+v was told", newest, seen)
		}
	}
}

// Whose uploader fails is told, and another member that holds the snapshot makes it durable.
func TestAnotherOneUploadsWhereOneFails(t *testing.T) {
	f, l := stored(t, Storage{Interval: 10 * time.Second, Keep: 3})
	f.turns(l, 12)
	f.shelf.failing = map[string]string{}
	for uid := range f.pods {
		f.shelf.failing[uid] = "403 Forbidden"
	}
	f.nextIntervals(l, 3)
	if seen := l.machine.Observe(f.now); len(f.shelf.kept) != 1 || !strings.Contains(seen.Storage, "403 Forbidden") {
		t.Fatalf("nobody can upload, %d checkpoints, it says %q", len(f.shelf.kept), seen.Storage)
	}
	able := l.machine.world.ranks.uids[2]
	delete(f.shelf.failing, able)
	f.nextIntervals(l, 3)
	if seen := l.machine.Observe(f.now); len(f.shelf.kept) < 2 || f.pods[able].durable.Path == "" || seen.Storage != "" {
		t.Errorf("%s can, %d checkpoints, it says %q", able, len(f.shelf.kept), seen.Storage)
	}
}

// What one member could not make durable is told as long as nothing newer is durable, also when nobody is at it.
func TestTroubleWithTheStorageIsRemembered(t *testing.T) {
	f, l := stored(t, Storage{Interval: 10 * time.Second, Keep: 3})
	f.turns(l, 12)
	f.shelf.away = true
	f.nextIntervals(l, 1)
	u := l.machine.uploading
	if u == nil {
		t.Fatal("nobody uploads")
	}
	f.shelf.failing = map[string]string{u.by: "the bucket is gone"}
	for range 12 {
		f.turns(l, 1)
		f.expectAgain(l)
	}
	if next := l.machine.uploading; next == nil || next.by == u.by {
		t.Fatalf("%+v is at it, and %s fails", next, u.by)
	}
	if seen := l.machine.Observe(f.now); !strings.Contains(seen.Storage, "the bucket is gone") {
		t.Errorf("while another one tries, it says %q", seen.Storage)
	}
	f.shelf.away = false
	f.turns(l, 12)
	if seen := l.machine.Observe(f.now); seen.Storage != "" {
		t.Errorf("once it is durable, it says %q", seen.Storage)
	}
}

// Rounds that the record does not know of, since it was brought back from a backup, are not made a second time: what the
// storage has of them would be newer than what is to come.
func TestRoundsGoOnFromThoseOfTheStorage(t *testing.T) {
	f, l := stored(t, Storage{Interval: time.Minute, Keep: 3, Own: true})
	f.shelf.kept = append(f.shelf.kept, checkpointed{"job/9-5", Snapshot{Round: 9, Step: 5, Bytes: 1, Hash: [32]byte{9}}, make(history, 5), nil})
	f.turns(l, 12)
	if w := l.machine.world; w == nil || w.record.FromStep != 5 || w.record.Round <= 9 {
		t.Fatalf("the world is %+v", w)
	}
	f.pass(time.Minute)
	f.turns(l, 12)
	if seen := l.machine.Observe(f.now).Durable; seen.Snapshot.Round <= 9 {
		t.Errorf("what is durable: %+v", seen)
	}
}

// A durable step that is in the storage no more is named, where an older one serves instead of it.
func TestACheckpointThatIsGoneIsNamed(t *testing.T) {
	f, l := stored(t, Storage{Interval: time.Minute, Keep: 3, Own: true, Known: 9})
	f.shelf.kept = append(f.shelf.kept, checkpointed{"job/1-5", Snapshot{Round: 1, Step: 5, Bytes: 1, Hash: [32]byte{5}}, make(history, 5), nil})
	f.turns(l, 12)
	if said := l.machine.restored(); !strings.Contains(said, "step 5") || !strings.Contains(said, "step 9, which was durable") {
		t.Errorf("it says %q", said)
	}
}

// All workers are about to be let go: the world stops, what it has done is made durable, and it stands until then.
func TestAWorldIsParkedBeforeAllAreLetGo(t *testing.T) {
	f, l := stored(t, Storage{Interval: time.Hour, Keep: 3})
	f.turns(l, 12)
	f.storage = &Storage{Interval: time.Hour, Keep: 3, Park: "spec.suspend is true"}
	_ = f.handle(l, GangExpected{f.gang()})
	for range 40 {
		if l.machine.Observe(f.now).Parked {
			break
		}
		f.turn(l)
	}
	seen := l.machine.Observe(f.now)
	if !seen.Parked || len(f.shelf.kept) != 2 {
		t.Fatalf("it is not parked: %+v, %d checkpoints", seen, len(f.shelf.kept))
	}
	step := f.shelf.kept[1].snapshot.Step
	f.turns(l, 20)
	for uid, p := range f.pods {
		if p.process.done != step || p.process.waiting != waitingParked {
			t.Errorf("%s has made %d steps, and %d are durable", uid, p.process.done, step)
		}
	}
	// It is wanted again before it was let go.
	f.storage = &Storage{Interval: time.Hour, Keep: 3}
	_ = f.handle(l, GangExpected{f.gang()})
	f.turns(l, 12)
	if l.machine.furthest() <= step || l.machine.Observe(f.now).Parked {
		t.Errorf("it stands at step %d", l.machine.furthest())
	}
}

// All nodes of a gang at its minimum are drained: what it has done is durable before anybody goes.
func TestARetreatIsDurable(t *testing.T) {
	f, l := stored(t, Storage{Interval: time.Hour, Keep: 3})
	f.turns(l, 12)
	for _, p := range f.pods {
		p.want.Leaving, p.want.LeaveBy = ReasonEvicted, f.now.Add(30*time.Second)
	}
	_ = f.handle(l, GangExpected{f.gang()})
	for range 40 {
		if len(f.shelf.kept) == 2 {
			break
		}
		if state := l.machine.State(); state == StateLeaving || state == StateRegrouping {
			t.Fatalf("it is %s, and nothing was made durable", state)
		}
		f.pass(time.Second)
		f.turn(l)
	}
	if len(f.shelf.kept) != 2 || f.shelf.kept[1].snapshot.Step != l.machine.furthest() {
		t.Fatalf("%d steps were made, durable: %+v", l.machine.furthest(), f.shelf.kept)
	}
}

// A storage that does not answer keeps nobody beyond the time that there is.
func TestARetreatDoesNotWaitForAStorageThatIsAway(t *testing.T) {
	f, l := stored(t, Storage{Interval: time.Hour, Keep: 3})
	f.turns(l, 12)
	f.shelf.away = true
	for _, p := range f.pods {
		p.want.Leaving, p.want.LeaveBy = ReasonEvicted, f.now.Add(30*time.Second)
	}
	_ = f.handle(l, GangExpected{f.gang()})
	by := f.now.Add(30*time.Second - leaveMargin)
	for range 100 {
		if state := l.machine.State(); state == StateLeaving || state == StateRegrouping {
			break
		}
		f.pass(time.Second)
		f.turn(l)
	}
	if state := l.machine.State(); f.now.After(by.Add(5*time.Second)) || state != StateLeaving && state != StateRegrouping {
		t.Errorf("%s before they are killed it is %s", by.Sub(f.now), state)
	}
}

// A checkpoint of the world before, of steps that were lost with it, is not what this world has done, though it has made as
// many.
func TestACheckpointOfLostStepsIsNotThatOfAParkedWorld(t *testing.T) {
	f, l := stored(t, Storage{Interval: time.Hour, Keep: 3})
	f.turns(l, 12)
	m := l.machine
	m.gang.Storage.Park = "spec.suspend is true"
	m.world.record.Round, m.world.record.FromStep = 4, 98
	m.change = &change{step: 100, arrived: true}
	for _, c := range []struct {
		durable, from uint64
		parked        bool
	}{{3, 98, false}, {4, 98, true}, {3, 100, true}} {
		m.durable = Durable{Snapshot{Round: c.durable, Step: 100}, "job"}
		m.world.record.FromStep = c.from
		if m.isParked() != c.parked {
			t.Errorf("a checkpoint of round %d, step 100, and a world of round 4 from step %d: parked %v", c.durable, c.from, m.isParked())
		}
	}
}

// A storage that does not answer yet keeps the first world from beginning, and the operator says so.
func TestAStorageThatDoesNotAnswerIsNamed(t *testing.T) {
	f, l := stored(t, Storage{Interval: time.Minute, Keep: 3, Own: true})
	f.shelf.silent = "503 Slow Down"
	f.turns(l, 12)
	if seen := l.machine.Observe(f.now); l.machine.world != nil || !strings.Contains(seen.Storage, "tries again: 503 Slow Down") {
		t.Errorf("world %v, it says %q", l.machine.world, seen.Storage)
	}
	f.shelf.silent = ""
	f.turns(l, 12)
	if seen := l.machine.Observe(f.now); l.machine.world == nil || seen.Storage != "" {
		t.Errorf("world %v, it says %q", l.machine.world, seen.Storage)
	}
}

// A job whose workers take no snapshots has nothing to make durable: that is told, with why.
func TestNoSnapshotsAreTold(t *testing.T) {
	f := emptyFleet(t)
	l := f.training(2)
	f.pods["p01"].trouble = "no space left on device"
	f.turns(l, 2)
	if said := l.machine.Observe(f.now).Storage; !strings.Contains(said, "p01 takes no snapshots: no space left") {
		t.Errorf("it says %q", said)
	}
	f.pods["p01"].trouble = ""
	f.turns(l, 2)
	if said := l.machine.Observe(f.now).Storage; said != "" {
		t.Errorf("once one was taken it says %q", said)
	}
}

// until lets a leader and the living get on until something is so.
func (f *fleet) until(l *modelLeader, what string, done func() bool) {
	f.t.Helper()
	for range 100 {
		if done() {
			return
		}
		f.turn(l)
	}
	f.t.Fatalf("it is not so that %s: %s", what, l.machine.State())
}

// succeeded has the leader die, and another one come.
func (f *fleet) succeeded(l *modelLeader) *modelLeader {
	f.kill(l)
	f.newLeader()
	return f.leaders[f.born]
}

// A leader that comes once a member has brought the checkpoint back begins with that: it is not brought twice.
func TestTheNextLeaderBeginsWithWhatWasBrought(t *testing.T) {
	layout := ".2.0123456789abcdef"
	part := func(key string) Snapshot {
		return Snapshot{Step: 7, Bytes: 1, Hash: [32]byte{key[0], key[1]}, Part: key + layout}
	}
	for name, parts := range map[string][]Snapshot{"one file": nil, "in parts": {part("s0"), part("s1"), part("r0"), part("r1")}} {
		t.Run(name, func(t *testing.T) {
			f, l := stored(t, Storage{Interval: time.Minute, Keep: 3, Own: true, From: "other"})
			f.shelf.kept[0].parts = parts
			f.until(l, "it is brought", func() bool { return f.shelf.asked == 2 })
			if l.writing != nil {
				t.Fatal("the world is being made already")
			}
			l = f.succeeded(l)
			f.turns(l, 12)
			w := l.machine.world
			if w == nil || w.record.FromStep != 7 || l.machine.furthest() <= 7 || f.shelf.asked != 2 {
				t.Fatalf("the world is %+v, after %d restores", w, f.shelf.asked)
			}
			if seen := l.machine.Observe(f.now); seen.Durable.Path != "other/0-7" || !strings.Contains(seen.Restored, "step 7") {
				t.Errorf("it says %q, and what is durable is %+v", seen.Restored, seen.Durable)
			}
		})
	}
}

// Where the job has nothing of its own the next leader knows it, and has that of the other job brought on.
func TestTheNextLeaderKnowsWhereNothingIs(t *testing.T) {
	f, l := stored(t, Storage{Interval: time.Minute, Keep: 3, Own: true, From: "other"})
	f.until(l, "there is nothing of its own", func() bool { return f.shelf.asked == 1 })
	f.shelf.silent = "503 Slow Down"
	f.turns(l, 4)
	l = f.succeeded(l)
	f.turns(l, 4)
	f.shelf.silent = ""
	f.turns(l, 12)
	if w := l.machine.world; w == nil || w.record.FromStep != 7 || f.shelf.asked != 2 {
		t.Errorf("the world is %+v, after %d restores", w, f.shelf.asked)
	}
}

// Once the attempt has had a round the storage may have something newer than what was brought before it: it is asked again.
func TestTheStorageIsAskedAgainAfterARound(t *testing.T) {
	f, l := stored(t, Storage{Interval: time.Minute, Keep: 3, From: "other"})
	f.until(l, "the world is being made", func() bool { return l.writing != nil && l.machine.writing.plan != nil })
	f.apply(l.id, *l.writing)
	l.writing = nil
	l = f.succeeded(l)
	f.turns(l, 20)
	if w := l.machine.world; w == nil || w.record.FromStep != 7 || f.shelf.asked != 2 {
		t.Errorf("the world is %+v, after %d restores", w, f.shelf.asked)
	}
}

// Who was asked first, and was away meanwhile, comes back with the checkpoint: nobody waits for the one who was asked instead.
func TestWhoBringsItFirstIsTaken(t *testing.T) {
	f, l := stored(t, Storage{Interval: time.Minute, Keep: 3, From: "other"})
	f.shelf.silent = "503 Slow Down"
	f.until(l, "somebody is asked", func() bool { return l.machine.restoring != nil && l.machine.restoring.who != "" })
	f.turns(l, 1)
	r := l.machine.restoring
	first, number := r.who, r.number
	f.minimum = 2
	f.away(l, first)
	f.pods[first].want.Starting = true
	_ = f.handle(l, GangExpected{f.gang()})
	f.until(l, "another one is asked", func() bool { return r.who != first })
	f.pods[first].unheard, f.shelf.silent = false, ""
	f.shelf.asked++
	p := f.pods[first]
	p.restored = Restored{Number: number, Found: true, Durable: Durable{f.shelf.kept[0].snapshot, "other/0-7"}}
	p.states[f.shelf.kept[0].snapshot] = f.shelf.kept[0].state
	f.connectTo(p, l)
	if !r.over || r.who != first {
		t.Fatalf("it waits for %s: %+v", r.who, r)
	}
	f.turns(l, 12)
	if w := l.machine.world; w == nil || w.record.FromStep != 7 || l.machine.furthest() <= 7 {
		t.Errorf("the world is %+v", w)
	}
}

// An attempt that has to begin anew does not go back to what it began with at first, once something newer is durable.
func TestABeginningAnewFindsWhatIsDurableByThen(t *testing.T) {
	f, l := stored(t, Storage{Interval: 10 * time.Second, Keep: 3, Own: true, From: "other"})
	f.turns(l, 12)
	m := l.machine
	p := &plan{members: m.gang.Members}
	if m.bringBack(f.now, p); p.fromStep != 7 {
		t.Fatalf("at first it begins after step %d", p.fromStep)
	}
	f.nextIntervals(l, 2)
	if m.durable.Snapshot.Step <= 7 {
		t.Fatalf("what is durable: %+v", m.durable)
	}
	m.world = nil
	if again := (&plan{members: m.gang.Members}); m.bringBack(f.now, again) {
		t.Errorf("it begins after step %d again, and step %d is durable", again.fromStep, m.durable.Snapshot.Step)
	}
}

// What was durable before the attempt is no reason to look again and again for what is not found.
func TestWhatIsNotFoundIsNotLookedForTwice(t *testing.T) {
	f, l := stored(t, Storage{Interval: time.Minute, Keep: 3, Own: true})
	m := l.machine
	m.durable = Durable{Snapshot{Round: 1, Step: 5, Bytes: 1}, "team/gone"}
	f.turns(l, 12)
	m.world = nil
	if !m.bringBack(f.now, &plan{members: m.gang.Members}) || f.shelf.asked != 1 {
		t.Errorf("it is looked for again, after %d times", f.shelf.asked)
	}
}

// A world that lives after all is not begun with what was being brought meanwhile: nobody brings it on, and that there is none is no harm.
func TestAWorldThatLivesEndsTheRestore(t *testing.T) {
	for name, publish := range map[string]func(m *Machine, now time.Time){
		"it is adopted":           func(m *Machine, now time.Time) { m.adopt(now, m.base, "somebody has turned up") },
		"it is published again":   func(m *Machine, now time.Time) { m.republish(now, m.namedMembers()) },
		"the answer is later yet": func(*Machine, time.Time) {},
	} {
		t.Run(name, func(t *testing.T) {
			f, l := stored(t, Storage{Interval: time.Minute, Keep: 3, From: "other"})
			f.turns(l, 12)
			m, number := l.machine, l.machine.restoring.number+1
			if m.world == nil {
				t.Fatalf("there is no world: %s", m.State())
			}
			m.restoring = &restoring{paths: []string{"other"}, who: "p00", number: number, failed: map[string]string{}}
			publish(m, f.now)
			p := f.pods["p00"]
			if d, _ := m.Directive("p00"); d.Restore != nil && name != "the answer is later yet" {
				t.Errorf("it is still asked to bring %+v", d.Restore)
			}
			p.restored, p.uploadError = Restored{Number: number}, "none is there"
			f.tellState(p)
			if m.fatal != "" {
				t.Errorf("the world ends: %s", m.fatal)
			}
		})
	}
}

// An agent tells of the last checkpoint that it has made also when the job has gone back before that, as where it was damaged. What it can go back
// to is known by the other one all the same.
func TestACheckpointOfNoHistoryHidesNone(t *testing.T) {
	m, _ := brokenWorld(map[string][]int{"a": {-1, -1}, "b": {-1, -1}})
	m.gang.Storage = &Storage{}
	m.world.record = Record{Round: 2, Parent: 1, FromStep: 10}
	found := Durable{Snapshot{Round: 1, Step: 10}, "job/1-10"}
	m.durable = found
	mem := m.members["a"]
	mem.report.Durable = Durable{Snapshot{Round: 1, Step: 11}, "job/1-11"}
	m.hearStorage(time.Unix(1e9, 0), mem)
	if known := m.checkpoints(); m.durable != found || len(known) == 0 || known[0] != found {
		t.Errorf("it knows of %v, and can go back to %v", m.durable, known)
	}
	next := Durable{Snapshot{Round: 2, Step: 12}, "job/2-12"}
	mem.report.Durable = next
	if m.hearStorage(time.Unix(1e9, 0), mem); m.durable != next {
		t.Errorf("it knows of %v, and not of %v", m.durable, next)
	}
}
