package shards_test

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/pkg/elastic/shards"
)

// Intervals of all ranks have each place once, and none has more than another one by more than one.
func TestEven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := rapid.Uint64Range(0, 1<<62).Draw(t, "length")
		ranks := rapid.IntRange(1, 512).Draw(t, "ranks")
		at, least, most := uint64(0), length, uint64(0)
		for rank := range ranks {
			i := shards.Even(length, rank, ranks)
			if i.From != at {
				t.Fatalf("rank %d of %d has %v of %d, and the one before ends at %d", rank, ranks, i, length, at)
			}
			at, least, most = i.To, min(least, i.Len()), max(most, i.Len())
		}
		if at != length || most-least > 1 {
			t.Fatalf("%d ranks have up to %d of %d, %d to %d each", ranks, at, length, least, most)
		}
	})
}

func parts(t *rapid.T, length uint64) []shards.Part {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) shards.Part {
		from := rapid.Uint64Range(0, length).Draw(t, "from")
		return shards.Part{
			Interval: shards.Interval{From: from, To: rapid.Uint64Range(from, length).Draw(t, "to")},
			Here:     rapid.Bool().Draw(t, "here"),
		}
	}), 0, 8).Draw(t, "parts")
}

// Whatever parts there are, a plan takes each place once, from a part that has it, and moves just what is not here: less is
// not possible. There is none only where nobody has a place.
func TestPlansAreAsGoodAsCanBe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const length = 40
		all := parts(t, length)
		from := rapid.Uint64Range(0, length).Draw(t, "from")
		want := shards.Interval{From: from, To: rapid.Uint64Range(from, length).Draw(t, "to")}
		has := func(at uint64, here bool) bool {
			for _, p := range all {
				if p.From <= at && at < p.To && (p.Here || !here) {
					return true
				}
			}
			return false
		}
		bound, whole := uint64(0), true
		for at := want.From; at < want.To; at++ {
			whole = whole && has(at, false)
			if !has(at, true) {
				bound++
			}
		}
		moves, err := shards.Plan(want, all)
		if (err == nil) != whole {
			t.Fatalf("%v of %v: %v", want, all, err)
		}
		if err != nil {
			return
		}
		at, moved := want.From, uint64(0)
		for _, m := range moves {
			if m.From != at || m.Len() == 0 || m.From < all[m.Part].From || m.To > all[m.Part].To {
				t.Fatalf("the move %+v of %v, of %v: the last one ends at %d", m, all, want, at)
			}
			at = m.To
			if !all[m.Part].Here {
				moved += m.Len()
			}
		}
		if at != want.To || moved != bound {
			t.Fatalf("%v of %v by %v: it ends at %d, and moves %d where %d has to be", want, all, moves, at, moved, bound)
		}
	})
}

// From one number of ranks to another, where each has kept what it had, nobody moves more than it has not, and nobody asks
// more parts than it has neighbours.
func TestPlansBetweenWorlds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := rapid.Uint64Range(0, 1<<40).Draw(t, "length")
		before, after := rapid.IntRange(1, 16).Draw(t, "before"), rapid.IntRange(1, 16).Draw(t, "after")
		rank := rapid.IntRange(0, after-1).Draw(t, "rank")
		var all []shards.Part
		for old := range before {
			all = append(all, shards.Part{Interval: shards.Even(length, old, before), Here: old == rank})
		}
		want := shards.Even(length, rank, after)
		moves, err := shards.Plan(want, all)
		if err != nil {
			t.Fatal(err)
		}
		moved := uint64(0)
		for _, m := range moves {
			if !all[m.Part].Here {
				moved += m.Len()
			}
		}
		bound := want.Len()
		if rank < before {
			mine := all[rank].Interval
			bound -= shards.Interval{From: max(mine.From, want.From), To: min(mine.To, want.To)}.Len()
		}
		if moved != bound || len(moves) > before/after+2 {
			t.Fatalf("rank %d of %d, from %d: %v moves %d where %d has to be", rank, after, before, moves, moved, bound)
		}
	})
}

func TestPlan(t *testing.T) {
	of := func(from, to uint64) shards.Interval { return shards.Interval{From: from, To: to} }
	away := func(from, to uint64) shards.Part { return shards.Part{Interval: of(from, to)} }
	here := func(from, to uint64) shards.Part { return shards.Part{Interval: of(from, to), Here: true} }
	for name, c := range map[string]struct {
		want  shards.Interval
		parts []shards.Part
		moves []shards.Move
		fails bool
	}{
		"nothing":                         {want: of(3, 3)},
		"all of one":                      {want: of(0, 4), parts: []shards.Part{away(0, 4)}, moves: []shards.Move{{Part: 0, Interval: of(0, 4)}}},
		"what is here first":              {want: of(0, 4), parts: []shards.Part{away(0, 4), here(1, 3)}, moves: []shards.Move{{Part: 0, Interval: of(0, 1)}, {Part: 1, Interval: of(1, 3)}, {Part: 0, Interval: of(3, 4)}}},
		"the one that reaches furthest":   {want: of(0, 4), parts: []shards.Part{away(0, 1), away(0, 3), away(2, 4)}, moves: []shards.Move{{Part: 1, Interval: of(0, 3)}, {Part: 2, Interval: of(3, 4)}}},
		"a hole":                          {want: of(0, 4), parts: []shards.Part{away(0, 1), here(2, 4)}, fails: true},
		"an empty part here is no reason": {want: of(0, 4), parts: []shards.Part{here(2, 2), away(0, 4)}, moves: []shards.Move{{Part: 1, Interval: of(0, 4)}}},
	} {
		t.Run(name, func(t *testing.T) {
			moves, err := shards.Plan(c.want, c.parts)
			if (err != nil) != c.fails || !reflect.DeepEqual(moves, c.moves) {
				t.Errorf("%v of %v: %v, %v", c.want, c.parts, moves, err)
			}
		})
	}
}
