package checkpoint

import (
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/internal/share"
)

// gang are workers whose program writes its state in shares.
type gang struct {
	t      *rapid.T
	all    []*shardsOf
	copies int
}

// part writes what a worker has of a state, and drops what is to go then.
func (g *gang) part(rank int, step uint64) {
	w := g.all[rank]
	guest := step == 1
	w.write(step, share.Key{Rank: true, Index: rank}, ownBytes, guest)
	for i := range len(g.all) {
		if guest || i < g.copies {
			w.write(step, share.Key{Index: (rank + i) % len(g.all)}, shardBytes, guest)
		}
	}
	w.trim()
	w.step = step
}

// isWhole says whether some state is: each share is held by somebody, and so is what differs by some rank.
func (g *gang) isWhole() bool {
	own, shares := map[uint64]bool{}, map[uint64]map[int]bool{}
	for _, w := range g.all {
		for _, s := range w.store.List() {
			switch key, _ := share.Parse(s.Part); {
			case key.Rank:
				own[s.Step] = true
			case shares[s.Step] == nil:
				shares[s.Step] = map[int]bool{key.Index: true}
			default:
				shares[s.Step][key.Index] = true
			}
		}
	}
	for step, of := range shares {
		if own[step] && len(of) == len(g.all) {
			return true
		}
	}
	return false
}

// After a gang has moved it has the state from those who left. Whatever is relied on meanwhile, some state is always whole, of
// which some have not written theirs yet, and all that is kept has room.
func TestWhatAMovedGangKeepsOfShares(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		g := &gang{t: t, all: make([]*shardsOf, rapid.IntRange(1, 5).Draw(t, "workers"))}
		g.copies = rapid.IntRange(1, len(g.all)).Draw(t, "copies")
		for rank := range g.all {
			folder := filepath.Join(dir, string(rune('a'+rank)))
			if err := os.RemoveAll(folder); err != nil {
				t.Fatal(err)
			}
			store, err := Open(folder, 2)
			if err != nil {
				t.Fatal(err)
			}
			g.all[rank] = &shardsOf{t: t, store: store, workers: len(g.all), rank: rank}
			store.Rely(ID{Round: 1, Step: 1})
			g.part(rank, 1)
			g.all[rank].most = 0 // it loads no other state beside this one
		}
		ranks := make([]int, len(g.all))
		for rank := range ranks {
			ranks[rank] = rank
		}
		written := ownBytes + shardBytes*uint64(g.copies)
		size := share.Size{State: shardBytes*uint64(len(g.all)) + ownBytes, Own: ownBytes, Written: written}
		for step := uint64(2); step < 7; step++ {
			for _, rank := range rapid.Permutation(ranks).Draw(t, "who writes first") {
				g.part(rank, step)
				if room := max(size.Room(g.copies, false, false), size.State+written); g.all[rank].most > room {
					t.Fatalf("worker %d had %d bytes, in a volume of %d", rank, g.all[rank].most, room)
				}
				if !g.isWhole() {
					t.Fatalf("no state is whole once worker %d has written step %d", rank, step)
				}
			}
			if rapid.Bool().Draw(t, "it is relied on") {
				for _, w := range g.all {
					w.store.Rely(ID{Round: 1, Step: step})
				}
			}
		}
	})
}
