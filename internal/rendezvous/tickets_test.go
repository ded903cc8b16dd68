package rendezvous

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/ticket"
)

// ticketed takes a fleet of two to the moment at which the write of the next world is asked for, in which a newcomer
// loads a snapshot.
func ticketed(t *testing.T) (*fleet, *modelLeader) {
	t.Helper()
	f := emptyFleet(t)
	f.minimum, f.target = 1, 2
	l := f.training(2)
	f.parkedBefore(l)
	return f, l
}

func TestTicketsOfTheDirective(t *testing.T) {
	f, l := ticketed(t)
	newcomer := f.uids()[2]
	check := func(at string, s Snapshot, holders []Supplier) {
		t.Helper()
		if len(holders) == 0 {
			t.Fatalf("%s: no holders", at)
		}
		for _, h := range holders {
			uid := strings.TrimPrefix(h.Address, "10.0.0.")
			d, _ := l.machine.Directive(uid)
			grant := ticket.Grant{Fetcher: f.pods[newcomer].certificate, Round: s.Round, Step: s.Step}
			for after, want := range map[time.Duration]error{0: nil, ticket.Life - renewTickets: nil, ticket.Life + time.Second: ticket.ErrExpired} {
				if err := h.Ticket.Check(d.Key, grant, f.now.Add(after)); err != want { //nolint:errorlint // they are compared as they are
					t.Errorf("%s, after %s: the ticket for %s: %v, want %v", at, after, uid, err, want)
				}
			}
			if term, _ := h.Ticket.Term(); term != l.machine.term {
				t.Errorf("%s: a ticket of term %d in term %d", at, term, l.machine.term)
			}
		}
	}
	d, _ := l.machine.Directive(newcomer)
	check("ahead", d.Prefetch.Snapshot, d.Prefetch.Holders)
	f.finishWrite(l)
	d, _ = l.machine.Directive(newcomer)
	check("in its world", *d.World.Snapshot, d.World.Holders)
	if text := fmt.Sprintf("%+v %v %#v", d.World.Holders, d.World.Holders, d.World.Holders); strings.Contains(text, fmt.Sprintf("%d", []byte(d.World.Holders[0].Ticket[:8]))) {
		t.Errorf("a ticket is printed: %s", text)
	}

	var keys [][]byte
	for _, uid := range f.uids() {
		d, _ := l.machine.Directive(uid)
		for _, other := range keys {
			if bytes.Equal(d.Key, other) {
				t.Error("two holders have the same key")
			}
		}
		keys = append(keys, d.Key)
	}

	// Everybody has what it needs once a step was made.
	f.turns(l, 4)
	d, _ = l.machine.Directive(newcomer)
	if len(d.World.Holders)+len(d.World.Peers) > 0 {
		t.Errorf("it is told of holders after step %d of a world that begins after step %d", l.machine.step, d.World.FromStep)
	}
}

// A member that was lost is given no ticket, neither while its world lives nor when that has gone on without it.
func TestWhoWasLostGetsNoTicket(t *testing.T) {
	f, l := ticketed(t)
	f.finishWrite(l)
	newcomer := f.uids()[2]
	has := func() (told, any bool) {
		d, ok := l.machine.Directive(newcomer)
		if !ok || d.World == nil {
			return false, false
		}
		for _, h := range d.World.Holders {
			any = any || h.Ticket != nil
		}
		return len(d.World.Holders) > 0, any
	}
	if told, any := has(); !told || !any {
		t.Fatalf("it is told of holders: %v, and has tickets: %v", told, any)
	}
	f.pods[newcomer].want.Lost = "its node is gone"
	_ = f.handle(l, GangExpected{f.gang()})
	if told, any := has(); !told || any {
		t.Errorf("it was lost and is told of holders: %v, and has tickets: %v", told, any)
	}
	for range 40 {
		f.drop(f.pods[newcomer], l)
		f.pods[newcomer].dead = true
		f.turn(l)
		if _, any := has(); any {
			t.Fatalf("it has tickets again, in round %d", f.record.Round)
		}
	}
	if l.machine.world.ranks.rank(newcomer) >= 0 {
		t.Errorf("it is still in round %d", l.machine.world.record.Round)
	}
}

// Who is not lost, and has no place in the world that follows before a step was made, gets none either.
func TestWhoIsLeftOutGetsNoTicket(t *testing.T) {
	f, l := ticketed(t)
	f.finishWrite(l)
	newcomer := f.uids()[2]
	l.machine.freeze(&world{ranks: newRankTable([]string{"p00", "p01"})})
	left := l.machine.members[newcomer].left
	if left == nil || len(left.World.Holders) == 0 {
		t.Fatalf("it is told %+v", left)
	}
	for _, h := range left.World.Holders {
		if h.Ticket != nil {
			t.Error("what it is told last has a ticket")
		}
	}
}
