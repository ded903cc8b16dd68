package rendezvous

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/concertina-dev/concertina/internal/share"

	"pgregory.net/rapid"
)

// What is sorted once for a world says of each worker what looking at all parts and all holders says.
func TestSupplies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		workers := rapid.IntRange(1, 12).Draw(t, "workers")
		m, ranks, live := &Machine{members: map[string]*member{}}, &rankTable{}, map[string]bool{}
		for i := range workers {
			uid := fmt.Sprintf("p%02d", i)
			ranks.uids = append(ranks.uids, uid)
			live[uid] = rapid.IntRange(0, 3).Draw(t, "live") == 0
			m.members[uid] = &member{endpoint: Endpoint{Address: uid}, serves: Server{Port: uint32(min(i, 1))}}
		}
		parts := drawParts(t, workers)
		var holders []holding
		for _, uid := range ranks.uids {
			h := holding{holder: m.members[uid].holder()}
			for _, part := range parts {
				if rapid.Bool().Draw(t, "has") {
					h.parts = append(h.parts, part)
				}
			}
			if rapid.Bool().Draw(t, "holds") && (parts == nil || h.parts != nil) {
				slices.Reverse(h.parts)
				holders = append(holders, h)
			}
		}
		told := newSupply(parts, holders)
		if told.sharded != inShards(parts) {
			t.Fatalf("in shards: %t", told.sharded)
		}
		receivers := m.receiversOf(ranks, live, told)
		if want := receiversAmong(m, ranks, live, parts, holders); !slices.Equal(receivers, want) {
			t.Fatalf("it is got by %v, want %v", receivers, want)
		}
		for rank := range int32(workers + 1) {
			rank--
			for sel, needed := range map[*selection][]Snapshot{told.whole: neededBy(rank, parts), told.ahead: withoutShards(neededBy(rank, parts))} {
				if got := told.neededBy(rank, sel); !slices.Equal(got, needed) {
					t.Fatalf("rank %d needs %v, want %v", rank, got, needed)
				}
				same(t, "holders", rank, told.holdersFor(rank, sel), needed, holdersFor(rank, needed, holders))
				same(t, "peers", rank, m.peersFor(rank, ranks, receivers, told, sel), needed, peersAmong(m, rank, ranks, receivers, parts, holders))
			}
		}
	})
}

func drawParts(t *rapid.T, workers int) (parts []Snapshot) {
	of, shards := rapid.IntRange(0, 6).Draw(t, "of"), rapid.Bool().Draw(t, "shards")
	add := func(key share.Key) {
		key.Of, key.Layout = max(of, 2), "0123456789abcdef"
		parts = append(parts, Snapshot{Round: 1, Step: 5, Part: key.String()})
	}
	for i := range of {
		add(share.Key{Shard: shards, Index: i})
	}
	for i := range workers {
		if of > 0 && rapid.Bool().Draw(t, "own") {
			add(share.Key{Rank: true, Index: i})
		}
	}
	return parts
}

func same(t *rapid.T, what string, rank int32, got []source, needed []Snapshot, all []holding) {
	var want []source
	for i := range all {
		want = append(want, source{all[i].holder, all[i].has(needed)})
	}
	if !reflect.DeepEqual(got, want) && len(got)+len(want) > 0 {
		t.Fatalf("the %s of rank %d are %+v, want %+v", what, rank, got, want)
	}
}

// withoutShards are the other parts.
func withoutShards(parts []Snapshot) []Snapshot {
	return slices.DeleteFunc(slices.Clone(parts), func(p Snapshot) bool { return share.IsShard(p.Part) })
}

// lackedBy are the parts that the worker of a rank needs, but for those that it has.
func lackedBy(rank int32, parts, has []Snapshot) []Snapshot {
	return slices.DeleteFunc(withoutShards(neededBy(rank, parts)), func(part Snapshot) bool { return slices.Contains(has, part) })
}

func receiversAmong(m *Machine, ranks *rankTable, live map[string]bool, parts []Snapshot, holders []holding) (receivers []int32) {
	for rank, uid := range ranks.uids {
		by := m.members[uid].holder()
		at := slices.IndexFunc(holders, func(h holding) bool { return h.holder == by })
		var has []Snapshot
		if at >= 0 {
			has = holders[at].parts
		}
		if live[uid] || by.Port == 0 || parts == nil && at >= 0 || parts != nil && len(lackedBy(int32(rank), parts, has)) == 0 {
			continue
		}
		receivers = append(receivers, int32(rank))
	}
	return receivers
}

func peersAmong(m *Machine, rank int32, ranks *rankTable, receivers []int32, parts []Snapshot, holders []holding) (peers []holding) {
	after, _ := slices.BinarySearch(receivers, rank+1)
	for i := range receivers {
		next := receivers[(after+i)%len(receivers)]
		if next == rank || len(peers) == maxPeers {
			continue
		}
		one := holding{holder: m.members[ranks.uids[next]].holder()}
		if parts != nil {
			var has []Snapshot
			if at := slices.IndexFunc(holders, func(h holding) bool { return h.holder == one.holder }); at >= 0 {
				has = holders[at].parts
			}
			one.parts = lackedBy(next, parts, has)
		}
		peers = append(peers, one)
	}
	return peers
}
