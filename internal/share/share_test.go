package share

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestEveryShareIsOnSeveralNodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		workers := rapid.IntRange(0, 100).Draw(t, "workers")
		spread := rapid.IntRange(1, 20).Draw(t, "spread")
		racks := rapid.IntRange(1, 5).Draw(t, "racks")
		places := make([]Place, workers)
		different := map[string]int{}
		for i := range places {
			node := rapid.IntRange(1, spread).Draw(t, "node")
			places[i] = Place{fmt.Sprint(node), fmt.Sprint(node % racks)}
			different[places[i].Node]++
		}
		copies := rapid.IntRange(1, 4).Draw(t, "copies")
		of, shares := Assign(places, copies)
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
				on[share][places[rank].Node] = true
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
		var at []Place
		for range each {
			for node := range nodes {
				at = append(at, Place{Node: fmt.Sprint(node)})
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

// inRacks are the racks that each share is in.
func inRacks(places []Place, of int, shares [][]int) []map[string]bool {
	in := make([]map[string]bool, of)
	for rank := range shares {
		for _, share := range shares[rank] {
			if in[share] == nil {
				in[share] = map[string]bool{}
			}
			in[share][places[rank].Rack] = true
		}
	}
	return in
}

// Where all racks have as many workers each share is in as many racks as it has copies, and nobody has more than one share
// more than it must.
func TestEveryShareIsInSeveralRacks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		racks, nodes, each := rapid.IntRange(2, 6).Draw(t, "racks"), rapid.IntRange(1, 6).Draw(t, "nodes"), rapid.IntRange(1, 4).Draw(t, "each")
		copies := rapid.IntRange(2, 4).Draw(t, "copies")
		var places []Place
		for rack := range racks {
			for node := range nodes {
				for range each {
					places = append(places, Place{fmt.Sprint(rack, node), fmt.Sprint(rack)})
				}
			}
		}
		if rapid.Bool().Draw(t, "shuffled") {
			places = rapid.Permutation(places).Draw(t, "places")
		}
		of, shares := Assign(places, copies)
		for share, in := range inRacks(places, of, shares) {
			if len(in) != min(copies, racks) {
				t.Fatalf("share %d is in %d of %d racks: %v", share, len(in), racks, shares)
			}
		}
		for rank := range shares {
			if most := (of*min(copies, len(places))+len(places)-1)/len(places) + 1; len(shares[rank]) > most {
				t.Fatalf("worker %d of %d has %d of %d shares: %v", rank, len(places), len(shares[rank]), of, shares)
			}
		}
	})
}

// Racks that differ in size may cost a worker half again as much as workers write in the mean, and then all shares are in
// several racks. Where it would cost more it is as if there were none.
func TestRacksAreNoBurden(t *testing.T) {
	spread, without := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		copies := rapid.IntRange(2, 4).Draw(t, "copies")
		var places []Place
		for node := range rapid.IntRange(2, 40).Draw(t, "workers") {
			places = append(places, Place{fmt.Sprint(node), fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "rack"))})
		}
		of, shares := Assign(places, copies)
		several := !slices.ContainsFunc(inRacks(places, of, shares), func(in map[string]bool) bool { return len(in) < 2 })
		bare := make([]Place, len(places))
		for i := range places {
			bare[i].Node = places[i].Node
		}
		if _, as := Assign(bare, copies); !several {
			without++
			if !slices.EqualFunc(as, shares, slices.Equal) {
				t.Fatalf("some shares are in one rack only, and without racks it would be %v and not %v", as, shares)
			}
			return
		}
		spread++
		total := of * min(copies, len(places))
		for rank := range shares {
			if most := max((3*total+2*len(places)-1)/(2*len(places)), (total+len(places)-1)/len(places)+1); len(shares[rank]) > most {
				t.Fatalf("worker %d has %d of %d shares, and %d would do: %v", rank, len(shares[rank]), of, most, shares)
			}
		}
	})
	if spread == 0 || without == 0 {
		t.Errorf("%d times all shares were in several racks, and %d times racks did not count", spread, without)
	}
	alone := []Place{{"a", "1"}, {"b", "1"}, {"c", "1"}, {"d", "1"}, {"e", "1"}, {"f", "2"}}
	if _, shares := Assign(alone, 2); len(shares[5]) > 2 {
		t.Errorf("who is alone in a rack has the shares %v", shares[5])
	}
}

// form is how a key is written.
var form = regexp.MustCompile(`^([rsd])(0|[1-9][0-9]{0,8})\.([1-9][0-9]{0,2})\.([0-9a-f]{16})$`)

// An operator reads the keys of all that all agents hold, each time that one of them says something.
func TestReadingAKeyTakesNoMemory(t *testing.T) {
	for _, text := range []string{"s31.32.0123456789abcdef", "r191.32.0123456789abcdef", "s31.32.0123456789abcdeg"} {
		if allocs := testing.AllocsPerRun(100, func() { _, _ = Parse(text) }); allocs > 0 {
			t.Errorf("%q takes %v allocations", text, allocs)
		}
	}
}

func TestKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.IntRange(0, 2).Draw(t, "kind")
		key := Key{Rank: kind == 1, Shard: kind == 2, Layout: rapid.StringMatching(`[0-9a-f]{16}`).Draw(t, "layout")}
		if kind == 0 {
			key.Of = rapid.IntRange(2, Most).Draw(t, "of")
		} else {
			key.Of = rapid.IntRange(1, MostShards).Draw(t, "of")
		}
		key.Index = rapid.IntRange(0, key.Of-1).Draw(t, "index")
		if got, ok := Parse(key.String()); !ok || got != key {
			t.Fatalf("%v became %v, %v", key, got, ok)
		}
		text := rapid.StringMatching(`[rsdx]?[0-9]{0,10}\.?[0-9]{0,4}\.?[0-9a-g]{15,17}`).Draw(t, "text")
		got, ok := Parse(text)
		if ok && got.String() != text {
			t.Fatalf("%q became %v", text, got)
		}
		if formed := form.MatchString(text); ok && !formed || formed && got.String() != text {
			t.Fatalf("%q became %v, %v", text, got, ok)
		}
	})
	for _, text := range []string{"", "s4.4.0123456789abcdef", "s0.1.0123456789abcdef", "s0.33.0123456789abcdef", "s00.4.0123456789abcdef", "r1.4.part",
		"d4.4.0123456789abcdef", "d0.129.0123456789abcdef", "d0.0.0123456789abcdef"} {
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
		"d0" + layout + " d1" + layout + " r0" + layout:                  true,
		"d0.1.0123456789abcdef r0.1.0123456789abcdef":                    true,
		"d0" + layout + " r0" + layout + " r1" + layout:                  false,
		"d0" + layout + " s1" + layout + " r0" + layout:                  false,
		"d0" + layout + " d1" + layout + " s0" + layout + " r0" + layout: false,
		"d0" + layout + " d1" + layout:                                   false,
		"state":                                                          false, "r0" + layout: false, "": false,
		"state s0" + layout + " s1" + layout + " r0" + layout: false,
	} {
		if got := Whole(strings.Fields(names)); got != want {
			t.Errorf("%q makes a state: %v", names, got)
		}
	}
}
