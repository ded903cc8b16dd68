package snapshots

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/concertina-dev/concertina/internal/checkpoint"
)

// What has come of a shard for a world is told to nobody, and is there until the world has made a step, or is over.
func TestWhatCameOfAShard(t *testing.T) {
	const theirs, ours = "d1.2.0123456789abcdef", "d0.2.0123456789abcdef"
	holder, other, _, at := holding(t)
	data := bytes.Repeat([]byte("state"), 1<<20)
	write := func(f *fixture, round, step uint64, part string, data []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(f.Folder(), "x.part"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		f.Take(round, step, []File{{Part: part, Name: "x.part", Bytes: uint64(len(data))}}, false)
		f.settled()
	}
	write(holder, 1, 4, theirs, data)
	want := from(holder.List()[0], at)
	want[0].Only = []checkpoint.Range{{From: 1 << 20, To: 1<<20 + 1}}
	named := want[0].State()
	gone := func(why string) {
		t.Helper()
		other.settled()
		if got := other.PathOf(want[0]); got != "" {
			t.Errorf("%s, and it is there still", why)
		}
		if names, _ := filepath.Glob(filepath.Join(other.Folder(), "fetch-*")); len(names) > 0 {
			t.Errorf("%s, and there are %v", why, names)
		}
	}
	fetched := func() {
		t.Helper()
		done := make(chan error, 1)
		other.Fetch(want, func(err error) { done <- err })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(other.PathOf(want[0]))
		if err != nil || len(got) != len(data) || got[1<<20] != data[1<<20] {
			t.Fatalf("%d bytes have come, %v", len(got), err)
		}
		other.settled()
		for _, held := range other.List() {
			if held.Part == theirs {
				t.Errorf("it is told of: %v", held)
			}
		}
		if other.Has(want[0].Snapshot) || other.Path(want[0].ID) != "" {
			t.Error("it counts as held")
		}
	}
	other.Enter(2, 4, false, &named)
	fetched()
	write(other, 2, 4, ours, []byte("as it began"))
	if other.PathOf(want[0]) == "" {
		t.Error("it is gone before the world has made a step")
	}
	write(other, 2, 5, ours, []byte("after a step"))
	gone("the world has made a step")
	other.Enter(3, 4, false, &named)
	fetched()
	other.Copy(named, from(want[0].Snapshot, at)) // now all of it comes
	other.awaits(want[0].ID)
	if names, _ := filepath.Glob(filepath.Join(other.Folder(), "fetch-*")); len(names) > 0 {
		t.Errorf("beside the copy there are %v", names)
	}
	other.Forget(want[0].ID)
	other.Copy(checkpoint.ID{}, nil)
	fetched()
	other.Enter(4, 4, false, &named)
	gone("another world has begun")
}
