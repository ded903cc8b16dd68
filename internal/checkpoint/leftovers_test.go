package checkpoint

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// What a program has begun to write is told from snapshots, and from what is fetched or about to be removed.
func TestLeftovers(t *testing.T) {
	store, err := Open(t.TempDir(), 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"17.3-0.part", "fetch-1.part", "drop-2.part", "restore-3.part", "pin-4.part", "3-16", "notes"} {
		if err := os.WriteFile(filepath.Join(store.Directory(), name), []byte("state"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := store.Leftovers()
	if want := []string{"17.3-0.part"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("left over are %v (%v), want %v", got, err, want)
	}
}
