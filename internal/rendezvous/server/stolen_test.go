package server

import (
	"net/netip"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// Who has a stolen token says once, while the pod itself is not there, what that can never say again: that it has obeyed a far term, is
// in a far round, or has started its programs anew very often. The pod is heard all the same.
func TestAStolenTokenLocksNobodyOut(t *testing.T) {
	for what, lie := range map[string]func(*rendezvousv1.Report){
		"a far term":    func(r *rendezvousv1.Report) { r.Term = 1000 },
		"many restarts": func(r *rendezvousv1.Report) { r.Restarts = 1 << 60 },
		"a far round": func(r *rendezvousv1.Report) {
			r.Round, r.MembersDigest, r.WorkerRank = 1000, strings.Repeat("a", 64), 1
		},
	} {
		t.Run(what, func(t *testing.T) {
			f := serve(t, nil)
			gang := gangOf(1, "a", "b")
			gang.Addresses = map[string][]netip.Addr{"uid-a": {netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("10.0.0.1")}}
			f.Expect(digits, gang)
			hello := f.pod("a")
			config := f.config(hello)
			config.Dial = f.from("127.0.0.3").DialContext
			thief := f.openWith(t, config, "token-a")
			said := first(hello)
			lie(said)
			if err := thief.Send(said); err != nil {
				t.Fatal(err)
			}
			if _, err := thief.Receive(); err != nil {
				t.Fatalf("nobody else is there: %v", err)
			}
			for _, there := range []bool{true, false} {
				if !there {
					thief.hangUp()
				}
				s, err := f.greetFrom(t, f.from("127.0.0.2"), hello)
				if err != nil {
					t.Fatalf("the pod is locked out while the other one is there (%t): %v", there, err)
				}
				s.hangUp()
			}
		})
	}
}

// What the pod itself has said counts, also on its next session.
func TestWhatThePodHasSaidCounts(t *testing.T) {
	f := serve(t, nil)
	gang := gangOf(1, "a", "b")
	gang.Addresses = map[string][]netip.Addr{"uid-a": {netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("10.0.0.1")}}
	f.Expect(digits, gang)
	config := f.config(f.pod("a"))
	config.Dial = f.from("127.0.0.2").DialContext
	say := func(restarts uint64) error {
		s := f.openWith(t, config, "token-a")
		defer s.hangUp()
		said := first(config.Hello)
		said.Restarts = restarts
		if err := s.Send(said); err != nil {
			t.Fatal(err)
		}
		_, err := s.Receive()
		return err
	}
	if err := say(2); err != nil {
		t.Fatal(err)
	}
	wantCode(t, say(1), codes.InvalidArgument, "started anew 2 times, and now 1")
}
