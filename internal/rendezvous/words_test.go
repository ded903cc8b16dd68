package rendezvous

import (
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
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

// One worker misses the only holder of the newest state for a while, and another one does in the world that follows, in which the first is not yet,
// though it reaches everybody again. What that has said is of a trouble that has passed: nobody is lost by it, and the newest state serves.
func TestTwoTroublesThatPassCostNobody(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target, f.hang = 2, 3, 10*time.Minute
	l, newest := f.soleHolder(true)
	misses := map[uint64]string{2: "p00", 3: "p01"}
	for _, uid := range []string{"p00", "p01"} {
		p := f.pods[uid]
		p.fetch = func(of, s Snapshot, holders []lifecycle.Holder) (history, bool, []lifecycle.Unreached) {
			if s.Step != newest || misses[f.record.Round] != uid {
				return f.fetch(p, of, s, holders)
			}
			var all []lifecycle.Unreached
			for _, h := range holders {
				all = append(all, lifecycle.Unreached{Address: h.Address, Port: h.Port, Certificate: h.Certificate, Why: "i/o timeout"})
			}
			return nil, false, all
		}
	}
	f.breaks("p00")
	f.lasting(l, 5*time.Minute)
	if lost := l.machine.losses; len(lost) > 0 {
		t.Errorf("%s is lost: %s", lost[0].UID, lost[0].Message)
	}
	if wrong := f.goesOn(l, 3); wrong != "" || f.record.Round < 4 || f.record.FromStep < newest {
		t.Errorf("%s; round %d is from step %d, and there was one of step %d", wrong, f.record.Round, f.record.FromStep, newest)
	}
}
