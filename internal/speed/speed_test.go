package speed

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// truths are jobs whose terms are known, of all kinds: their times are from a thousandth of a second to minutes.
func truths(t *rapid.T) *Model {
	compute := math.Pow(10, rapid.Float64Range(-3, 2).Draw(t, "log compute"))
	part := func(name string, most float64) float64 {
		return compute * most * rapid.Float64Range(0, 1).Draw(t, name)
	}
	return &Model{least: 1, terms: [terms]float64{
		part("serial", 0.5), compute, part("near", 0.2), part("near bandwidth", 0.02), part("far", 0.5), part("far bandwidth", 0.05),
	}}
}

// nodesOf is how many nodes with four devices hold so many workers.
func nodesOf(workers int) int { return (workers + 3) / 4 }

// observe is a job at a size for so many seconds, off by a part.
func observe(truth *Model, workers int, seconds, off float64) Observation {
	pace := (1 + off) / truth.StepTime(workers, nodesOf(workers))
	return Observation{Workers: workers, Nodes: nodesOf(workers), StepsPerSecond: pace, Steps: max(1, int64(seconds*pace))}
}

// Whatever is observed, absurd or not: speeds are numbers, they grow with the workers, and never more than they do.
func TestMonotoneAndAtMostLinear(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seen := make([]Observation, rapid.IntRange(0, 16).Draw(t, "sizes"))
		for i := range seen {
			seen[i] = Observation{
				Workers: rapid.IntRange(-1, 300).Draw(t, "workers"), Nodes: rapid.IntRange(-1, 80).Draw(t, "nodes"),
				StepsPerSecond: rapid.OneOf(rapid.Float64(), rapid.Float64Range(1e-3, 1e3)).Draw(t, "pace"),
				Steps:          rapid.Int64Range(-1, 1e9).Draw(t, "steps"), Age: time.Duration(rapid.Int64().Draw(t, "age")),
			}
		}
		least := rapid.IntRange(1, 16).Draw(t, "least")
		m := Fit(seen, least)
		nodes := rapid.IntRange(1, least).Draw(t, "on nodes")
		if m.Known() {
			monotoneAndAtMostLinear(t, &m, least, nodes)
		} else if m.Speed(least, nodes) != 0 {
			t.Fatal("a speed of which nothing is known")
		}
	})
	// What cannot be together: it makes no term negative, and no speed endless.
	paces := []float64{slowest, 1, fastest}
	for i := range 27 {
		m := Fit([]Observation{
			{Workers: 1, Nodes: 1, StepsPerSecond: paces[i%3], Steps: 1e9},
			{Workers: 2, Nodes: 1, StepsPerSecond: paces[i/3%3], Steps: 1e9},
			{Workers: 8, Nodes: 2, StepsPerSecond: paces[i/9], Steps: 1e9},
		}, 1)
		monotoneAndAtMostLinear(t, &m, 1, 1)
	}
	// Two workers are best, and one is better than three.
	monotoneAndAtMostLinear(t, &Model{least: 1, terms: [terms]float64{0, 0.1, 0, 1, 0, 0}}, 1, 1)
}

func monotoneAndAtMostLinear(t rapid.TB, m *Model, least, nodes int) {
	t.Helper()
	first := m.Speed(least, nodes)
	if !(first > 0) || math.IsInf(first, 0) {
		t.Fatalf("%d workers make %g steps a second", least, first)
	}
	for n, before := least, 0.0; n <= 200; n++ {
		here := m.Speed(n, nodes)
		if here < before {
			t.Fatalf("%d workers make %g steps a second, one less %g", n, here, before)
		}
		if linear := first * float64(n) / float64(least); here > linear*(1+1e-9) {
			t.Fatalf("%d workers make %g steps a second, linear from %d are %g", n, here, least, linear)
		}
		before = here
	}
}

// A few seconds at a size overrule what is expected, there.
func TestFewSecondsOverruleThePrior(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		truth := truths(t)
		var seen []Observation
		for _, n := range []int{1, 2, 4, 8} {
			seen = append(seen, observe(truth, n, 5, 0))
		}
		m := Fit(seen, 1)
		for _, o := range seen {
			if off := m.StepTime(o.Workers, o.Nodes)*o.StepsPerSecond - 1; math.Abs(off) > 0.06 {
				t.Fatalf("%d workers take %g of the time observed", o.Workers, 1+off)
			}
		}
	})
}

// sizes are those that a job has had in the tests of noise.
var sizes = []int{1, 2, 3, 4, 5, 6, 8, 12, 16}

// Noise of up to 5% at each size moves the estimates by little more, wherever it is.
func TestNoise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		truth := truths(t)
		var seen []Observation
		for _, n := range sizes {
			seen = append(seen, observe(truth, n, 30, rapid.Float64Range(-0.05, 0.05).Draw(t, "noise")))
		}
		m := Fit(seen, 1)
		for _, n := range sizes {
			if ratio := m.StepTime(n, nodesOf(n)) / truth.StepTime(n, nodesOf(n)); math.Abs(ratio-1) > 0.12 {
				t.Fatalf("%d workers take %.3f of their time", n, ratio)
			}
		}
	})
}

// A size at which a node was busy, so that steps took five times as long, does not spoil what is known of the others.
func TestStraggler(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		truth := truths(t)
		busy := rapid.SampledFrom(sizes[1:len(sizes)-1]).Draw(t, "busy")
		var seen []Observation
		for _, n := range sizes {
			off := 0.0
			if n == busy {
				off = -0.8
			}
			seen = append(seen, observe(truth, n, 30, off))
		}
		m := Fit(seen, 1)
		for _, n := range sizes {
			if ratio := m.StepTime(n, nodesOf(n)) / truth.StepTime(n, nodesOf(n)); n != busy && math.Abs(ratio-1) > 0.16 {
				t.Fatalf("%d workers take %.3f of their time, %d were busy", n, ratio, busy)
			}
		}
	})
}

// A program that takes twice as long from now on is seen to, within minutes, although it was watched for an hour before.
func TestChangeOfPaceIsSeen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		truth := truths(t)
		var seen []Observation
		for _, n := range []int{1, 2, 4} {
			old := observe(truth, n, 3600, 0)
			old.Age = 30 * time.Minute
			seen = append(seen, old)
		}
		slow := *truth
		for i := range slow.terms {
			slow.terms[i] *= 2
		}
		seen = append(seen, observe(&slow, 4, 120, 0))
		m := Fit(seen, 1)
		if ratio := m.StepTime(4, 1) / slow.StepTime(4, 1); math.Abs(ratio-1) > 0.2 {
			t.Fatalf("4 workers take %.3f of their time now", ratio)
		}
	})
}

func TestPlacementCounts(t *testing.T) {
	truth := &Model{least: 1, terms: [terms]float64{0, 1, 0.01, 0, 0.5, 0}}
	m := Fit([]Observation{
		observe(truth, 1, 10, 0), observe(truth, 4, 10, 0),
		{Workers: 4, Nodes: 4, StepsPerSecond: 1 / truth.StepTime(4, 4), Steps: 100},
	}, 1)
	if near, far := m.Speed(4, 1), m.Speed(4, 4); near < 2*far {
		t.Errorf("4 workers make %g steps a second on one node, %g on four", near, far)
	}
}
