package durable

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/concertina-dev/concertina/internal/checkpoint"
)

const cut = ".2.0123456789abcdef"

// keptInShards has checkpoints of two steps in a folder, each of two shards and what differs by rank, and returns their parts.
func keptInShards(t *testing.T, kept string) (parts map[uint64][]checkpoint.Snapshot) {
	t.Helper()
	w := newWorker(t)
	w.upload(t, kept, 1)
	w.snapshots.Enter(1, 0, true, nil)
	parts = map[uint64][]checkpoint.Snapshot{}
	for step := uint64(1); step <= 2; step++ {
		of := strings.Repeat("x", int(step))
		held := w.parts(t, step, map[string]string{"d0" + cut: "zero" + of, "d1" + cut: "one" + of, "r0" + cut: "own" + of})
		parts[step] = slices.Clone(held)
		snapshot := checkpoint.Snapshot{ID: checkpoint.ID{Round: 1, Step: step}, Hash: checkpoint.Hash{byte(step)}}
		w.Ask(&Save{Snapshot: snapshot, Keep: 2, Put: held, Manifest: held}, nil)
		eventually(t, "it is durable", func() bool { return w.State().Saved != nil && w.State().Saved.Snapshot == snapshot })
	}
	return parts
}

// restored has an order carried out.
func (w *worker) restored(t *testing.T, order Restore) Restored {
	t.Helper()
	w.Ask(nil, &order)
	eventually(t, "an order is carried out", func() bool { return w.State().Restored.Number == order.Number })
	return w.State().Restored
}

// held are the parts that lie in the worker's folder, whatever world it is in.
func (w *worker) held(t *testing.T) (names []string) {
	t.Helper()
	for _, entry := range entries(t, w) {
		names = append(names, entry.Name())
	}
	return names
}

// Who looks leaves the shards where they are, and says what there is. Then a worker brings those that it is told, and what it has
// by then is not read again.
func TestAPortionOfACheckpoint(t *testing.T) {
	kept := t.TempDir()
	parts := keptInShards(t, kept)[2]
	w := newWorker(t)
	w.upload(t, kept, 2)
	looked := w.restored(t, Restore{Number: 1, Apart: true})
	if len(looked.Parts) != 1 || looked.Parts[0].Part != "r0"+cut || len(looked.Of) != 3 || looked.Why != "" {
		t.Fatalf("who looks says %+v", looked)
	}
	for _, part := range parts {
		if !slices.Contains(looked.Of, part) {
			t.Errorf("%v is not named", part)
		}
	}
	const own, first, second = "1-2.r0" + cut, "1-2.d0" + cut, "1-2.d1" + cut
	if held := w.held(t); !slices.Equal(held, []string{own}) {
		t.Errorf("it holds %v", held)
	}
	portion := slices.DeleteFunc(slices.Clone(parts), func(p checkpoint.Snapshot) bool { return p.Part == "d0"+cut })
	brought := w.restored(t, Restore{Number: 2, Path: looked.Path, Parts: portion})
	if len(brought.Parts) != 2 || !slices.Contains(brought.Parts, portion[0]) || !slices.Contains(brought.Parts, portion[1]) || brought.Of != nil {
		t.Errorf("it has brought %+v", brought)
	}
	if held := w.held(t); !slices.Equal(held, []string{second, own}) {
		t.Errorf("it holds %v", held)
	}
	// The storage may be gone by then: all of it is here.
	if err := os.RemoveAll(kept); err != nil {
		t.Fatal(err)
	}
	if again := w.restored(t, Restore{Number: 3, Path: looked.Path, Parts: portion}); len(again.Parts) != 2 || again.Snapshot == nil || again.Snapshot.Step != 2 {
		t.Errorf("once more it has %+v", again)
	}
	if held := w.held(t); slices.Contains(held, first) {
		t.Errorf("it holds %v", held)
	}
}

// A portion that is not what it was is refused; what was brought of its checkpoint goes when another one is looked for.
func TestAPortionThatIsDamaged(t *testing.T) {
	kept := t.TempDir()
	parts := keptInShards(t, kept)
	w := newWorker(t)
	w.upload(t, kept, 2)
	looked := w.restored(t, Restore{Number: 1, Apart: true})
	other := parts[1][0]
	other.Step = 2
	refused := w.restored(t, Restore{Number: 2, Path: looked.Path, Parts: []checkpoint.Snapshot{other}})
	if refused.Snapshot != nil || len(refused.Refused) != 1 || !strings.Contains(refused.Refused[0], "it has no part") {
		t.Errorf("what it has not brings %+v", refused)
	}
	if refused.Path != looked.Path {
		t.Errorf("what was refused is %q, not %q", refused.Path, looked.Path)
	}
	const nowhere = "team/llama/uid/attempt-1/1-9"
	if gone := w.restored(t, Restore{Number: 3, Path: nowhere, Parts: parts[1]}); gone.Snapshot != nil || gone.Why != "" || gone.Path != nowhere {
		t.Errorf("a checkpoint that is not there brings %+v", gone)
	}
	for _, path := range []string{"team/llama/other/attempt-1/1-2", "team", "", "team/llama/uid/../other", "team/other/uid/../../llama/uid"} {
		if other := w.restored(t, Restore{Number: uint64(10 + len(path)), Path: path, Parts: parts[2]}); !strings.Contains(other.Why, "cannot be asked") {
			t.Errorf("from %q comes %+v", path, other)
		}
	}
	before := w.restored(t, Restore{Number: 5, Apart: true, Without: []string{looked.Path}})
	if before.Snapshot == nil || before.Snapshot.Step != 1 || before.Path == looked.Path {
		t.Errorf("besides %s there is %+v", looked.Path, before)
	}
	if held := w.held(t); !slices.Equal(held, []string{"1-1.r0" + cut}) {
		t.Errorf("it holds %v", held)
	}
	if left, err := filepath.Glob(filepath.Join(w.snapshots.Folder(), "restore-*")); err != nil || len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}
