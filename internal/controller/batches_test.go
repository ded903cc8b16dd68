package controller

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestBatchesGrow(t *testing.T) {
	// Each call takes a second, so the seconds tell what was on its way at the same time.
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var mu sync.Mutex
		var at []int
		if err := inBatches(200, func(int) error {
			mu.Lock()
			at = append(at, int(time.Since(began).Seconds()))
			mu.Unlock()
			time.Sleep(time.Second)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		sizes := make([]int, 9)
		for _, second := range at {
			sizes[second]++
		}
		if want := []int{1, 2, 4, 8, 16, 32, 64, 64, 9}; !slices.Equal(sizes, want) {
			t.Errorf("batches of %v, want %v", sizes, want)
		}
	})
}

// Those who wait for marks and deletions wait for one call, not for one after the other.
func TestWhatIsThereIsChangedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := atOnce(mostAtOnce, func(int) error { time.Sleep(time.Second); return nil }); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("it took %s, want a second", took)
		}
	})
}

func TestAnErrorEndsTheBatches(t *testing.T) {
	for failing, want := range map[int]int32{0: 1, 1: 3, 2: 3, 3: 7, 12: 15, 19: 20} {
		var calls atomic.Int32
		wrong := errors.New("refused")
		err := inBatches(20, func(i int) error {
			calls.Add(1)
			switch {
			case i == failing:
				return wrong
			case i > failing:
				return errors.New("a later one")
			}
			return nil
		})
		if !errors.Is(err, wrong) || calls.Load() != want {
			t.Errorf("%d fails: %d calls, want %d; %v", failing, calls.Load(), want, err)
		}
	}
	if err := inBatches(0, func(int) error { return errors.New("nobody asked") }); err != nil {
		t.Error(err)
	}
}
