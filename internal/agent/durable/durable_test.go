package durable

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/concertina-dev/concertina/internal/agent/snapshots"
	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/checkpoint/storage"
	"github.com/concertina-dev/concertina/internal/score"
	"github.com/concertina-dev/concertina/internal/share"
	"github.com/concertina-dev/concertina/internal/uploader"
	"github.com/concertina-dev/concertina/internal/uploader/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quick = Pauses{First: 5 * time.Millisecond, Last: 20 * time.Millisecond, Unwanted: 50 * time.Millisecond}

// worker is a worker's snapshots, and what asks its uploader.
type worker struct {
	*Keeper
	snapshots *snapshots.Keeper
	socket    string
	notes     atomic.Int32
}

func newWorker(t *testing.T) *worker {
	t.Helper()
	w := &worker{socket: filepath.Join(t.TempDir(), "socket")}
	var err error
	note := func(string, ...any) { w.notes.Add(1) }
	if w.snapshots, err = snapshots.Open(t.TempDir(), "127.0.0.1", t.Logf, func() {}); err != nil {
		t.Fatal(err)
	}
	w.Keeper = New(w.socket, w.snapshots, quick, note, func() {})
	t.Cleanup(func() {
		for _, end := range []func() error{w.Close, w.snapshots.Close} {
			if err := end(); err != nil {
				t.Error(err)
			}
		}
	})
	return w
}

// upload starts the worker's uploader.
func (w *worker) upload(t *testing.T, kept string, attempt int32) {
	t.Helper()
	w.uploadBest(t, kept, attempt, score.Best{})
}

// uploadBest is upload for a job that keeps its best checkpoints.
func (w *worker) uploadBest(t *testing.T, kept string, attempt int32, best score.Best) {
	t.Helper()
	s, err := storage.Open(t.Context(), "file://"+kept)
	if err != nil {
		t.Fatal(err)
	}
	job := storage.Job{Namespace: "team", Name: "llama", UID: "uid"}
	listening, err := server.Listen(w.socket, server.New(s, job, attempt, "team/other", best, t.Logf))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, end := range []func() error{listening.Close, s.Close} {
			if err := end(); err != nil {
				t.Error(err)
			}
		}
	})
}

// take has the worker hold a snapshot of round 1.
func (w *worker) take(t *testing.T, step uint64, content string) checkpoint.Snapshot {
	t.Helper()
	if len(w.snapshots.List()) == 0 {
		w.snapshots.Enter(1, 0, true, nil)
	}
	if err := os.WriteFile(filepath.Join(w.snapshots.Folder(), "new.part"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	w.snapshots.Take(1, step, []snapshots.File{{Name: "new.part", Bytes: uint64(len(content))}}, false)
	eventually(t, "the snapshot is held", func() bool { return len(w.snapshots.List()) > 0 && w.snapshots.List()[0].Step == step })
	return w.snapshots.List()[0]
}

// whole has a snapshot saved that is one file.
func whole(s checkpoint.Snapshot) *Save { return &Save{Snapshot: s, Keep: 2} }

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it is not so that %s", what)
		}
	}
}

func TestWhatIsSavedIsRestored(t *testing.T) {
	kept := t.TempDir()
	first := newWorker(t)
	snapshot := first.take(t, 10, "state")
	first.Ask(whole(snapshot), nil)
	eventually(t, "it waits for its uploader", func() bool { return first.notes.Load() > 1 })
	if failure := first.State().Failure; !strings.Contains(failure, "uploader") {
		t.Errorf("it says %q", failure)
	}
	first.upload(t, kept, 1)
	eventually(t, "the snapshot is durable", func() bool { return first.State().Saved != nil })
	if saved := first.State(); saved.Saved.Snapshot != snapshot || saved.Failure != "" {
		t.Errorf("it says %+v", saved)
	}

	second := newWorker(t)
	second.Ask(nil, &Restore{Number: 7})
	eventually(t, "it says that it waits", func() bool { return strings.Contains(second.State().Waiting, "uploader") })
	second.upload(t, kept, 2)
	eventually(t, "it is restored", func() bool { return second.State().Restored.Number == 7 })
	if waiting := second.State().Waiting; waiting != "" {
		t.Errorf("it still waits: %s", waiting)
	}
	restored := second.State().Restored
	if restored.Snapshot == nil || *restored.Snapshot != snapshot {
		t.Fatalf("it has %+v", restored)
	}
	file, err := second.snapshots.Open(snapshot.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if content, err := io.ReadAll(file); err != nil || !bytes.Equal(content, []byte("state")) {
		t.Errorf("the state is %q (%v)", content, err)
	}

	second.Ask(nil, &Restore{Number: 8, Path: "team/other"})
	eventually(t, "the next order is carried out", func() bool { return second.State().Restored.Number == 8 })
	if restored := second.State().Restored; restored.Snapshot != nil || restored.Why != "" {
		t.Errorf("of a job that has saved nothing there is %+v", restored)
	}
	if left, err := filepath.Glob(filepath.Join(second.snapshots.Folder(), "restore-*")); err != nil || len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// A snapshot that is not held any more is said so, until another one is to be saved.
func TestASnapshotThatIsGone(t *testing.T) {
	w := newWorker(t)
	w.upload(t, t.TempDir(), 1)
	w.Ask(whole(checkpoint.Snapshot{ID: checkpoint.ID{Round: 1, Step: 5}}), nil)
	eventually(t, "it says so", func() bool { return strings.Contains(w.State().Failure, "does not hold snapshot 1-5") })
	snapshot := w.take(t, 6, "state")
	w.Ask(whole(snapshot), nil)
	eventually(t, "the other is durable", func() bool {
		return w.State().Saved != nil && w.State().Saved.Snapshot == snapshot && w.State().Failure == ""
	})
}

// parts has the worker hold parts of the state of round 1 after a step.
func (w *worker) parts(t *testing.T, step uint64, contents map[string]string) []checkpoint.Snapshot {
	t.Helper()
	var files []snapshots.File
	for part, content := range contents {
		if err := os.WriteFile(filepath.Join(w.snapshots.Folder(), part+".part"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, snapshots.File{Part: part, Name: part + ".part", Bytes: uint64(len(content))})
	}
	w.snapshots.Take(1, step, files, false)
	eventually(t, "the parts are held", func() bool {
		held := w.snapshots.List()
		return len(held) >= len(contents) && held[len(contents)-1].Step == step
	})
	return w.snapshots.List()[:len(contents)]
}

// Two workers put what they hold, one of them finishes, and a third brings all of it back. What is empty counts as well.
func TestPartsAreSavedAndRestored(t *testing.T) {
	const layout = ".2.0123456789abcdef"
	kept := t.TempDir()
	first, second := newWorker(t), newWorker(t)
	for _, w := range []*worker{first, second} {
		w.upload(t, kept, 1)
		w.snapshots.Enter(1, 0, true, nil)
	}
	contents := map[string]string{"s0" + layout: "one", "r0" + layout: "own of 0", "s1" + layout: "", "r1" + layout: "own of 1"}
	ours := first.parts(t, 10, map[string]string{"s0" + layout: contents["s0"+layout], "r0" + layout: contents["r0"+layout]})
	theirs := second.parts(t, 10, map[string]string{"s1" + layout: contents["s1"+layout], "r1" + layout: contents["r1"+layout]})
	snapshot := checkpoint.Snapshot{ID: checkpoint.ID{Round: 1, Step: 10}, Bytes: 3, Hash: checkpoint.Hash{1}}
	all := append(slices.Clone(ours), theirs...)

	first.Ask(&Save{Snapshot: snapshot, Keep: 2, Put: ours, Manifest: all}, nil)
	eventually(t, "what is missing is named", func() bool { return strings.Contains(first.State().Failure, "was not put") })
	second.Ask(&Save{Snapshot: snapshot, Keep: 2, Put: theirs}, nil)
	eventually(t, "its parts are put", func() bool { return len(second.State().Put) == 2 })
	eventually(t, "the checkpoint is durable", func() bool { return first.State().Saved != nil && first.State().Failure == "" })
	if state := second.State(); state.Saved != nil || state.Failure != "" || first.State().Saved.Snapshot != snapshot {
		t.Errorf("the first says %+v, the second %+v", first.State(), state)
	}

	third := newWorker(t)
	third.upload(t, kept, 2)
	third.Ask(nil, &Restore{Number: 1})
	eventually(t, "it is restored", func() bool { return third.State().Restored.Number == 1 })
	restored := third.State().Restored
	if restored.Why != "" || restored.Snapshot == nil || restored.Snapshot.ID != snapshot.ID || len(restored.Parts) != 4 {
		t.Fatalf("it has %+v", restored)
	}
	if size := third.snapshots.Size(); size != (share.Size{State: 3 + 8, Own: 8}) {
		t.Errorf("it was measured as %+v", size)
	}
	for i, part := range restored.Parts {
		if part != all[i] {
			t.Errorf("%v was saved, and %v is there", all[i], part)
		}
		file, err := third.snapshots.Open(part.ID)
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(file)
		if _ = file.Close(); err != nil || string(content) != contents[part.Part] {
			t.Errorf("part %s is %q (%v)", part.Part, content, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(third.snapshots.Folder(), "restore-*")); err != nil || len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// Of a checkpoint in parts that turns out to be damaged nothing stays behind, and the one before it is brought back.
func TestADamagedPart(t *testing.T) {
	const layout = ".2.0123456789abcdef"
	kept := t.TempDir()
	w := newWorker(t)
	w.upload(t, kept, 1)
	w.snapshots.Enter(1, 0, true, nil)
	for step := uint64(1); step <= 2; step++ {
		parts := w.parts(t, step, map[string]string{"s0" + layout: "zero", "s1" + layout: strings.Repeat("x", int(step)), "r0" + layout: "own"})
		snapshot := checkpoint.Snapshot{ID: checkpoint.ID{Round: 1, Step: step}, Hash: checkpoint.Hash{byte(step)}}
		w.Ask(&Save{Snapshot: snapshot, Keep: 2, Put: parts, Manifest: parts}, nil)
		eventually(t, "it is durable", func() bool { return w.State().Saved != nil && w.State().Saved.Snapshot == snapshot })
	}
	// What was put as the newest one's second share is of the same length, and something else.
	pieces, err := filepath.Glob(filepath.Join(kept, "team/llama/uid/attempt-1/1-2/data/*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, piece := range pieces {
		if content, err := os.ReadFile(piece); err != nil || string(content) == "xx" {
			if err := os.Truncate(piece, 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	next := newWorker(t)
	next.upload(t, kept, 2)
	next.Ask(nil, &Restore{Number: 1})
	eventually(t, "it is restored", func() bool { return next.State().Restored.Number == 1 })
	restored := next.State().Restored
	if restored.Snapshot == nil || restored.Snapshot.Step != 1 || len(restored.Parts) != 3 || len(restored.Refused) != 1 {
		t.Errorf("it has %+v", restored)
	}
	if left, err := filepath.Glob(filepath.Join(next.snapshots.Folder(), "restore-*")); err != nil || len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// slow is an uploader that answers when it is told to.
type slow struct {
	// asked are the requests that have come, broken those of them that were broken off.
	asked, broken chan uploader.Request
	answers       chan uploader.Answer
	// paces are those that came after a request.
	paces chan uint64
}

// slowly starts such an uploader.
func (w *worker) slowly(t *testing.T) *slow {
	t.Helper()
	s := &slow{make(chan uploader.Request, 8), make(chan uploader.Request, 8), make(chan uploader.Answer), make(chan uint64, 8)}
	listener, err := net.Listen("unix", w.socket)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { s.hear(conn.(*net.UnixConn)) })
		}
	})
	t.Cleanup(func() {
		_, _ = w.Close(), listener.Close()
		serving.Wait()
	})
	return s
}

func (s *slow) hear(socket *net.UnixConn) {
	conn := wire.NewReceiver(socket)
	defer func() { _ = conn.Close() }()
	defer conn.CloseFiles()
	line, err := conn.ReadLine()
	var request uploader.Request
	if err != nil || json.Unmarshal(line, &request) != nil {
		return
	}
	s.asked <- request
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for {
			line, err := conn.ReadLine()
			if err != nil {
				return
			}
			var pace uploader.Pace
			if json.Unmarshal(line, &pace) == nil && pace.Rate != nil {
				s.paces <- *pace.Rate
			}
		}
	}()
	select {
	case answer := <-s.answers:
		_ = conn.Write(answer)
		<-gone
	case <-gone:
		s.broken <- request
	}
}

// brought is what is in a worker's folder of a restore that has not come to its end.
func (w *worker) brought(t *testing.T) []string {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(w.snapshots.Folder(), "restore-*"))
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// Another leader orders what an earlier one has ordered: it is brought once, and answers the newest order.
func TestTheNextLeaderWantsTheSame(t *testing.T) {
	w := newWorker(t)
	s := w.slowly(t)
	w.Ask(nil, &Restore{Number: 7})
	<-s.asked
	w.Ask(nil, nil) // of the next leader, which has not decided yet
	w.Ask(nil, &Restore{Number: 8})
	s.answers <- uploader.Answer{Refused: []string{"of the first"}}
	eventually(t, "it is restored", func() bool { return w.State().Restored.Number > 0 })
	if got := w.State().Restored; got.Number != 8 || len(got.Refused) != 1 || len(s.asked) > 0 || len(s.broken) > 0 {
		t.Errorf("it has %+v, and %d more were asked for", got, len(s.asked))
	}
}

// What another leader orders instead is brought once the first is broken off, and nothing is left of that: there is room for one.
func TestTheNextLeaderWantsSomethingElse(t *testing.T) {
	w := newWorker(t)
	s := w.slowly(t)
	w.Ask(nil, &Restore{Number: 7})
	<-s.asked
	w.Ask(nil, &Restore{Number: 8, Path: "team/other"})
	if broken, next := <-s.broken, <-s.asked; broken.Path != "" || next.Path != "team/other" {
		t.Errorf("%+v was broken off, and %+v asked for", broken, next)
	}
	if left := w.brought(t); len(left) != 1 {
		t.Errorf("there are %v", left)
	}
	s.answers <- uploader.Answer{Refused: []string{"of the second"}}
	eventually(t, "it is restored", func() bool { return w.State().Restored.Number > 0 })
	if got := w.State().Restored; got.Number != 8 || len(got.Refused) != 1 {
		t.Errorf("it has %+v", got)
	}
}

// A world begins with what another worker has brought: what is still on its way here takes no room any more.
func TestAWorldBeginsWithoutTheRestore(t *testing.T) {
	w := newWorker(t)
	s := w.slowly(t)
	w.Ask(nil, &Restore{Number: 7})
	<-s.asked
	w.Begun(0)
	w.Ask(nil, nil)
	<-s.broken
	eventually(t, "nothing is left of it", func() bool { return len(w.brought(t)) == 0 })
	if got := w.State(); got.Restored.Number != 0 || got.Waiting != "" {
		t.Errorf("it says %+v", got)
	}
	w.Ask(nil, &Restore{Number: 9})
	<-s.asked
	s.answers <- uploader.Answer{}
	eventually(t, "the next is carried out", func() bool { return w.State().Restored.Number == 9 })
}

// A save that hangs is broken off a while after another one is wanted, and not before.
func TestASaveThatHangsGivesWay(t *testing.T) {
	w := newWorker(t)
	s := w.slowly(t)
	first := w.take(t, 5, "state")
	w.Ask(whole(first), nil)
	<-s.asked
	second := w.take(t, 6, "newer")
	w.Ask(whole(second), nil)
	if broken, next := <-s.broken, <-s.asked; broken.Snapshot.Step != 5 || next.Snapshot.Step != 6 {
		t.Errorf("step %d was broken off, and step %d comes next", broken.Snapshot.Step, next.Snapshot.Step)
	}
	if failure := w.State().Failure; failure != "" {
		t.Errorf("it says %q of what nobody wants any more", failure)
	}
	s.answers <- uploader.Answer{Path: "team/llama"}
	eventually(t, "the second is durable", func() bool { return w.State().Saved != nil && w.State().Saved.Snapshot == second })
}

// A save that nobody asks for any more goes on as long as no other one is wanted: it is in nobody's way.
func TestASaveThatIsInNobodysWayGoesOn(t *testing.T) {
	w := newWorker(t)
	s := w.slowly(t)
	first := w.take(t, 5, "state")
	w.Ask(whole(first), nil)
	<-s.asked
	w.Ask(nil, nil)
	w.mu.Lock()
	limited := w.at.late != nil
	w.mu.Unlock()
	if limited {
		t.Error("it is to be ended though nothing waits for it")
	}
	s.answers <- uploader.Answer{Path: "team/llama"}
	eventually(t, "it is durable", func() bool { return w.State().Saved != nil && w.State().Saved.Snapshot == first })
}

// A part that hangs and was given to another worker gives way to the others, and is no failure of this one.
func TestAPartThatHangsGivesWay(t *testing.T) {
	const layout = ".2.0123456789abcdef"
	w := newWorker(t)
	s := w.slowly(t)
	w.snapshots.Enter(1, 0, true, nil)
	parts := w.parts(t, 10, map[string]string{"s0" + layout: "one", "s1" + layout: "other"})
	snapshot := checkpoint.Snapshot{ID: checkpoint.ID{Round: 1, Step: 10}, Bytes: 8}
	w.Ask(&Save{Snapshot: snapshot, Keep: 2, Put: parts}, nil)
	<-s.asked
	w.Ask(&Save{Snapshot: snapshot, Keep: 2, Put: parts[1:]}, nil)
	broken, next := <-s.broken, <-s.asked
	if len(broken.Parts) != 1 || len(next.Parts) != 1 || broken.Parts[0] == next.Parts[0] {
		t.Errorf("%+v was broken off, and %+v comes next", broken, next)
	}
	if failure := w.State().Failure; failure != "" || w.notes.Load() > 0 {
		t.Errorf("it says %q of what another worker does", failure)
	}
}

// Whoever hears that a checkpoint was brought back does not hear with it why it had not been.
func TestWhatWasWaitedForIsOverWithTheRestore(t *testing.T) {
	w := newWorker(t)
	told := make(chan State, 1)
	w.changed = func() {
		if state := w.State(); state.Restored.Number > 0 {
			select {
			case told <- state:
			default:
			}
		}
	}
	w.Ask(nil, &Restore{Number: 7})
	eventually(t, "it says what it waits for", func() bool { return w.State().Waiting != "" })
	s := w.slowly(t)
	<-s.asked
	s.answers <- uploader.Answer{}
	if state := <-told; state.Waiting != "" {
		t.Errorf("it has %+v, and waits: %s", state.Restored, state.Waiting)
	}
}

// What a restore has taken goes with it, but not once a world begins: that may load the same state.
func TestAWorldKeepsWhatARestoreHasTaken(t *testing.T) {
	w := newWorker(t)
	first := w.take(t, 5, "state")
	w.Begun(0)
	w.forget(first.ID)
	if len(w.snapshots.List()) != 1 {
		t.Error("the world has lost what it may load")
	}
	w.asked.Number = 7
	w.forget(first.ID)
	if len(w.snapshots.List()) != 0 {
		t.Error("it is still there")
	}
}

// A save is asked for with the rate that it may have, and told of another one while it runs, also when others are wanted by then.
func TestARateThatChangesWhileASaveRuns(t *testing.T) {
	w := newWorker(t)
	w.pauses.Unwanted = time.Hour // a machine that stops for a moment must not end it
	s := w.slowly(t)
	order := whole(w.take(t, 1, "state"))
	order.Rate = 1000
	w.Ask(order, nil)
	if asked := <-s.asked; asked.Rate == nil || *asked.Rate != 1000 {
		t.Fatalf("it asks %+v", asked)
	}
	w.Ask(order, nil)
	hurried := *order
	hurried.Rate = 0
	w.Ask(&hurried, nil)
	if rate := <-s.paces; rate != 0 {
		t.Errorf("it may send %d bytes a second", rate)
	}
	next := whole(w.take(t, 2, "next"))
	next.Rate = 7
	w.Ask(next, nil)
	if rate := <-s.paces; rate != 7 {
		t.Errorf("it may send %d bytes a second", rate)
	}
	w.Ask(nil, nil)
	s.answers <- uploader.Answer{Path: "done"}
	eventually(t, "it ends", func() bool { return w.State().Saved != nil })
	if len(s.paces) > 0 {
		t.Errorf("it is told of the rate %d without an order", <-s.paces)
	}
}

// A save that nobody wants any more has as much longer as its rate makes it last.
func TestAnUnwantedSaveThatIsHeldBack(t *testing.T) {
	w := newWorker(t)
	s := w.slowly(t)
	order := whole(w.take(t, 1, "state"))
	order.Rate = 1
	w.Ask(order, nil)
	<-s.asked
	next := whole(w.take(t, 2, "next"))
	next.Rate = 1
	w.Ask(next, nil)
	w.mu.Lock()
	late, more := w.at.late, w.paced(5)
	w.mu.Unlock()
	if late == nil || more != 5*time.Second || w.paced(1<<63) != longest {
		t.Errorf("five bytes have %s more, and what is unwanted is ended: %v", more, late != nil)
	}
	s.answers <- uploader.Answer{Path: "done"}
	<-s.asked
	s.answers <- uploader.Answer{Path: "done"}
	eventually(t, "it ends", func() bool { return w.State().Saved != nil && w.State().Saved.Snapshot == next.Snapshot })
}

// What has longer because it is held back has not once it is held back no more: it is in the way of what somebody waits for.
func TestAnUnwantedSaveThatIsHeldBackNoMore(t *testing.T) {
	w := newWorker(t)
	s := w.slowly(t)
	order := whole(w.take(t, 1, strings.Repeat("state", 1000)))
	order.Rate = 1
	w.Ask(order, nil)
	<-s.asked
	next := *whole(w.take(t, 2, "next"))
	next.Rate = 1
	w.Ask(&next, nil)
	hurried := next
	hurried.Rate = 0
	w.Ask(&hurried, nil)
	eventually(t, "it is broken off", func() bool { return len(s.broken) == 1 })
	<-s.asked
	s.answers <- uploader.Answer{Path: "done"}
	eventually(t, "the other is durable", func() bool { return w.State().Saved != nil && w.State().Saved.Snapshot == next.Snapshot })
}
