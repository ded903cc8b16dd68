package rendezvous

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/share"
)

// put does what a directive says about parts.
func (w *worker) put(u *upload) {
	w.pins = slices.DeleteFunc(w.pins, func(pin Snapshot) bool { return !sameState(pin, u.Snapshot) })
	for _, part := range u.Put {
		if slices.Contains(w.snapshots, part) && !slices.Contains(w.pins, part) {
			w.pins = append(w.pins, part)
		}
	}
	if w.uploadError != "" || w.shelf.away {
		return
	}
	for _, part := range u.Put {
		switch {
		case slices.Contains(w.puts, part):
		case slices.Contains(w.snapshots, part) || slices.Contains(w.pins, part):
			w.puts = append(w.puts, part)
			w.shelf.parts, w.shelf.states = append(w.shelf.parts, part), append(w.shelf.states, w.states[part])
		default:
			w.uploadError = "it does not hold " + part.Part
		}
	}
	if len(u.Manifest) == 0 || w.durable.Snapshot == u.Snapshot {
		return
	}
	if u.Snapshot.Step == w.shelf.refused {
		w.uploadError = "it is not kept any more"
		return
	}
	for _, part := range u.Manifest {
		if !slices.Contains(w.shelf.parts, part) {
			w.uploadError = "nobody has put " + part.Part
			return
		}
	}
	w.durable = Durable{u.Snapshot, fmt.Sprintf("job/%d-%d", u.Snapshot.Round, u.Snapshot.Step)}
	w.shelf.kept = append(w.shelf.kept, checkpointed{w.durable.Path, u.Snapshot, w.shelf.states[slices.Index(w.shelf.parts, u.Manifest[0])], u.Manifest})
}

// inShares is a world of so many workers that write their state in shares, and has a storage; nobody has taken a snapshot.
func inShares(t *testing.T, workers int) (*fleet, *modelLeader) {
	t.Helper()
	f := emptyFleet(t)
	f.shares, f.minimum, f.target = true, 1, int32(workers)
	f.storage, f.shelf = &Storage{Interval: 10 * time.Second, Keep: 3}, &shelf{}
	return f, f.training(workers)
}

// stage has all workers write what is theirs of the state that they have, and returns its step.
func (f *fleet) stage(l *modelLeader) uint64 {
	f.turns(l, 2)
	f.settleSteps()
	f.periodic(f.uids()...)
	f.turns(l, 2)
	newest, _ := l.machine.newestSnapshot()
	return newest.Step
}

// Each part is put by one of those who hold it, all at once, and one writes the manifest then.
func TestPartsArePutByThoseWhoHoldThem(t *testing.T) {
	f, l := inShares(t, 4)
	step := f.stage(l)
	f.pass(10 * time.Second)
	f.turns(l, 8)
	if len(f.shelf.kept) != 1 {
		t.Fatalf("%d checkpoints: %+v", len(f.shelf.kept), l.machine.uploading)
	}
	kept := f.shelf.kept[0]
	if kept.snapshot.Step != step || len(kept.parts) != 8 || uint64(len(kept.state)) != step {
		t.Errorf("the checkpoint is %+v, of step %d", kept, step)
	}
	for uid, p := range f.pods {
		if len(p.puts) != 2 {
			t.Errorf("%s has put %v", uid, p.puts)
		}
	}
	if len(f.shelf.parts) != 8 {
		t.Errorf("%d parts were put, some of them twice", len(f.shelf.parts))
	}
	if seen := l.machine.Observe(f.now); seen.Durable.Snapshot != kept.snapshot || seen.Storage != "" {
		t.Errorf("%+v is durable, %q", seen.Durable, seen.Storage)
	}
}

// Whose uploader fails gives way to who holds the same share. What differs by rank nobody else has: that is waited for.
func TestAnotherHolderPutsAPart(t *testing.T) {
	f, l := inShares(t, 4)
	f.shelf.failing = map[string]string{"p01": "403 Forbidden"}
	f.stage(l)
	f.pass(10 * time.Second)
	f.turns(l, 8)
	if len(f.shelf.kept) != 0 || !strings.Contains(l.machine.Observe(f.now).Storage, "403 Forbidden") {
		t.Fatalf("%d checkpoints, it says %q", len(f.shelf.kept), l.machine.Observe(f.now).Storage)
	}
	for _, p := range l.machine.uploading.puts {
		if key, _ := share.Parse(p.part.Part); !p.done && !key.Rank {
			t.Errorf("%s is not put, by %s", p.part.Part, p.by)
		}
	}
	f.shelf.failing = nil
	f.turns(l, 8)
	if len(f.shelf.kept) != 1 || len(f.shelf.kept[0].parts) != 8 {
		t.Errorf("once it can: %+v", f.shelf.kept)
	}
}

// Who is lost while it puts parts takes nothing along but what differed by its rank.
func TestWhoPutsAPartIsLost(t *testing.T) {
	f, l := inShares(t, 4)
	f.stage(l)
	f.shelf.failing = map[string]string{"p02": "503 Slow Down"}
	f.pass(10 * time.Second)
	f.turns(l, 4)
	if l.machine.uploading == nil {
		t.Fatal("nobody uploads")
	}
	f.end(f.pods["p02"])
	f.pods["p02"].want.Lost, f.pods["p02"].want.Ended = "it has ended", true
	_ = f.handle(l, GangExpected{f.gang()})
	f.turns(l, 30)
	if len(f.shelf.kept) == 0 {
		t.Fatalf("nothing is durable: %+v", l.machine.uploading)
	}
	if n := len(f.shelf.kept[0].parts); n != 7 {
		t.Errorf("it is made of %d parts", n)
	}
}

// The next attempt, of another size, begins with the parts that one of its members brings back.
func TestAnAttemptBeginsWithParts(t *testing.T) {
	f, l := inShares(t, 4)
	step := f.stage(l)
	f.pass(10 * time.Second)
	f.turns(l, 8)
	for _, workers := range []int{2, 3, 6} {
		next := emptyFleet(t)
		next.shares, next.minimum, next.target = true, int32(workers), int32(workers)
		next.storage, next.shelf = &Storage{Interval: time.Hour, Keep: 3, Own: true}, f.shelf
		for range workers {
			next.makePod()
		}
		next.newLeader()
		leader := next.leaders[next.born]
		next.turns(leader, 20)
		w := leader.machine.world
		if w == nil || int(w.record.Workers) != workers || w.record.FromStep != step || leader.machine.furthest() <= step {
			t.Fatalf("the world of %d is %+v: %s", workers, w, leader.machine.fatal)
		}
		if durable := leader.machine.Observe(next.now).Durable; durable.Snapshot != f.shelf.kept[0].snapshot {
			t.Errorf("%+v is durable, and %+v was saved", durable, f.shelf.kept[0].snapshot)
		}
	}
}

// A checkpoint that nobody can finish gives way to the next one, once its parts are held no more.
func TestACheckpointThatNobodyCanFinish(t *testing.T) {
	f, l := inShares(t, 3)
	f.shelf.refused = f.stage(l)
	f.pass(10 * time.Second)
	f.turns(l, 8)
	if said := l.machine.Observe(f.now).Storage; len(f.shelf.kept) != 0 || !strings.Contains(said, "not kept any more") {
		t.Fatalf("%d checkpoints, it says %q", len(f.shelf.kept), said)
	}
	for range 3 {
		f.stage(l)
		f.pass(10 * time.Second)
		f.turns(l, 4)
	}
	if len(f.shelf.kept) == 0 || f.shelf.kept[0].snapshot.Step <= f.shelf.refused {
		t.Errorf("nothing newer is durable: %+v", l.machine.uploading)
	}
}

// suspend has all workers stop, and waits until what they have done is durable.
func (f *fleet) suspend(l *modelLeader) bool {
	f.storage = &Storage{Interval: f.storage.Interval, Keep: 3, Park: "spec.suspend is true"}
	_ = f.handle(l, GangExpected{f.gang()})
	for range 400 {
		if l.machine.Observe(f.now).Parked {
			return true
		}
		f.turns(l, 1)
		f.expectAgain(l)
	}
	return false
}

// Whose uploader is known to fail writes nothing that nobody else has when all are to go.
func TestAWorldParksWithoutWhoseUploadsFail(t *testing.T) {
	f, l := inShares(t, 4)
	f.shelf.failing = map[string]string{"p01": "403 Forbidden"}
	f.stage(l)
	f.pass(10 * time.Second)
	f.turns(l, 8)
	if !f.suspend(l) {
		t.Fatalf("it is not parked: %+v", l.machine.uploading)
	}
	for _, part := range f.shelf.kept[len(f.shelf.kept)-1].parts {
		if key, _ := share.Parse(part.Part); key.Of != 3 {
			t.Errorf("it has the part %s, and three can upload", part.Part)
		}
	}
}

// Whose uploads begin to fail when all are to go keeps nobody for ever.
func TestAWorldParksThoughUploadsBeginToFail(t *testing.T) {
	f, l := inShares(t, 4)
	f.turns(l, 4)
	f.shelf.failing = map[string]string{"p01": "403 Forbidden"}
	if !f.suspend(l) {
		t.Fatalf("it is not parked: %+v", l.machine.uploading)
	}
}

// At a barrier only what differs by its rank is left out of one that fails, after a while, where others have its share.
func TestARankThatCannotBeUploadedIsLeftOut(t *testing.T) {
	f, l := inShares(t, 4)
	f.stage(l)
	m := l.machine
	f.pass(10 * time.Second)
	f.shelf.failing = map[string]string{"p01": "403 Forbidden"}
	f.turns(l, 4)
	u := m.uploading
	m.gang.Storage.Park = "spec.suspend is true"
	m.change = &change{began: f.now, step: u.snapshot.Step, arrived: true, arrivedAt: f.now}
	if !m.goesOn(f.now, u) || m.ranksOf(u) != 4 {
		t.Fatalf("at once there are %d ranks", m.ranksOf(u))
	}
	if late := f.now.Add(m.gang.BarrierTimeout); !m.goesOn(late, u) || m.ranksOf(u) != 3 || u.by == "" {
		t.Errorf("in the end there are %d ranks, %q writes the manifest", m.ranksOf(u), u.by)
	}
}

// What is given up since an upload fails is followed by the next snapshot after an interval: each puts all of the state
// once more. Where a worker is lost the next one follows at once.
func TestTheNextUploadAfterOneThatFailsWaits(t *testing.T) {
	for name, lost := range map[string]bool{"it fails": false, "it is lost": true} {
		t.Run(name, func(t *testing.T) {
			f, l := inShares(t, 3)
			f.shelf.failing = map[string]string{"p01": "403 Forbidden"}
			f.stage(l)
			f.pass(10 * time.Second)
			f.turns(l, 4)
			m := l.machine
			if m.uploading == nil {
				t.Fatal("nobody uploads")
			}
			gone := m.uploading.puts[0].part
			gone.Hash[0]++
			m.uploading.snapshot.Round++ // nobody holds it
			m.uploading.puts = []put{{part: gone, by: "p01", since: f.now}}
			m.members["p01"].connected = !lost
			m.nextUpload = f.now.Add(-time.Second)
			m.makeDurable(f.now)
			if again := m.uploading != nil; again != lost {
				t.Errorf("the next one is uploaded at once: %v", again)
			}
			if !lost {
				m.makeDurable(f.now.Add(m.gang.Storage.Interval))
				if m.uploading == nil {
					t.Error("the next one is not uploaded")
				}
			}
		})
	}
}

// What hangs without an error is taken from who should do it: a share goes to another holder, what differs by rank is left
// out, and somebody else writes the manifest.
func TestAnUploadThatHangs(t *testing.T) {
	f, l := inShares(t, 4)
	f.stage(l)
	f.shelf.away = true
	f.pass(10 * time.Second)
	f.turns(l, 4)
	m := l.machine
	u := m.uploading
	if u == nil {
		t.Fatal("nobody uploads")
	}
	for i := range u.puts {
		u.puts[i].done = u.puts[i].by != "p01"
	}
	if soon := u.since.Add(hangTime / 2); !m.goesOn(soon, u) || len(u.puts) != 8 || !u.has("p01") {
		t.Fatalf("it is given up early: %+v", u)
	}
	late := u.since.Add(hangTime + time.Minute)
	if !m.goesOn(late, u) || len(u.puts) != 7 || u.has("p01") {
		t.Fatalf("it is not given up: %+v", u)
	}
	if said := m.storageTrouble(); !strings.Contains(said, "nothing has come of its upload") {
		t.Errorf("it says %q", said)
	}
	for i := range u.puts {
		u.puts[i].done = true
	}
	if !m.goesOn(late, u) || u.by == "" {
		t.Fatalf("nobody writes the manifest: %+v", u)
	}
	first := u.by
	if m.uploadTook = hangTime; !m.goesOn(late.Add(2*hangTime), u) || u.by != first {
		t.Errorf("%s has as long as uploads take, and gives way to %s", first, u.by)
	}
	if !m.goesOn(late.Add(hangFactor*hangTime), u) || u.by == first || u.by == "p01" {
		t.Errorf("%s hangs, and %q writes the manifest", first, u.by)
	}
}

// What is held back has as much more time before it counts as hanging as its bytes need at the rate that they have.
func TestAnUploadThatIsHeldBackDoesNotHang(t *testing.T) {
	f, l := inShares(t, 4)
	f.stage(l)
	f.shelf.away = true
	f.pass(10 * time.Second)
	f.turns(l, 4)
	m := l.machine
	u := m.uploading
	if u == nil {
		t.Fatal("nobody uploads")
	}
	const hour = 3600
	m.gang.Storage.Rate = max(u.puts[0].part.Bytes/hour, 1)
	for i := range u.puts {
		u.puts[i].part.Bytes, u.puts[i].done = m.gang.Storage.Rate*hour, u.puts[i].by != "p01"
	}
	by := func(late time.Duration) bool { return m.goesOn(u.since.Add(late), u) && u.has("p01") }
	if !by(hangTime + 50*time.Minute) {
		t.Fatalf("it is given up early: %+v", u)
	}
	if by(hangTime + 61*time.Minute) {
		t.Errorf("it is not given up: %+v", u)
	}
	m.gang.Storage.Rate = 1
	if m.paced(1<<63) < 1000*time.Hour || m.paced(0) != 0 {
		t.Errorf("%s for all bytes that there are", m.paced(1<<63))
	}
}

// Who is waited for is not held back any more, and has from then on the time of an upload that never was: somebody waits meanwhile.
// Held back again it has all of what its bytes need.
func TestAnUploadThatIsWaitedForHasNoMoreTime(t *testing.T) {
	const hour = 3600
	for name, row := range map[string]struct {
		lift, hold func(m *Machine)
	}{
		"all are about to go": {
			func(m *Machine) { m.gang.Storage.Park = "spec.suspend is true" },
			func(m *Machine) { m.gang.Storage.Park = "" },
		},
		"it is about to go": {
			func(m *Machine) { m.members["p01"].want.Leaving = ReasonNodeTainted },
			func(m *Machine) { m.members["p01"].want.Leaving = "" },
		},
		"the world stands": {
			func(m *Machine) { m.change = &change{attempt: 1, step: m.uploading.snapshot.Step, arrived: true} },
			func(m *Machine) { m.change = nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			begin := func() (*Machine, *uploading, func(late time.Duration) bool) {
				f, l := inShares(t, 4)
				f.stage(l)
				f.shelf.away = true
				f.pass(10 * time.Second)
				f.turns(l, 4)
				m := l.machine
				u := m.uploading
				if u == nil {
					t.Fatal("nobody uploads")
				}
				m.gang.Storage.Rate = max(u.puts[0].part.Bytes/hour, 1)
				for i := range u.puts {
					u.puts[i].part.Bytes, u.puts[i].done = m.gang.Storage.Rate*hour, u.puts[i].by != "p01"
				}
				return m, u, func(late time.Duration) bool { return m.goesOn(u.since.Add(late), u) && u.has("p01") }
			}
			m, _, by := begin()
			if !by(9 * time.Minute) {
				t.Fatal("it is given up early")
			}
			if row.lift(m); !by(10*time.Minute) || !by(10*time.Minute+hangTime-time.Minute) {
				t.Error("it is given up early once it is waited for")
			}
			if by(10*time.Minute + hangTime + time.Minute) {
				t.Error("it is waited for, and has the time that it needed when it was held back")
			}
			m, _, by = begin()
			row.lift(m)
			if !by(10 * time.Minute) {
				t.Fatal("it is given up early")
			}
			if row.hold(m); !by(11*time.Minute) || !by(hangTime+59*time.Minute) {
				t.Error("it is held back again, and given up early")
			}
			if by(hangTime + 61*time.Minute) {
				t.Error("it is not given up")
			}
		})
	}
}

// Uploads are held back while a world trains, and not those that somebody waits for: all are about to go, the member itself
// goes, or the world stands at a barrier of which this is the snapshot.
func TestWhatIsWaitedForIsNotHeldBack(t *testing.T) {
	f, l := inShares(t, 4)
	f.storage.Rate = 1000
	f.stage(l)
	f.shelf.away = true
	f.pass(10 * time.Second)
	f.turns(l, 4)
	m := l.machine
	rate := func(uid string) uint64 {
		d, ok := m.Directive(uid)
		if !ok || d.Upload == nil {
			t.Fatalf("%s has the directive %+v", uid, d)
		}
		return d.Upload.Rate
	}
	if got := rate("p01"); got != 1000 {
		t.Fatalf("it may send %d bytes a second", got)
	}
	m.members["p01"].want.Leaving = ReasonNodeTainted
	if rate("p01") != 0 || rate("p02") != 1000 {
		t.Errorf("who leaves may send %d bytes a second, others %d", rate("p01"), rate("p02"))
	}
	m.members["p01"].want.Leaving = ""
	m.change = &change{attempt: 1, step: m.uploading.snapshot.Step, arrived: true}
	if got := rate("p01"); got != 0 {
		t.Errorf("the world waits, and it may send %d bytes a second", got)
	}
	if m.change.step++; rate("p01") != 1000 {
		t.Errorf("the world waits for another snapshot, and it may send %d bytes a second", rate("p01"))
	}
	m.change = nil
	m.gang.Storage.Park = "spec.suspend is true"
	if got := rate("p01"); got != 0 {
		t.Errorf("all are about to go, and it may send %d bytes a second", got)
	}
}

// The same holds for a snapshot that is one file: another holder makes it durable, and one that all are stuck with gives way to a
// newer one.
func TestAnUploadOfOneFileThatHangs(t *testing.T) {
	f, l := stored(t, Storage{Interval: 10 * time.Second, Keep: 3})
	f.turns(l, 12)
	f.shelf.away = true
	f.nextIntervals(l, 1)
	m := l.machine
	u := m.uploading
	if u == nil || u.puts != nil {
		t.Fatalf("one file is to be uploaded, and it is %+v", u)
	}
	if soon := u.since.Add(hangTime / 2); !m.goesOn(soon, u) || !m.keepsAt(soon, u) {
		t.Fatalf("it is given up early: %+v", u)
	}
	late := u.since.Add(hangTime + time.Minute)
	m.makeDurable(late)
	next := m.uploading
	if next == nil || next.by == u.by {
		t.Fatalf("%s hangs, and %+v is at it", u.by, next)
	}
	if said := m.storageTrouble(); !strings.Contains(said, "nothing has come of its upload") {
		t.Errorf("it says %q", said)
	}
	// While the world stands, too.
	m.keepUploading(late.Add(hangTime), next.snapshot)
	last := m.uploading
	if last.by == next.by {
		t.Errorf("%s hangs, and is waited for", next.by)
	}
	// Nobody is left who could do better, and how far it has come is not known: the link may be slow and the file large.
	m.makeDurable(late.Add(10 * hangTime))
	m.keepUploading(late.Add(11*hangTime), last.snapshot)
	if m.uploading != last {
		t.Errorf("%s is broken off, and %+v begun instead", last.by, m.uploading)
	}
}

// Whose uploads fail, and who alone has the snapshot of a world that all are to leave, keeps nobody there: another one takes it.
func TestAWorldParksThoughOneFileCannotBeUploaded(t *testing.T) {
	f, l := stored(t, Storage{Interval: time.Hour, Keep: 3})
	f.turns(l, 12)
	f.shelf.failing = map[string]string{"p00": "403 Forbidden"}
	if !f.suspend(l) {
		t.Errorf("it is not parked: %+v", l.machine.uploading)
	}
}

// A worker whose session drops for a while holds what differs by its rank all the same: it is waited for, and goes into the
// checkpoint. Once it has been away for too long the others' parts do without it.
func TestAWorkerThatIsAwayKeepsItsPart(t *testing.T) {
	for name, row := range map[string]struct {
		begun bool
		away  time.Duration
		parts int
	}{
		"before the upload":                   {false, 2 * time.Second, 8},
		"while it uploads":                    {true, 2 * time.Second, 8},
		"before the upload, and for too long": {false, 15 * time.Second, 7},
		"while it uploads, and for too long":  {true, 15 * time.Second, 7},
	} {
		t.Run(name, func(t *testing.T) {
			f, l := inShares(t, 4)
			f.stage(l)
			if row.begun {
				f.shelf.away = true
				f.pass(10 * time.Second)
				f.turns(l, 2)
			}
			away := f.pods["p01"]
			away.unheard = true
			f.drop(away, l)
			f.shelf.away = false
			if f.pass(5 * time.Second); row.begun != (l.machine.uploading != nil) {
				t.Fatalf("it is uploaded: %+v", l.machine.uploading)
			}
			for since := f.now; f.now.Sub(since) < row.away; {
				f.turn(l)
			}
			if early := len(f.shelf.kept) > 0; early != (row.parts < 8) {
				t.Errorf("while it is away there are the checkpoints %+v", f.shelf.kept)
			}
			away.unheard = false
			f.turns(l, 8)
			if len(f.shelf.kept) == 0 || len(f.shelf.kept[0].parts) != row.parts {
				t.Errorf("the checkpoints are %+v", f.shelf.kept)
			}
		})
	}
}

// Who is known to have ended is not one that comes back with what it holds.
func TestWhoHasEndedIsNotAway(t *testing.T) {
	f, l := stored(t, Storage{Interval: time.Hour, Keep: 3})
	f.turns(l, 12)
	m := l.machine
	mem := m.members["p01"]
	mem.connected = false
	if away := m.away(); len(away) != 1 || away[0] != mem {
		t.Fatalf("%d are away, and p01 is", len(away))
	}
	for what, ended := range map[string]Member{"ended": {Ended: true}, "gone": {Gone: true}, "lost": {Lost: "NodeLost"}} {
		before := mem.want
		mem.want.Ended, mem.want.Gone, mem.want.Lost = ended.Ended, ended.Gone, ended.Lost
		if away := m.away(); len(away) != 0 {
			t.Errorf("%s: it is waited for", what)
		}
		mem.want = before
	}
}
