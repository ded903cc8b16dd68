package rendezvous

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestAssignRanks(t *testing.T) {
	members := []Member{
		{UID: "d", Node: "node-b", Ordinal: 1},
		{UID: "a", Node: "node-b", Ordinal: 0},
		{UID: "c", Node: "node-a", Ordinal: 10},
		{UID: "b", Node: "node-a", Ordinal: 9},
	}
	want := []string{"b", "c", "a", "d"}
	if diff := cmp.Diff(want, assignRanks(members)); diff != "" {
		t.Errorf("ranks (-want +got):\n%s", diff)
	}
	if members[0].UID != "d" {
		t.Error("the caller's slice was reordered")
	}
}

// The order is the same whatever order the members are given in, and keeps nodes together.
func TestAssignRanksProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.IntRange(1, 12).Draw(t, "members")
		members := make([]Member, count)
		for i := range members {
			members[i] = Member{
				UID: fmt.Sprintf("uid-%d", i), Ordinal: int32(i),
				Node: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "node"),
			}
		}
		ranks := assignRanks(members)
		if again := assignRanks(rapid.Permutation(members).Draw(t, "shuffled")); !slices.Equal(ranks, again) {
			t.Fatalf("ranks depend on the order given: %v and %v", ranks, again)
		}
		var nodes []string
		for _, uid := range ranks {
			at := slices.IndexFunc(members, func(m Member) bool { return m.UID == uid })
			nodes = append(nodes, members[at].Node)
		}
		if distinct := slices.Compact(slices.Clone(nodes)); len(distinct) != len(slices.Compact(slices.Sorted(slices.Values(nodes)))) {
			t.Fatalf("a node's members are apart: %v", nodes)
		}
	})
}

func TestMembersDigest(t *testing.T) {
	want := fmt.Sprintf("%x", sha256.Sum256([]byte("u1\nu2\n")))
	if got := membersDigest([]string{"u1", "u2"}); got != want {
		t.Errorf("digest %s, want %s", got, want)
	}
	if membersDigest([]string{"u1", "u2"}) == membersDigest([]string{"u2", "u1"}) {
		t.Error("the digest does not depend on the order")
	}
	if membersDigest([]string{"u1", "u2"}) == membersDigest([]string{"u1u2"}) {
		t.Error("the digest does not tell members apart")
	}
}

func TestRankTableFromReports(t *testing.T) {
	digest := membersDigest([]string{"a", "b", "c"})
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
