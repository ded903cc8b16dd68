package share

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"
)

func TestVolumes(t *testing.T) {
	const mib, gib = 1 << 20, 1 << 30
	for name, test := range map[string]struct {
		size            Size
		workers, copies int
		stored          bool
		want            uint64
	}{
		"a share of a large state":                 {Size{State: gib}, 4, 2, false, 1632 * mib},
		"a newcomer loads all shares":              {Size{State: 8 * gib}, 32, 2, false, 9248 * mib},
		"with a storage, one whole state":          {Size{State: gib}, 4, 2, true, 2176 * mib},
		"with a storage, one that is uploaded":     {Size{State: gib}, 2, 2, true, 4352 * mib},
		"one worker writes all":                    {Size{State: gib}, 1, 2, false, 3264 * mib},
		"no shares":                                {Size{State: gib, Own: gib}, 4, 2, false, 3264 * mib},
		"what differs by rank comes with each":     {Size{State: gib + 64*mib, Own: 64 * mib}, 4, 2, false, 1840 * mib},
		"more copies than workers":                 {Size{State: gib}, 2, 8, false, 3264 * mib},
		"more workers than shares":                 {Size{State: 32 * gib}, 64, 2, false, 35904 * mib},
		"nodes with unlike numbers of workers":     {Size{State: gib, Written: gib}, 4, 2, false, 3264 * mib},
		"a small state":                            {Size{State: 100, Own: 100}, 4, 2, false, 16 * mib},
		"nobody knows":                             {Size{}, 4, 2, false, 0},
		"more than there can be is reckoned with":  {Size{State: math.MaxUint64, Own: math.MaxUint64, Written: math.MaxUint64}, 4, 2, true, 17 << 48},
		"a shard, and what is kept of others":      {Size{State: 4 * gib, Shards: 4 * gib}, 4, 2, false, 7616 * mib},
		"a shard, and what differs by rank":        {Size{State: 4*gib + 64*mib, Own: 64 * mib, Shards: 4 * gib}, 4, 2, false, 7968 * mib},
		"shards on three nodes":                    {Size{State: 4 * gib, Shards: 4 * gib}, 4, 3, false, 9792 * mib},
		"shards of more workers than copies":       {Size{State: 4 * gib, Shards: 4 * gib}, 2, 3, false, 15232 * mib},
		"all shards, which four workers load":      {Size{State: 4 * gib, Shards: 4 * gib}, 4, 2, true, 9792 * mib},
		"shards, of which nobody has room for all": {Size{State: 4 * gib, Shards: 4 * gib}, 16, 2, true, 2448 * mib},
		"a shard that is uploaded":                 {Size{State: 4 * gib, Shards: 4 * gib}, 2, 2, true, 17408 * mib},
		"a share is not more than the whole state": {Size{State: 20 * mib}, 31, 30, false, 64 * mib},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.size.Volume(test.workers, test.copies, test.stored, false); got != test.want {
				t.Errorf("%d MiB are right, %d MiB were chosen", test.want/mib, got/mib)
			}
		})
	}
}

// What a worker needs is told by SDKs as well, when there is no room. The file was not written by this code.
func TestRoom(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "testdata", "room.json"))
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Size
		Copies int
		Stored bool
		Room   uint64
	}
	if err := json.Unmarshal(text, &vectors); err != nil || len(vectors) == 0 {
		t.Fatalf("room.json has %d vectors: %v", len(vectors), err)
	}
	for _, v := range vectors {
		if got := v.Size.Room(v.Copies, v.Stored, false); got != v.Room {
			t.Errorf("%d bytes for %+v", got, v)
		}
		want := v.Room
		if v.Stored {
			want += v.Written // of one that was evaluated well, and waits
		}
		if got := v.Size.Room(v.Copies, v.Stored, true); got != want {
			t.Errorf("%d bytes for %+v whose best are kept", got, v)
		}
	}
}

// A volume has room for what Assign gives anybody to write, where all nodes have as many workers.
func TestWhatIsAssignedHasRoom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes, each := rapid.IntRange(1, 20).Draw(t, "nodes"), rapid.IntRange(1, 6).Draw(t, "each")
		copies := rapid.IntRange(1, 8).Draw(t, "copies")
		size := Size{State: rapid.Uint64Range(16<<20, 64<<30).Draw(t, "state")}
		size.Own = rapid.Uint64Range(0, size.State-16<<20).Draw(t, "own")
		var places []Place
		for range each {
			for node := range nodes {
				places = append(places, Place{Node: fmt.Sprint(node)})
			}
		}
		of, shares := Assign(places, copies)
		volume, whole := size.Volume(len(places), copies, false, false), size.Volume(1, copies, false, false)
		if volume > whole {
			t.Fatalf("%d bytes are more than the %d of a worker that writes everything", volume, whole)
		}
		for rank := range shares {
			written := size.State
			if of > 1 {
				blocks := (size.State - size.Own + 1<<20 - 1) >> 20
				written = size.Own
				for _, i := range shares[rank] {
					written += (blocks*uint64(i+1)/uint64(of) - blocks*uint64(i)/uint64(of)) << 20
				}
			}
			// Of a world whose workers have one share more than they must it is known once it has written.
			seen := Size{State: size.State, Own: size.Own, Written: written}
			needs := seen.Room(copies, false, false)
			if room := seen.Volume(len(places), copies, false, false); room < needs || room < volume {
				t.Fatalf("worker %d of %d writes %d bytes, and has room for %d", rank, len(places), written, room)
			}
			if len(shares[rank])*len(places) <= of*min(copies, len(places)) && volume < needs && written <= size.State {
				t.Fatalf("worker %d of %d writes %d bytes, no more than others, and has room for %d", rank, len(places), written, volume)
			}
			if len(places) > 1 && volume < size.State {
				t.Fatalf("worker %d of %d loads %d bytes, and has room for %d", rank, len(places), size.State, volume)
			}
		}
	})
}
