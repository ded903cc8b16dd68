package storage

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/concertina-dev/concertina/internal/score"
	"github.com/concertina-dev/concertina/internal/uploader"
	"github.com/concertina-dev/concertina/internal/uploader/server"
	"github.com/concertina-dev/concertina/test/storage/faulty"
)

// A job goes on from the newest checkpoint, or waits until that can be read: a storage that is away for a while sends
// nobody back to an older one.
func TestNobodyGoesBackFurtherThanItMust(t *testing.T) {
	t.Parallel()
	s3 := startS3(t)
	proxy, _ := beforeS3(t, s3, 1)
	proxy.Set(faulty.Well)
	var away atomic.Pointer[string]
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if part := away.Load(); part != nil && r.Method == http.MethodGet && strings.Contains(r.URL.Path, *part) {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	direct := open(t, url(s3.address, ""))
	older, newest := place(1, 10), place(2, 20)
	save(t, direct, older, state(10, 1000))
	save(t, direct, newest, state(20, 1000))

	socket := filepath.Join(t.TempDir(), "socket")
	through := open(t, url(front.Listener.Addr().String(), ""))
	listening, err := server.Listen(socket, server.New(through.WithPatience(0), job, 2, "", score.Best{}, t.Logf))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := listening.Close(); err != nil {
			t.Error(err)
		}
	})
	restore := func() (*uploader.Answer, []byte, error) {
		file, err := os.Create(filepath.Join(t.TempDir(), "state"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = file.Close() }()
		answer, err := uploader.Ask(t.Context(), socket, uploader.Request{Ask: uploader.AskRestore}, file)
		data, readErr := io.ReadAll(io.NewSectionReader(file, 0, 1<<30))
		if readErr != nil {
			t.Fatal(readErr)
		}
		return answer, data, err
	}
	for _, part := range []string{newest.Path() + "/data/", newest.Path() + "/manifest"} {
		away.Store(&part)
		if answer, _, err := restore(); !errors.Is(err, uploader.ErrPassing) {
			t.Errorf("while %s cannot be read: %+v, %v", part, answer, err)
		}
	}
	away.Store(nil)
	if answer, data, err := restore(); err != nil || answer.Path != newest.Path() || !bytes.Equal(data, state(20, 1000)) {
		t.Errorf("once it can be read again: %+v, %d bytes, %v", answer, len(data), err)
	}
}
