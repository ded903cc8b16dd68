package rendezvous

import (
	"strings"
	"testing"
)

// The next world of two was never entered, and its leader has died. One of the two lies about the world before: the
// record says who was in it, so the other one stays where it is.
func TestALieAboutTheWorldBeforeEndsTheLiarsSession(t *testing.T) {
	for range 20 { // in whatever order members are looked at
		f := emptyFleet(t)
		f.minimum, f.target = 1, 2
		l := f.training(2)
		f.parkedBefore(l)
		f.finishWrite(l)
		made := f.done[1]
		f.kill(l)
		f.newLeader()
		l = f.leaders[f.born]
		f.finishWrite(l)
		lie := f.pods["p00"].join(1)
		lie.Report.Digest = strings.Repeat("0", 64)
		f.pods["p00"].leader = l
		f.told(f.pods["p00"], f.handle(l, lie))
		if f.pods["p00"].leader == l {
			t.Fatal("the session of the one that lies is not ended")
		}
		f.connectTo(f.pods["p01"], l)
		f.turns(l, 20)
		if w := l.machine.world; w == nil || f.done[1] <= made {
			t.Fatalf("the world before does not go on: %s", l.machine.State())
		}
		if wrong := f.losses(l); wrong != "" {
			t.Fatal(wrong)
		}
	}
}
