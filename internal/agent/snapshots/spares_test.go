package snapshots

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/concertina-dev/concertina/internal/checkpoint"
)

// What is pushed out while a checkpoint is brought back is left to nobody: the rest of that needs the room.
func TestNothingIsSparedWhileACheckpointIsBrought(t *testing.T) {
	k, err := Open(t.TempDir(), "127.0.0.1", t.Logf, func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = k.Close() }()
	step := uint64(0)
	spared := func() int {
		for range 3 {
			step++
			if err := os.WriteFile(filepath.Join(k.Folder(), "x.part"), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := k.store.Take(checkpoint.ID{Round: 1, Step: step}, "x.part", 1); err != nil {
				t.Fatal(err)
			}
		}
		k.trim(true)
		names, err := filepath.Glob(filepath.Join(k.Folder(), "spare-*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	file, err := k.Make()
	if err != nil {
		t.Fatal(err)
	}
	_ = file.Close()
	if n := spared(); n > 0 {
		t.Errorf("what is brought has to find room beside %d files", n)
	}
	k.Discard(filepath.Base(file.Name()))
	if n := spared(); n == 0 {
		t.Error("nothing is left once it is discarded")
	}
}
