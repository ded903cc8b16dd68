package rendezvous

import (
	"testing"
	"time"
)

// Two newcomers do not reach who has the only state, and wait until peers reach them. In the world that follows they do reach it, and
// it has nothing for them: its memory has altered what it held. What they had said in the world before is not said of this one, so
// nobody is lost, and the worker gives its state once more.
func TestWhoTakesPartAgainHasSaidNothingYet(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target, f.hang = 2, 2, 10*time.Minute
	l := f.training(2)
	holder, newcomers := f.pods["p00"], f.grows(l, 2)
	f.target = 3
	for holder.process.writing {
		f.turn(l) // until what it has live may be kept
	}
	holder.apart = true
	f.lose(l, "p01")
	aside := func() (all int) {
		for _, uid := range newcomers {
			if l.machine.Observe(f.now).Members[uid].Aside != "" {
				all++
			}
		}
		return all
	}
	for n := 0; aside() < 2; n++ {
		if f.lasting(l, time.Second); n == 300 {
			t.Fatalf("nobody is set aside in round %d: the leader is %s", f.record.Round, l.machine.State())
		}
	}
	for _, s := range holder.snapshots {
		holder.altered[s] = true
	}
	waited := f.record.Round
	holder.apart = false
	f.lasting(l, 2*time.Minute)
	if wrong := f.onlyLost(l, "p01"); wrong != "" || f.record.Round < waited+2 {
		t.Fatalf("%s; round %d after round %d", wrong, f.record.Round, waited)
	}
	if wrong := f.goesOn(l, 3); wrong != "" {
		t.Error(wrong)
	}
}
