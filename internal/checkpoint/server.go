package checkpoint

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// headTimeout bounds how long a client may take for the handshake and its request.
	headTimeout = 10 * time.Second
	// stallTimeout ends a transfer that does not move.
	stallTimeout = 10 * time.Second
	// maxConnections is how many connections are open at a time; further ones are closed at once.
	maxConnections = 256
	// folder is where the snapshots are in the URL.
	folder = "/snapshots/"
	// validity is longer than any pod lives. Nobody looks at it: the certificate is known by its hash.
	validity = 10 * 365 * 24 * time.Hour
)

// Server gives the snapshots of a store to whoever shows the secret, over TLS 1.3.
type Server struct {
	store       *Store
	port        int
	certificate [32]byte
	secret      atomic.Pointer[string]
	connections atomic.Int64
	http        *http.Server
	done        sync.WaitGroup
}

// Serve starts a server at an address, host:port, with a key of its own; port 0 means a free one.
// Until SetSecret is called it refuses everybody.
func Serve(store *Store, address string) (*Server, error) {
	certificate, err := selfSigned()
	if err != nil {
		return nil, fmt.Errorf("make the certificate of the snapshot server: %w", err)
	}
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for those who want snapshots: %w", err)
	}
	tcp, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%s is no TCP address", address), listener.Close())
	}
	s := &Server{store: store, port: tcp.Port, certificate: sha256.Sum256(certificate.Certificate[0])}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+folder+"{name}", s.give)
	s.http = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: headTimeout,
		MaxHeaderBytes:    8 << 10,
		ConnState:         s.count,
		ErrorLog:          log.New(io.Discard, "", 0), // strangers' failed handshakes
	}
	s.http.SetKeepAlivesEnabled(false) // a connection is for one file
	encrypted := tls.NewListener(listener, &tls.Config{
		Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13,
	})
	s.done.Go(func() { _ = s.http.Serve(encrypted) })
	return s, nil
}

func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "concertina snapshots"},
		NotBefore:    now.Add(-time.Hour), NotAfter: now.Add(validity),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// Port is the port that it listens on.
func (s *Server) Port() int { return s.port }

// Certificate is the SHA-256 of the certificate (DER) that it shows.
func (s *Server) Certificate() [32]byte { return s.certificate }

// SetSecret says what clients must show from now on. Without bytes nobody gets anything.
func (s *Server) SetSecret(secret []byte) {
	if len(secret) == 0 {
		s.secret.Store(nil)
		return
	}
	header := bearer(secret)
	s.secret.Store(&header)
}

// bearer is the value of the Authorization header.
func bearer(secret []byte) string { return "Bearer " + hex.EncodeToString(secret) }

// Close ends the server and all transfers.
func (s *Server) Close() error {
	err := s.http.Close()
	s.done.Wait()
	return err
}

// count keeps the number of connections within bounds.
func (s *Server) count(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if s.connections.Add(1) > maxConnections {
			_ = conn.Close()
		}
	case http.StateClosed, http.StateHijacked:
		s.connections.Add(-1)
	}
}

func (s *Server) give(w http.ResponseWriter, r *http.Request) {
	want := s.secret.Load()
	if want == nil {
		http.Error(w, "this worker has no secret of the job yet", http.StatusServiceUnavailable)
		return
	}
	if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte(*want)) != 1 {
		http.Error(w, "wrong secret", http.StatusUnauthorized)
		return
	}
	id, ok := parseID(r.PathValue("name"))
	if !ok {
		http.Error(w, "a snapshot is named ROUND-STEP", http.StatusBadRequest)
		return
	}
	file, snapshot, err := s.store.open(id)
	if err != nil {
		http.Error(w, "this worker does not hold snapshot "+id.String(), http.StatusNotFound)
		return
	}
	defer func() { _ = file.Close() }()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatUint(snapshot.Bytes, 10))
	out := steady{w, http.NewResponseController(w)}
	// An error ends the connection before all bytes are there, and the client sees that.
	_, _ = io.CopyBuffer(out, io.LimitReader(file, int64(snapshot.Bytes)), make([]byte, bufferBytes))
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
