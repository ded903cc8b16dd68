package v1alpha1

import "slices"

// World is with how many of so many workers a job trains, at least min, when it has its spares.
func (w *WorkersSpec) World(workers int32) int32 {
	least := number(w.Min)
	return max(w.trains(workers-number(w.Spares)), min(workers, least))
}

// Most is the largest legal number of workers of a job up to n, spares among them; 0 when none is. Workers are added beyond the
// gang as its spares first, one by one, and then as legal sizes with all spares.
func (w *WorkersSpec) Most(n int32) int32 {
	spares, least := number(w.Spares), number(w.Min)
	if spares <= 0 {
		return w.trains(n)
	}
	if n < least {
		return w.trains(n)
	}
	most := min(n, least+spares)
	if larger := w.trains(n - spares); larger >= least {
		most = max(most, larger+spares)
	}
	return most
}

// Ceiling is the largest legal number of workers of a job, spares among them.
func (w *WorkersSpec) Ceiling() int32 {
	return max(w.Most(number(w.Max)+number(w.Spares)), number(w.Min))
}

// Counts are the legal numbers of workers, spares among them, in ascending order; nil when every number is.
func (w *WorkersSpec) Counts() []int32 {
	sizes, spares := slices.Sorted(slices.Values(w.Sizes)), number(w.Spares)
	if len(sizes) == 0 || spares <= 0 {
		return sizes
	}
	var all []int32
	least := number(w.Min)
	for n := least; n <= least+spares; n++ {
		all = append(all, n)
	}
	for _, size := range sizes {
		if size > least {
			all = append(all, size+spares)
		}
	}
	return all
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
