package rendezvous

import (
	"strings"
	"testing"
)

// A pod that is deleted by force is out of the gang for a moment, and in it again as one that is lost, while its agent goes on.
func TestAMemberThatIsNamedAgainHasEnteredItsWorldOnce(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target = 2, 2
	l := f.training(2)
	p := f.pods["p01"]
	without := f.gang()
	without.Members = without.Members[:1]
	_ = f.handle(l, GangExpected{without})
	_ = f.handle(l, GangExpected{f.gang()})
	out := f.give(l, p.join(1))
	if out.Refuse != nil {
		t.Fatalf("it is refused: %v", out.Refuse)
	}
	for _, n := range out.Notes {
		if strings.Contains(n.Text, "is formed") {
			t.Errorf("it is said again: %s", n.Text)
		}
	}
	if got := l.machine.world.entered; got != 2 {
		t.Errorf("%d have entered the world of 2", got)
	}
}
