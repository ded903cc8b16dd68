package durable

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/concertina-dev/concertina/internal/agent/snapshots"
	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/checkpoint/storage"
	"github.com/concertina-dev/concertina/internal/uploader/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quick = Pauses{5 * time.Millisecond, 20 * time.Millisecond}

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
	s, err := storage.Open(t.Context(), "file://"+kept)
	if err != nil {
		t.Fatal(err)
	}
	job := storage.Job{Namespace: "team", Name: "llama", UID: "uid"}
	listening, err := server.Listen(w.socket, server.New(s, job, attempt, "team/other", t.Logf))
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
	w.snapshots.Enter(1, 0, true, nil)
	if err := os.WriteFile(filepath.Join(w.snapshots.Folder(), "new.part"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	w.snapshots.Take(1, step, "new.part", uint64(len(content)))
	eventually(t, "the snapshot is held", func() bool { return len(w.snapshots.List()) > 0 && w.snapshots.List()[0].Step == step })
	return w.snapshots.List()[0]
}

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
	first.Ask(&Save{snapshot, 2}, nil)
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
	w.Ask(&Save{checkpoint.Snapshot{ID: checkpoint.ID{Round: 1, Step: 5}}, 2}, nil)
	eventually(t, "it says so", func() bool { return strings.Contains(w.State().Failure, "does not hold snapshot 1-5") })
	snapshot := w.take(t, 6, "state")
	w.Ask(&Save{snapshot, 2}, nil)
	eventually(t, "the other is durable", func() bool {
		return w.State().Saved != nil && w.State().Saved.Snapshot == snapshot && w.State().Failure == ""
	})
}
