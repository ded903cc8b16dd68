// Package agenttest is an operator for the tests of the agent: a rendezvous over real TLS that says
// what a test wants, and can be taken away and brought back.
package agenttest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/concertina-dev/concertina/internal/rendezvous/link"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// Patience bounds every wait.
const Patience = 30 * time.Second

// Token is what TokenFile holds at first.
const Token = "token-of-the-pod"

// Rendezvous is the operator of one test. It answers every report with the current directive.
type Rendezvous struct {
	// Address, TokenFile and CAFile are what an agent is told.
	Address, TokenFile, CAFile string

	t        testing.TB
	listenOn string
	server   *server

	mu        sync.Mutex
	changed   chan struct{}
	directive *rendezvousv1.Directive
	mute      bool
	hesitates bool
	failure   codes.Code
	reports   []*rendezvousv1.Report
	hellos    []*rendezvousv1.Hello
	tokens    []string
}

// New starts an operator that lets every agent wait, and stops it with the test.
func New(t testing.TB) *Rendezvous {
	t.Helper()
	directory := t.TempDir()
	r := &Rendezvous{
		TokenFile: filepath.Join(directory, "token"),
		CAFile:    filepath.Join(directory, "ca.crt"),
		t:         t, listenOn: "127.0.0.1:0",
		changed:   make(chan struct{}),
		directive: &rendezvousv1.Directive{Term: 1},
	}
	r.WriteToken(Token)
	r.Return()
	t.Cleanup(r.Leave)
	return r
}

// WriteToken replaces the token.
func (r *Rendezvous) WriteToken(token string) {
	if err := os.WriteFile(r.TokenFile, []byte(token+"\n"), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// Return starts to listen, at the same address as before.
func (r *Rendezvous) Return() {
	r.t.Helper()
	listener, err := net.Listen("tcp", r.listenOn)
	if err != nil {
		r.t.Fatal(err)
	}
	config, authority := certificate(r.t)
	if err := os.WriteFile(r.CAFile, authority, 0o600); err != nil {
		r.t.Fatal(err)
	}
	s := &server{Listener: tls.NewListener(listener, link.Secured(config)), conns: map[net.Conn]struct{}{}}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listenOn, r.Address, r.server = listener.Addr().String(), listener.Addr().String(), s
	s.serves.Go(func() { s.serve(r.session) })
}

// Leave stops listening and ends all sessions. Leaving twice does nothing.
func (r *Rendezvous) Leave() {
	r.mu.Lock()
	server := r.server
	r.server = nil
	r.mu.Unlock()
	if server != nil {
		server.close()
	}
}

func (r *Rendezvous) update(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
	close(r.changed)
	r.changed = make(chan struct{})
}

// Direct says a directive to every agent, at once. What the caller changes in it later is not said.
func (r *Rendezvous) Direct(d *rendezvousv1.Directive) {
	said := proto.CloneOf(d)
	r.update(func() { r.directive = said })
}

// Mute stops or resumes answering, with the sessions left open.
func (r *Rendezvous) Mute(mute bool) { r.update(func() { r.mute = mute }) }

// Hesitate stops or resumes directing: reports are answered with no more than that the operator is there.
func (r *Rendezvous) Hesitate(hesitate bool) { r.update(func() { r.hesitates = hesitate }) }

// Fail ends every session, and every later one, with this code; 0 ends that.
func (r *Rendezvous) Fail(code codes.Code) { r.update(func() { r.failure = code }) }

// Await waits for a report with a property, among those that came and those to come, and returns
// it.
func (r *Rendezvous) Await(what string, has func(*rendezvousv1.Report) bool) *rendezvousv1.Report {
	r.t.Helper()
	deadline := time.After(Patience)
	for seen := 0; ; {
		r.mu.Lock()
		reports, changed := r.reports[seen:], r.changed
		seen = len(r.reports)
		r.mu.Unlock()
		for _, report := range reports {
			if has(report) {
				return report
			}
		}
		select {
		case <-changed:
		case <-deadline:
			r.t.Fatalf("no report with %s; the last of %d: %v", what, seen, r.Last())
		}
	}
}

// Last is the newest report; nil for none.
func (r *Rendezvous) Last() *rendezvousv1.Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.reports) == 0 {
		return nil
	}
	return r.reports[len(r.reports)-1]
}

// Forget drops the reports that came so far.
func (r *Rendezvous) Forget() { r.update(func() { r.reports = nil }) }

// Hellos are the introductions of all sessions.
func (r *Rendezvous) Hellos() []*rendezvousv1.Hello {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*rendezvousv1.Hello(nil), r.hellos...)
}

// Tokens are those that all sessions began with.
func (r *Rendezvous) Tokens() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.tokens...)
}

// AwaitSessions waits until there were so many sessions in all.
func (r *Rendezvous) AwaitSessions(n int) {
	r.t.Helper()
	r.await("sessions", n, func() int { return len(r.hellos) })
}

// AwaitAttempts waits until a session was asked for so many times in all.
func (r *Rendezvous) AwaitAttempts(n int) {
	r.t.Helper()
	r.await("attempts", n, func() int { return len(r.tokens) })
}

func (r *Rendezvous) await(what string, want int, count func() int) {
	r.t.Helper()
	deadline := time.After(Patience)
	for {
		r.mu.Lock()
		have, changed := count(), r.changed
		r.mu.Unlock()
		if have >= want {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			r.t.Fatalf("%d %s, want %d", have, what, want)
		}
	}
}

// session serves one agent.
func (r *Rendezvous) session(conn *link.Conn) error {
	token, err := conn.Token()
	if err != nil {
		return err
	}
	r.update(func() { r.tokens = append(r.tokens, token) })
	ended := make(chan struct{})
	var why error // belongs to who has seen ended
	var sequence uint64
	go func() {
		for {
			report, err := conn.Report()
			if err != nil {
				why = err
				close(ended)
				return
			}
			r.update(func() {
				sequence = report.GetSequence()
				if hello := report.GetHello(); hello != nil {
					r.hellos = append(r.hellos, hello)
				}
				r.reports = append(r.reports, report)
			})
		}
	}()
	// It reads until the connection is closed.
	fail := func(err error) error {
		_ = conn.Close()
		<-ended
		return err
	}
	for {
		r.mu.Lock()
		answer := proto.CloneOf(r.directive)
		mute, failure, changed := r.mute || sequence == 0, r.failure, r.changed
		hesitates := r.hesitates
		if answer.GetSequence() == 0 {
			answer.Sequence = sequence
		}
		r.mu.Unlock()
		if failure != 0 {
			conn.EndRead()
			<-ended
			return status.Error(failure, "as the test says")
		}
		if hesitates {
			answer = nil
		}
		if !mute {
			if err := conn.Answer(answer); err != nil {
				return fail(err)
			}
		}
		select {
		case <-changed:
		case <-ended:
			return why
		}
	}
}

// server is one stay of a Rendezvous.
type server struct {
	net.Listener
	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	over   bool
	serves sync.WaitGroup
}

func (s *server) serve(session func(*link.Conn) error) {
	for {
		conn, err := s.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		if s.over {
			_ = conn.Close()
		} else {
			s.conns[conn] = struct{}{}
			s.serves.Go(func() {
				one := link.New(conn.(*tls.Conn))
				one.End(session(one), time.Second)
				_ = conn.Close()
				s.mu.Lock()
				defer s.mu.Unlock()
				delete(s.conns, conn)
			})
		}
		s.mu.Unlock()
	}
}

func (s *server) close() {
	_ = s.Close()
	s.mu.Lock()
	s.over = true
	for conn := range s.conns {
		_ = conn.(*tls.Conn).NetConn().Close()
	}
	s.mu.Unlock()
	s.serves.Wait()
}

// certificate makes one for this machine that is its own authority.
func certificate(t testing.TB) (*tls.Config, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS13},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
