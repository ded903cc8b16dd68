package server

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/rendezvous/link"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvoustest"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// dripping is a connection that writes one byte at a time.
type dripping struct {
	net.Conn
	every time.Duration
}

func (d dripping) Write(b []byte) (int, error) {
	for i := range b {
		if _, err := d.Conn.Write(b[i : i+1]); err != nil {
			return i, err
		}
		time.Sleep(d.every)
	}
	return len(b), nil
}

// drip is the pace of those who are slow on purpose: they are never silent for long.
const drip = 20 * time.Millisecond

// secured is the far end of a connection after its handshake.
func (f *fixture) secured(conn net.Conn) (*tls.Conn, error) {
	secured := tls.Client(conn, link.Secured(&tls.Config{RootCAs: f.roots, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS13}))
	return secured, secured.Handshake()
}

// request begins a session with a token, and says nothing in it.
func (f *fixture) request(conn net.Conn, token string) (*tls.Conn, error) {
	secured, err := f.secured(conn)
	if err != nil {
		return nil, err
	}
	return secured, link.New(secured).SendToken(token)
}

const (
	silent = "says nothing"
	deaf   = "reads no answer"
)

// hostile is what somebody may do with a connection, until it is closed. None of them ends it.
func hostile() map[string]func(*fixture, net.Conn) {
	return map[string]func(*fixture, net.Conn){
		silent: func(*fixture, net.Conn) {},
		"the handshake byte by byte": func(f *fixture, conn net.Conn) {
			_, _ = f.secured(dripping{conn, drip})
		},
		"the token byte by byte": func(f *fixture, conn net.Conn) {
			if secured, err := f.secured(conn); err == nil {
				_, _ = dripping{secured, drip}.Write(append([]byte{1, 0, link.MaxMessage >> 9, 0}, make([]byte, link.MaxMessage/2)...))
			}
		},
		"the hello byte by byte": func(f *fixture, conn net.Conn) {
			if secured, err := f.request(conn, "token-a"); err == nil {
				_, _ = dripping{secured, drip}.Write(append([]byte{2, 0, link.MaxMessage >> 9, 0}, make([]byte, link.MaxMessage/2)...))
			}
		},
		deaf: func(f *fixture, conn net.Conn) {
			_, _ = f.request(conn, "nobody's")
		},
	}
}

// hurry lets strangers stay for so long.
func (f *fixture) hurry(patience time.Duration) {
	f.door.mu.Lock()
	defer f.door.mu.Unlock()
	f.door.patience = patience
}

// empty waits until the server serves and nobody is there. The goroutines of that moment are no leak.
func (f *fixture) empty(t *testing.T) goleak.Option {
	t.Helper()
	wantCode(t, f.converse(t, "nobody's", first(f.pod("nobody"))), codes.Unauthenticated, "unknown token")
	waitFor(t, "nobody is there", func() bool { return f.door.count() == 0 })
	return goleak.IgnoreCurrent()
}

// besiege has so many strangers hold as many places as they can get, from so many addresses, and come back at once. What
// it returns has them stay away; their connections stay as they are.
func (f *fixture) besiege(t *testing.T, callers, addresses int, act func(*fixture, net.Conn)) (leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range callers {
		dialer := f.from(net.IPv4(127, 0, 0, byte(2+i%addresses)).String())
		all.Go(func() {
			for ctx.Err() == nil {
				conn, err := dialer.DialContext(ctx, "tcp", f.address)
				if err != nil {
					continue
				}
				act(f, conn)
				_, _ = io.Copy(io.Discard, conn) // until it is closed
				_ = conn.Close()
			}
		})
	}
	leave = func() { cancel(); all.Wait() }
	t.Cleanup(leave)
	return leave
}

// Whoever is slow on purpose, silent, or deaf keeps no worker out, however often it comes back, and what it costs ends
// with its time: its place, and the goroutines that wait for it.
func TestASiegeKeepsNoWorkerOut(t *testing.T) {
	for name, act := range hostile() {
		t.Run(name, func(t *testing.T) {
			f := serve(t, func(o *Options) { o.MaxUnproven, o.MaxUnprovenPerSource = 8, 4 })
			f.hurry(500 * time.Millisecond)
			f.Expect(digits, gangOf(1, "a"))
			f.pod("a")
			before := f.empty(t)
			callers, addresses := 16, 4
			if name == deaf || name == silent {
				// Each has one place only: nobody makes room who is not silent.
				callers, addresses = 8, 8
				f.hurry(3 * time.Second)
			}
			leave := f.besiege(t, callers, addresses, act)
			waitFor(t, "all places are taken", func() bool { return f.door.count() == 8 })
			a := f.agent(t, "a")
			await(t, a, func(s rendezvoustest.Snapshot) bool { return s.Round == 1 })
			if f.door.counted(awaySilent) == 0 {
				t.Error("nobody made room for the worker")
			}
			leave() // it is we who end their connections
			waitFor(t, "their places are given back", func() bool { return f.door.count() == 0 })
			if n := f.introducing.count("uid-a"); n != 0 {
				t.Errorf("%d sessions of a stolen token still wait", n)
			}
			f.eventually(t, "the worker is in its world", func(o rendezvous.Observation) bool { return o.Members["uid-a"].InWorld })
			a.Stop()
			waitFor(t, "the worker's place is free", func() bool { return f.door.workers() == 0 })
			if err := goleak.Find(before); err != nil {
				t.Error(err)
			}
		})
	}
}

// Whoever shows a token that is not its own, or not good any more, gets no session and keeps nothing: no place, no
// goroutine. The pods that the tokens speak of come in and stay.
func TestTokensOfOthersKeepNothing(t *testing.T) {
	f := serve(t, nil)
	f.hurry(time.Second)
	f.Expect(digits, gangOf(1, "a", "gone"))
	a, gone := f.pod("a"), f.pod("gone")
	f.Expect(rendezvous.JobKey{Namespace: "other", Name: "digits"}, rendezvous.Gang{
		Attempt: 1, ProcessesPerWorker: 1, Members: []rendezvous.Member{{UID: "uid-o", Name: "o"}},
	})
	f.tokens.issue("foreign", rendezvous.Identity{Namespace: "other", PodName: "o", PodUID: "uid-o", Expires: time.Now().Add(time.Hour)})
	f.tokens.issue("of that name", rendezvous.Identity{Namespace: "other", PodName: "a", PodUID: "uid-a", Expires: time.Now().Add(time.Hour)})
	f.tokens.issue("expired", rendezvous.Identity{Namespace: "team", PodName: "a", PodUID: "uid-a", Expires: time.Now().Add(-time.Second)})
	f.tokens.forge("forged", "a")
	f.Expect(digits, gangOf(1, "a")) // the other pod was deleted
	before := f.empty(t)
	for _, row := range []struct {
		name, token string
		hello       *rendezvousv1.Hello
		code        codes.Code
		says        string
		checks      int
	}{
		{"of a pod that was deleted", "token-gone", gone, codes.Unavailable, "not expected in the gang yet", 0},
		{"of another namespace", "foreign", a, codes.PermissionDenied, "the token belongs to pod other/o", 5},
		{"of a pod of that name elsewhere", "of that name", a, codes.PermissionDenied, "the token belongs to pod other/a", 0},
		{"expired", "expired", a, codes.Unavailable, "the token of this session has expired", 5},
		{"forged", "forged", a, codes.Unauthenticated, "unknown token", 5},
	} {
		t.Run(row.name, func(t *testing.T) {
			checked := f.tokens.count()
			for range 5 {
				wantCode(t, f.converse(t, row.token, first(row.hello)), row.code, row.says)
			}
			if n := f.tokens.count() - checked; n != row.checks {
				t.Errorf("%d tokens were checked, want %d", n, row.checks)
			}
		})
	}
	worker := f.agent(t, "a")
	await(t, worker, func(s rendezvoustest.Snapshot) bool { return s.Round == 1 })
	waitFor(t, "only the worker has a place", func() bool { return f.door.count() == 0 && f.door.workers() == 1 })

	// A token that is shown once more, from elsewhere, takes the place of the pod's own session a few times at most.
	for range 2 * replaceBurst {
		if stream, err := f.greetFrom(t, f.from("127.0.0.7"), a); err == nil {
			stream.hangUp()
		}
	}
	f.eventually(t, "the worker is in its world", func(o rendezvous.Observation) bool { return o.Members["uid-a"].InWorld })
	worker.Stop()
	waitFor(t, "all places are free", func() bool { return f.door.count() == 0 && f.door.workers() == 0 })
	if n := f.introducing.count("uid-a"); n != 0 {
		t.Errorf("%d sessions still wait", n)
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}

// A thousand strangers that come at once, each from an address of its own, make an operator slow; a worker that comes
// with them gets in, and none of them is sent away that has said what it should.
func TestAThousandStrangersAtOnce(t *testing.T) {
	const places = 1024
	f := serve(t, func(o *Options) { o.MaxUnproven = places })
	f.Expect(digits, gangOf(1, "a", "b"))
	var all sync.WaitGroup
	defer all.Wait()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	// Nobody begins a handshake before all places are taken: on a slow machine the first would be sent away, for taking
	// too long, before the last have come.
	full := make(chan struct{})
	for i := range 1100 {
		dialer := f.from(net.IPv4(127, 1, byte(i/250), byte(1+i%250)).String())
		all.Go(func() {
			for ctx.Err() == nil {
				conn, err := dialer.DialContext(ctx, "tcp", f.address)
				if err != nil {
					continue
				}
				stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
				select {
				case <-full:
				case <-ctx.Done():
				}
				_, err = f.secured(conn)
				if err == nil {
					_, _ = io.Copy(io.Discard, conn)
				}
				stop()
				_ = conn.Close()
				if err != nil {
					// Whoever is sent away in its handshake stays away. On a machine that has no time for a thousand of them
					// before they are late, all would begin anew for ever, and the worker with them.
					return
				}
			}
		})
	}
	waitFor(t, "all places are taken", func() bool { return f.door.count() == places })
	close(full)
	// How soon is a matter of the machine: a worker whose handshake has waited for too long among a thousand begins anew.
	patient, late := context.WithTimeout(t.Context(), 2*time.Minute)
	defer late()
	for _, name := range []string{"a", "b"} {
		agent := startFrom(t, f, name, f.from("127.2.0.1"))
		if _, err := agent.Await(patient, func(s rendezvoustest.Snapshot) bool { return s.Term == 1 }); err != nil {
			t.Fatal(err)
		}
	}
}
