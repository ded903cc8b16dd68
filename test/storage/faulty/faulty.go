// Package faulty stands between a client and a storage server, and has it work badly.
package faulty

import (
	"bytes"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	neturl "net/url"
	"sync"
	"time"
)

// Mode is how the storage works.
type Mode string

// The modes of a Proxy.
const (
	// Well passes everything on.
	Well Mode = "well"
	// Badly has a share of the requests go wrong: 503, connections that are reset, before or after what was asked for is
	// done, and bytes that are wrong, cut off or slow.
	Badly Mode = "badly"
	// Refusing answers 503 to everything.
	Refusing Mode = "refusing"
	// Stuck takes every request, and answers none until the mode is another one.
	Stuck Mode = "stuck"
)

// least is how long an answer is that comes wrong, cut off or slowly: that of a piece, not of a manifest.
const least = 1 << 20

// Proxy stands before a server that speaks HTTP. It works Badly from the beginning.
type Proxy struct {
	proxy *httputil.ReverseProxy

	mu     sync.Mutex
	mode   Mode
	over   chan struct{} // closed when the mode changes
	random *rand.Rand
	faults map[string]int
	reads  int
}

// New stands before the server at an address, HOST:PORT. What goes wrong follows from the seed.
func New(address string, transport http.RoundTripper, seed uint64) *Proxy {
	p := &Proxy{mode: Badly, over: make(chan struct{}), random: rand.New(rand.NewPCG(seed, 2)), faults: map[string]int{}}
	p.proxy = &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&neturl.URL{Scheme: "http", Host: address})
			r.Out.Host = r.In.Host // it is signed
		},
		ModifyResponse: p.spoil,
		ErrorHandler:   func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	return p
}

// Set has the storage work in another way from now on.
func (p *Proxy) Set(mode Mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mode != mode {
		p.mode = mode
		close(p.over)
		p.over = make(chan struct{})
	}
}

// Faults counts what went wrong, by kind.
func (p *Proxy) Faults() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.faults)
}

// Reads counts the answers with a piece of a state that were passed on.
func (p *Proxy) Reads() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reads
}

// draws says whether a fault of this kind happens now.
func (p *Proxy) draws(kind string, oneIn int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mode != Badly || p.random.IntN(oneIn) > 0 {
		return false
	}
	p.faults[kind]++
	return true
}

// now is how the storage works, and a channel that is closed when it works in another way.
func (p *Proxy) now() (Mode, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mode == Refusing || p.mode == Stuck {
		p.faults[string(p.mode)]++
	}
	return p.mode, p.over
}

// ServeHTTP passes a request on, or lets it go wrong.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	mode, over := p.now()
	switch {
	case mode == Refusing, p.draws("503", 8):
		w.WriteHeader(http.StatusServiceUnavailable)
	case mode == Stuck:
		select {
		case <-over:
		case <-r.Context().Done():
		}
		hangUp(w)
	case p.draws("reset before", 10):
		hangUp(w)
	case p.draws("done, and reset", 10):
		// It is carried out, and nobody hears of it.
		p.proxy.ServeHTTP(httptest.NewRecorder(), r)
		hangUp(w)
	default:
		defer func() {
			if recover() != nil {
				panic(http.ErrAbortHandler) // what spoil has broken off
			}
		}()
		p.proxy.ServeHTTP(w, r)
	}
}

func hangUp(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}

// spoil alters or cuts the answer with a piece, or lets it come slowly.
func (p *Proxy) spoil(answer *http.Response) error {
	if answer.Request.Method != http.MethodGet || answer.StatusCode != http.StatusOK || answer.ContentLength < least {
		return nil
	}
	p.mu.Lock()
	p.reads++
	p.mu.Unlock()
	switch {
	case p.draws("wrong bytes", 4):
		data, err := io.ReadAll(answer.Body)
		if err != nil {
			return err
		}
		data[len(data)/3] ^= 0x40
		answer.Body = io.NopCloser(bytes.NewReader(data))
	case p.draws("cut", 6):
		answer.Body = &cut{answer.Body, answer.ContentLength / 2}
	case p.draws("slow", 6):
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
