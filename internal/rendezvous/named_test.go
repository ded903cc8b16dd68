package rendezvous

import (
	"math"
	"math/rand/v2"
	"slices"
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
