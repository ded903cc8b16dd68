package rendezvous

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/share"
	"github.com/concertina-dev/concertina/internal/ticket"
)

// One member has brought the checkpoint: the others get it from that one, and from each other, with tickets of their own, until nobody
// needs it any more.
func TestWhoGetsASnapshotIsToldOfOthersWhoDo(t *testing.T) {
	f, l := stored(t, Storage{Interval: time.Minute, Keep: 3, From: "other"})
	for range 40 {
		if w := l.machine.world; w != nil && w.snapshot != nil {
			break
		}
		f.turn(l)
	}
	w := l.machine.world
	if w == nil || len(w.holders) != 1 || len(w.receivers) != 2 {
		t.Fatalf("the world is %+v", w)
	}
	at := func(uid string) string { return l.machine.members[uid].endpoint.Address }
	brought := w.holders[0].Address
	for _, uid := range f.uids() {
		d, _ := l.machine.Directive(uid)
		if uid == l.machine.restoring.who {
			continue
		}
		if len(d.World.Holders) != 1 || len(d.World.Peers) != 1 {
			t.Fatalf("%s is told of the holders %v and of the peers %v", uid, d.World.Holders, d.World.Peers)
		}
		peer := d.World.Peers[0]
		if peer.Address == brought || peer.Address == at(uid) {
			t.Errorf("%s is told that %s gets it", uid, peer.Address)
		}
		grant := ticket.Grant{Fetcher: f.pods[uid].certificate, Step: w.snapshot.Step, Round: w.snapshot.Round}
		for _, other := range f.uids() {
			if at(other) != peer.Address {
				continue
			}
			told, _ := l.machine.Directive(other)
			if err := peer.Ticket.Check(told.Key, grant, f.now); err != nil {
				t.Errorf("the ticket of %s for %s: %v", uid, other, err)
			}
		}
		place := *d.World
		withdraw(&place)
		if place.Peers[0].Ticket != nil {
			t.Error("a ticket stays with who is told of a world that goes on without it")
		}
	}
	f.turns(l, 12)
	for _, uid := range f.uids() {
		d, _ := l.machine.Directive(uid)
		for _, peer := range d.World.Peers {
			if peer.Ticket != nil {
				t.Errorf("%s has a ticket after step %d of a world that begins after step %d", uid, l.machine.step, d.World.FromStep)
			}
		}
	}
}

// Peers are the next by rank of those who lack something, at most so many, and of a state in parts each gives those that it needs as
// well and does not have.
func TestPeers(t *testing.T) {
	const workers = 12
	m := &Machine{members: map[string]*member{}}
	var uids []string
	for i := range workers {
		uid := fmt.Sprintf("p%02d", i)
		uids = append(uids, uid)
		m.members[uid] = &member{endpoint: Endpoint{Address: uid}, serves: Server{Port: uint32(i + 1)}}
	}
	m.members["p02"].serves.Port = 0 // an agent that gives nothing
	ranks := newRankTable(uids)
	addresses := func(some []source) (all []string) {
		for i := range some {
			all = append(all, some[i].Address)
		}
		return all
	}
	live := map[string]bool{"p01": true}
	holders := []holding{{holder: m.members["p00"].holder()}}
	told := newSupply(nil, holders)
	receivers := m.receiversOf(ranks, live, told)
	if want := []int32{3, 4, 5, 6, 7, 8, 9, 10, 11}; !slices.Equal(receivers, want) {
		t.Errorf("it is got by %v, want %v", receivers, want)
	}
	if got, want := addresses(m.peersFor(10, ranks, receivers, told, told.whole)), []string{"p11", "p03", "p04", "p05", "p06", "p07", "p08", "p09"}; !slices.Equal(got, want) {
		t.Errorf("the peers of rank 10 are %v, want %v", got, want)
	}
	if got := m.peersFor(3, ranks, []int32{3}, told, told.whole); got != nil {
		t.Errorf("who is alone has the peers %v", got)
	}

	part := func(rank bool, index int) Snapshot {
		return Snapshot{Round: 1, Step: 5, Part: share.Key{Rank: rank, Index: index, Of: 2, Layout: "0123456789abcdef"}.String()}
	}
	parts := []Snapshot{part(true, 0), part(true, 1), part(false, 0), part(false, 1)}
	ranks = newRankTable(uids[:2])
	holders = []holding{
		{m.members["p00"].holder(), []Snapshot{parts[0], parts[2]}},
		{m.members["p01"].holder(), []Snapshot{parts[1], parts[3]}},
	}
	told = newSupply(parts, holders)
	receivers = m.receiversOf(ranks, nil, told)
	if !slices.Equal(receivers, []int32{0, 1}) {
		t.Fatalf("parts are got by %v", receivers)
	}
	peers := m.peersFor(0, ranks, receivers, told, told.whole)
	if len(peers) != 1 || peers[0].Address != "p01" || !slices.Equal(peers[0].parts, []uint32{1}) {
		t.Errorf("the peers of rank 0 are %+v", peers)
	}
	holders[0].parts = []Snapshot{parts[0], parts[2], parts[3]}
	if receivers = m.receiversOf(ranks, nil, newSupply(parts, holders)); !slices.Equal(receivers, []int32{1}) {
		t.Errorf("who has all that it needs gets it: %v", receivers)
	}
}
