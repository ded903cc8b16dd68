package rendezvous

import (
	"testing"
	"time"
)

// works has the world make steps each 15 s, so many times, in which the workers work so long, in the order of their uids.
func (f *fleet) works(l *modelLeader, times int, own ...time.Duration) (changes int) {
	for range times {
		for i, uid := range f.uids() {
			f.pods[uid].stepTime, f.pods[uid].ownTime = 100*time.Millisecond, own[i]
		}
		done := l.machine.furthest()
		for range 15 {
			if l.machine.furthest() == done {
				f.step()
			}
			if f.slow(l, "", 1); l.machine.out.Changed {
				changes++
			}
		}
	}
	return changes
}

// Who works longer than the others for minutes is told of, by rank, worker and node, and the controller is woken for it; then
// not any more.
func TestWhoKeepsTheOthersWaitingIsTold(t *testing.T) {
	f := emptyFleet(t)
	l := f.long(3)
	even, slow := 50*time.Millisecond, 90*time.Millisecond
	if f.works(l, 11, even, slow, even) != 0 || len(l.machine.Observe(f.now).Stragglers) != 0 || l.machine.Observe(f.now).Watched {
		t.Fatalf("too early: %+v", l.machine.Observe(f.now).Stragglers)
	}
	if f.works(l, 1, even, slow, even) != 1 {
		t.Error("nobody is told")
	}
	uid := f.uids()[1]
	seen := l.machine.Observe(f.now)
	if len(seen.Stragglers) != 1 || !seen.Watched {
		t.Fatalf("told are %+v, watched %v", seen.Stragglers, seen.Watched)
	}
	want := Straggler{
		Name: l.machine.members[uid].want.Name, Node: l.machine.members[uid].want.Node, Rank: l.machine.world.ranks.rank(uid),
		Own: slow, Median: even, Since: seen.Stragglers[0].Since,
	}
	if got := seen.Stragglers[0]; got != want || got.Since.After(f.now.Add(-2*time.Minute)) {
		t.Errorf("told is %+v, want %+v", got, want)
	}
	if f.works(l, 6, even, even, even) != 1 || len(l.machine.Observe(f.now).Stragglers) != 0 {
		t.Errorf("still told are %+v", l.machine.Observe(f.now).Stragglers)
	}
}
