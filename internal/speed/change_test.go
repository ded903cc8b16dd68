package speed

import (
	"math"
	"testing"
	"time"
)

// trial is a job that trains at sizes, one after another, with four workers on a node.
type trial struct {
	all    []Seen
	second int
}

// at has it train with so many workers for so many seconds, at a pace for each of them.
func (tr *trial) at(workers, seconds int, pace float64) {
	pace *= float64(workers)
	for until := tr.second + seconds; tr.second < until; {
		tr.second += 2
		tr.all = Add(tr.all, Seen{
			Workers: workers, Nodes: (workers + 3) / 4, StepsPerSecond: pace, Steps: int64(pace*2) + 1, At: noon.Add(time.Duration(tr.second) * time.Second),
		})
	}
}

// expect looks how fast it is thought to be for each worker.
func (tr *trial) expect(t *testing.T, when string, pace float64) {
	t.Helper()
	m := Fit(Observations(tr.all, noon.Add(time.Duration(tr.second)*time.Second)), 1)
	for _, n := range []int{1, 2, 4, 8} {
		if got := m.Speed(n, (n+3)/4) / float64(n); math.Abs(got/pace-1) > 0.2 {
			t.Errorf("%s: %g steps a second for each of %d workers, want %g", when, got, n, pace)
		}
	}
}

func linear() *trial {
	tr := &trial{}
	for _, n := range []int{1, 2, 4, 8} {
		tr.at(n, 120, 4)
	}
	return tr
}

// A program that has another pace at one size has it at the others too, in both directions, and back.
func TestAChangeOfPaceIsOneOfAllSizes(t *testing.T) {
	for _, ratio := range []float64{1. / 3, 0.6, 2, 5} {
		tr := linear()
		tr.at(8, 300, 4*ratio)
		tr.expect(t, "after five minutes", 4*ratio)
		tr.at(8, 300, 4)
		tr.expect(t, "after five minutes as before", 4)
		tr.at(8, 40, 4*ratio)
		tr.at(4, 300, 4*ratio)
		tr.expect(t, "when it was seen to begin at another size", 4*ratio)
	}
}

// What slows one size for less than a minute changes nothing, and what did for minutes is forgotten once another size is as
// fast as ever.
func TestWhatPassesLeavesNoTrace(t *testing.T) {
	tr := linear()
	tr.at(8, 30, 4/2.5)
	tr.expect(t, "after half a minute", 4)
	tr.at(4, 600, 4)
	tr.expect(t, "at another size since", 4)
	tr.at(8, 180, 4/2.5)
	tr.at(4, 300, 4)
	tr.expect(t, "after three minutes of it, and five at another size", 4)
}

// However often paces change, what is remembered stays what can be.
func TestPacesThatLeapStayPaces(t *testing.T) {
	tr := linear()
	for i := range 40 {
		tr.at(8, 200, 1e5*math.Pow(1e-10, float64(i%2)))
	}
	if len(tr.all) != 4 {
		t.Errorf("%v", tr.all)
	}
	for i := range tr.all {
		if o := tr.all[i].observation(noon); !o.usable() {
			t.Errorf("%v", tr.all[i])
		}
	}
}
