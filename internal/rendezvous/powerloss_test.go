package rendezvous

import (
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
)

// A worker whose node has lost its power hangs up no session. Once it is known to have ended, nobody waits for what it held: newcomers
// begin with the newest checkpoint.
func TestNobodyHoldsWhatWentWithItsNode(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target = 2, 2
	f.storage, f.shelf = &Storage{Interval: 10 * time.Second, Keep: 3}, &shelf{}
	for range 2 {
		f.makePod()
	}
	f.newLeader()
	l := f.leaders[f.born]
	f.until(l, "a checkpoint is durable", func() bool {
		for _, p := range f.pods {
			p.save(lifecycle.Staging{})
		}
		return l.machine.durable.Path != ""
	})
	f.until(l, "a later snapshot is in memory", func() bool {
		for _, p := range f.pods {
			p.save(lifecycle.Staging{})
		}
		taken, ok := l.machine.newestSnapshot()
		return ok && taken.Step > l.machine.durable.Snapshot.Step
	})
	for _, uid := range f.uids() {
		p := f.pods[uid]
		p.dead, p.vanished, p.leader, p.queue = true, true, nil, nil
		p.want.Lost, p.want.Ended = "its node was started anew", true
	}
	durable := l.machine.durable.Snapshot.Step
	for range 2 {
		f.makePod()
	}
	_ = f.handle(l, GangExpected{f.gang()})
	f.goesOnFrom(l, durable, 2)
	if round := l.machine.world.record.Round; round != 2 {
		t.Errorf("it took until round %d", round)
	}
}

// Whose node has lost its power is replaced at once when it is lost: that its agent stays was its word before.
func TestWhoIsLostWithItsNodeDoesNotStay(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target = 3, 3
	for range 3 {
		f.makePod()
	}
	f.newLeader()
	l := f.leaders[f.born]
	uid := f.uids()[1]
	f.until(l, "its agent says that it stays", func() bool { return l.machine.members[uid] != nil && l.machine.members[uid].report.Stays })
	p := f.pods[uid]
	p.dead, p.vanished, p.leader, p.queue = true, true, nil, nil
	p.want.NodeNotReady = true
	_ = f.handle(l, GangExpected{f.gang()})
	f.until(l, "it is lost", func() bool { return l.machine.Observe(f.now).Members[uid].LostIn > 0 })
	if seen := l.machine.Observe(f.now).Members[uid]; !seen.Connected || seen.Stays {
		t.Errorf("connected %t, stays %t: its session is open, and nothing was heard of it for longer than a heartbeat may take", seen.Connected, seen.Stays)
	}
}
