package allocation

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// However many legal sizes a job has, few are looked at: among them its least, those next to what it has, the one that has half of its
// share, and the largest; and between two of them is no more than an eighth where sizes are not that far apart themselves, a sixteenth up to a million.
func TestSizesThatAreLookedAt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := Job{Min: rapid.Int32Range(1, 1000).Draw(t, "min")}
		j.Max = j.Min + rapid.OneOf(rapid.Int32Range(0, 600), rapid.Int32Range(0, 1_000_000), rapid.Just(int32(1<<31-1)-j.Min)).Draw(t, "more")
		if rapid.Bool().Draw(t, "steps") {
			by := rapid.Int32Range(1, 100).Draw(t, "by")
			for n := int64(j.Min); n <= int64(j.Max) && len(j.Sizes) < 2000; n += int64(by) {
				j.Sizes = append(j.Sizes, int32(n))
			}
		}
		size, half, top := rapid.Int32Range(j.Min, j.Max).Draw(t, "size"), rapid.Int32Range(j.Min, j.Max).Draw(t, "half"), rapid.Int32Range(j.Min, j.Max).Draw(t, "top")
		l := j.ladder(top, j.most(size), j.most(half))
		var all []int32
		for n := j.next(j.Min - 1); n != 0; n = l.after(n) {
			all = append(all, n)
			if !j.legal(n) || len(all) > offersOf || n > top && n != j.Min {
				t.Fatalf("%d sizes, up to %d", len(all), n)
			}
		}
		for _, must := range []int32{j.Min, j.most(j.most(size) - 1), j.most(size), j.next(j.most(size)), j.most(half), j.most(top)} {
			if must != 0 && must <= top && !slices.Contains(all, must) {
				t.Fatalf("%d is not among %v", must, all)
			}
		}
		part := int32(16)
		if j.Max > 1<<20 {
			part = 8
		}
		for i := range all[1:] {
			if next := j.next(all[i]); all[i+1] != next && all[i+1]-all[i] > all[i]/part {
				t.Fatalf("%d comes after %d", all[i+1], all[i])
			}
		}
	})
}

// A job of hundreds of workers grows to what is worth it, also far beyond its least number.
func TestLargeJobsGrow(t *testing.T) {
	c := newCluster().withNodes(150, 8)
	var on []NodeID
	for n := range 75 {
		on = append(on, slices.Repeat([]NodeID{NodeID(n)}, 8)...)
	}
	pace := linear.pace(1e9, exactly)
	pace.Tried = 600
	large := c.training("large", 2, 1200, on, withPace(pace))
	if got := simulate(c).run(20).counts(); got[large] != 1200 {
		t.Errorf("it has %d workers, %d devices are free", got[large], c.free())
	}
}

// A job that was measured with more than it may have has all its sizes looked at where they are few enough.
func TestTheLadderEndsAtMax(t *testing.T) {
	j := Job{Min: 1000, Max: 1200}
	l, want := j.ladder(2400, 1100, 1050), int32(1000)
	for n := j.next(0); n != 0; n = l.after(n) {
		if n != want {
			t.Fatalf("%d follows on %d", n, want-1)
		}
		want++
	}
	if want != 1201 {
		t.Errorf("the last size is %d, want 1200", want-1)
	}
}
