package checkpoint

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// connectTimeout bounds the TCP connection and the TLS handshake, each.
const connectTimeout = 5 * time.Second

// greetings is how often an agent is asked whether it is there that cuts connections off.
const greetings = 3

// maxRefusal is how much of a holder's words goes into an error.
const maxRefusal = 200

// earlyTimeout is how long a holder is asked again that has not been told yet what its tickets are made with, and
// earlyWait the time in between. The operator tells it with its next directive. One that has no place is asked again until
// nothing has come for busyTimeout, or startedPatience times that where a file is not whole, after busyWait at least and twice that at most; one that hangs up before it has said
// anything is asked hungUpTries times, after earlyWait to twice that.
const (
	earlyTimeout = 10 * time.Second
	earlyWait    = 200 * time.Millisecond
	busyTimeout  = 30 * time.Second
	busyWait     = time.Second
	hungUpTries  = 4

	startedPatience = 20
)

// ErrUnreached marks that a holder could not be reached, or not to the end: the network is at fault, and may be whole
// again in a while.
var ErrUnreached = errors.New("could not be reached")

// ErrBusy marks that a holder gives its files to as many as it can: it is reached, and has a place in a while.
var ErrBusy = errors.New("has no place now")

// Unreached is a holder that could not be reached, or not to the end, and why. Gave is true when something came from it before.
type Unreached struct {
	Holder Holder
	Why    error
	Gave   bool
}

// missed is a fetch that came to nothing, those of the holders that could not be reached, whether something came, and which files have not.
type missed struct {
	error
	unreached []Unreached
	moved     bool
	lacks     []string
}

func (m missed) Unwrap() error { return m.error }

// UnreachedIn are the holders that could not be reached in a fetch that came to nothing, each once.
func UnreachedIn(err error) []Unreached {
	fetch, _ := errors.AsType[missed](err)
	return fetch.unreached
}

// MovedIn says whether some of the files came in a fetch that came to nothing.
func MovedIn(err error) bool {
	fetch, _ := errors.AsType[missed](err)
	return fetch.moved
}

// LackedIn are the keys of the parts that have not come in a fetch that came to nothing, and were not there before.
func LackedIn(err error) []string {
	fetch, _ := errors.AsType[missed](err)
	return fetch.lacks
}

// has says whether all of a file that was wanted is here.
func (g *gathering) has(a *arrival) bool {
	return a.left == 0 && a.file == nil && g.local == nil && !a.isDropped(g.store)
}

// lacked are the keys of those that are not.
func (g *gathering) lacked() (keys []string) {
	for _, a := range g.arrivals {
		if !g.has(a) {
			keys = append(keys, a.Part)
		}
	}
	return keys
}

// ErrLocal marks what no other holder can mend.
var ErrLocal = errors.New("cannot be written here")

var (
	// errWrongBytes marks a file that is not the one wanted.
	errWrongBytes = errors.New("hash")
	// errEarly marks what time mends.
	errEarly = errors.New("asked too early")
	// errHungUp marks a connection that was closed before anything was said on it. Where many come at a time some have to go; it
	// may be somebody between the two as well.
	errHungUp = errors.New("it hung up")
)

// countHangUps says how many times in a row a holder has hung up by now, and keeps that it had no place.
func (g *gathering) countHangUps(from Holder, err error, before int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case errors.Is(err, errHungUp):
		return before + 1
	case errors.Is(err, ErrBusy):
		g.busy[from.String()] = err
	}
	return 0
}

// isFull says whether a holder that has hung up had no place before: it has answered, and is not one that cannot be reached.
func (g *gathering) isFull(u Unreached) bool {
	return g.busy[u.Holder.String()] != nil && errors.Is(u.Why, errHungUp)
}

// withBusy adds what a full holder said before it hung up.
func (g *gathering) withBusy(from Holder, err error) error {
	if g.isFull(Unreached{Holder: from, Why: err}) {
		return fmt.Errorf("%w; before that %w", err, g.busy[from.String()])
	}
	return err
}

// again says after which time a holder is asked again that has given nothing for this reason, and has hung up so many times in a row; 0
// for never.
func (g *gathering) again(err error, hungUp int) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case errors.Is(err, errEarly) && time.Since(g.began) < earlyTimeout:
		return earlyWait
	case errors.Is(err, ErrBusy) && time.Since(g.moved) < g.patience():
		return busyWait + rand.N(busyWait)
	case errors.Is(err, errHungUp) && hungUp < hungUpTries:
		return earlyWait + rand.N(earlyWait)
	}
	return 0
}

// patience is for how long a holder is asked again that has no place, since something came. What has come of a file that is not whole
// goes when this ends, and would have to come again, so there is more of it then; but not where something else is wrong that
// others should hear of.
func (g *gathering) patience() time.Duration {
	if len(g.gone) == 0 && slices.ContainsFunc(g.arrivals, func(a *arrival) bool { return a.file != nil }) {
		return startedPatience * g.store.patience
	}
	return g.store.patience
}

// note keeps what was wrong at a holder.
func (g *gathering) note(p *piece, from Holder, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p.of.errs = append(p.of.errs, fmt.Errorf("from %s: %w", from, err))
}

// wait waits, at most until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// listed is several errors in one line.
type listed []error

func (l listed) Error() string {
	texts := make([]string, len(l))
	for i, err := range l {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

func (l listed) Unwrap() []error { return l }

// String is the holder's host:port.
func (h Holder) String() string { return net.JoinHostPort(h.Address, strconv.Itoa(h.Port)) }

// holdsWhole says whether a snapshot is here, and as it was when it came.
func (s *Store) holdsWhole(want Snapshot) (bool, error) {
	s.mu.Lock()
	i := s.find(want.ID)
	held, fresh := i >= 0 && s.held[i].Snapshot == want, s.fresh == want.State()
	s.mu.Unlock()
	if !held || fresh {
		return held, nil
	}
	err := s.Verify(want.ID)
	return err == nil, err
}

// verifyAt has a holder look whether its file is whole, and returns in words what it has found.
func (g *gathering) verifyAt(want Snapshot, holder Holder) string {
	response, err := g.ask(g.ctx, http.MethodPost, want, "", holder)
	if err != nil {
		return fmt.Sprintf("and it does not say whether its file is whole: %v", err)
	}
	defer func() { _ = response.Body.Close() }()
	switch response.StatusCode {
	case http.StatusNoContent:
		return "though its file is whole: they were altered on the way, or here"
	case http.StatusServiceUnavailable:
		return fmt.Sprintf("and it does not say whether its file is whole: %v", refused(response))
	}
	return "and its file is not whole: " + refused(response).Error()
}

// refused is what a holder says.
func refused(response *http.Response) error {
	words, _ := io.ReadAll(io.LimitReader(response.Body, maxRefusal))
	return fmt.Errorf("refused with %s: %.*q", response.Status, maxRefusal, strings.TrimSpace(string(words)))
}

// unserved is what a holder says that gives nothing.
func unserved(response *http.Response) error {
	err := refused(response)
	switch {
	case response.StatusCode != http.StatusServiceUnavailable:
		return err
	case response.Header.Get("Retry-After") != "":
		return fmt.Errorf("it %w: %w", ErrBusy, err)
	}
	return fmt.Errorf("%w: %w", errEarly, err)
}

// ask makes one request, on a connection of its own.
func (g *gathering) ask(ctx context.Context, method string, want Snapshot, query string, holder Holder) (*http.Response, error) {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := g.store.dial(ctx, network, address)
			return steadily(conn), err
		},
		TLSClientConfig:       pinned(holder.Certificate, g.identity),
		TLSHandshakeTimeout:   connectTimeout,
		ResponseHeaderTimeout: stallTimeout,
		DisableKeepAlives:     true,
		DisableCompression:    true,
		ReadBufferSize:        bufferBytes,
	}
	request, err := http.NewRequestWithContext(ctx, method, "https://"+holder.String()+folder+want.String()+query, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", scheme+hex.EncodeToString(holder.Ticket))
	request.Header.Set(waitsHeader, "1")
	response, err := transport.RoundTrip(request)
	if brokeOff(err) {
		err = fmt.Errorf("%w: %w", errHungUp, err)
	}
	return response, err
}

// brokeOff says whether the other end has ended a connection without a word.
func brokeOff(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// Reach says whether the agent of a peer answers where it serves its snapshots, with the certificate that is known
// for it: nil, or what is wrong, which is syscall.ECONNREFUSED where nobody is at its port. It asks for nothing.
//
// The kernel closes what an ended process had open in an order of its own, with the memory of removed snapshots in between, and
// takes connections for it until it comes to the port: it resets them then. So who is cut off asks again, and once more, for a
// connection that the process itself had taken is closed before.
func Reach(ctx context.Context, peer Holder, identity *Identity) (err error) {
	for range greetings {
		if err = greet(ctx, peer, identity); !brokeOff(err) && !errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
	}
	return err
}

// greet shakes hands with the agent of a peer.
func greet(ctx context.Context, peer Holder, identity *Identity) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", peer.String())
	if err != nil {
		return err
	}
	secured := tls.Client(conn, pinned(peer.Certificate, identity))
	return errors.Join(secured.HandshakeContext(ctx), secured.Close())
}

// steadily has a transfer take long as long as it moves. What arrives is read in large pieces: TLS asks for every record by
// itself.
func steadily(conn net.Conn) net.Conn {
	if conn == nil {
		return nil
	}
	return buffered{conn, bufio.NewReaderSize(moving{conn}, bufferBytes)}
}

type buffered struct {
	net.Conn
	reader *bufio.Reader
}

func (b buffered) Read(p []byte) (int, error) { return b.reader.Read(p) }

type moving struct{ net.Conn }

func (m moving) Read(p []byte) (int, error) {
	if err := m.SetReadDeadline(time.Now().Add(stallTimeout)); err != nil {
		return 0, err
	}
	return m.Conn.Read(p)
}

// pinned trusts one certificate, by its hash, whatever it says of itself, and shows one's own.
func pinned(certificate [32]byte, identity *Identity) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		Certificates:       []tls.Certificate{identity.certificate},
		InsecureSkipVerify: true, // VerifyConnection does it
		VerifyConnection: func(state tls.ConnectionState) error {
			got := sha256.Sum256(state.PeerCertificates[0].Raw)
			if subtle.ConstantTimeCompare(got[:], certificate[:]) != 1 {
				return fmt.Errorf("it shows the certificate %x, and %x is known for it", got, certificate)
			}
			return nil
		},
	}
}

// unwritable says of what there is no room, or what else is wrong here.
func (a *arrival) unwritable(s *Store, err error) error {
	what := fmt.Sprintf("the snapshot of %d bytes", a.Bytes)
	if a.only != nil {
		what = fmt.Sprintf("%d of the %d bytes of a shard", min(lenOf(a.only)*blockBytes, a.Bytes), a.Bytes)
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%s %w: %s is full (%w): give the worker more room for snapshots", what, ErrLocal, s.dir, err)
	}
	return fmt.Errorf("%s %w: %w", what, ErrLocal, err)
}

// counter counts what was read.
type counter struct {
	r io.Reader
	n uint64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += uint64(n)
	return n, err
}

func brokenOff(body *counter, want Snapshot, err error) error {
	return fmt.Errorf("it %w to the end, and broke off after %d of %d bytes: %w", ErrUnreached, body.n, want.Bytes, err)
}
