package rendezvous

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// The members of a world come back in the order in which they were named.
func TestMembersAreNamedInTheOrderOfTheirRanks(t *testing.T) {
	for name, ordinals := range map[string][]int32{
		"one":                 {0},
		"in order":            {0, 1, 2, 3},
		"a rank was replaced": {0, 7, 2, 3},
		"the newest first":    {9, 8, 0},
		"the largest":         {math.MaxInt32, 0},
	} {
		t.Run(name, func(t *testing.T) {
			text := packOrdinals(ordinals)
			if read := unpackOrdinals(text, int32(len(ordinals))); !slices.Equal(read, ordinals) {
				t.Errorf("%v is read of %q, not %v", read, text, ordinals)
			}
			if read := unpackOrdinals(text, int32(len(ordinals))+1); read != nil {
				t.Errorf("%v is read as the members of a world of one more", read)
			}
		})
	}
}

// The largest world fits into the field of the record, whatever the order of its ranks.
func TestTheLargestWorldIsNamed(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for name, c := range map[string]struct{ pods, longest int }{
		"the first pods of a job":         {MaxWorkers, 30_000},
		"of a hundred thousand pods":      {100_000, 41_000},
		"of a million pods, in any order": {1_000_000, 41_000},
	} {
		t.Run(name, func(t *testing.T) {
			ordinals := make([]int32, 0, MaxWorkers)
			for _, ordinal := range random.Perm(c.pods)[:MaxWorkers] {
				ordinals = append(ordinals, int32(ordinal))
			}
			text := packOrdinals(ordinals)
			if len(text) == 0 || len(text) > c.longest {
				t.Errorf("%d characters name %d workers, %d at most should", len(text), MaxWorkers, c.longest)
			}
			if !slices.Equal(unpackOrdinals(text, MaxWorkers), ordinals) {
				t.Error("others are read than were named")
			}
		})
	}
}

// The nodes of the members come back in rank order, and those of the largest world fit into the record.
func TestNodesAreNamedInTheOrderOfTheRanks(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	address := func(i int) string {
		return fmt.Sprintf("ip-10-%d-%d-%d.eu-west-1.compute.internal", i>>16, i>>8&255, i&255)
	}
	for name, c := range map[string]struct {
		workers, longest int
		node             func(rank int) string
	}{
		"one":                        {1, 20, func(int) string { return "n0" }},
		"two on each":                {4, 40, func(rank int) string { return fmt.Sprint("n", rank/2) }},
		"any order":                  {4, 40, func(rank int) string { return fmt.Sprint("n", rank%2) }},
		"eight on each of many":      {MaxWorkers, 16_000, func(rank int) string { return address(rank / 8) }},
		"each on its own, any order": {MaxWorkers, maxNamed, func(int) string { return address(random.IntN(1 << 16)) }},
		"the longest names":          {MaxWorkers, maxNamed, func(int) string { return strings.Repeat("n", maxNodeName) }},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := make([]string, c.workers)
			for rank := range nodes {
				nodes[rank] = c.node(rank)
			}
			text := packNodes(nodes)
			if len(text) == 0 || len(text) > c.longest {
				t.Errorf("%d characters name the nodes of %d workers, %d at most should", len(text), c.workers, c.longest)
			}
			if !slices.Equal(unpackNodes(text, int32(c.workers)), nodes) {
				t.Error("others are read than were named")
			}
			if unpackNodes(text, int32(c.workers)+1) != nil {
				t.Error("they are read as those of a world of one more")
			}
		})
	}
	if text := packNodes([]string{"n0", ""}); text != "" {
		t.Errorf("%q names the node of a worker that has none", text)
	}
}

// Racks come back as they were, those that are not known too.
func TestRacksAreNamedInTheOrderOfTheRanks(t *testing.T) {
	many := make([]string, MaxWorkers)
	for rank := range many {
		many[rank] = fmt.Sprintf("row-%d-rack-%d", rank/2000, rank/64)
	}
	for name, racks := range map[string][]string{
		"some": {"a", "b", "a"}, "one, and the others are not known": {"", "a", ""}, "many": many,
	} {
		text := packRacks(racks)
		if len(text) > 4000 || !slices.Equal(unpackRacks(text, int32(len(racks))), racks) {
			t.Errorf("%s: of %d characters %v is read", name, len(text), unpackRacks(text, int32(len(racks))))
		}
		if unpackRacks(text, int32(len(racks))+1) != nil {
			t.Errorf("%s: they are read as those of a world of one more", name)
		}
	}
	if text := packRacks(make([]string, 5)); text != "" || unpackRacks(text, 5) != nil {
		t.Errorf("nothing is known of racks, and it is written as %q", text)
	}
	made := Record{Workers: 2}
	made.Name([]NamedMember{{3, "n1", "a"}, {1, "n0", ""}})
	if named := made.Named(); !slices.Equal(named, []NamedMember{{3, "n1", "a"}, {1, "n0", ""}}) {
		t.Errorf("the record names %v", named)
	}
}

// A record names its members only when it names their nodes too.
func TestMembersAndNodesAreNamedTogether(t *testing.T) {
	members, nodes := packOrdinals([]int32{3, 1}), packNodes([]string{"n1", "n0"})
	if named := (&Record{Workers: 2, Members: members, Nodes: nodes}).Named(); !slices.Equal(named, []NamedMember{{Ordinal: 3, Node: "n1"}, {Ordinal: 1, Node: "n0"}}) {
		t.Errorf("the record names %v", named)
	}
	for name, r := range map[string]Record{
		"an older version's":      {Workers: 2, Members: members},
		"without members":         {Workers: 2, Nodes: nodes},
		"of another size":         {Workers: 3, Members: members, Nodes: nodes},
		"that cannot be unpacked": {Workers: 2, Members: members, Nodes: "n0 n1"},
	} {
		if named := r.Named(); named != nil {
			t.Errorf("a record %s names %v", name, named)
		}
	}
}

// Whatever stands in a record, the nodes and racks that are read of it are as many as its workers, and no text costs much.
func FuzzNamedNodes(f *testing.F) {
	f.Add(packNodes([]string{"n0", "n1", "n1"}), int32(3))
	f.Add(packRacks([]string{"", "row-1", ""}), int32(3))
	var bomb bytes.Buffer
	writer, _ := flate.NewWriter(&bomb, flate.BestCompression)
	_, _ = writer.Write(make([]byte, 32<<20))
	_ = writer.Close()
	f.Add(base64.RawStdEncoding.EncodeToString(bomb.Bytes()), int32(MaxWorkers))
	f.Add("AAA=", int32(2))
	f.Add("", int32(0))
	f.Fuzz(func(t *testing.T, text string, workers int32) {
		racks := unpackRacks(text, workers)
		if again := packRacks(racks); racks != nil && (int32(len(racks)) != workers || again != "" && !slices.Equal(unpackRacks(again, workers), racks)) {
			t.Errorf("%q is read of %q as the racks of %d members, and written as %q", racks, text, workers, again)
		}
		nodes := unpackNodes(text, workers)
		if nodes == nil {
			return
		}
		if int32(len(nodes)) != workers || slices.Contains(nodes, "") {
			t.Errorf("%q is read of %q as the nodes of %d members", nodes, text, workers)
		}
		if again := packNodes(nodes); again != "" && !slices.Equal(unpackNodes(again, workers), nodes) {
			t.Errorf("%q does not come back", nodes)
		}
	})
}

// Whatever stands in a record, nothing but what packOrdinals writes is read as the members of a world.
func FuzzNamedMembers(f *testing.F) {
	f.Add(packOrdinals([]int32{0, 1, 2}), int32(3))
	f.Add(packOrdinals([]int32{5, 0, math.MaxInt32}), int32(3))
	f.Add("AAA=", int32(2))
	f.Add("gAA", int32(1))
	f.Add("", int32(0))
	f.Fuzz(func(t *testing.T, text string, workers int32) {
		ordinals := unpackOrdinals(text, workers)
		if ordinals == nil {
			return
		}
		if int32(len(ordinals)) != workers || packOrdinals(ordinals) != text {
			t.Errorf("%v is read of %q as %d members", ordinals, text, workers)
		}
	})
}
