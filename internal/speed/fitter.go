package speed

import (
	"math"
	"slices"
	"time"
)

const (
	// refit is how long a fit will do while the job is seen at no other size.
	refit = time.Minute
	// saysTheSame is by what part a fit may differ from the one before, at any size that the planner looks at, and count for
	// the same: that is noise, and a plan that followed it would have jobs trade workers back and forth.
	saysTheSame = 0.05
	// comparedUpTo bounds up to which size fits are compared.
	comparedUpTo = 256
)

// Fitted is how fast a job is by what was seen of it. It stays as it is.
type Fitted struct {
	Model Model
	// Least is its least number of workers, Tried the most that it was seen with.
	Least, Tried int32
}

// Fitter keeps what was fitted of one job, so that not every event has it fitted anew. The zero value has fitted nothing.
type Fitter struct {
	fitted *Fitted
	// sizes are the workers and nodes that it was fitted from, at is when.
	sizes [][2]int
	at    time.Time
}

// Look is what is to be made of what is known of a job now: the fit before, where another one would say the same; nil where too
// little was seen.
func (f *Fitter) Look(now time.Time, seen []Observation, least int32) *Fitted {
	var sizes [][2]int
	most := 0
	for i := range seen {
		sizes = append(sizes, [2]int{seen[i].Workers, seen[i].Nodes})
		most = max(most, seen[i].Workers)
	}
	known := slices.Equal(sizes, f.sizes) && (f.fitted == nil || f.fitted.Least == least)
	if age := now.Sub(f.at); known && age >= 0 && age < refit {
		return f.fitted
	}
	f.sizes, f.at = sizes, now
	next := &Fitted{Model: Fit(seen, int(max(least, 1))), Least: least, Tried: int32(most)}
	switch {
	case !next.Model.Known():
		f.fitted = nil
	case f.fitted == nil || !f.fitted.like(next, sizes):
		f.fitted = next
	}
	return f.fitted
}

// like says whether two fits say the same but for noise: at sizes that were seen, and on one node up to twice the largest
// of those.
func (f *Fitted) like(other *Fitted, seen [][2]int) bool {
	if f.Least != other.Least || f.Tried != other.Tried {
		return false
	}
	same := func(workers, nodes int) bool {
		return math.Abs(f.Model.Speed(workers, nodes)/other.Model.Speed(workers, nodes)-1) <= saysTheSame
	}
	for _, size := range seen {
		if !same(size[0], size[1]) {
			return false
		}
	}
	for n := int(max(f.Least, 1)); n <= min(2*int(f.Tried), comparedUpTo); n++ {
		if !same(n, 1) {
			return false
		}
	}
	return true
}
