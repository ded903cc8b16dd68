package storage

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/score"
	"github.com/concertina-dev/concertina/test/storage/faulty"
)

// beforeS3 starts a proxy that lets requests to a server go wrong, and returns its address.
func beforeS3(t *testing.T, server *s3server, seed uint64) (*faulty.Proxy, string) {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	f := faulty.New(server.address, transport, seed)
	front := httptest.NewServer(f)
	t.Cleanup(front.Close)
	return f, front.Listener.Addr().String()
}

// Whatever a storage that works badly does, what is called durable is, and what comes back is what was saved.
func TestStorageThatWorksBadly(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	server := startS3(t)
	f, address := beforeS3(t, server, seed)
	through, direct := open(t, url(address, "")), open(t, url(server.address, ""))
	for step := range uint64(3) {
		where, data := place(1, step), state(step, stateBytes)
		save(t, through, where, data)
		for name, s := range map[string]func() ([]byte, error){
			"directly":   func() ([]byte, error) { return load(t, direct, where) },
			"through it": func() ([]byte, error) { return load(t, through, where) },
		} {
			if got, err := s(); err != nil || !bytes.Equal(got, data) {
				t.Fatalf("step %d, read %s: %d bytes, the same: %v (%v); faults: %v", step, name, len(got), bytes.Equal(got, data), err, f.Faults())
			}
		}
		if _, err := through.Collect(t.Context(), job, 2, score.Best{}); err != nil {
			t.Fatal(err)
		}
	}
	if found := find(t, direct, "team/llama"); len(found) < 2 || found[0] != place(1, 2) || found[1] != place(1, 1) {
		t.Errorf("%v is left", found)
	}
	faults := f.Faults()
	for _, kind := range []string{"503", "reset before", "done, and reset"} {
		if faults[kind] == 0 {
			t.Errorf("no request met %q: %v", kind, faults)
		}
	}
	t.Logf("faults: %v", faults)
}

// A checkpoint of which nothing is left but a manifest is none: the one before it is found by who reads.
func TestSavedWhileItIsDeleted(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	s := open(t, "file://"+folder)
	save(t, s, place(1, 1), state(1, 100))
	// Another process dooms it, and is killed.
	doomed := filepath.Join(folder, place(1, 2).Path(), "doomed")
	if err := os.MkdirAll(doomed, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(doomed, "somebody"), nil)
	if err := s.Save(t.Context(), place(1, 2), fileOf(place(1, 2), state(2, 100))); err == nil {
		t.Error("what is being deleted was called durable")
	}
	if found := find(t, s, "team"); len(found) != 1 || found[0] != place(1, 1) {
		t.Errorf("%v is found", found)
	}
}
