package storage

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/checkpoint/storage"
	"github.com/concertina-dev/concertina/internal/score"
)

var job = storage.Job{Namespace: "team", Name: "llama", UID: "8f0e9f52-8c4c-4d62-9a39-0d6c6c1f6f55"}

func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// place is the checkpoint of a step.
func place(round, step uint64) storage.Place {
	return storage.Place{Job: job, Attempt: 1, ID: checkpoint.ID{Round: round, Step: step}}
}

// state is the state after a step: the same bytes each time.
func state(step uint64, size int) []byte {
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(step), byte(step >> 8), byte(step >> 16)}).Read(data)
	return data
}

func fileOf(where storage.Place, data []byte) []storage.File {
	hash := checkpoint.NewHasher()
	_, _ = hash.Write(data)
	snapshot := checkpoint.Snapshot{ID: where.ID, Bytes: uint64(len(data)), Hash: hash.Sum()}
	return []storage.File{{Key: "state", Data: bytes.NewReader(data), Snapshot: snapshot}}
}

// onEach runs a test with a folder and with the S3 server. root is where the objects lie, as files.
func onEach(t *testing.T, test func(t *testing.T, s *storage.Storage, root string)) {
	server := startS3(t)
	folder := t.TempDir()
	for _, backend := range []struct{ name, url, root string }{
		{"folder", "file://" + folder, folder},
		{"S3", url(server.address, "some/prefix"), filepath.Join(server.root, bucketName, "some/prefix")},
	} {
		t.Run(backend.name, func(t *testing.T) { test(t, open(t, backend.url), backend.root) })
	}
}

func open(t *testing.T, url string) *storage.Storage {
	t.Helper()
	s, err := storage.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func save(t *testing.T, s *storage.Storage, where storage.Place, data []byte) {
	t.Helper()
	if err := s.Save(t.Context(), where, fileOf(where, data)); err != nil {
		t.Fatal(err)
	}
}

// load reads a checkpoint's only part.
func load(t *testing.T, s *storage.Storage, where storage.Place) ([]byte, error) {
	t.Helper()
	reading, err := s.Read(t.Context(), where)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err := reading.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	file, err := os.Create(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if err := reading.Load(t.Context(), "state", file); err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(file, 0, 1<<40))
}

func find(t *testing.T, s *storage.Storage, path string) []storage.Place {
	t.Helper()
	places, err := s.Find(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return places
}

func TestWhatIsSavedComesBack(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s *storage.Storage, _ string) {
		if err := s.Check(t.Context(), job); err != nil {
			t.Fatal(err)
		}
		if found := find(t, s, "team"); len(found) != 0 {
			t.Errorf("before anything was saved there is %v", found)
		}
		for step, size := range []int{0, 1, 8<<20 - 1, 8 << 20, 8<<20 + 1, 40 << 20} {
			where := place(3, uint64(step))
			data := state(uint64(step), size)
			save(t, s, where, data)
			if got, err := load(t, s, where); err != nil || !bytes.Equal(got, data) {
				t.Errorf("of %d bytes %d come back, and they are the same: %v (%v)", size, len(got), bytes.Equal(got, data), err)
			}
			save(t, s, where, data)
			if found := find(t, s, "team/llama"); len(found) != step+1 || found[0] != where {
				t.Errorf("%v is found, and the newest should be %v", found, where)
			}
		}
		other := place(3, 5)
		if err := s.Save(t.Context(), other, fileOf(other, state(77, 1000))); err == nil {
			t.Error("another state was saved under the name of one that is there")
		}
	})
}

func TestCollectKeepsWhatIsNeeded(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s *storage.Storage, root string) {
		// Round 2 went back to step 5, and went on from there: round first.
		for _, where := range []storage.Place{place(1, 10), place(1, 20), place(2, 8), place(2, 12), place(3, 13)} {
			save(t, s, where, state(where.Step, 1000))
		}
		read, err := s.Read(t.Context(), place(1, 10))
		if err != nil {
			t.Fatal(err)
		}
		unfinished := place(2, 9).Path()
		remove(t, filepath.Join(root, place(2, 8).Path(), "manifest.json"))
		copyFolder(t, filepath.Join(root, place(2, 8).Path(), "data"), filepath.Join(root, unfinished, "data"))
		begun := place(4, 14).Path()
		copyFolder(t, filepath.Join(root, place(3, 13).Path(), "data"), filepath.Join(root, begun, "data"))
		if _, err := s.Collect(t.Context(), job, 2, score.Best{}); err != nil {
			t.Fatal(err)
		}
		if found := find(t, s, "team/llama"); len(found) != 3 || found[0] != place(3, 13) || found[1] != place(2, 12) || found[2] != place(1, 10) {
			t.Errorf("%v is left: not the newest two and the one that is being read", found)
		}
		for path, want := range map[string]bool{begun: true, unfinished: false, place(2, 8).Path(): false, place(1, 20).Path(): false} {
			if there := files(t, filepath.Join(root, path)); want != (len(there) > 0) {
				t.Errorf("of %s there is %v", path, there)
			}
		}
		if err := read.Load(t.Context(), "state", discard{}); err != nil {
			t.Error(err)
		}
		if err := read.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if n, err := s.Collect(t.Context(), job, 2, score.Best{}); n != 1 || err != nil {
			t.Errorf("once it is read to the end, %d are deleted (%v)", n, err)
		}
		if err := s.Save(t.Context(), place(1, 20), fileOf(place(1, 20), state(20, 1000))); !errors.Is(err, storage.ErrDropped) {
			t.Errorf("an older one than the newest was saved again: %v", err)
		}
	})
}

// The best by their scores stay beside the newest, whatever else does, and of equals the newest.
func TestCollectKeepsTheBest(t *testing.T) {
	onEach(t, func(t *testing.T, s *storage.Storage, root string) {
		highest, lowest := score.Best{Metric: "accuracy", Keep: 2}, score.Best{Metric: "loss", Lowest: true, Keep: 1}
		for step, accuracy := range map[uint64]float64{1: 0.5, 2: 1e-7, 3: 0.9, 4: 0.9, 5: -3e30, 8: 0.2} {
			if err := s.Score(t.Context(), place(1, step), "accuracy", accuracy); err != nil { // before it is there
				t.Fatal(err)
			}
		}
		for step := uint64(1); step <= 8; step++ {
			save(t, s, place(1, step), state(step, 1000))
		}
		for step, loss := range map[uint64]float64{2: 0.25, 3: 1.5e9} {
			for range 2 { // and once more changes nothing
				if err := s.Score(t.Context(), place(1, step), "loss", loss); err != nil {
					t.Fatal(err)
				}
			}
		}
		left := func(keep int, best score.Best) (steps []uint64) {
			if _, err := s.Collect(t.Context(), job, keep, best); err != nil {
				t.Fatal(err)
			}
			for _, where := range find(t, s, "team/llama") {
				steps = append(steps, where.Step)
			}
			return steps
		}
		remove(t, filepath.Join(root, place(1, 4).Path(), "data", files(t, filepath.Join(root, place(1, 4).Path(), "data"))[0]))
		// That one is not whole has nobody delete it as long as it is not old.
		if got := left(5, highest); !slices.Equal(got, []uint64{8, 7, 6, 5, 4, 3, 1}) {
			t.Errorf("%v are left of 8: the newest 5 whole ones, and the best 2, of which one is not among them, were to be", got)
		}
		if got := left(2, highest); !slices.Equal(got, []uint64{8, 7, 3, 1}) {
			t.Errorf("%v are left: the newest 2, and the best 2, were to be", got)
		}
		if got := left(1, lowest); !slices.Equal(got, []uint64{8, 3}) {
			t.Errorf("%v are left: the newest, and the one with the lowest loss, were to be", got)
		}
		if got := left(1, score.Best{}); !slices.Equal(got, []uint64{8}) {
			t.Errorf("%v are left: the newest was to be", got)
		}
		if there := files(t, filepath.Join(root, place(1, 3).Path())); len(there) > 0 {
			t.Errorf("of one that was deleted there is %v", there)
		}
		for _, bad := range []struct {
			metric string
			value  float64
		}{{"", 1}, {"a/b", 1}, {strings.Repeat("a", 33), 1}, {"a", math.NaN()}, {"a", math.Inf(-1)}} {
			if err := s.Score(t.Context(), place(1, 8), bad.metric, bad.value); !errors.Is(err, storage.ErrRefused) {
				t.Errorf("the score %v was taken: %v", bad, err)
			}
		}
	})
}

// What bad names are put there by somebody does no harm.
func TestScoresThatAreNone(t *testing.T) {
	onEach(t, func(t *testing.T, s *storage.Storage, root string) {
		for step := range uint64(3) {
			save(t, s, place(1, step), state(step, 1000))
		}
		folder := filepath.Join(root, place(1, 0).Path(), "scores")
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"accuracy", "_1", "accuracy_", "accuracy_NaN", "accuracy_Inf", "accuracy_1e999", "accuracy_0x1p4", "accuracy_01", "accuracy_1_000"} {
			if err := os.WriteFile(filepath.Join(folder, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.Collect(t.Context(), job, 1, score.Best{Metric: "accuracy", Keep: 16}); err != nil {
			t.Fatal(err)
		}
		if found := find(t, s, "team/llama"); len(found) != 1 || found[0] != place(1, 2) {
			t.Errorf("%v is left, and none but the newest has a score", found)
		}
	})
}

func TestDamageIsRefused(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s *storage.Storage, root string) {
		data := state(1, 20<<20)
		for step := range uint64(6) {
			save(t, s, place(1, step), data)
		}
		folder := func(step uint64) string { return filepath.Join(root, place(1, step).Path()) }
		pieces := files(t, filepath.Join(folder(5), "data"))
		altered := filepath.Join(folder(5), "data", pieces[0])
		content := read(t, altered)
		content[len(content)/2] ^= 1
		write(t, altered, content)
		remove(t, filepath.Join(folder(4), "data", pieces[1]))
		write(t, filepath.Join(folder(3), "data", pieces[1]), []byte("short"))
		rewrite(t, folder(2), func(m map[string]any) { m["version"] = 4 })
		rewrite(t, folder(1), func(m map[string]any) { m["step"] = 7 })
		for step, words := range map[uint64]string{
			5: "not those that were written", 4: "is not there", 3: "another size", 2: "newer version", 1: "it speaks of",
		} {
			kind := storage.ErrDamaged
			if words == "newer version" {
				kind = storage.ErrNewer
			}
			_, err := load(t, s.WithPatience(time.Millisecond), place(1, step))
			// The server itself may see that somebody has altered what lies below it.
			if altered := err != nil && strings.Contains(err.Error(), "checksum did not match"); altered && errors.Is(err, storage.ErrDamaged) {
				continue
			}
			if !errors.Is(err, kind) || !strings.Contains(err.Error(), words) {
				t.Errorf("step %d: %v, where %q was to be read", step, err, words)
			}
		}
		if got, err := load(t, s, place(1, 0)); err != nil || !bytes.Equal(got, data) {
			t.Errorf("the one before them cannot be read: %v", err)
		}
		if _, err := s.Collect(t.Context(), job, 1, score.Best{}); err != nil {
			t.Error(err)
		}
		if _, err := s.Read(t.Context(), place(1, 5)); err != nil {
			t.Errorf("the newest, which looks whole, was deleted: %v", err)
		}
	})
}

func TestAccessIsCheckedAndNamed(t *testing.T) {
	server := startS3(t)
	t.Run("bucket", func(t *testing.T) {
		s := open(t, strings.Replace(url(server.address, ""), bucketName, "no-such-bucket", 1))
		if err := s.Check(t.Context(), job); !errors.Is(err, storage.ErrRefused) || !strings.Contains(err.Error(), "no such bucket") {
			t.Error(err)
		}
	})
	t.Run("credentials", func(t *testing.T) {
		t.Setenv("AWS_SECRET_ACCESS_KEY", "another")
		s := open(t, url(server.address, ""))
		if err := s.Check(t.Context(), job); !errors.Is(err, storage.ErrRefused) || !strings.Contains(err.Error(), "SignatureDoesNotMatch") {
			t.Error(err)
		}
	})
	t.Run("region", func(t *testing.T) {
		t.Setenv("AWS_REGION", "")
		s := open(t, url(server.address, ""))
		if err := s.Check(t.Context(), job); !errors.Is(err, storage.ErrRefused) || !strings.Contains(err.Error(), "region") {
			t.Error(err)
		}
	})
	t.Run("folder", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		write(t, file, nil)
		if _, err := storage.Open(t.Context(), "file://"+file); !errors.Is(err, storage.ErrRefused) {
			t.Error(err)
		}
	})
	for _, address := range []string{"", "ftp://host/x", "file://host/x", "file:relative", "s3://", "%"} {
		if s, err := storage.Open(t.Context(), address); err == nil {
			t.Errorf("%q was opened: %v", address, s)
		}
	}
}

func TestNamesLeadNowhereElse(t *testing.T) {
	s := open(t, "file://"+t.TempDir())
	for _, name := range []string{"..", "a/../b", "", "a/b", "-x", ".", "a..b"} {
		where := place(1, 1)
		where.Job.Name = name
		if err := s.Save(t.Context(), where, fileOf(where, nil)); err == nil {
			t.Errorf("a checkpoint of a job named %q was saved", name)
		}
	}
}

type discard struct{}

func (discard) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }

func rewrite(t *testing.T, folder string, change func(map[string]any)) {
	t.Helper()
	var m map[string]any
	path := filepath.Join(folder, "manifest.json")
	if err := json.Unmarshal(read(t, path), &m); err != nil {
		t.Fatal(err)
	}
	change(m)
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, text)
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func copyFolder(t *testing.T, from, to string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// files are the names of the files below a folder, in order.
func files(t *testing.T, folder string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			names = append(names, entry.Name())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
