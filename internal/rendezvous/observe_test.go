package rendezvous

import (
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/share"
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

// How large the state is its members say; one that says more is looked at at once, and one more of a few bytes by nobody.
func TestTheSizeIsTheMostThatMembersSay(t *testing.T) {
	f := emptyFleet(t)
	l := f.long(3)
	say := func(uid string, size share.Size) (changed bool) {
		p := f.pods[uid]
		p.size = size
		p.look()
		return l.machine.Handle(f.now, AgentReported{uid, p.report()}).Changed
	}
	if got := l.machine.Observe(f.now).Size; got != (share.Size{}) {
		t.Errorf("nobody has said anything, and the size is %+v", got)
	}
	for _, one := range []struct {
		uid     string
		size    share.Size
		want    share.Size
		changed bool
	}{
		{"p01", share.Size{State: 1000, Own: 10, Written: 300}, share.Size{State: 1000, Own: 10, Written: 300}, true},
		{"p02", share.Size{State: 1000, Own: 20, Written: 200}, share.Size{State: 1000, Own: 20, Written: 300}, true},
		{"p01", share.Size{State: 1010, Own: 10, Written: 301}, share.Size{State: 1010, Own: 20, Written: 301}, false},
		{"p01", share.Size{State: 1010, Own: 10, Written: 900}, share.Size{State: 1010, Own: 20, Written: 900}, true},
		{"p01", share.Size{State: 10, Own: 10, Written: 10}, share.Size{State: 1000, Own: 20, Written: 200}, false},
	} {
		if changed := say(one.uid, one.size); changed != one.changed {
			t.Errorf("after %s says %+v somebody is to look: %v", one.uid, one.size, changed)
		}
		seen := l.machine.Observe(f.now)
		if seen.Size != one.want || seen.Members[one.uid].Written != one.size.Written {
			t.Errorf("after %s says %+v the size is %+v, and it has written %d", one.uid, one.size, seen.Size, seen.Members[one.uid].Written)
		}
	}
	l.machine.world = nil // as before the first one: who brings a checkpoint back says how large it is
	if got := l.machine.Observe(f.now).Size; got != (share.Size{State: 1000, Own: 20, Written: 200}) {
		t.Errorf("before there is a world it is %+v", got)
	}
}
