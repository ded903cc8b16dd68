package rendezvous

import (
	"fmt"
	"slices"
	"testing"
)

func TestLegalSize(t *testing.T) {
	for _, tc := range []struct {
		available, target int32
		sizes             []int32
		want              int32
	}{
		{5, 8, nil, 5},
		{9, 8, nil, 8},
		{0, 8, nil, 0},
		{7, 8, []int32{2, 4, 8}, 4},
		{8, 7, []int32{2, 4, 8}, 4},
		{1, 8, []int32{2, 4, 8}, 0},
		{20000, 20000, nil, MaxWorkers},
	} {
		m := &Machine{gang: Gang{Target: tc.target, Sizes: tc.sizes}}
		if got := m.legalSize(tc.available); got != tc.want {
			t.Errorf("%d available, target %d, sizes %v: %d, want %d", tc.available, tc.target, tc.sizes, got, tc.want)
		}
	}
}

// A world grows by those who are beyond its spares, and keeps its size with these.
func TestSpareSize(t *testing.T) {
	for _, tc := range []struct {
		available, world, minimum, target, spares int32
		sizes                                     []int32
		want                                      int32
	}{
		{3, 2, 2, 4, 0, nil, 3},
		{3, 2, 2, 4, 1, nil, 2},
		{4, 2, 2, 4, 1, nil, 3},
		{6, 2, 2, 4, 1, nil, 4},
		{4, 4, 2, 4, 1, nil, 4}, // one is lost: the spare comes in
		{3, 4, 2, 4, 1, nil, 3},
		{5, 3, 2, 3, 1, nil, 3},
		{2, 1, 2, 4, 1, nil, 2},
		{3, 2, 2, 4, 1, []int32{2, 4}, 2},
		{4, 2, 2, 4, 1, []int32{2, 4}, 4}, // two would be left over
		{4, 2, 2, 4, 2, []int32{2, 4}, 2},
		{5, 2, 2, 4, 2, []int32{2, 4}, 4},
		{5, 2, 2, 3, 2, []int32{2, 4}, 2},
		{7, 4, 2, 8, 2, []int32{2, 4, 8}, 4},
		{8, 4, 2, 8, 2, []int32{2, 4, 8}, 8},
	} {
		m := &Machine{gang: Gang{Minimum: tc.minimum, Target: tc.target, Sizes: tc.sizes, Spares: tc.spares}}
		m.world = &world{record: Record{Workers: tc.world}, ranks: &rankTable{}}
		if got := m.nextSize(tc.available); got != tc.want {
			t.Errorf("%d available, a world of %d, target %d, %d spares, sizes %v: %d, want %d",
				tc.available, tc.world, tc.target, tc.spares, tc.sizes, got, tc.want)
		}
	}
}

// Who stays when not all can, and who comes in.
func TestChoose(t *testing.T) {
	on := func(uid, node string, ordinal int32) Member { return Member{UID: uid, Node: node, Ordinal: ordinal} }
	stay := []Member{on("a", "n1", 0), on("b", "n2", 1), on("c", "n1", 2), on("d", "n3", 3)}
	rank := map[string]int32{"a": 0, "b": 1, "c": 2, "d": 3}
	fresh := []Member{on("z", "n4", 9), on("y", "n4", 5)}
	for _, tc := range []struct {
		size int32
		want []string
	}{
		{4, []string{"a", "b", "c", "d"}},
		{3, []string{"a", "b", "c"}}, // b and d are alone on their nodes, and d has the higher rank
		{2, []string{"a", "c"}},
		{1, []string{"a"}},
		{5, []string{"a", "b", "c", "d", "y"}},
		{6, []string{"a", "b", "c", "d", "y", "z"}},
	} {
		t.Run(fmt.Sprint(tc.size), func(t *testing.T) {
			var got []string
			for _, member := range choose(rank, stay, fresh, tc.size) {
				got = append(got, member.UID)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}

// Who writes when all are on one node: as many as survive a loss, once it is certain that nobody is elsewhere.
func TestWritersOfOneNode(t *testing.T) {
	some := func(nodes map[string]int32, known ...string) *world {
		w := &world{ranks: emptyRankTable(3, ""), writers: nodes}
		for rank, uid := range known {
			w.ranks.uids[rank], w.ranks.ranks[uid] = uid, int32(rank)
		}
		return w
	}
	one := map[string]int32{"n1": 0}
	for name, tc := range map[string]struct {
		world *world
		want  []bool
	}{
		"one node":               {some(one, "a", "b", "c"), []bool{true, true, false}},
		"two nodes":              {some(map[string]int32{"n1": 0, "n2": 2}, "a", "b", "c"), []bool{true, false, false}},
		"one is not known yet":   {some(one, "a", "b"), []bool{true, false, false}},
		"a world of one worker":  {&world{ranks: newRankTable([]string{"a"}), writers: one}, []bool{true}},
		"a world of two workers": {&world{ranks: newRankTable([]string{"a", "b"}), writers: one}, []bool{true, true}},
	} {
		for rank, want := range tc.want {
			if got := tc.world.writes("n1", int32(rank)); got != want {
				t.Errorf("%s: rank %d writes: %v", name, rank, got)
			}
		}
	}
}

// One worker per node writes, and newcomers are told of different holders, of not too many.
func TestWritersAndHolders(t *testing.T) {
	w := &world{
		record: Record{Round: 2, Workers: 3, Processes: 3, FromStep: 7}, snapshot: &Snapshot{Round: 1, Step: 7},
		ranks: newRankTable([]string{"a", "b", "c"}), writers: map[string]int32{"n1": 0, "n2": 2},
	}
	for i := range 20 {
		w.holders = append(w.holders, holding{holder: holder{fmt.Sprintf("10.0.0.%d", i), Server{Port: 5000}}})
	}
	m := &Machine{world: w, members: map[string]*member{
		"a": {want: Member{Node: "n1"}}, "b": {want: Member{Node: "n1"}}, "c": {want: Member{Node: "n2"}},
	}}
	seen := map[string]bool{}
	for rank, uid := range w.ranks.uids {
		p := m.place(uid, int32(rank))
		if p.Writer != (uid != "b") {
			t.Errorf("%s writes: %v", uid, p.Writer)
		}
		if !p.Restore || len(p.Holders) != maxHolders || seen[p.Holders[0].Address] {
			t.Errorf("%s is told of %v", uid, p.Holders)
		}
		seen[p.Holders[0].Address] = true
	}
}
