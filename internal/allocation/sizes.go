package allocation

import "slices"

// most is the largest legal number of workers that is not above n, 0 when there is none.
func (j *Job) most(n int32) int32 {
	n = min(n, j.Max)
	if len(j.Sizes) == 0 {
		if n < j.Min {
			return 0
		}
		return n
	}
	for _, size := range slices.Backward(j.Sizes) {
		if size <= n && size >= j.Min {
			return size
		}
	}
	return 0
}

// next is the smallest legal number of workers above n, 0 when there is none.
func (j *Job) next(n int32) int32 {
	if len(j.Sizes) == 0 {
		if n = max(n+1, j.Min); n > j.Max {
			return 0
		}
		return n
	}
	for _, size := range j.Sizes {
		if size > n && size >= j.Min && size <= j.Max {
			return size
		}
	}
	return 0
}

// legal says whether a job may have n workers.
func (j *Job) legal(n int32) bool { return n > 0 && j.most(n) == n }
