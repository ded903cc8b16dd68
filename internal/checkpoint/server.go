package checkpoint

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/concertina-dev/concertina/internal/ticket"
)

const (
	// headTimeout bounds how long a client may take for the handshake and its request.
	headTimeout = 5 * time.Second
	// stallTimeout ends a transfer that does not move.
	stallTimeout = 10 * time.Second
	// maxConnections is how many connections are open at a time, maxWelcome how many of them to those who are given something.
	maxConnections = 256
	maxWelcome     = 224
	// comeAgain is after how many seconds whoever finds no place may ask again.
	comeAgain = "1"
	// waitsHeader says that a client knows that a holder may have no place, and waits for one.
	waitsHeader = "Snapshot-Waits"
	// folder is where the snapshots are in the URL.
	folder = "/snapshots/"
)

// Server gives the snapshots of a store to whoever shows the operator's ticket for one, and the certificate that it
// was made for, over TLS 1.3. By its certificate others see that the agent is there.
type Server struct {
	store  *Store
	port   int
	keys   keys
	guests *guests
	http   *http.Server
	done   sync.WaitGroup
	// verifying is held while a file is read to see whether it is whole; dropped is told of one that was not.
	verifying sync.Mutex
	dropped   func(error)
	// sharing is taken by who is given one of several pieces; given says how often each was.
	sharing chan struct{}
	given   tally
}

// Serve starts a server at an address, host:port; port 0 means a free one. One without a store has no snapshots. dropped,
// which may be nil, is called when a snapshot had to be dropped because its file was altered.
func Serve(store *Store, address string, identity *Identity, dropped func(error)) (*Server, error) {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for those who want snapshots: %w", err)
	}
	tcp, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%s is no TCP address", address), listener.Close())
	}
	return serveOn(store, listener, tcp.Port, identity, dropped), nil
}

// serveOn starts a server that is reached at a port.
func serveOn(store *Store, listener net.Listener, port int, identity *Identity, dropped func(error)) *Server {
	s := &Server{store: store, port: port, guests: newGuests(maxConnections, maxWelcome), dropped: dropped, sharing: make(chan struct{}, maxSharing)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+folder+"{name}", s.admit(s.give))
	mux.HandleFunc("POST "+folder+"{name}", s.admit(s.verify))
	s.http = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: headTimeout,
		MaxHeaderBytes:    8 << 10,
		ConnState:         s.count,
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connection{}, conn)
		},
		ErrorLog: log.New(io.Discard, "", 0), // strangers' failed handshakes
	}
	s.http.SetKeepAlivesEnabled(false) // a connection is for one file
	encrypted := tls.NewListener(listener, &tls.Config{
		Certificates: []tls.Certificate{identity.certificate}, MinVersion: tls.VersionTLS13,
		ClientAuth: tls.RequireAnyClientCert, // the ticket says which
	})
	s.done.Go(func() { _ = s.http.Serve(encrypted) })
	return s
}

// Port is the port that it listens on.
func (s *Server) Port() int { return s.port }

// SetKey says with which key the operator of a term makes the tickets for this server. Before that it refuses
// everybody.
func (s *Server) SetKey(term uint64, key []byte) { s.keys.set(term, key, time.Now()) }

// Close ends the server and all transfers.
func (s *Server) Close() error {
	err := s.http.Close()
	s.done.Wait()
	return err
}

// connection is the key of a request's connection in its context.
type connection struct{}

// count keeps the number of connections within bounds.
func (s *Server) count(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if closed := s.guests.arrive(conn, time.Now()); closed != nil {
			// Not with the goodbye of TLS: it waits for a handshake that may be under way.
			if encrypted, ok := closed.(*tls.Conn); ok {
				closed = encrypted.NetConn()
			}
			_ = closed.Close()
		}
	case http.StateClosed, http.StateHijacked:
		s.guests.leave(conn)
	}
}

// admit lets those through who show a ticket for the snapshot that they name.
func (s *Server) admit(next func(http.ResponseWriter, *http.Request, ID)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id, ok := ParseID(r.PathValue("name"))
		if !ok {
			http.Error(w, "a snapshot is named ROUND-STEP, a part of one ROUND-STEP.PART", http.StatusBadRequest)
			return
		}
		if status, why := s.refusal(r, id); why != "" {
			http.Error(w, why, status)
			return
		}
		if conn, ok := r.Context().Value(connection{}).(net.Conn); ok && !s.guests.welcome(conn) {
			if r.Header.Get(waitsHeader) == "" {
				panic(http.ErrAbortHandler) // an agent of an older version takes no other answer for one that time mends
			}
			w.Header().Set("Retry-After", comeAgain)
			http.Error(w, "this worker gives to as many as it can", http.StatusServiceUnavailable)
			return
		}
		if s.store == nil {
			http.Error(w, "this worker holds no snapshots", http.StatusNotFound)
			return
		}
		next(w, r, id)
	}
}

// verify says whether a file is what it was when it came. One that is not is held no more. Files are read one after
// another: whoever asks often waits.
func (s *Server) verify(w http.ResponseWriter, _ *http.Request, id ID) {
	s.verifying.Lock()
	defer s.verifying.Unlock()
	err := s.store.Verify(id)
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if s.dropped != nil && errors.Is(err, errAltered) {
		s.dropped(err)
	}
	http.Error(w, err.Error(), http.StatusGone)
}

// give gives a file: all of it, or the hashes of all of its blocks, 32 bytes each, and then those of the blocks that the
// query asks for: from one to before another one, or only some of them.
func (s *Server) give(w http.ResponseWriter, r *http.Request, id ID) {
	if r.URL.Query().Has(missingQuery) {
		s.share(w, r, id)
		return
	}
	file, held, err := s.store.open(id)
	if err != nil {
		http.Error(w, "this worker does not hold snapshot "+id.String(), http.StatusNotFound)
		return
	}
	defer func() { _ = file.Close() }()
	var hashes []byte
	blocks := []span{{0, uint64(len(held.blocks))}}
	if r.URL.RawQuery != "" {
		var why string
		if blocks, why = blocksAsked(r, blocks[0].to); why != "" {
			http.Error(w, why, http.StatusBadRequest)
			return
		}
		if r.URL.Query().Has(onlyQuery) {
			w.Header().Set(onlyHeader, "1")
		}
		hashes = bytesOf(held.blocks)
		w.Header().Set(bytesHeader, strconv.FormatUint(held.Bytes, 10))
	}
	content, size := sectionsOf(file, blocks, held.Bytes)
	send(w, hashes, content, size)
}

// send answers with hashes and what follows them.
func send(w http.ResponseWriter, hashes []byte, content io.Reader, size int64) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(int64(len(hashes))+size, 10))
	out := steady{w, http.NewResponseController(w)}
	// An error ends the connection before all bytes are there, and the client sees that.
	if _, err := out.Write(hashes); err == nil {
		_, _ = io.CopyBuffer(out, content, make([]byte, bufferBytes))
	}
}

// bytesOf are hashes, one after another.
func bytesOf(blocks []Hash) []byte {
	all := make([]byte, 0, len(blocks)*len(Hash{}))
	for i := range blocks {
		all = append(all, blocks[i][:]...)
	}
	return all
}

// blocksAsked reads which of so many blocks are asked for, or says why that cannot be.
func blocksAsked(r *http.Request, blocks uint64) (of []span, why string) {
	from, errFrom := strconv.ParseUint(r.URL.Query().Get("from"), 10, 64)
	to, errTo := strconv.ParseUint(r.URL.Query().Get("to"), 10, 64)
	if errFrom != nil || errTo != nil || from > to || to > blocks {
		return nil, fmt.Sprintf("there are %d blocks: ask for ?from=A&to=B of them", blocks)
	}
	of = []span{{from, to}}
	if r.URL.Query().Has(onlyQuery) {
		var ok bool
		if of, ok = spansIn(r.URL.Query().Get(onlyQuery), of[0], mostSpans); !ok {
			return nil, fmt.Sprintf("of the blocks from %d to %d ask for at most %d spans with &%s=A-B,C-D", from, to, mostSpans, onlyQuery)
		}
	}
	return of, ""
}

// scheme begins the Authorization header that a ticket comes in.
const scheme = "Ticket "

// refusal says why a request may not have a snapshot; nothing when it may.
func (s *Server) refusal(r *http.Request, id ID) (status int, why string) {
	text, _ := strings.CutPrefix(r.Header.Get("Authorization"), scheme)
	raw, _ := hex.DecodeString(text)
	shown := ticket.Ticket(raw)
	term, ok := shown.Term()
	if !ok {
		return http.StatusUnauthorized, ticket.ErrMalformed.Error()
	}
	now := time.Now()
	key, early := s.keys.of(term, now)
	switch {
	case early:
		return http.StatusServiceUnavailable, "the operator has not told this worker yet what its tickets are made with"
	case key == nil:
		return http.StatusUnauthorized, ticket.ErrExpired.Error()
	}
	fetcher := sha256.Sum256(r.TLS.PeerCertificates[0].Raw)
	if err := shown.Check(key, ticket.Grant{Fetcher: fetcher, Round: id.Round, Step: id.Step}, now); err != nil {
		return http.StatusUnauthorized, err.Error()
	}
	return 0, ""
}

// steady gives every write its own deadline: a transfer may take long as long as it moves.
type steady struct {
	io.Writer
	control *http.ResponseController
}

func (w steady) Write(p []byte) (int, error) {
	if err := w.control.SetWriteDeadline(time.Now().Add(stallTimeout)); err != nil {
		return 0, err
	}
	return w.Writer.Write(p)
}
