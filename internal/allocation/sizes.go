package allocation

import (
	"math"
	"slices"
)

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
	if n >= j.Max {
		return 0
	}
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

// World is with how many of n workers a job trains: what is known of how fast it is goes by that. Its spares come first, so that
// it trains with Min until it has all of them; but nobody who trains becomes a spare, so that it trains with all of Members that are
// among these n, for as long as it has them.
func (j *Job) World(n int32) int32 {
	if j.Spares <= 0 {
		return n
	}
	return max(j.beside(n), j.keeps(n))
}

// beside is with how many of n workers it trains beside its spares.
func (j *Job) beside(n int32) int32 {
	if after, exact := slices.BinarySearch(j.Sizes, n); n >= j.Min && len(j.Trains) == len(j.Sizes) && (exact || after > 0) {
		if !exact {
			after--
		}
		return j.Trains[after]
	}
	return max(n-j.Spares, min(n, j.Min))
}

// keeps is how many of its members go on training where it has n workers.
func (j *Job) keeps(n int32) int32 {
	kept := min(n, j.Members, j.Max-j.Spares)
	if len(j.Sizes) == 0 || len(j.Trains) != len(j.Sizes) {
		return kept
	}
	after, exact := slices.BinarySearch(j.Trains, kept)
	switch {
	case exact:
		return kept
	case after > 0:
		return j.Trains[after-1]
	}
	return 0
}

// withSpares is how many workers a job has at most that trains with so many: all of its spares are beside them, but where fewer train
// than now there are none.
func (j *Job) withSpares(world int32) int32 {
	if j.Spares <= 0 || world < min(j.Members, j.Max-j.Spares) {
		return world
	}
	return int32(min(int64(world)+int64(j.Spares), math.MaxInt32))
}

// legal says whether a job may have n workers.
func (j *Job) legal(n int32) bool { return n > 0 && j.most(n) == n }

// offersOf bounds how many sizes of a job are looked at.
const offersOf = 256

// ladder are the sizes of a job that are looked at: all legal ones, up to some size, and of more than offersOf some. Each is larger
// than the one before by a part of it then, and those that matter are among them.
type ladder struct {
	job *Job
	// top is the largest; by is by which part a size is larger than the one before, as a power of two.
	top int32
	by  int
	// marks are those that matter.
	marks [5]int32
}

// ladder has sizes up to top, among them those next to size, half, and the largest.
func (j *Job) ladder(top, size, half int32) ladder {
	top = min(top, j.Max)
	l := ladder{job: j, top: top, by: 31, marks: [...]int32{j.most(size - 1), size, j.next(size), half, j.most(top)}}
	for l.by = 31; l.many(); l.by = min(l.by, 8) - 1 {
	}
	return l
}

// many says whether it has more than offersOf sizes.
func (l *ladder) many() bool {
	if len(l.job.Sizes) == 0 && l.by == 31 {
		return int64(l.top)-int64(l.job.Min) >= offersOf
	}
	count := 0
	for n := l.job.next(l.job.Min - 1); n != 0; n = l.after(n) {
		if count++; count > offersOf {
			return true
		}
	}
	return false
}

// after is the size after one of them, 0 for none.
func (l *ladder) after(n int32) int32 {
	if l.by == 31 { // as nearly always: all of them
		if next := l.job.next(n); next <= l.top {
			return next
		}
		return 0
	}
	next := l.job.next(int32(min(int64(n)+max(int64(n>>l.by), 1)-1, int64(l.job.Max))))
	for _, mark := range l.marks {
		if mark > n && (next == 0 || mark < next) {
			next = mark
		}
	}
	if next > l.top {
		return 0
	}
	return next
}
