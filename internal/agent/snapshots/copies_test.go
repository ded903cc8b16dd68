package snapshots

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/checkpoint"
)

// A shard of another worker goes once a later state is relied on, before copies of one come that need its room.
func TestWhatIsNeedlessGoesBeforeCopiesCome(t *testing.T) {
	const ours, theirs = "d0.2.0123456789abcdef", "d1.2.0123456789abcdef"
	holder, other, _, at := holding(t)
	write := func(f *fixture, step uint64, part string) checkpoint.Snapshot {
		t.Helper()
		name := fmt.Sprintf("%d.part", step)
		if err := os.WriteFile(filepath.Join(f.Folder(), name), []byte(part), 0o600); err != nil {
			t.Fatal(err)
		}
		f.Take(1, step, []File{{Part: part, Name: name, Bytes: uint64(len(part))}}, false)
		f.settled()
		return f.List()[0]
	}
	first := write(holder, 4, theirs)
	other.Copy(first.State(), from(first, at))
	other.awaits(first.ID)
	last := write(other, 5, ours)
	other.Copy(checkpoint.ID{}, nil)
	other.settled()
	other.holds(last.ID, first.ID)
	other.Rely(last.State())
	for len(other.changed) > 0 {
		<-other.changed
	}
	other.Copy(last.State(), from(checkpoint.Snapshot{ID: checkpoint.ID{Round: 1, Step: 5, Part: theirs}, Bytes: 1}, at)) // which nobody has
	<-other.changed
	other.holds(last.ID)
}

// What is left to the program stays while copies come: each state has some, so a program would find nothing of which the memory is there.
func TestWhatIsLeftToTheProgramStaysBesideCopies(t *testing.T) {
	_, other, want, at := holding(t)
	for step := uint64(1); step <= 3; step++ {
		name := fmt.Sprintf("%d.part", step)
		if err := os.WriteFile(filepath.Join(other.Folder(), name), []byte("state"), 0o600); err != nil {
			t.Fatal(err)
		}
		other.Take(1, step, []File{{Part: "d0.2.0123456789abcdef", Name: name, Bytes: 5}}, true)
		other.settled()
	}
	spared := func() []string {
		names, err := filepath.Glob(filepath.Join(other.Folder(), "spare-*"))
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	before := spared()
	other.Copy(want.ID, from(want, at))
	other.awaits(want.ID)
	if after := spared(); len(before) != 1 || len(after) != 1 {
		t.Errorf("%v was left, and %v is once the copy is there", before, after)
	}
}

// awaits waits until a file is held.
func (f *fixture) awaits(id checkpoint.ID) {
	f.t.Helper()
	deadline := time.After(20 * time.Second)
	for !slices.ContainsFunc(f.List(), func(s checkpoint.Snapshot) bool { return s.ID == id }) {
		select {
		case <-f.changed:
		case <-deadline:
			f.t.Fatalf("held are %v", f.List())
		}
	}
}

// What another worker has alone is fetched while a world trains. A fetch for the next world does not end that, and what has
// failed is tried again when it is asked for again.
func TestCopiesOfWhatOthersHaveAlone(t *testing.T) {
	_, other, want, at := holding(t)
	broken := slices.Clone(at)
	broken[0].Ticket = nil
	other.Copy(want.ID, from(want, broken))
	<-other.changed
	if len(other.List()) > 0 {
		t.Fatalf("held are %v", other.List())
	}
	if of, why := other.Uncopied(); of != want.State() || !strings.Contains(why, "fetch snapshot 1-4") {
		t.Errorf("of %v it says %q", of, why)
	}
	other.Copy(want.ID, from(want, at))
	other.FetchAhead(nil)
	other.awaits(want.ID)
	if text, err := os.ReadFile(other.Path(want.ID)); err != nil || string(text) != "1-4.part" {
		t.Errorf("copied %q, %v", text, err)
	}
	if of, why := other.Uncopied(); why != "" {
		t.Errorf("of %v it says %q", of, why)
	}
	other.Copy(checkpoint.ID{}, nil)
	nowhere := open(t, "")
	nowhere.Copy(want.ID, from(want, at))
}

// Copies for which there is no room are not got with each directive, to be thrown away again: that costs others their links. Another state
// is tried at once.
func TestCopiesThatHaveNoRoomAreTriedOnceInAWhile(t *testing.T) {
	_, other, want, at := holding(t)
	if err := os.RemoveAll(other.Folder()); err != nil { // nothing can be written there
		t.Fatal(err)
	}
	tries := func(of checkpoint.ID) bool {
		other.Copy(of.State(), from(want, at))
		other.Keeper.mu.Lock()
		defer other.Keeper.mu.Unlock()
		return other.copying != nil
	}
	for try := range 3 {
		if !tries(want.ID) {
			t.Fatalf("it is not tried for the %d. time", try+1)
		}
		for other.isCopying() {
			<-other.changed
		}
		if tries(want.ID) {
			t.Fatalf("after %d tries it is tried again at once", try+1)
		}
		other.Keeper.mu.Lock()
		if left := time.Until(other.waits); left > firstWait<<try {
			t.Errorf("after %d tries it is tried again in %s", try+1, left)
		}
		other.waits = time.Now()
		other.Keeper.mu.Unlock()
	}
	if _, why := other.Uncopied(); !strings.Contains(why, checkpoint.ErrLocal.Error()) {
		t.Errorf("it says %q", why)
	}
	if newer := (checkpoint.ID{Round: 1, Step: 6}); !tries(newer) {
		t.Error("another state is not tried")
	}
}

func (f *fixture) isCopying() bool {
	f.Keeper.mu.Lock()
	defer f.Keeper.mu.Unlock()
	return f.copying != nil
}
