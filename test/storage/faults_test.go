package storage

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	neturl "net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// faulty stands before a server and lets a share of the requests go wrong.
type faulty struct {
	proxy *httputil.ReverseProxy

	mu     sync.Mutex
	random *rand.Rand
	// faults counts what went wrong, by kind.
	faults map[string]int
}

// beforeS3 starts one, and returns its address.
func beforeS3(t *testing.T, server *s3server, seed uint64) (*faulty, string) {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	f := &faulty{random: rand.New(rand.NewPCG(seed, 2)), faults: map[string]int{}}
	f.proxy = &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&neturl.URL{Scheme: "http", Host: server.address})
			r.Out.Host = r.In.Host // it is signed
		},
		ModifyResponse: f.spoil,
		ErrorHandler:   func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	front := httptest.NewServer(f)
	t.Cleanup(front.Close)
	return f, front.Listener.Addr().String()
}

// draws says whether a fault of this kind happens now.
func (f *faulty) draws(kind string, oneIn int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.random.IntN(oneIn) > 0 {
		return false
	}
	f.faults[kind]++
	return true
}

func (f *faulty) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case f.draws("503", 8):
		w.WriteHeader(http.StatusServiceUnavailable)
	case f.draws("reset before", 10):
		hangUp(w)
	case f.draws("done, and reset", 10):
		// It is carried out, and nobody hears of it.
		f.proxy.ServeHTTP(httptest.NewRecorder(), r)
		hangUp(w)
	default:
		defer func() {
			if recover() != nil {
				panic(http.ErrAbortHandler) // what spoil has broken off
			}
		}()
		f.proxy.ServeHTTP(w, r)
	}
}

func hangUp(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}

// spoil alters or cuts the answer with a piece, or lets it come slowly.
func (f *faulty) spoil(answer *http.Response) error {
	if answer.Request.Method != http.MethodGet || answer.StatusCode != http.StatusOK || answer.ContentLength < 1<<20 {
		return nil
	}
	switch {
	case f.draws("wrong bytes", 4):
		data, err := io.ReadAll(answer.Body)
		if err != nil {
			return err
		}
		data[len(data)/3] ^= 0x40
		answer.Body = io.NopCloser(bytes.NewReader(data))
	case f.draws("cut", 6):
		answer.Body = &cut{answer.Body, answer.ContentLength / 2}
	case f.draws("slow", 6):
		answer.Body = &slow{answer.Body}
	}
	return nil
}

type cut struct {
	io.ReadCloser
	left int64
}

func (c *cut) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.ReadCloser.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, err
}

type slow struct{ io.ReadCloser }

func (s *slow) Read(p []byte) (int, error) {
	time.Sleep(time.Millisecond)
	return s.ReadCloser.Read(p[:min(len(p), 32<<10)])
}

// Whatever a storage that works badly does, what is called durable is, and what comes back is what was saved.
func TestStorageThatWorksBadly(t *testing.T) {
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
				t.Fatalf("step %d, read %s: %d bytes, the same: %v (%v); faults: %v", step, name, len(got), bytes.Equal(got, data), err, f.faults)
			}
		}
		if _, err := through.Collect(t.Context(), job, 2); err != nil {
			t.Fatal(err)
		}
	}
	if found := find(t, direct, "team/llama"); len(found) < 2 || found[0] != place(1, 2) || found[1] != place(1, 1) {
		t.Errorf("%v is left", found)
	}
	for _, kind := range []string{"503", "reset before", "done, and reset"} {
		if f.faults[kind] == 0 {
			t.Errorf("no request met %q: %v", kind, f.faults)
		}
	}
	t.Logf("faults: %v", f.faults)
}

// A checkpoint of which nothing is left but a manifest is none: the one before it is found by who reads.
func TestSavedWhileItIsDeleted(t *testing.T) {
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
