package durable

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/score"
	"github.com/concertina-dev/concertina/internal/uploader"
)

var best = score.Best{Metric: "accuracy", Keep: 1}

// scoresOf are the scores that lie beside a checkpoint.
func scoresOf(t *testing.T, kept, of string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(kept, "team/llama/uid/attempt-1", of, "scores/*"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range found {
		found[i] = filepath.Base(found[i])
	}
	return found
}

// The score of a snapshot comes with it into the storage, or later, when its file is held no more, and counts once it is there.
func TestScoresComeWithTheStateOrLater(t *testing.T) {
	kept, good, fair := t.TempDir(), 0.75, 0.5
	w := newWorker(t)
	w.uploadBest(t, kept, 1, best)
	first := w.take(t, 10, "state")
	w.Ask(&Save{Snapshot: first, Keep: 1, Score: &good}, nil)
	eventually(t, "it is durable, with its score", func() bool { return w.State().Saved.has(first, &good) })
	if got := scoresOf(t, kept, "1-10"); len(got) != 1 || got[0] != "accuracy_0.75" {
		t.Errorf("beside it is %v", got)
	}
	second := w.take(t, 20, "another")
	w.Ask(whole(second), nil)
	eventually(t, "the next is durable", func() bool { return w.State().Saved.has(second, nil) })
	if w.State().Saved.Score != nil || w.State().Saved.has(second, &fair) {
		t.Error("it has a score that nobody gave it")
	}
	w.take(t, 30, "a third")
	w.take(t, 40, "a fourth")
	w.Ask(&Save{Snapshot: second, Keep: 1, Score: &fair}, nil)
	eventually(t, "it has its score", func() bool { return w.State().Saved.has(second, &fair) })
	if got := scoresOf(t, kept, "1-20"); len(got) != 1 || got[0] != "accuracy_0.5" || w.State().Failure != "" {
		t.Errorf("beside it is %v, and it says %q", got, w.State().Failure)
	}
	other := newWorker(t) // which has saved nothing
	other.uploadBest(t, kept, 1, best)
	other.Ask(&Save{Snapshot: second, Keep: 1, Score: &good, Durable: true}, nil)
	eventually(t, "another one has put a score", func() bool { return other.State().Saved.has(second, &good) })
	if other.State().Saved.Path != "team/llama/uid/attempt-1/1-20" {
		t.Errorf("it is at %s", other.State().Saved.Path)
	}

	last := w.take(t, 50, "a fifth")
	w.Ask(&Save{Snapshot: last, Keep: 1}, nil)
	eventually(t, "the last is durable, and the second is one of the best", func() bool {
		places, err := filepath.Glob(filepath.Join(kept, "team/llama/uid/attempt-1/*/manifest.json"))
		return w.State().Saved.has(last, nil) && err == nil && len(places) == 2
	})
	if _, err := os.Stat(filepath.Join(kept, "team/llama/uid/attempt-1/1-20/manifest.json")); err != nil {
		t.Errorf("of two with a score of 0.75 the newer was to stay: %v", err)
	}
}

// The last of those who put parts puts the score as well, before the manifest.
func TestAScoreOfAStateInParts(t *testing.T) {
	const layout = ".2.0123456789abcdef"
	kept, good := t.TempDir(), -1e30
	w := newWorker(t)
	w.uploadBest(t, kept, 1, best)
	w.snapshots.Enter(1, 0, true, nil)
	parts := w.parts(t, 10, map[string]string{"s0" + layout: "one", "s1" + layout: "two", "r0" + layout: "own"})
	of := checkpoint.Snapshot{ID: checkpoint.ID{Round: 1, Step: 10}, Bytes: 3, Hash: checkpoint.Hash{1}}
	w.Ask(&Save{Snapshot: of, Keep: 1, Put: parts}, nil)
	eventually(t, "all is put", func() bool { return len(w.State().Put) == 3 })
	w.Ask(&Save{Snapshot: of, Keep: 1, Put: parts, Manifest: parts, Score: &good}, nil)
	eventually(t, "it is durable, with its score", func() bool { return w.State().Saved.has(of, &good) })
	if got := scoresOf(t, kept, "1-10"); len(got) != 1 || got[0] != "accuracy_-1e30" {
		t.Errorf("beside it is %v", got)
	}
}

// A score that cannot be put keeps no state from being made durable, and is told.
func TestAScoreThatIsRefused(t *testing.T) {
	kept, good := t.TempDir(), 1.0
	w := newWorker(t)
	w.upload(t, kept, 1) // which knows of no metric
	snapshot := w.take(t, 10, "state")
	w.Ask(&Save{Snapshot: snapshot, Keep: 1, Score: &good}, nil)
	eventually(t, "it is durable", func() bool { return w.State().Saved.has(snapshot, nil) })
	eventually(t, "it says what is missing", func() bool { return strings.Contains(w.State().Failure, "spec.checkpoint.storage.best") })
	if w.State().Saved.Score != nil {
		t.Error("it has a score")
	}
}

// Which checkpoints are the best is listed from the storage: those that are whole, of one state the newest, and again for another number.
func TestTheBestAreListed(t *testing.T) {
	kept := t.TempDir()
	w := newWorker(t)
	w.List(1) // which has to wait for the uploader
	w.uploadBest(t, kept, 1, score.Best{Metric: "accuracy", Keep: 2})
	eventually(t, "there are none", func() bool { return w.State().Listed.Number == 1 })
	if got := w.State().Listed.Best; len(got) != 0 {
		t.Errorf("of nothing %v are the best", got)
	}
	for _, one := range []struct {
		step  uint64
		score float64
	}{{10, 0.5}, {20, 0.75}, {30, 0.9}, {40, 0.25}} {
		snapshot := w.take(t, one.step, fmt.Sprint(one.step))
		w.Ask(&Save{Snapshot: snapshot, Keep: 4, Score: &one.score}, nil)
		eventually(t, "it is durable, with its score", func() bool { return w.State().Saved.has(snapshot, &one.score) })
	}
	at := func(step uint64, score float64) uploader.Kept {
		return uploader.Kept{Round: 1, Step: step, Path: fmt.Sprintf("team/llama/uid/attempt-1/1-%d", step), Score: score}
	}
	w.List(2)
	eventually(t, "they are listed", func() bool { return w.State().Listed.Number == 2 })
	if got := w.State().Listed.Best; !slices.Equal(got, []uploader.Kept{at(30, 0.9), at(20, 0.75)}) {
		t.Errorf("%v are the best", got)
	}
	if w.List(0); w.State().Listed.Number != 0 || w.State().Listed.Best != nil {
		t.Errorf("nobody asks any more, and %v are listed", w.State().Listed)
	}
	if err := os.RemoveAll(filepath.Join(kept, "team/llama/uid/attempt-1/1-30/data")); err != nil {
		t.Fatal(err)
	}
	w.List(3)
	eventually(t, "they are listed", func() bool { return w.State().Listed.Number == 3 })
	if got := w.State().Listed.Best; !slices.Equal(got, []uploader.Kept{at(20, 0.75), at(10, 0.5)}) {
		t.Errorf("%v are the best, and one is not whole", got)
	}
}

// Who cannot list the storage asks again until nobody wants to know any more.
func TestTheBestThatCannotBeListed(t *testing.T) {
	w := newWorker(t)
	w.upload(t, t.TempDir(), 1) // which knows of no metric
	w.List(1)
	eventually(t, "it has asked twice", func() bool { return w.notes.Load() >= 2 })
	if w.State().Listed.Number != 0 || w.State().Failure != "" {
		t.Errorf("it says %+v", w.State())
	}
}
