package rendezvous

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// seated makes members out of words "uid@node"; ordinals follow the order of the words.
func seated(words ...string) []Member {
	members := make([]Member, len(words))
	for i, word := range words {
		uid, node, _ := strings.Cut(word, "@")
		members[i] = Member{UID: uid, Node: node, Ordinal: int32(i)}
	}
	return members
}

func TestAssignRanks(t *testing.T) {
	for _, tc := range []struct {
		name     string
		previous string
		members  []Member
		want     string
	}{
		{
			name: "a first world is in the order of nodes and ordinals",
			members: []Member{
				{UID: "d", Node: "node-b", Ordinal: 1},
				{UID: "a", Node: "node-b", Ordinal: 0},
				{UID: "c", Node: "node-a", Ordinal: 10},
				{UID: "b", Node: "node-a", Ordinal: 9},
			},
			want: "b c a d",
		},
		{"nobody changes", "c b a", seated("a@x", "b@y", "c@z"), "c b a"},
		{"the last one leaves", "a b c", seated("a@x", "b@y"), "a b"},
		{"one in the middle leaves: only the last one moves", "a b c d", seated("a@x", "c@x", "d@x"), "a d c"},
		{"one in the middle is replaced", "a b c d", seated("a@x", "c@x", "d@x", "new@y"), "a new c d"},
		{"rank 0 is replaced: the lowest that stays takes it", "a b c", seated("b@x", "c@x", "new@y"), "b new c"},
		{"rank 0 leaves", "a b c d", seated("b@x", "c@x", "d@x"), "b d c"},
		{"only a newcomer for rank 0 and a high rank stay", "a b c", seated("c@x", "new@y"), "c new"},
		{"all are replaced", "a b", seated("d@y", "c@x"), "c d"},
		{"growth", "b a", seated("a@x", "b@y", "d@z", "c@y"), "b a c d"},
		{"a newcomer goes beside its node", "a b c d e", seated("a@x", "c@y", "e@z", "p@z", "q@x"), "a q c p e"},
		{"one that moves goes beside its node", "a b c d e", seated("a@x", "c@y", "d@y", "e@x"), "a e c d"},
		{"a node is cut only where a gap ends", "a b c d e f g", seated("a@x", "e@x", "g@x", "p@y", "q@y", "r@z", "s@z"), "a p q r e s g"},
		{"a node of just the size of a gap", "a b c d e f", seated("a@x", "c@x", "f@x", "p@y", "q@z", "r@z"), "a p c q r f"},
		{"members that are not known", "a - c -", seated("a@x", "c@x", "new@y"), "a new c"},
		{"rank 0 is not known", "- b c", seated("b@x", "c@x", "new@y"), "b new c"},
		{"nobody is left", "a b", nil, ""},
		{"a uid that stands there twice", "a a b", seated("a@x", "b@x"), "a b"},
		{"the same member twice", "a b", seated("a@x", "a@x"), "a a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var previous []string
			for _, uid := range strings.Fields(tc.previous) {
				previous = append(previous, strings.TrimPrefix(uid, "-"))
			}
			given := slices.Clone(tc.members)
			if diff := cmp.Diff(strings.Fields(tc.want), assignRanks(previous, tc.members)); diff != "" {
				t.Errorf("ranks (-want +got):\n%s", diff)
			}
			if !slices.Equal(given, tc.members) {
				t.Error("the caller's slice was changed")
			}
		})
	}
}

// drawChange makes up a world and the members of the next one: any may have left, any may have come.
func drawChange(t *rapid.T, most int) (previous []string, members []Member) {
	node := rapid.SampledFrom([]string{"a", "b", "c"})
	for rank := range rapid.IntRange(0, most).Draw(t, "size before") {
		uid := fmt.Sprintf("old-%d", rank)
		switch rapid.SampledFrom([]string{"stays", "stays", "leaves", "unknown"}).Draw(t, uid) {
		case "stays":
			members = append(members, Member{UID: uid, Ordinal: int32(20 - rank), Node: node.Draw(t, "node")})
		case "unknown":
			uid = ""
		}
		previous = append(previous, uid)
	}
	for i := range rapid.IntRange(0, most-len(members)).Draw(t, "newcomers") {
		members = append(members, Member{UID: fmt.Sprintf("new-%d", i), Ordinal: int32(30 + i), Node: node.Draw(t, "node")})
	}
	return previous, members
}

// moves counts the members whose rank is another one than before.
func moves(previous, ranks []string) int {
	count := 0
	for rank, uid := range ranks {
		if before := slices.Index(previous, uid); before >= 0 && before != rank {
			count++
		}
	}
	return count
}

// neighbours counts the ranks whose next rank is on the same node.
func neighbours(ranks []string, nodes map[string]string) int {
	count := 0
	for rank := 1; rank < len(ranks); rank++ {
		if nodes[ranks[rank-1]] == nodes[ranks[rank]] {
			count++
		}
	}
	return count
}

// lowestStaying returns the uid that must have rank 0, "" if anybody may.
func lowestStaying(previous []string, members []Member) string {
	for _, uid := range previous {
		if uid != "" && slices.ContainsFunc(members, func(m Member) bool { return m.UID == uid }) {
			return uid
		}
	}
	return ""
}

// everyOrder calls visit with every order of the uids. The slice is the same each time.
func everyOrder(uids []string, from int, visit func([]string)) {
	if from == len(uids) {
		visit(uids)
		return
	}
	for i := from; i < len(uids); i++ {
		uids[from], uids[i] = uids[i], uids[from]
		everyOrder(uids, from+1, visit)
		uids[from], uids[i] = uids[i], uids[from]
	}
}

// Every order of the members that keeps rank 0 with the lowest that stays is tried: none moves fewer
// members. Of those that move as few, none brings more than one pair of neighbours of a node together
// that is apart here, for each gap that was filled.
func TestAssignRanksMovesAsFewAsPossible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		previous, members := drawChange(t, 6)
		ranks := assignRanks(previous, members)
		first := lowestStaying(previous, members)
		if first != "" && ranks[0] != first {
			t.Fatalf("rank 0 is %s, not %s: %v after %v", ranks[0], first, ranks, previous)
		}
		uids, nodes := make([]string, 0, len(members)), make(map[string]string)
		for _, member := range members {
			uids = append(uids, member.UID)
			nodes[member.UID] = member.Node
		}
		fewest, most := moves(previous, ranks), 0
		everyOrder(slices.Clone(uids), 0, func(order []string) {
			if first != "" && order[0] != first {
				return
			}
			count := moves(previous, order)
			if count < fewest {
				t.Fatalf("%v moves %d, %v only %d; before it was %v", ranks, fewest, order, count, previous)
			}
			if count == fewest {
				most = max(most, neighbours(order, nodes))
			}
		})
		seats := make([]*Member, len(members))
		keepRanks(seats, previous, members)
		if got, gaps := neighbours(ranks, nodes), len(freeGaps(seats)); got < most-gaps {
			t.Fatalf("%v has %d neighbours with %d gaps where %d are possible: %v on %v", ranks, got, gaps, most, previous, nodes)
		}
	})
}

// Everybody has one rank, and the order in which the members are given makes no difference.
func TestAssignRanksProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		previous, members := drawChange(t, 40)
		ranks := assignRanks(previous, members)
		if again := assignRanks(previous, rapid.Permutation(members).Draw(t, "shuffled")); !slices.Equal(ranks, again) {
			t.Fatalf("ranks depend on the order given: %v and %v", ranks, again)
		}
		want := make([]string, 0, len(members))
		for _, member := range members {
			want = append(want, member.UID)
		}
		if !slices.Equal(slices.Sorted(slices.Values(ranks)), slices.Sorted(slices.Values(want))) {
			t.Fatalf("%v are not the members %v", ranks, want)
		}
		if again := assignRanks(ranks, members); !slices.Equal(ranks, again) {
			t.Fatalf("the same members again: %v after %v", again, ranks)
		}
	})
}

// The members of a node are together in a first world.
func TestAssignRanksFirstWorld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.IntRange(1, 40).Draw(t, "members")
		members := make([]Member, count)
		for i := range members {
			node := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "node")
			members[i] = Member{UID: fmt.Sprintf("uid-%d", i), Ordinal: int32(i), Node: node}
		}
		want := slices.Clone(members)
		slices.SortStableFunc(want, func(a, b Member) int { return strings.Compare(a.Node, b.Node) })
		for rank, uid := range assignRanks(nil, members) {
			if uid != want[rank].UID {
				t.Fatalf("rank %d is %s, not %s", rank, uid, want[rank].UID)
			}
		}
	})
}

// A world of 10000 of which every second member is replaced must not take quadratic time: that would
// be far more than 10 ms for each.
func BenchmarkAssignRanks(b *testing.B) {
	const workers = 10000
	previous, members := make([]string, workers), make([]Member, workers)
	for i := range members {
		previous[i] = fmt.Sprintf("old-%d", i)
		members[i] = Member{UID: previous[i], Node: fmt.Sprintf("node-%d", i/8), Ordinal: int32(i)}
		if i%2 == 1 {
			members[i].UID = fmt.Sprintf("new-%d", i)
			members[i].Node = fmt.Sprintf("node-%d", (i*7)%workers/8)
		}
	}
	for b.Loop() {
		if ranks := assignRanks(previous, members); len(ranks) != workers {
			b.Fatal(len(ranks))
		}
	}
}

func TestMembersDigest(t *testing.T) {
	want := fmt.Sprintf("%x", sha256.Sum256([]byte("u1\nu2\n")))
	if got := MembersDigest([]string{"u1", "u2"}); got != want {
		t.Errorf("digest %s, want %s", got, want)
	}
	if MembersDigest([]string{"u1", "u2"}) == MembersDigest([]string{"u2", "u1"}) {
		t.Error("the digest does not depend on the order")
	}
	if MembersDigest([]string{"u1", "u2"}) == MembersDigest([]string{"u1u2"}) {
		t.Error("the digest does not tell members apart")
	}
}

func TestRankTableFromReports(t *testing.T) {
	digest := MembersDigest([]string{"a", "b", "c"})
	for _, tc := range []struct {
		name  string
		uid   string
		rank  uint32
		place bool
	}{
		{"its own rank again", "b", 1, true},
		{"another rank than before", "b", 2, false},
		{"a rank that is taken", "c", 1, false},
		{"a rank outside the world", "c", 3, false},
		{"a rank far outside the world", "c", 1<<32 - 1, false},
		{"a free rank", "a", 0, true},
		{"the last free rank, with the wrong uid", "x", 2, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			table := emptyRankTable(3, digest)
			if !table.place("b", 1) {
				t.Fatal("the first report was refused")
			}
			if tc.uid == "x" && !table.place("a", 0) {
				t.Fatal("the second report was refused")
			}
			if got := table.place(tc.uid, tc.rank); got != tc.place {
				t.Fatalf("place(%s, %d) = %v", tc.uid, tc.rank, got)
			}
			if !tc.place && tc.uid != "b" && table.rank(tc.uid) != -1 {
				t.Errorf("a refused report left rank %d", table.rank(tc.uid))
			}
			if !table.place("a", 0) || !table.place("c", 2) {
				t.Error("the truth was refused afterwards")
			}
		})
	}
}

// Who has the ranks that nobody has reported follows from the digest, where it is not too many to try.
func TestTheDigestTellsWhoIsMissing(t *testing.T) {
	members := []string{"a", "b", "c", "d"}
	for name, c := range map[string]struct {
		known      []string
		candidates []string
		want       []string
	}{
		"one of two":               {[]string{"a", "", "c", "d"}, []string{"e", "b"}, members},
		"two of four":              {[]string{"", "b", "", "d"}, []string{"e", "c", "f", "a"}, members},
		"nobody is missing":        {members, []string{"e"}, members},
		"one of them is not known": {[]string{"a", "", "c", ""}, []string{"e", "b"}, nil},
		"there are too few":        {[]string{"a", "", "c", ""}, []string{"b"}, nil},
		"there are too many":       {make([]string, 4), strings.Split("qrstuvwxyzabcd", ""), nil},
	} {
		t.Run(name, func(t *testing.T) {
			table := emptyRankTable(4, MembersDigest(members))
			for rank, uid := range c.known {
				if uid != "" {
					table.uids[rank], table.ranks[uid] = uid, int32(rank)
				}
			}
			if got := table.complete(slices.Clone(c.candidates)); !slices.Equal(got, c.want) {
				t.Errorf("they are %v", got)
			}
			if !slices.Equal(table.uids, c.known) {
				t.Errorf("the table has become %v", table.uids)
			}
		})
	}
}
