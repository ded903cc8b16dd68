package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/checkpoint/storage"
	"github.com/concertina-dev/concertina/internal/score"
)

// partKeys are those of a state in parts; the last one is empty.
var partKeys = []string{"s0.3.0123456789abcdef", "s1.3.0123456789abcdef", "r0.3.0123456789abcdef", "s2.3.0123456789abcdef"}

// partsOf is a state in parts.
func partsOf(where storage.Place) (files []storage.File, contents [][]byte) {
	for i, size := range []int{9<<20 + 7, 1000, 300, 0} {
		data := state(100*where.Step+uint64(i), size)
		file := fileOf(where, data)[0]
		file.Key, file.Part = partKeys[i], partKeys[i]
		files, contents = append(files, file), append(contents, data)
	}
	return files, contents
}

func snapshotsOf(files []storage.File) []checkpoint.Snapshot {
	parts := make([]checkpoint.Snapshot, len(files))
	for i := range files {
		parts[i] = files[i].Snapshot
	}
	return parts
}

// saveParts puts some parts, all at once, and finishes.
func saveParts(ctx context.Context, s *storage.Storage, where storage.Place) error {
	files, _ := partsOf(where)
	var group errgroup.Group
	for _, file := range files {
		group.Go(func() error { return s.Put(ctx, where, file) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return s.Finish(ctx, where, snapshotsOf(files))
}

// partsWhole checks that all parts of a checkpoint are what was put.
func partsWhole(ctx context.Context, s *storage.Storage, where storage.Place) (err error) {
	reading, err := s.Read(ctx, where)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, reading.Close(ctx)) }()
	files, contents := partsOf(where)
	if keys := reading.Keys(); len(keys) != len(files) {
		return fmt.Errorf("it has the parts %v", keys)
	}
	for i := range files {
		got, err := os.CreateTemp("", "part")
		if err != nil {
			return err
		}
		_ = os.Remove(got.Name())
		err = reading.Load(ctx, files[i].Key, got)
		data, readErr := io.ReadAll(io.NewSectionReader(got, 0, 1<<40))
		if err = errors.Join(err, readErr, got.Close()); err != nil {
			return err
		}
		if snapshot, err := reading.Snapshot(files[i].Key); err != nil || snapshot.Hash != files[i].Hash || !bytes.Equal(data, contents[i]) {
			return fmt.Errorf("part %s has %d bytes (%w)", files[i].Key, len(data), err)
		}
	}
	return nil
}

func TestACheckpointInParts(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s *storage.Storage, root string) {
		where := place(1, 10)
		all, _ := partsOf(where)
		for _, file := range all[:3] {
			if err := s.Put(t.Context(), where, file); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Finish(t.Context(), where, snapshotsOf(all)); !errors.Is(err, storage.ErrNotFound) || !strings.Contains(err.Error(), all[3].Key) {
			t.Errorf("though a part was not put: %v", err)
		}
		if found := find(t, s, "team"); len(found) != 0 {
			t.Errorf("before it was finished there is %v", found)
		}
		if err := saveParts(t.Context(), s, where); err != nil {
			t.Fatal(err)
		}
		if err := partsWhole(t.Context(), s, where); err != nil {
			t.Error(err)
		}
		// Who finishes again knows of fewer ranks, or does so of another state.
		if err := s.Finish(t.Context(), where, snapshotsOf(all[:2])); err != nil {
			t.Errorf("it is finished again: %v", err)
		}
		other := all[1]
		other.Data, other.Hash = bytes.NewReader([]byte("else")), fileOf(where, []byte("else"))[0].Hash
		other.Bytes = 4
		if err := s.Put(t.Context(), where, other); err != nil {
			t.Fatal(err)
		}
		if err := s.Finish(t.Context(), where, []checkpoint.Snapshot{all[0].Snapshot, other.Snapshot}); err == nil {
			t.Error("another state was finished under the same name")
		}
		astray := all[0].Snapshot
		astray.Part = "../../7-7/parts/" + astray.Part
		if err := s.Finish(t.Context(), where, []checkpoint.Snapshot{astray}); !errors.Is(err, storage.ErrRefused) {
			t.Errorf("a part that is named by a path: %v", err)
		}
		wrong := all[0]
		wrong.Hash[0]++
		if err := s.Put(t.Context(), where, wrong); err == nil {
			t.Error("a file that is not what its hash says was put")
		}
		// What is older goes, with the records of its parts, and what was begun is begun again by nobody.
		begun := place(1, 5)
		older, _ := partsOf(begun)
		if err := s.Put(t.Context(), begun, older[0]); err != nil {
			t.Fatal(err)
		}
		save(t, s, place(1, 11), state(11, 100))
		if n, err := s.Collect(t.Context(), job, 1, score.Best{}); n != 2 || err != nil {
			t.Errorf("%d are deleted (%v)", n, err)
		}
		for _, gone := range []storage.Place{begun, where} {
			if left := files(t, filepath.Join(root, gone.Path())); len(left) > 0 {
				t.Errorf("of %s there is %v", gone.Path(), left)
			}
		}
		if err := s.Finish(t.Context(), where, snapshotsOf(all)); !errors.Is(err, storage.ErrDropped) {
			t.Errorf("what was deleted is finished: %v", err)
		}
	})
}

// Several put the same parts at once, as when one takes over from another that is slow, while one of them finishes and another
// one collects: whoever calls it durable is right.
func TestSeveralPutAtOnce(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	onEach(t, func(t *testing.T, s *storage.Storage, _ string) {
		for step := uint64(1); step <= 8; step++ {
			where := place(1, step)
			var group errgroup.Group
			group.Go(func() error { return saveParts(t.Context(), s, where) })
			all, _ := partsOf(where)
			for range random.IntN(3) {
				group.Go(func() error { return s.Put(t.Context(), where, all[0]) })
			}
			if random.IntN(2) == 0 {
				group.Go(func() error {
					_, err := s.Collect(t.Context(), job, 1, score.Best{})
					return err
				})
			}
			if err := group.Wait(); err != nil {
				t.Fatal(err)
			}
			if err := partsWhole(t.Context(), s, where); err != nil {
				t.Fatalf("the checkpoint of step %d is not whole: %v", step, err)
			}
		}
	})
}
