package snapshots

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/concertina-dev/concertina/internal/checkpoint"
)

// What has come of a shard for a world is told to nobody, and is there until all processes have made a step, or
// another world has begun with another state.
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
	if other.PathOf(want[0]) == "" {
		t.Error("it is gone before all processes have made a step")
	}
	other.Began(2)
	gone("all processes have made a step")
	other.Enter(3, 4, false, &named)
	fetched()
	path := other.PathOf(want[0])
	other.Copy(named, from(want[0].Snapshot, at)) // now all of it comes, as soon as it was told where it is: programs may read it later
	other.awaits(want[0].ID)
	other.Began(2)
	other.settled()
	if _, err := os.Stat(path); err != nil {
		t.Errorf("it is gone before a step of the world: %v", err)
	}
	other.Began(3)
	other.settled()
	if names, _ := filepath.Glob(filepath.Join(other.Folder(), "fetch-*")); len(names) > 0 {
		t.Errorf("the world has made a step, and there are %v", names)
	}
	other.Forget(want[0].ID)
	other.Copy(checkpoint.ID{}, nil)
	fetched()
	other.Enter(4, 4, false, &named)
	other.settled()
	if other.PathOf(want[0]) == "" {
		t.Error("the next world begins with the same state, and what came of it is gone")
	}
	another := checkpoint.ID{Round: 1, Step: 3}
	other.Enter(5, 3, false, &another)
	gone("another world has begun, with another state")
}

// Who has no room for copies beside what its programs load says nothing: that goes with the first step, and copies come then.
func TestCopiesThatHaveNoRoomBesideWhatIsLoaded(t *testing.T) {
	holder, other, _, at := holding(t)
	data := bytes.Repeat([]byte("state"), 1<<20)
	if err := os.WriteFile(filepath.Join(holder.Folder(), "x.part"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	holder.Take(1, 4, []File{{Part: "d1.2.0123456789abcdef", Name: "x.part", Bytes: uint64(len(data))}}, false)
	holder.settled()
	want := from(holder.List()[0], at)
	want[0].Only = []checkpoint.Range{{From: 1 << 20, To: 1<<20 + 1}}
	named := want[0].State()
	other.Enter(2, 4, false, &named)
	done := make(chan error, 1)
	other.Fetch(want, func(err error) { done <- err })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	folder, aside := other.Folder(), other.Folder()+".aside"
	if err := os.Rename(folder, aside); err != nil { // nothing can be written there
		t.Fatal(err)
	}
	copies := from(want[0].Snapshot, at)
	other.Copy(named, copies)
	for other.isCopying() {
		<-other.changed
	}
	if _, why := other.Uncopied(); why != "" {
		t.Errorf("it says %s", why)
	}
	if err := os.Rename(aside, folder); err != nil {
		t.Fatal(err)
	}
	other.Copy(named, copies)
	if other.isCopying() {
		t.Error("it is tried again beside what is loaded")
	}
	other.Began(2)
	other.settled()
	other.Copy(named, copies)
	other.awaits(want[0].ID)
}
