package gate_test

import (
	"sync"
	"testing"

	"pgregory.net/rapid"

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

// The process runs as fast as it can while the agent arms: it never makes a step beyond what Arm has
// returned, and always stops.
func TestNoStepSlipsPastTheBarrier(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		page, err := gate.New(1)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = page.Close() }()
		slot, err := gate.Open(page.File(), 0)
		if err != nil {
			t.Fatal(err)
		}
		raise := rapid.Uint64Range(1, 4).Draw(t, "raise")
		wait := rapid.Uint64Range(0, 300).Draw(t, "wait")

		var program sync.WaitGroup
		var made uint64
		program.Go(func() {
			for k := uint64(1); ; k++ {
				if stop := slot.Enter(k); stop != 0 && stop < k {
					made = k - 1
					return
				}
				slot.Done(k, k)
			}
		})
		for page.Progress(0).Entered < wait {
		}
		first := page.Arm(0, wait)
		program.Wait()
		if made > first {
			t.Fatalf("%d steps were made, the barrier stood at %d", made, first)
		}
		if got := page.Arm(0, first+raise); got != first+raise {
			t.Fatalf("raised from %d to %d, wanted %d", first, got, first+raise)
		}
	})
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
