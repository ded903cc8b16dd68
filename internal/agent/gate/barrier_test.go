package gate_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/concertina-dev/concertina/internal/agent/gate"
)

func TestArm(t *testing.T) {
	for name, row := range map[string]struct {
		entered, n, want uint64
	}{
		"ahead of the process":  {entered: 12, n: 17, want: 17},
		"at the step begun":     {entered: 17, n: 17, want: 17},
		"behind the process":    {entered: 20, n: 17, want: 20},
		"before the first step": {entered: 0, n: 0, want: 1},
		"a word without sense":  {entered: 1<<62 + 1, n: 17, want: 17},
	} {
		t.Run(name, func(t *testing.T) {
			page := newPage(t, 1)
			slot, err := gate.Open(page.File(), 0)
			if err != nil {
				t.Fatal(err)
			}
			slot.Enter(row.entered)
			if got := page.Arm(0, row.n); got != row.want || slot.Stop() != row.want {
				t.Errorf("armed at %d, the slot stops at %d; want %d", got, slot.Stop(), row.want)
			}
		})
	}
}

func TestAStepThatIsNotBegunDoesNotCountAsEntered(t *testing.T) {
	page := newPage(t, 1)
	slot, err := gate.Open(page.File(), 0)
	if err != nil {
		t.Fatal(err)
	}
	slot.Enter(17)
	slot.Done(17, 17)
	page.Arm(0, 17)
	if stop := slot.Enter(18); stop != 17 {
		t.Fatalf("the slot may go up to step %d", stop)
	}
	if got := page.Progress(0); got.Entered != 17 || got.Done != 17 {
		t.Errorf("the process stands at %+v", got)
	}
	if got := page.Arm(0, 18); got != 18 {
		t.Errorf("raised to %d", got)
	}
	if got := page.Progress(0); got.Entered != 18 {
		t.Errorf("the raised process has entered %d", got.Entered)
	}
	page.Rewind(0, 12)
	page.Lift(0)
	if got := page.Progress(0); got.Entered != 12 || got.Done != 12 || slot.Stop() != 0 {
		t.Errorf("after going back to 12 the process stands at %+v, stop %d", got, slot.Stop())
	}
}

// The process runs as fast as it can while the agent arms: it stops after just the step that Arm returns.
// Both sides look at each other's words within nanoseconds, so it is tried many times.
func TestNoStepSlipsPastTheBarrier(t *testing.T) {
	page := newPage(t, 1)
	slot, err := gate.Open(page.File(), 0)
	if err != nil {
		t.Fatal(err)
	}
	var made, parked atomic.Uint64
	var over atomic.Bool
	var program sync.WaitGroup
	program.Go(func() {
		for k := uint64(1); !over.Load(); {
			if stop := slot.Enter(k); stop != 0 && stop < k {
				parked.Store(k - 1)
				runtime.Gosched()
				continue
			}
			slot.Done(k, k)
			made.Store(k)
			k++
		}
	})
	defer program.Wait()
	defer over.Store(true)
	for i := range uint64(2000) {
		for begun := made.Load(); made.Load() < begun+i%5; {
			runtime.Gosched()
		}
		stop := page.Arm(0, 1)
		if i%3 == 0 {
			stop = page.Arm(0, stop+1)
		}
		for parked.Load() != stop && made.Load() <= stop {
			runtime.Gosched()
		}
		if steps := made.Load(); steps != stop {
			t.Fatalf("barrier %d: %d steps were made, Arm returned %d", i, steps, stop)
		}
		page.Lift(0)
	}
}

func BenchmarkEnter(b *testing.B) {
	slot := gate.Private()
	k := uint64(0)
	for b.Loop() {
		k++
		if slot.Enter(k) != 0 {
			b.Fatal("stopped")
		}
	}
}
