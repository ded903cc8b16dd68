package server

import (
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// slowClaims is an authenticator that takes its time to read a token.
type slowClaims struct {
	*tokenTable
	asked, answer chan struct{}
}

func (s slowClaims) Claim(token string) (rendezvous.Identity, error) {
	s.asked <- struct{}{}
	<-s.answer
	return s.tokenTable.Claim(token)
}

// keeps says how many strangers there are, and how many of them keep us waiting.
func (d *door) keeps() (strangers, quiet int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.strangers.count, d.strangers.quiet.Len()
}

// waitFor waits for something that nothing tells of.
func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for !is() {
		select {
		case <-deadline:
			t.Fatalf("waited in vain until %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Who has said what it should waits for us, and makes room for nobody, however long we take for it: the goroutine that
// is to look at its token or its hello may wait for a thousand handshakes, and a job that ten thousand come back to
// takes its time for each of them.
func TestWhoWaitsForUsIsNotSilent(t *testing.T) {
	claims := slowClaims{asked: make(chan struct{}), answer: make(chan struct{})}
	f := serve(t, func(o *Options) {
		claims.tokenTable = o.Authenticator.(*tokenTable)
		o.Authenticator = claims
	})
	f.Expect(digits, gangOf(1, "a"))
	f.eventually(t, "the term is taken", func(o rendezvous.Observation) bool { return !o.Adopting })
	hello := f.pod("a")
	j := f.jobs.jobs[digits]
	stream := f.open(t, "token-a")
	if err := stream.err; err != nil {
		t.Fatal(err)
	}
	<-claims.asked
	if strangers, quiet := f.door.keeps(); strangers != 1 || quiet != 0 {
		t.Errorf("%d strangers, %d are silent, want 1 and none: its token has come", strangers, quiet)
	}
	close(claims.answer)
	f.eventually(t, "its hello is awaited", func(rendezvous.Observation) bool { return f.introducing.count("uid-a") == 1 })
	f.eventually(t, "it keeps us waiting", func(rendezvous.Observation) bool {
		_, quiet := f.door.keeps()
		return quiet == 1
	})
	func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		if err := stream.Send(first(hello)); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "its hello has been read", func() bool { return f.introducing.count("uid-a") == 0 })
		if strangers, quiet := f.door.keeps(); strangers != 1 || quiet != 0 {
			t.Errorf("%d strangers, %d are silent, want 1 and none: its hello has come", strangers, quiet)
		}
	}()
	if _, err := stream.Receive(); err != nil {
		t.Errorf("the worker gets no session: %v", err)
	}
}
