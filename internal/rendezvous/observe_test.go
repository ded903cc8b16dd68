package rendezvous

import (
	"testing"
	"time"
)

// How long a step takes most workers say alike: one that says something else, or nothing, does not count.
func TestStepTimeIsThatOfMost(t *testing.T) {
	f := emptyFleet(t)
	l := f.long(3)
	for _, one := range []time.Duration{30 * time.Second, 5 * time.Minute, time.Nanosecond, 0} {
		f.pods["p02"].stepTime = one
		f.tellState(f.pods["p02"])
		if got := l.machine.Observe(f.now).Progress.StepTime; got != 30*time.Second {
			t.Errorf("one says %s, and a step takes %s", one, got)
		}
	}
	for _, uid := range f.uids() {
		f.pods[uid].stepTime = 0
		f.tellState(f.pods[uid])
	}
	if got := l.machine.Observe(f.now).Progress.StepTime; got != 0 {
		t.Errorf("nobody says how long a step takes, and it is %s", got)
	}
}
