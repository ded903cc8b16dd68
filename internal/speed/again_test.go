package speed

import (
	"testing"
	"time"
)

func TestWhereAJobWasSeenLast(t *testing.T) {
	for name, test := range map[string]struct {
		all       []Seen
		workers   int
		elsewhere time.Duration // after noon, below 0 for never
		pace      float64       // with as many
	}{
		"nowhere":              {nil, 0, -1, 0},
		"at one size":          {[]Seen{at(9, 4, 3, 30)}, 4, -1, 3},
		"at two":               {[]Seen{at(9, 4, 3, 30), at(60, 8, 5, 50)}, 8, 9 * time.Second, 5},
		"at the smaller one":   {[]Seen{at(60, 4, 3, 30), at(9, 8, 5, 50)}, 4, 9 * time.Second, 3},
		"for too short a time": {[]Seen{at(9, 4, 3, 30), at(60, 8, 5, 5)}, 4, -1, 3},
		"what cannot be":       {[]Seen{at(9, 4, 3, 30), at(60, -8, 5, 50), at(60, 8, -5, 50)}, 4, -1, 3},
		"on other nodes": {[]Seen{at(9, 2, 1, 30), at(60, 8, 5, 50), {Workers: 8, Nodes: 2, StepsPerSecond: 4, Steps: 50, At: noon.Add(time.Hour)}},
			8, 9 * time.Second, 4},
	} {
		workers, last, elsewhere := Here(test.all)
		if want := noon.Add(test.elsewhere); workers != test.workers || elsewhere.IsZero() != (test.elsewhere < 0) || !elsewhere.IsZero() && !elsewhere.Equal(want) {
			t.Errorf("%s: with %d workers, elsewhere at %s", name, workers, elsewhere)
		}
		if last.Before(elsewhere) {
			t.Errorf("%s: it was seen there last at %s, elsewhere at %s", name, last, elsewhere)
		}
		if got := PaceWith(test.all, workers); got != test.pace {
			t.Errorf("%s: it makes %g steps a second, want %g", name, got, test.pace)
		}
	}
}
