package storage

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/checkpoint"
)

// full is a folder on a volume that takes so many objects more.
type full struct {
	bucket

	mu         sync.Mutex
	left, made int
}

func (f *full) create(ctx context.Context, key string, data []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left == 0 {
		return fmt.Errorf("write %s: %w", key, syscall.ENOSPC)
	}
	err := f.bucket.create(ctx, key, data)
	if err == nil {
		f.left--
		f.made++
	}
	return err
}

// However little there is room for: nothing is called durable that is not, the one before it stays the newest, and once there is
// room what was written is not written again.
func TestAVolumeThatIsFull(t *testing.T) {
	const pieces = 3
	place := func(step uint64) Place {
		return Place{Job: Job{"team", "llama", "uid"}, Attempt: 1, ID: checkpoint.ID{Round: 1, Step: step}}
	}
	for room := range pieces + 1 { // one for each piece, and the manifest
		t.Run(fmt.Sprint(room, " objects"), func(t *testing.T) {
			opened, err := openFolder(&url.URL{Scheme: "file", Path: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			f := &full{bucket: opened, left: pieces + 1}
			s := &Storage{f, 0, newPace(time.Now)}
			defer func() { _ = s.Close() }()
			if err := s.Save(t.Context(), place(1), state(pieces)); err != nil {
				t.Fatal(err)
			}
			f.left, f.made = room, 0
			if err := s.Save(t.Context(), place(2), state(pieces)); !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("it says %v", err)
			}
			if found, err := s.Find(t.Context(), "team/llama"); err != nil || len(found) != 1 || found[0] != place(1) {
				t.Errorf("%v is found (%v)", found, err)
			}
			f.left = pieces + 1
			if err := s.Save(t.Context(), place(2), state(pieces)); err != nil || f.made != pieces+1 {
				t.Errorf("%d objects were made: %v", f.made, err)
			}
			if found, err := s.Find(t.Context(), "team/llama"); err != nil || len(found) != 2 || found[0] != place(2) {
				t.Errorf("%v is found (%v)", found, err)
			}
		})
	}
}
