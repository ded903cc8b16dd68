package v1alpha1

import "slices"

// World is with how many of so many workers a job trains, at least min: the smallest legal size that leaves no more than its spares
// over, and so as many of these as there can be. Where there is none it trains with as many as it can.
func (w *WorkersSpec) World(workers int32) int32 {
	least, spares, most := number(w.Min), number(w.Spares), w.trains(workers)
	if spares <= 0 || most < least {
		return most
	}
	beside := max(workers-spares, least)
	if len(w.Sizes) == 0 {
		return min(beside, most)
	}
	for _, size := range w.Sizes {
		if size >= beside {
			most = min(most, size)
		}
	}
	return most
}

// Trains is the same for a job of whose workers so many are in a world: nobody who trains becomes a spare, so that it trains with all of
// these, as far as that is legal. Without spares every worker trains.
func (w *WorkersSpec) Trains(workers, members int32) int32 {
	if number(w.Spares) <= 0 {
		return workers
	}
	return max(w.World(workers), w.trains(min(members, workers)), number(w.Min))
}

// Most is the largest legal number of workers of a job up to n, spares among them; 0 when none is. A number is legal that is
// a legal size and no more than all spares.
func (w *WorkersSpec) Most(n int32) int32 {
	most, spares := w.trains(n), number(w.Spares)
	if spares <= 0 || most < number(w.Min) {
		return most
	}
	return min(n, most+spares)
}

// Ceiling is the largest legal number of workers of a job, spares among them.
func (w *WorkersSpec) Ceiling() int32 {
	return max(w.Most(number(w.Max)+number(w.Spares)), number(w.Min))
}

// Counts are the legal numbers of workers, spares among them, in ascending order, and with how many of each it trains; nil when
// every number is legal. Without spares those above max are among them.
func (w *WorkersSpec) Counts() (counts, worlds []int32) {
	sizes, spares := slices.Sorted(slices.Values(w.Sizes)), number(w.Spares)
	if len(sizes) == 0 || spares <= 0 {
		return sizes, sizes
	}
	for _, size := range sizes {
		for n := size; n <= size+spares && size >= number(w.Min) && size <= number(w.Max); n++ {
			if len(counts) == 0 || n > counts[len(counts)-1] {
				counts, worlds = append(counts, n), append(worlds, w.World(n))
			}
		}
	}
	return counts, worlds
}

// trains is the largest legal size up to n; 0 when none is.
func (w *WorkersSpec) trains(n int32) int32 {
	n = min(n, number(w.Max))
	if len(w.Sizes) == 0 {
		return max(n, 0)
	}
	var largest int32
	for _, size := range w.Sizes {
		if size <= n {
			largest = max(largest, size)
		}
	}
	return largest
}

// number reads what may be left out.
func number(n *int32) int32 {
	if n == nil {
		return 0
	}
	return *n
}
