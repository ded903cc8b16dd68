package checkpoint

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/internal/share"
)

// shardsOf is a worker whose program writes its shard of one state after another, and gets copies of some that others have.
type shardsOf struct {
	t             *rapid.T
	store         *Store
	rank, workers int
	copies        int
	// step is that of the newest state, copied and relied are those that the job says; 0 for none.
	step, copied, relied uint64
	most                 uint64
}

const (
	shardBytes, ownBytes = 100, 10
	layout               = "0123456789abcdef"
)

// write puts a file of so many bytes into the store.
func (w *shardsOf) write(step uint64, key share.Key, size int, guest bool) {
	key.Of, key.Layout = w.workers, layout
	id := ID{Round: 1, Step: step, Part: key.String()}
	name := fmt.Sprintf("%d.%v.part", step, key)
	err := os.WriteFile(filepath.Join(w.store.Directory(), name), bytes.Repeat([]byte{byte(step)}, size), 0o600)
	if err != nil {
		w.t.Fatal(err)
	}
	w.look()
	bytes, blocks, err := w.store.inspect(name)
	if err == nil {
		file := heldAs(id, bytes, blocks)
		file.guest = guest
		_, err = w.store.enter(file, name, true)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// holds says whether the shard of a rank is held.
func (w *shardsOf) holds(step uint64, rank int) bool {
	key := share.Key{Shard: true, Index: rank % w.workers, Of: w.workers, Layout: layout}
	_, ok := w.store.Path(ID{Round: 1, Step: step, Part: key.String()})
	return ok
}

// look measures what there is.
func (w *shardsOf) look() {
	entries, err := os.ReadDir(w.store.Directory())
	if err != nil {
		w.t.Fatal(err)
	}
	var all uint64
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			w.t.Fatal(err)
		}
		all += uint64(info.Size())
	}
	w.most = max(w.most, all)
}

// holdsOwn says whether what differs by some rank is held, without which a state is not whole.
func (w *shardsOf) holdsOwn(step uint64) bool {
	return slices.ContainsFunc(w.store.List(), func(s Snapshot) bool {
		key, ok := share.Parse(s.Part)
		return ok && key.Rank && s.Step == step
	})
}

// begin has a world begin with a state that comes from others, and is relied on.
func (w *shardsOf) begin() {
	w.step, w.relied = 1, 1
	w.store.Rely(ID{Round: 1, Step: 1})
	w.write(1, share.Key{Rank: true, Index: w.workers - 1}, ownBytes, true)
	for i := range w.copies {
		w.write(1, share.Key{Shard: true, Index: (w.rank + i) % w.workers}, shardBytes, true)
	}
	w.trim()
}

func (w *shardsOf) trim() {
	if err := w.store.Trim(false); err != nil {
		w.t.Fatal(err)
	}
}

func (w *shardsOf) save(*rapid.T) {
	w.step++
	w.write(w.step, share.Key{Rank: true, Index: w.rank}, ownBytes, false)
	w.write(w.step, share.Key{Shard: true, Index: w.rank}, shardBytes, false)
	w.trim()
}

// copy has the newest state be copied, and the copies come; once all have them it is relied on.
func (w *shardsOf) copy(t *rapid.T) {
	if w.step == 0 {
		return
	}
	if w.copied == 0 {
		w.copied = w.step
		w.store.Copy(ID{Round: 1, Step: w.copied})
		return
	}
	for i := 1; i < w.copies; i++ {
		if !w.holds(w.copied, w.rank+i) {
			w.trim() // before the first of them comes
			w.write(w.copied, share.Key{Shard: true, Index: (w.rank + i) % w.workers}, shardBytes, true)
		}
	}
	if rapid.Bool().Draw(t, "all have theirs") {
		// One directive says both.
		w.relied, w.copied = w.copied, w.step
		w.store.Rely(ID{Round: 1, Step: w.relied})
		w.store.Copy(ID{Round: 1, Step: w.copied})
	}
}

// What a worker keeps, while it writes more, has room in a volume of that size, and what is relied on is among it.
func TestWhatIsKeptOfShardsHasRoom(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		if err := os.RemoveAll(filepath.Join(dir, "snapshots")); err != nil {
			t.Fatal(err)
		}
		store, err := Open(filepath.Join(dir, "snapshots"), 2)
		if err != nil {
			t.Fatal(err)
		}
		w := &shardsOf{t: t, store: store, workers: rapid.IntRange(2, 8).Draw(t, "workers")}
		w.rank, w.copies = rapid.IntRange(0, w.workers-1).Draw(t, "rank"), rapid.IntRange(1, w.workers).Draw(t, "copies")
		if rapid.Bool().Draw(t, "a newcomer") {
			w.begin()
		}
		size := share.Size{State: shardBytes*uint64(w.workers) + ownBytes, Own: ownBytes, Shards: shardBytes * uint64(w.workers), Written: shardBytes + ownBytes}
		t.Repeat(map[string]func(*rapid.T){"save": w.save, "copy": w.copy, "": func(t *rapid.T) {
			if room := size.Room(w.copies, false, false); w.most > room {
				t.Fatalf("there were %d bytes, in a volume of %d", w.most, room)
			}
			if w.relied > 0 && !w.holdsOwn(w.relied) {
				t.Fatalf("of step %d, which is relied on, there is nothing that differs by rank: %v", w.relied, store.List())
			}
			for i := range w.copies {
				if w.relied > 0 && !w.holds(w.relied, w.rank+i) {
					t.Fatalf("of step %d, which is relied on, there are %v", w.relied, store.List())
				}
			}
		}})
	})
}
