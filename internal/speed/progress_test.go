package speed

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestWhatIsBelievedOfReports(t *testing.T) {
	type report struct{ done, total float64 }
	for name, test := range map[string]struct {
		reports []report
		left    float64
	}{
		"nothing reported":               {nil, 0},
		"no total":                       {[]report{{100, 0}}, 0},
		"a total":                        {[]report{{0, 1000}, {100, 1000}}, 900},
		"a total that grows a little":    {[]report{{0, 1000}, {100, 1090}}, 990},
		"a total that grows":             {[]report{{0, 1000}, {100, 1101}}, 0},
		"little by little":               {[]report{{0, 1000}, {100, 1050}, {200, 1102}}, 0},
		"once blind, always":             {[]report{{0, 1000}, {100, 2000}, {200, 1000}}, 0},
		"a total that shrinks":           {[]report{{0, 1000}, {100, 500}}, 400},
		"one that shrinks and grows":     {[]report{{0, 1e9}, {100, 101}, {200, 201}}, 0},
		"a little more than all":         {[]report{{0, 1000}, {1140, 1000}}, 1},
		"much more than all":             {[]report{{0, 1000}, {1160, 1000}}, 0},
		"back to what was saved":         {[]report{{900, 1000}, {500, 1000}}, 500},
		"what no number of steps can be": {[]report{{10, 1000}, {-5, -1}, {math.NaN(), math.Inf(1)}}, 990},
	} {
		var p Progress
		for _, r := range test.reports {
			p.Report(r.done, r.total)
		}
		if got := p.Left(); got != test.left {
			t.Errorf("%s: %g steps are left, want %g", name, got, test.left)
		}
	}
}

// Whatever is reported, what is left is a number, and never more than what was said first and a tenth.
func TestLeftIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p Progress
		first := 0.0
		for range rapid.IntRange(1, 20).Draw(t, "reports") {
			total := rapid.OneOf(rapid.Float64(), rapid.Float64Range(0, 1e6)).Draw(t, "total")
			if first == 0 && total > 0 && total <= math.MaxInt64 {
				first = total
			}
			p.Report(rapid.OneOf(rapid.Float64(), rapid.Float64Range(0, 1e6)).Draw(t, "done"), total)
			if left := p.Left(); !(left >= 0) || left > max(1, first*1.1001) {
				t.Fatalf("%g steps are left, %g were said first", left, first)
			}
		}
	})
}

// What a process knows of a job's reports the next one goes on from.
func TestReportsGoOnInAnotherProcess(t *testing.T) {
	var p Progress
	p.Report(10, 1000)
	next := Resume(p.First(), p.Least(), p.Blind())
	if next.Left() != 0 {
		t.Errorf("%g steps are left before anything is told", next.Left())
	}
	next.Report(20, 1090)
	if next.Left() != 1070 || next.First() != 1000 || next.Blind() {
		t.Errorf("%g steps are left of %g", next.Left(), next.First())
	}
	next.Report(30, 1110)
	last := Resume(next.First(), next.Least(), next.Blind())
	last.Report(40, 1000)
	if last.Left() != 0 || !last.Blind() {
		t.Errorf("%g steps are left of a job that is not believed", last.Left())
	}
}
