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
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// connectTimeout bounds the TCP connection and the TLS handshake, each.
const connectTimeout = 5 * time.Second

// maxRefusal is how much of a holder's words goes into an error.
const maxRefusal = 200

// earlyTimeout is how long a holder is asked again that has not been told yet what its tickets are made with, and
// earlyWait the time in between. The operator tells it with its next directive.
const (
	earlyTimeout = 10 * time.Second
	earlyWait    = 200 * time.Millisecond
)

// ErrUnreached marks that a holder could not be reached, or not to the end: the network is at fault, and may be whole
// again in a while.
var ErrUnreached = errors.New("could not be reached")

// ErrLocal marks what no other holder can mend.
var ErrLocal = errors.New("cannot be written here")

var (
	// errWrongBytes marks a file that is not the one wanted.
	errWrongBytes = errors.New("hash")
	// errEarly marks what time mends.
	errEarly = errors.New("asked too early")
)

// Fetch gets a snapshot from the first holder that gives exactly the file wanted, and returns the
// file's path. A snapshot that is held already is not fetched again. A transfer that does not move
// for ten seconds ends. A holder that says that it does not know the tickets yet is asked again, for earlyTimeout.
// Errors: ctx has ended; the file cannot be written here, ErrLocal; or no holder has it, with what was wrong at each, ErrUnreached
// among them when that was so.
func (s *Store) Fetch(ctx context.Context, want Snapshot, holders []Holder, identity *Identity) (string, error) {
	held, err := s.holdsWhole(want)
	if held {
		return s.path(want.ID), nil
	}
	errs := []error{fmt.Errorf("%d holders are known", len(holders))}
	if err != nil {
		errs = append(errs, err)
	}
	if want.Bytes > MaxBytes {
		errs = []error{fmt.Errorf("it is said to have %d bytes, more than the largest of %d", want.Bytes, int64(MaxBytes))}
		holders = nil
	}
	for began := time.Now(); len(holders) > 0; {
		early, failed, done := s.fetchFromOne(ctx, want, holders, identity, time.Since(began) < earlyTimeout)
		if done {
			return s.path(want.ID), nil
		}
		errs, holders = append(errs, failed...), early
		if len(early) > 0 {
			wait(ctx, earlyWait)
		}
		if ctx.Err() != nil {
			errs, holders = []error{context.Cause(ctx)}, nil
		}
	}
	return "", fmt.Errorf("fetch snapshot %v: %w", want.ID, listed(errs))
}

// fetchFromOne asks one holder after the other until one has given the snapshot. Otherwise it returns those who
// are to be asked again, if that makes sense, and what was wrong at the others.
func (s *Store) fetchFromOne(ctx context.Context, want Snapshot, holders []Holder, identity *Identity, again bool) (early []Holder, failed []error, done bool) {
	for _, holder := range holders {
		err := s.fetchFrom(ctx, want, holder, identity)
		switch {
		case err == nil:
			return nil, nil, true
		case ctx.Err() != nil:
			return nil, nil, false
		case again && errors.Is(err, errEarly):
			early = append(early, holder)
			continue
		}
		failed = append(failed, fmt.Errorf("from %s: %w", holder, err))
		if errors.Is(err, ErrLocal) {
			return nil, failed, false
		}
	}
	return early, failed, false
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
	held, fresh := i >= 0 && s.held[i] == want, s.fresh == want.ID
	s.mu.Unlock()
	if !held || fresh {
		return held, nil
	}
	err := s.Verify(want.ID)
	return err == nil, err
}

func (s *Store) fetchFrom(ctx context.Context, want Snapshot, holder Holder, identity *Identity) error {
	response, err := ask(ctx, http.MethodGet, want, holder, identity)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnreached, err)
	}
	defer func() { _ = response.Body.Close() }()
	switch {
	case response.StatusCode != http.StatusOK:
		err := refused(response)
		if response.StatusCode == http.StatusServiceUnavailable {
			err = fmt.Errorf("%w: %w", errEarly, err)
		}
		return err
	case response.ContentLength != int64(want.Bytes):
		return fmt.Errorf("it holds a file of %d bytes, and %d are wanted", response.ContentLength, want.Bytes)
	}
	if err = s.receive(want, response.Body); errors.Is(err, errWrongBytes) {
		err = fmt.Errorf("%w, %s", err, verifyAt(ctx, want, holder, identity))
	}
	return err
}

// verifyAt has a holder look whether its file is whole, and returns in words what it has found.
func verifyAt(ctx context.Context, want Snapshot, holder Holder, identity *Identity) string {
	response, err := ask(ctx, http.MethodPost, want, holder, identity)
	if err != nil {
		return fmt.Sprintf("and it does not say whether its file is whole: %v", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode == http.StatusNoContent {
		return "though its file is whole: they were altered on the way, or here"
	}
	return "and its file is not whole: " + refused(response).Error()
}

// refused is what a holder says.
func refused(response *http.Response) error {
	words, _ := io.ReadAll(io.LimitReader(response.Body, maxRefusal))
	return fmt.Errorf("refused with %s: %.*q", response.Status, maxRefusal, strings.TrimSpace(string(words)))
}

// ask makes one request, on a connection of its own.
func ask(ctx context.Context, method string, want Snapshot, holder Holder, identity *Identity) (*http.Response, error) {
	transport := &http.Transport{
		DialContext:           dial,
		TLSClientConfig:       pinned(holder.Certificate, identity),
		TLSHandshakeTimeout:   connectTimeout,
		ResponseHeaderTimeout: stallTimeout,
		DisableKeepAlives:     true,
		DisableCompression:    true,
		ReadBufferSize:        bufferBytes,
	}
	request, err := http.NewRequestWithContext(ctx, method, "https://"+holder.String()+folder+want.String(), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", scheme+hex.EncodeToString(holder.Ticket))
	return transport.RoundTrip(request)
}

// Reach says whether the agent of a peer answers where it serves its snapshots, with the certificate that is known
// for it: nil, or what is wrong. It asks for nothing.
func Reach(ctx context.Context, peer Holder, identity *Identity) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", peer.String())
	if err != nil {
		return err
	}
	secured := tls.Client(conn, pinned(peer.Certificate, identity))
	return errors.Join(secured.HandshakeContext(ctx), secured.Close())
}

// dial connects so that a transfer may take long as long as it moves. What arrives is read in large pieces:
// TLS asks for every record by itself.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: connectTimeout}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return buffered{conn, bufio.NewReaderSize(moving{conn}, bufferBytes)}, nil
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

// receive writes the body into the folder, and gives it its name when it is whole.
func (s *Store) receive(want Snapshot, body io.Reader) (err error) {
	file, err := s.create(s.dir)
	if err != nil {
		return s.unwritable(want, err)
	}
	defer func() {
		_ = file.Close()
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	n, hash, failed, err := transfer(file, io.LimitReader(body, int64(want.Bytes)))
	switch {
	case failed != nil:
		return s.unwritable(want, failed)
	case err != nil:
		return fmt.Errorf("it %w to the end, and broke off after %d of %d bytes: %w", ErrUnreached, n, want.Bytes, err)
	case n != want.Bytes:
		return fmt.Errorf("it %w to the end, and broke off after %d of %d bytes", ErrUnreached, n, want.Bytes)
	case hash != want.Hash:
		return fmt.Errorf("the %d bytes have the %w %x, and %x is wanted", n, errWrongBytes, hash, want.Hash)
	}
	if err := file.Close(); err != nil {
		return s.unwritable(want, err)
	}
	if _, err := s.enter(want, filepath.Base(file.Name()), true); err != nil {
		return s.unwritable(want, err)
	}
	s.refresh(want.ID)
	return nil
}

// transfer copies until the end, and returns how many bytes were read, their hash, and why writing or
// reading ended before. Both go on at the same time: what is read takes as long to be deciphered as what is
// written to be given memory.
func transfer(to io.Writer, from io.Reader) (read uint64, hash Hash, failed, err error) {
	const buffers = 4
	free, full := make(chan []byte, buffers), make(chan []byte, buffers)
	for range buffers {
		free <- make([]byte, bufferBytes)
	}
	written := NewHasher()
	var writing sync.WaitGroup
	var broken atomic.Bool
	writing.Go(func() {
		for data := range full {
			if failed == nil {
				_, _ = written.Write(data)
				_, failed = to.Write(data)
				broken.Store(failed != nil)
			}
			free <- data[:cap(data)]
		}
	})
	for !broken.Load() {
		buffer := <-free
		n, end := io.ReadFull(from, buffer)
		read += uint64(n)
		full <- buffer[:n]
		if end != nil {
			if !errors.Is(end, io.EOF) {
				err = end
			}
			break
		}
	}
	close(full)
	writing.Wait()
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil // the last buffer was not full; whether all came is seen by the size
	}
	return read, written.Sum(), failed, err
}

func (s *Store) unwritable(want Snapshot, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("the snapshot of %d bytes %w: %s is full (%w): give the worker more room for snapshots",
			want.Bytes, ErrLocal, s.dir, err)
	}
	return fmt.Errorf("the snapshot of %d bytes %w: %w", want.Bytes, ErrLocal, err)
}
