// Package straggler finds the processes of a training that keep the others waiting: every step lasts as long as its
// slowest process takes. It knows nothing but times, and nothing in it has a clock.
package straggler

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

const (
	// every is the least time between two looks that count. A look counts only when steps were made since the last one:
	// long steps are looked at once each.
	every = 15 * time.Second
	// enough is in how many more looks a process must have been slow than not, each of the latter counting twice, to be named:
	// three minutes of nothing but slow steps. It is named until as much has been taken back, a minute and a half.
	enough = 12
	// back is how much a look takes back in which a process is not slow. One that is slow in fewer than two looks of three
	// comes to nothing.
	back = 2
	// Slow is who works in a step longer than most by a quarter of that, and by a tenth of the step: where steps are spent
	// on exchanging, it costs nobody anything.
	timesOfMost = 1.25
	partOfStep  = 0.1
	// Most is how many are named at most, the slowest.
	Most = 8
)

// ID names a process: by its worker, and by its number there.
type ID struct {
	Worker string
	Local  int
}

func (a ID) compare(b ID) int {
	return cmp.Or(strings.Compare(a.Worker, b.Worker), cmp.Compare(a.Local, b.Local))
}

// Process is one of the world.
type Process struct {
	ID
	// Own is how long it works in a step, without what it waits for others; 0 while that is not known.
	Own time.Duration
}

// Slow is a process that keeps the others waiting.
type Slow struct {
	ID
	// Own is how long it worked in a step when it was last seen to be slow, Median how long most did. Since is when that
	// began.
	Own, Median time.Duration
	Since       time.Time
}

// Factor is how many times as long as most it works.
func (s *Slow) Factor() float64 { return float64(s.Own) / float64(s.Median) }

// Watch remembers who was slow. The zero value has seen nothing.
type Watch struct {
	at   time.Time
	step uint64
	// looks is how many have counted in which processes could be compared, up to enough, and blank how many in a row in which
	// they could not.
	looks, blank int
	seen         map[ID]*standing
}

type standing struct {
	Slow
	score int
	named bool
}

// Due says whether a look at a world that has done so many steps would count.
func (w *Watch) Due(now time.Time, step uint64) bool {
	return (w.at.IsZero() || now.Sub(w.at) >= every) && step != w.step
}

// Look takes what all processes of the world say, whose steps take so long, and says whether others are named now. Who is
// not among them is forgotten. It counts only when it is Due. Where less than most know how long they work nobody is slow: the
// first looks at a world take back a little, and who can be compared with nobody any more is not named for ever.
func (w *Watch) Look(now time.Time, step uint64, stepTime time.Duration, world []Process) (changed bool) {
	if !w.Due(now, step) {
		return false
	}
	median := most(world)
	w.at, w.step = now, step
	if median > 0 {
		w.looks, w.blank = min(w.looks+1, enough), 0
	} else {
		w.blank = min(w.blank+1, enough)
	}
	seen := make(map[ID]*standing)
	for _, p := range world {
		s := w.seen[p.ID]
		if p.Own > 0 || median == 0 {
			s = s.after(now, p, median, stepTime)
		}
		if s != nil && s.score > 0 {
			seen[p.ID] = s
		}
	}
	before := w.names()
	w.seen = seen
	for _, s := range seen {
		s.named = s.named || s.score == enough
	}
	return !slices.Equal(before, w.names())
}

// after is the standing of a process once one look more is made; nil was none. With a median of 0 it is not slow.
func (s *standing) after(now time.Time, p Process, median, stepTime time.Duration) *standing {
	slow := median > 0 && float64(p.Own) >= timesOfMost*float64(median) && float64(p.Own-median) >= partOfStep*float64(stepTime)
	switch {
	case slow && s == nil:
		return &standing{Slow: Slow{ID: p.ID, Own: p.Own, Median: median, Since: now}, score: 1}
	case slow:
		s.Own, s.Median, s.score = p.Own, median, min(s.score+1, enough)
	case s != nil:
		s.score -= back
	}
	return s
}

// most is the median of those that know how long they work, of two in the middle the shorter one; 0 where that is not more
// than half of all, or nobody is beside them.
func most(world []Process) time.Duration {
	var all []time.Duration
	for _, p := range world {
		if p.Own > 0 {
			all = append(all, p.Own)
		}
	}
	if len(all) < 2 || 2*len(all) <= len(world) {
		return 0
	}
	slices.Sort(all)
	return all[(len(all)-1)/2]
}

// Named are those that keep the others waiting, the slowest first, at most Most.
func (w *Watch) Named() []Slow {
	var named []Slow
	for _, s := range w.seen {
		if s.named {
			named = append(named, s.Slow)
		}
	}
	slices.SortFunc(named, func(a, b Slow) int { return cmp.Or(cmp.Compare(b.Factor(), a.Factor()), a.compare(b.ID)) })
	return named[:min(len(named), Most)]
}

// Knows says whether there were as many looks as it takes to name anybody, or as many at which there was nobody to compare:
// before, that nobody is named says nothing.
func (w *Watch) Knows() bool { return max(w.looks, w.blank) == enough }

// names are those that are named, in a certain order.
func (w *Watch) names() []ID {
	var all []ID
	for _, s := range w.Named() {
		all = append(all, s.ID)
	}
	slices.SortFunc(all, ID.compare)
	return all
}
