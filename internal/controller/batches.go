package controller

import "sync"

// mostAtOnce bounds how many calls of one job are on their way at a time.
const mostAtOnce = 64

// inBatches calls do for 0 to n-1, in growing batches: the first one alone, then two at a time, four, and so
// on. What goes wrong for all goes wrong once and not n times: after a batch with an error there is no other,
// and the error of the lowest number is returned.
func inBatches(n int, do func(i int) error) error { return growing(1, n, do) }

// atOnce does the same as many at a time as may be from the start, for what nobody is expected to refuse: what is there is
// changed or deleted, and somebody waits for it.
func atOnce(n int, do func(i int) error) error { return growing(mostAtOnce, n, do) }

func growing(atFirst, n int, do func(i int) error) error {
	for first, size := 0, atFirst; first < n; first, size = first+size, min(2*size, mostAtOnce) {
		size = min(size, n-first)
		errs := make([]error, size)
		var calls sync.WaitGroup
		for i := range size {
			calls.Go(func() { errs[i] = do(first + i) })
		}
		calls.Wait()
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
	}
	return nil
}
