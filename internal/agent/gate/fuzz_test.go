package gate_test

import (
	"testing"

	"github.com/concertina-dev/concertina/internal/agent/gate"
)

// maxCount is the largest count that an agent reports.
const maxCount = 1 << 62

// FuzzPage has a program write whatever it likes all over the page, while the agent leads it. What the agent
// reads of it makes sense, and a barrier is never taken back by what the program writes.
func FuzzPage(f *testing.F) {
	f.Add([]byte{}, uint64(5))
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 255}, uint64(1))
	whole := make([]byte, 5*64)
	for i := range whole {
		whole[i] = 0xff
	}
	f.Add(whole, uint64(1<<62))
	begun := make([]byte, 5*64)
	begun[128], begun[136] = 7, 6
	f.Add(begun, uint64(3))
	f.Fuzz(func(t *testing.T, scribble []byte, barrier uint64) {
		page, err := gate.New(2)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = page.Close() }()
		memory := raw(t, page)
		barrier %= maxCount
		copy(memory, scribble)
		check := func() {
			for slot := range page.Slots() {
				p := page.Progress(slot)
				if p.Entered > maxCount || p.Done > p.Entered || p.Samples > maxCount || p.Phase > gate.PhaseFinished ||
					p.LastStep > maxCount || p.LastStep != 0 && p.LastStep < p.Entered {
					t.Errorf("slot %d: %+v", slot, p)
				}
			}
		}
		check()
		stop := page.Arm(0, barrier)
		if stop < barrier || stop < 1 || stop > maxCount {
			t.Errorf("armed with %d it stops after %d", barrier, stop)
		}
		copy(memory, scribble)
		if again := page.Arm(0, 0); again < stop || again > maxCount {
			t.Errorf("the barrier went from %d to %d", stop, again)
		}
		if p := page.Progress(0); p.Entered > page.Arm(0, 0) {
			t.Errorf("step %d is begun beyond the barrier", p.Entered)
		}
		check()
		page.Interrupt(0)
		page.Lift(0)
		page.Rewind(1, barrier)
		page.SetWorld(1, 1, 2)
		check()
		page.Clear(0)
		if p := page.Progress(0); p != (gate.Progress{}) {
			t.Errorf("a slot that was cleared has %+v", p)
		}
	})
}
