package durable

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/uploader"
)

// opened is how many files of a worker's folder are open in this process.
func (w *worker) opened(t *testing.T) (n int) {
	t.Helper()
	descriptors, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, descriptor := range descriptors {
		if name, err := os.Readlink(descriptor); err == nil && strings.HasPrefix(name, w.snapshots.Folder()+"/") {
			n++
		}
	}
	return n
}

// manyParts are so many that a worker whose limit of open files is low could not have all of them open.
func manyParts() map[string]string {
	contents := map[string]string{}
	for i := range 12 {
		contents[fmt.Sprintf("s%d.12.0123456789abcdef", i)] = fmt.Sprint("share ", i)
		contents[fmt.Sprintf("r%d.12.0123456789abcdef", i)] = fmt.Sprint("own of ", i)
	}
	return contents
}

// However many parts a worker has to put, few files are open at a time. What is pushed out meanwhile is put all the same, of what it
// was, and its memory is free once it was put.
func TestPartsArePutWithoutAllOfThemOpen(t *testing.T) {
	w := newWorker(t)
	s := w.slowly(t)
	w.snapshots.Enter(1, 0, true, nil)
	parts := w.parts(t, 10, manyParts())
	w.Ask(&Save{Snapshot: checkpoint.Snapshot{ID: checkpoint.ID{Round: 1, Step: 10}}, Keep: 2, Put: parts}, nil)
	<-s.asked
	// The one that is put is open at both ends of the socket.
	if n := w.opened(t); n > 4 {
		t.Errorf("%d files are open for %d parts", n, len(parts))
	}
	w.snapshots.Forget(partsOf(parts)...)
	for range parts[1:] {
		s.answers <- uploader.Answer{}
		<-s.asked
	}
	s.answers <- uploader.Answer{}
	eventually(t, "all are put", func() bool { return len(w.State().Put) == len(parts) })
	if state := w.State(); state.Failure != "" {
		t.Errorf("it says %q", state.Failure)
	}
	eventually(t, "nothing is left in memory", func() bool { return len(entries(t, w)) == 0 })
}

// Of a checkpoint that is brought back few files are open at a time as well.
func TestPartsAreBroughtWithoutAllOfThemOpen(t *testing.T) {
	kept := t.TempDir()
	first := newWorker(t)
	first.upload(t, kept, 1)
	first.snapshots.Enter(1, 0, true, nil)
	parts := first.parts(t, 10, manyParts())
	snapshot := checkpoint.Snapshot{ID: checkpoint.ID{Round: 1, Step: 10}}
	first.Ask(&Save{Snapshot: snapshot, Keep: 2, Put: parts, Manifest: parts}, nil)
	eventually(t, "it is durable", func() bool { return first.State().Saved != nil })

	second := newWorker(t)
	second.upload(t, kept, 2)
	most := 0
	second.holder = counting{second.snapshots, func() { most = max(most, second.opened(t)) }}
	second.Ask(nil, &Restore{Number: 1})
	eventually(t, "it is restored", func() bool { return second.State().Restored.Number == 1 })
	if restored := second.State().Restored; len(restored.Parts) != len(parts) {
		t.Errorf("it has %+v", restored)
	}
	// The one that came last, and the one that is for a checkpoint of one file, are open here and at the uploader, which is in
	// this process.
	if most > 8 {
		t.Errorf("%d files are open for %d parts", most, len(parts))
	}
}

// counting tells of every file that is made.
type counting struct {
	Holder
	count func()
}

func (c counting) Make() (*os.File, error) {
	c.count()
	return c.Holder.Make()
}

func partsOf(parts []checkpoint.Snapshot) (ids []checkpoint.ID) {
	for _, part := range parts {
		ids = append(ids, part.ID)
	}
	return ids
}

func entries(t *testing.T, w *worker) []os.DirEntry {
	t.Helper()
	there, err := os.ReadDir(w.snapshots.Folder())
	if err != nil {
		t.Fatal(err)
	}
	return there
}
