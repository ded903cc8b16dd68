// Package agenttest is an operator for the tests of the agent: a rendezvous over real TLS that says
// what a test wants, and can be taken away and brought back.
package agenttest

import (
	"context"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1/rendezvousv1connect"
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
	server   *httptest.Server

	mu        sync.Mutex
	changed   chan struct{}
	directive *rendezvousv1.Directive
	mute      bool
	failure   connect.Code
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
	mux := http.NewServeMux()
	mux.Handle(rendezvousv1connect.NewRendezvousHandler(r))
	server := httptest.NewUnstartedServer(mux)
	_ = server.Listener.Close()
	server.Listener = listener
	server.EnableHTTP2 = true
	server.StartTLS()
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(r.CAFile, certificate, 0o600); err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listenOn, r.Address, r.server = listener.Addr().String(), server.URL, server
}

// Leave stops listening and ends all sessions. Leaving twice does nothing.
func (r *Rendezvous) Leave() {
	r.mu.Lock()
	server := r.server
	r.server = nil
	r.mu.Unlock()
	if server != nil {
		server.CloseClientConnections()
		server.Close()
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

// Fail ends every session, and every later one, with this code; 0 ends that.
func (r *Rendezvous) Fail(code connect.Code) { r.update(func() { r.failure = code }) }

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

// Tokens are the authorization headers of all sessions.
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

// Session serves one agent.
func (r *Rendezvous) Session(ctx context.Context, stream *connect.BidiStream[rendezvousv1.Report, rendezvousv1.Directive]) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.update(func() { r.tokens = append(r.tokens, stream.RequestHeader().Get("Authorization")) })
	ended := make(chan error, 1)
	var sequence uint64
	go func() {
		for {
			report, err := stream.Receive()
			if err != nil {
				ended <- err
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
	for {
		r.mu.Lock()
		answer := proto.CloneOf(r.directive)
		mute, failure, changed := r.mute || sequence == 0, r.failure, r.changed
		if answer.GetSequence() == 0 {
			answer.Sequence = sequence
		}
		r.mu.Unlock()
		if failure != 0 {
			return connect.NewError(failure, nil)
		}
		if !mute {
			if err := stream.Send(answer); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case err := <-ended:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
