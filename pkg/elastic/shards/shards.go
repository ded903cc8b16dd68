// Package shards divides values of which each rank has an interval, and says what has to be moved when others are to have
// them. It is pure: numbers in, numbers out.
package shards

import (
	"cmp"
	"fmt"
	"slices"
)

// Interval is what lies from From to before To.
type Interval struct{ From, To uint64 }

// Len is how much lies in it.
func (i Interval) Len() uint64 {
	if i.To <= i.From {
		return 0
	}
	return i.To - i.From
}

// Even is the interval of one of so many ranks, where all have the same of length, or one more: ⌊rank·length/ranks⌋ to
// ⌊(rank+1)·length/ranks⌋.
func Even(length uint64, rank, ranks int) Interval {
	return Interval{cut(length, rank, ranks), cut(length, rank+1, ranks)}
}

func cut(length uint64, rank, ranks int) uint64 {
	n, r := uint64(ranks), uint64(rank)
	return length/n*r + length%n*r/n
}

// Part is an interval that is somewhere. Here says that it is where it is needed: it costs nothing.
type Part struct {
	Interval
	Here bool
}

// Move is an interval that is taken from the part of this number.
type Move struct {
	Part int
	Interval
}

// Plan says which part each piece of an interval is taken from, in order. What is here is taken from here, so that no more
// is moved than is not. Of several parts that have the same the one that reaches furthest serves, and of those the first.
// Errors: no part has some of it.
func Plan(want Interval, parts []Part) ([]Move, error) {
	var moves []Move
	for at := want.From; at < want.To; {
		best := -1
		nearest := want.To // where the next part that is here begins
		for i, p := range parts {
			switch {
			case p.Here && at < p.From && p.Len() > 0:
				nearest = min(nearest, p.From)
			case at < p.From || p.To <= at:
			case best < 0 || p.better(parts[best]):
				best = i
			}
		}
		if best < 0 {
			return nil, fmt.Errorf("nobody has what begins at %d of %d to %d", at, want.From, want.To)
		}
		to := min(parts[best].To, want.To)
		if !parts[best].Here {
			to = min(to, nearest)
		}
		if last := len(moves) - 1; last >= 0 && moves[last].Part == best {
			moves[last].To = to
		} else {
			moves = append(moves, Move{best, Interval{at, to}})
		}
		at = to
	}
	return moves, nil
}

// Joined puts intervals in order, leaves out the empty ones, and makes one of those that touch or overlap. Where more than most are left those
// become one, with what is between them, between which there is least, and of several the first: most is at least 1.
func Joined(intervals []Interval, most int) (all []Interval) {
	intervals = slices.DeleteFunc(slices.Clone(intervals), func(i Interval) bool { return i.Len() == 0 })
	slices.SortFunc(intervals, func(a, b Interval) int { return cmp.Compare(a.From, b.From) })
	var gaps []uint64 // behind each but the last
	for _, i := range intervals {
		last := len(all) - 1
		if last >= 0 && i.From <= all[last].To {
			all[last].To = max(all[last].To, i.To)
			continue
		}
		if last >= 0 {
			gaps = append(gaps, i.From-all[last].To)
		}
		all = append(all, i)
	}
	if len(all) <= most {
		return all
	}
	order := make([]int, len(gaps))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(gaps[a], gaps[b]) })
	closed := map[int]bool{}
	for _, i := range order[:len(all)-most] {
		closed[i] = true
	}
	fewer := all[:1:1]
	for i := 1; i < len(all); i++ {
		if closed[i-1] {
			fewer[len(fewer)-1].To = all[i].To
		} else {
			fewer = append(fewer, all[i])
		}
	}
	return fewer
}

func (p Part) better(than Part) bool {
	if p.Here != than.Here {
		return p.Here
	}
	return p.To > than.To
}
