// Package shards divides values of which each rank has an interval, and says what has to be moved when others are to have
// them. It is pure: numbers in, numbers out.
package shards

import "fmt"

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

func (p Part) better(than Part) bool {
	if p.Here != than.Here {
		return p.Here
	}
	return p.To > than.To
}
