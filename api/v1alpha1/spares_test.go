package v1alpha1

import (
	"slices"
	"testing"

	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
)

func TestWorkersWithSpares(t *testing.T) {
	for _, test := range []struct {
		name    string
		workers WorkersSpec
		// most are the largest legal numbers up to 0, 1, 2 and so on, worlds how many train of 0, 1, 2 and so on.
		most, worlds []int32
		ceiling      int32
	}{
		{"none", WorkersSpec{Min: ptr.To[int32](2), Max: ptr.To[int32](4)}, []int32{0, 1, 2, 3, 4, 4}, []int32{0, 1, 2, 3, 4, 4}, 4},
		{
			"one", WorkersSpec{Min: ptr.To[int32](2), Max: ptr.To[int32](4), Spares: ptr.To[int32](1)},
			[]int32{0, 1, 2, 3, 4, 5, 5}, []int32{0, 1, 2, 2, 3, 4, 4}, 5,
		},
		{
			"of a job of one size", WorkersSpec{Min: ptr.To[int32](2), Max: ptr.To[int32](2), Spares: ptr.To[int32](2)},
			[]int32{0, 1, 2, 3, 4, 4}, []int32{0, 1, 2, 2, 2, 2}, 4,
		},
		{
			"beside sizes", WorkersSpec{Min: ptr.To[int32](2), Max: ptr.To[int32](7), Sizes: []int32{8, 4, 2}, Spares: ptr.To[int32](1)},
			[]int32{0, 0, 2, 3, 4, 5, 5, 5, 5}, []int32{0, 0, 2, 2, 4, 4, 4, 4, 4}, 5,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			for n, want := range test.most {
				if got := test.workers.Most(int32(n)); got != want {
					t.Errorf("up to %d it may have %d, want %d", n, got, want)
				}
			}
			for n, want := range test.worlds {
				if got := test.workers.World(int32(n)); got != want {
					t.Errorf("of %d train %d, want %d", n, got, want)
				}
			}
			if got := test.workers.Ceiling(); got != test.ceiling {
				t.Errorf("it may have %d, want %d", got, test.ceiling)
			}
		})
	}
}

// The numbers that are listed are those that are legal, and each is a legal size and no more than all spares.
func TestLegalNumbersWithSpares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		least, spares := rapid.Int32Range(1, 20).Draw(t, "min"), rapid.Int32Range(0, 5).Draw(t, "spares")
		most := rapid.Int32Range(least, 40).Draw(t, "max")
		w := WorkersSpec{Min: &least, Max: &most, Spares: &spares}
		for n := least; n <= most; n++ {
			if n == least || rapid.Bool().Draw(t, "legal") {
				w.Sizes = append(w.Sizes, n)
			}
		}
		counts, worlds := w.Counts()
		for n := least; n <= most+spares; n++ {
			if legal := slices.Contains(counts, n); legal != (w.Most(n) == n) {
				t.Fatalf("%d is legal: %v, in %v", n, legal, counts)
			}
			world := w.World(n)
			if !slices.Contains(w.Sizes, world) || (n-world <= spares) != (w.Most(n) == n) || n > least && world < w.World(n-1) {
				t.Fatalf("of %d train %d", n, world)
			}
			members := rapid.Int32Range(0, 50).Draw(t, "members")
			if trains := w.Trains(n, members); spares > 0 && (!slices.Contains(w.Sizes, trains) || trains > n || trains < world ||
				slices.ContainsFunc(w.Sizes, func(size int32) bool { return size > trains && size <= min(n, members) })) {
				t.Fatalf("of %d, among them %d in its world, %d train", n, members, trains)
			}
			if at := slices.Index(counts, n); at >= 0 && worlds[at] != world {
				t.Fatalf("of %d train %d, it is listed with %d", n, world, worlds[at])
			}
		}
		if !slices.IsSorted(counts) || counts[len(counts)-1] != w.Ceiling() {
			t.Fatalf("up to %d: %v", w.Ceiling(), counts)
		}
	})
}
