package share

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestEveryShareIsOnSeveralNodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		workers := rapid.IntRange(0, 100).Draw(t, "workers")
		spread := rapid.IntRange(1, 20).Draw(t, "spread")
		nodes := make([]string, workers)
		different := map[string]int{}
		for i := range nodes {
			nodes[i] = fmt.Sprint(rapid.IntRange(1, spread).Draw(t, "node"))
			different[nodes[i]]++
		}
		copies := rapid.IntRange(1, 4).Draw(t, "copies")
		of, shares := Assign(nodes, copies)
		if of != min(workers, Most) || len(shares) != workers {
			t.Fatalf("%d shares for %d of %d workers", of, len(shares), workers)
		}
		on, held := make([]map[string]bool, of), make([]int, of)
		for rank := range shares {
			for _, share := range shares[rank] {
				if on[share] == nil {
					on[share] = map[string]bool{}
				}
				held[share]++
				on[share][nodes[rank]] = true
			}
		}
		for share := range on {
			if of > 1 && (len(on[share]) != min(copies, len(different)) || held[share] != min(copies, workers)) {
				t.Fatalf("share %d is with %d workers on %d of %d nodes", share, held[share], len(on[share]), len(different))
			}
		}
	})
}

// Where all nodes have as many workers nobody has more than one share more than it must.
func TestNobodyHasMuchMoreThanOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes, each := rapid.IntRange(1, 20).Draw(t, "nodes"), rapid.IntRange(1, 6).Draw(t, "each")
		copies := rapid.IntRange(1, 4).Draw(t, "copies")
		var at []string
		for range each {
			for node := range nodes {
				at = append(at, fmt.Sprint(node))
			}
		}
		if rapid.Bool().Draw(t, "shuffled") {
			at = rapid.Permutation(at).Draw(t, "at")
		}
		of, shares := Assign(at, copies)
		if of < 2 {
			return
		}
		total := of * min(copies, len(at))
		for rank := range shares {
			if most := (total+len(at)-1)/len(at) + 1; len(shares[rank]) > most {
				t.Fatalf("worker %d of %d has %d of %d shares: %v", rank, len(at), len(shares[rank]), of, shares)
			}
		}
	})
}

func TestKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := Key{
			Rank: rapid.Bool().Draw(t, "rank"), Of: rapid.IntRange(2, Most).Draw(t, "of"),
			Layout: rapid.StringMatching(`[0-9a-f]{16}`).Draw(t, "layout"),
		}
		key.Index = rapid.IntRange(0, key.Of-1).Draw(t, "index")
		if got, ok := Parse(key.String()); !ok || got != key {
			t.Fatalf("%v became %v, %v", key, got, ok)
		}
		text := rapid.StringMatching(`[rsx]?[0-9]{0,3}\.?[0-9]{0,3}\.?[0-9a-g]{15,17}`).Draw(t, "text")
		if got, ok := Parse(text); ok && got.String() != text {
			t.Fatalf("%q became %v", text, got)
		}
	})
	for _, text := range []string{"", "s4.4.0123456789abcdef", "s0.1.0123456789abcdef", "s0.33.0123456789abcdef", "s00.4.0123456789abcdef", "r1.4.part"} {
		if key, ok := Parse(text); ok {
			t.Errorf("%q became %v", text, key)
		}
	}
}

func TestWhatMakesAState(t *testing.T) {
	const layout, other = ".2.0123456789abcdef", ".2.0123456789abcdee"
	for names, want := range map[string]bool{
		"s0" + layout + " s1" + layout + " r0" + layout:                  true,
		"r7" + layout + " s1" + layout + " s0" + layout + " r3" + layout: true,
		"s0" + layout + " s1" + layout:                                   false,
		"s0" + layout + " r0" + layout + " r1" + layout:                  false,
		"s0" + layout + " s0" + layout + " r0" + layout:                  false,
		"s0" + layout + " s1" + other + " r0" + layout:                   false,
		"s0" + layout + " s1" + layout + " r0" + other:                   false,
		"s0" + layout + " s1" + layout + " r0.3.0123456789abcdef":        false,
		"s0" + layout + " s1" + layout + " r0" + layout + " r0" + layout: false,
		"state": false, "r0" + layout: false, "": false,
		"state s0" + layout + " s1" + layout + " r0" + layout: false,
	} {
		if got := Whole(strings.Fields(names)); got != want {
			t.Errorf("%q makes a state: %v", names, got)
		}
	}
}
