package storage

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/checkpoint/storage"
	"github.com/concertina-dev/concertina/internal/score"
)

// Jobs that share a prefix, also two of the same name made one after the other, and also when both are there at once: each saves,
// collects and finds what is its own, and nobody deletes anything of another.
func TestJobsOnOnePrefix(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s *storage.Storage, _ string) {
		again, other := job, job
		again.UID, other.Name = "another-uid", "llama-2"
		jobs := []storage.Job{job, again, other}
		at := func(i int, step uint64) storage.Place {
			where := place(1, step)
			where.Job = jobs[i]
			return where
		}
		content := func(i int, step uint64) []byte { return state(step*10+uint64(i), 1000) }
		var saving sync.WaitGroup
		for i := range jobs {
			saving.Go(func() {
				for step := range uint64(4) {
					where := at(i, step)
					if err := s.Save(t.Context(), where, fileOf(where, content(i, step))); err != nil {
						t.Error(err)
					}
					if _, err := s.Collect(t.Context(), jobs[i], 1, score.Best{}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		saving.Wait()
		for i, one := range jobs {
			found := find(t, s, fmt.Sprintf("%s/%s/%s", one.Namespace, one.Name, one.UID))
			if len(found) != 1 || found[0] != at(i, 3) {
				t.Fatalf("of job %d %v is there", i, found)
			}
			if got, err := load(t, s, found[0]); err != nil || !bytes.Equal(got, content(i, 3)) {
				t.Errorf("job %d has the state of another one: %v", i, err)
			}
		}
		if found := find(t, s, "team/llama"); len(found) != 2 {
			t.Errorf("of the jobs of one name %v is there", found)
		}
	})
}

// Clocks that jump, of whoever saves and of the storage, change neither what is the newest of a job nor what is kept.
func TestClocksThatJump(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	s := open(t, "file://"+folder)
	for step := range uint64(4) {
		save(t, s, place(1, step), state(step, 1000))
	}
	read, err := s.Read(t.Context(), place(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	// The newest was made when the clock stood far back, an older one far ahead.
	for step, year := range map[uint64]int{3: 1990, 2: 2100, 1: 2000} {
		when := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
		rewrite(t, filepath.Join(folder, place(1, step).Path()), func(m map[string]any) { m["written"] = when.Format(time.RFC3339) })
		if err := os.Chtimes(filepath.Join(folder, place(1, step).Path(), "manifest.json"), when, when); err != nil {
			t.Fatal(err)
		}
	}
	// Who reads took hold when the clock stood ahead.
	for _, name := range files(t, filepath.Join(folder, place(1, 0).Path(), "holds")) {
		if err := os.Chtimes(filepath.Join(folder, place(1, 0).Path(), "holds", name), time.Now(), time.Now().AddDate(1, 0, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if found := find(t, s, "team/llama"); len(found) != 4 || found[0] != place(1, 3) || found[1] != place(1, 2) || found[2] != place(1, 1) {
		t.Errorf("found are %v", found)
	}
	if _, err := s.Collect(t.Context(), job, 2, score.Best{}); err != nil {
		t.Fatal(err)
	}
	if found := find(t, s, "team/llama"); len(found) != 3 || found[0] != place(1, 3) || found[1] != place(1, 2) || found[2] != place(1, 0) {
		t.Errorf("kept are %v", found)
	}
	if err := read.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := load(t, s, place(1, 3)); err != nil || !bytes.Equal(got, state(3, 1000)) {
		t.Errorf("the newest does not come back: %v", err)
	}
}
