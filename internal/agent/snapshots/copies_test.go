package snapshots

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/checkpoint"
)

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
	other.Copy(want.ID, from(want, at))
	other.FetchAhead(nil)
	other.awaits(want.ID)
	if text, err := os.ReadFile(other.Path(want.ID)); err != nil || string(text) != "1-4.part" {
		t.Errorf("copied %q, %v", text, err)
	}
	other.Copy(checkpoint.ID{}, nil)
	nowhere := open(t, "")
	nowhere.Copy(want.ID, from(want, at))
}
