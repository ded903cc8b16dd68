package lifecycle

import (
	"slices"
	"testing"
	"time"
)

// Holders are named once they could not be reached for half of the time for which a worker tries, and no more once one was, or in
// the next world.
func TestHoldersThatAreNotReachedAreNamed(t *testing.T) {
	far, near := Unreached{Certificate: [32]byte{1}, Why: "i/o timeout"}, Unreached{Certificate: [32]byte{2}, Why: "no route to host"}
	for name, c := range map[string]struct {
		events []line
		want   []Unreached
	}{
		"for a moment": {[]line{{3 * second, missing(2, far), ""}, {10 * second, missing(2, far), ""}}, nil},
		"for long":     {[]line{{3 * second, missing(2, far), ""}, {18 * second, missing(2, near), ""}}, []Unreached{near}},
		"it gives up":  {[]line{{3 * second, missing(2, far), ""}, {40 * second, missing(2, far), ""}}, []Unreached{far}},
		"another tells it that the world is over": {[]line{
			{3 * second, missing(2, far), ""}, {18 * second, missing(2, far), ""}, {19 * second, aborting(directive(1, 2, "b"), false), ""},
			{20 * second, missing(2, near), ""},
		}, []Unreached{far}},
		"until one is reached": {[]line{{3 * second, missing(2, far), ""}, {18 * second, missing(2, far), ""}, {19 * second, Fetched{Round: 2}, ""}}, nil},
		"long tries that break off": {[]line{
			{3 * second, broken(2, far), ""}, {200 * second, broken(2, far), ""}, {210 * second, missing(2, far), ""},
		}, nil},
		"one gives, and another does not": {[]line{
			{3 * second, missing(2, far), ""}, {10 * second, broken(2, near, far), ""}, {26 * second, missing(2, far), ""},
		}, []Unreached{far}},
		"every try breaks off": {[]line{
			{3 * second, broken(2, far), ""}, {40 * second, broken(2, far), ""}, {80 * second, broken(2, far), ""},
			{120 * second, broken(2, far), ""}, {160 * second, broken(2, far), ""},
		}, []Unreached{gave(far)}},
		"another one has no place": {[]line{{3 * second, missing(2, far), ""}, {18 * second, busy(2), ""}, {30 * second, missing(2, far), ""}}, nil},
		"until the next world": {[]line{
			{3 * second, missing(2, far), ""}, {40 * second, missing(2, far), ""}, {41 * second, aborting(directive(1, 2, "b"), false), ""},
			{42 * second, going(directive(1, 3, "c"), 16, true), ""},
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Unix(0, 0)
			m := New(start, DefaultLimits(30*time.Second), Shape{Programs: 2, Processes: 2})
			for _, l := range append(inRound(
				line{1 * second, aborting(directive(1, 1, "a"), false), ""},
				line{1 * second, says(0, Aborted), ""},
				line{1 * second, says(1, Aborted), ""},
				line{2 * second, going(directive(1, 2, "b"), 16, true), ""},
			), c.events...) {
				m.Step(start.Add(l.at), l.event)
			}
			if got := m.Unreached(); !slices.Equal(got, c.want) {
				t.Errorf("it names %v, want %v", got, c.want)
			}
		})
	}
}

func missing(round uint64, holders ...Unreached) Fetched {
	return Fetched{Round: round, Why: "nobody gives it", Unreached: true, Holders: holders}
}

// broken is a try that brought something from the first of these holders.
func broken(round uint64, holders ...Unreached) Fetched {
	holders[0] = gave(holders[0])
	f := missing(round, holders...)
	f.Moved = true
	return f
}

// busy is a try in which a holder had no place.
func busy(round uint64) Fetched {
	return Fetched{Round: round, Why: "no place", Busy: true}
}

// busyFor are such tries for so many seconds.
func busyFor(seconds int) (tries []line) {
	for at := 3; at < seconds; at += 30 {
		tries = append(tries, line{time.Duration(at) * second, busy(2), ""})
	}
	return tries
}

// Whoever waits for a place with a holder does not leave its world for that, and tries again; but not for ever.
func TestWhoWaitsForAPlaceStays(t *testing.T) {
	for seconds, stays := range map[int]bool{300: true, 1800: false} {
		start := time.Unix(0, 0)
		m := New(start, DefaultLimits(30*time.Second), Shape{Programs: 2, Processes: 2})
		for _, l := range append(inRound(
			line{1 * second, aborting(directive(1, 1, "a"), false), ""},
			line{1 * second, says(0, Aborted), ""},
			line{1 * second, says(1, Aborted), ""},
			line{2 * second, going(directive(1, 2, "b"), 16, true), ""},
		), busyFor(seconds)...) {
			m.Step(start.Add(l.at), l.event)
		}
		if out := m.Out(); out == stays || len(m.Unreached()) > 0 || m.Unsupplied() != "" {
			t.Errorf("after %d s without a place it is out: %v; it names %v, and ends: %q", seconds, out, m.Unreached(), m.Unsupplied())
		}
		asks := slices.ContainsFunc(m.Step(start.Add(time.Duration(seconds+1)*second), Tick{}), func(e Effect) bool { _, is := e.(Fetch); return is })
		if asks != stays {
			t.Errorf("after %d s without a place it asks again: %v", seconds, asks)
		}
	}
}

// One holder is not reached, and another one has no place. Only what is missing, and the first one has alone, is not waited for.
func TestAPlaceIsNotWaitedForWhereAnotherPartIsMissing(t *testing.T) {
	far := Unreached{Address: "10.0.0.1", Port: 1, Certificate: [32]byte{1}, Why: "i/o timeout"}
	one, full := Holder{Address: far.Address, Port: far.Port, Certificate: far.Certificate}, Holder{Address: "10.0.0.2", Port: 1, Certificate: [32]byte{2}}
	first, second, shard := "s0"+layout, "s1"+layout, "d0"+layout
	for name, c := range map[string]struct {
		ofOne, ofFull []int
		parts, lacks  []string
		out           bool
	}{
		"each has a part":                     {[]int{0}, []int{1}, []string{first, second}, []string{first, second}, true},
		"each has a part, and one is here":    {[]int{0}, []int{1}, []string{first, second}, []string{second}, false},
		"each has a part, the other one's is": {[]int{0}, []int{1}, []string{first, second}, []string{first}, true},
		"the other one has both":              {[]int{0}, []int{0, 1}, []string{first, second}, []string{first, second}, false},
		"each has all of a whole":             {nil, nil, nil, []string{""}, false},
		"a shard that programs may want":      {[]int{0, 1}, []int{1}, []string{shard, second}, []string{second}, true},
	} {
		t.Run(name, func(t *testing.T) {
			start, both := time.Unix(0, 0), missing(2, far)
			both.Busy, both.Lacks = true, c.lacks
			one.Parts, full.Parts = c.ofOne, c.ofFull
			parts := make([]Part, len(c.parts))
			for i, key := range c.parts {
				parts[i].Key = key
			}
			m := New(start, DefaultLimits(30*time.Second), Shape{Programs: 2, Processes: 2})
			for _, l := range inRound(
				line{1 * time.Second, aborting(directive(1, 1, "a"), false), ""},
				line{1 * time.Second, says(0, Aborted), ""},
				line{1 * time.Second, says(1, Aborted), ""},
				line{2 * time.Second, with(going(directive(1, 2, "b"), 16, true), func(d *Directive) {
					d.World.Holders, d.World.Parts = []Holder{one, full}, parts
				}), ""},
				line{3 * time.Second, both, ""}, line{18 * time.Second, both, ""}, line{34 * time.Second, both, ""},
			) {
				m.Step(start.Add(l.at), l.event)
			}
			if named := len(m.Unreached()) > 0; m.Out() != c.out || named != c.out {
				t.Errorf("it is out: %v, and names %v", m.Out(), m.Unreached())
			}
		})
	}
}

// The same where processes wait for shards: what counts is what they wait for, each of them.
func TestAPlaceIsNotWaitedForWhereAShardIsMissing(t *testing.T) {
	far := Unreached{Address: "10.0.0.1", Port: 1, Certificate: [32]byte{1}, Why: "i/o timeout"}
	one, full := Holder{Address: far.Address, Port: far.Port, Certificate: far.Certificate}, Holder{Address: "10.0.0.2", Port: 1, Certificate: [32]byte{2}}
	d0, d1 := "d0"+layout, "d1"+layout
	one.Parts, full.Parts = []int{0, 1}, []int{1} // the first one has d0 alone
	for name, c := range map[string]struct {
		zero, one []string // what each process waits for
		lacks     []string
		leaves    bool
	}{
		"it waits for what the other one has":         {[]string{d1}, nil, []string{d1}, false},
		"it waits for both":                           {[]string{d0, d1}, nil, []string{d0, d1}, true},
		"it waits for both, and has got one":          {[]string{d0, d1}, nil, []string{d1}, false},
		"another process waits for what nobody gives": {[]string{d1}, []string{d0}, []string{d1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			start, m := time.Unix(0, 0), New(time.Unix(0, 0), DefaultLimits(30*time.Second), Shape{Programs: 2, Processes: 2})
			lines := inShards(
				line{3 * time.Second, with(cutUp(directive(1, 2, "b"), 17, false), func(d *Directive) {
					d.World.Holders, d.World.Parts = []Holder{one, full}, []Part{{Key: d0}, {Key: d1}}
				}), ""},
				line{3 * time.Second, Fetched{Round: 2}, ""},
				line{3 * time.Second, wants(0, c.zero...), ""},
			)
			if c.one != nil {
				lines = append(lines, line{3 * time.Second, wants(1, c.one...), ""})
			}
			for _, at := range []time.Duration{4, 19, 35} {
				both := missing(2, far)
				both.Busy, both.Lacks = true, c.lacks
				lines = append(lines, line{at * time.Second, had(0, 2, both), ""}, line{(at + 10) * time.Second, Tick{}, ""})
			}
			for _, l := range lines {
				m.Step(start.Add(l.at), l.event)
			}
			if named := len(m.Unreached()) > 0; (m.orders.abort != nil) != c.leaves || named != c.leaves {
				t.Errorf("it leaves the world: %v, and names %v", m.orders.abort != nil, m.Unreached())
			}
		})
	}
}

func gave(holder Unreached) Unreached {
	holder.Gave = true
	return holder
}
