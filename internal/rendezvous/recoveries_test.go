package rendezvous

import (
	"slices"
	"testing"
	"time"
)

func TestRecoveriesInARecord(t *testing.T) {
	at := time.Unix(1795701694, 0).UTC()
	var changes []Change
	for round := range uint64(9) {
		changes = append(changes,
			Change{Round: 2*round + 1, From: 4, To: 3, Reason: ReasonWorkerLost, At: at, Message: "why", StepsLost: 1},
			Change{Round: 2*round + 2, From: 3, To: 4, Reason: ReasonCapacityAvailable, At: at})
	}
	text := packRecoveries(changes)
	if len(text) > 256 {
		t.Errorf("%d bytes, more than the definition takes", len(text))
	}
	got := Record{Round: 18, Recoveries: text}.Recovered()
	if len(got) != keptRecoveries {
		t.Fatalf("%d recoveries, of a record that says %q", len(got), text)
	}
	for i, c := range got {
		want := Change{Round: uint64(11 + 2*i), From: 4, To: 3, Reason: ReasonWorkerLost, At: at, Begun: true, Inherited: true}
		if c != want {
			t.Errorf("recovery %d is %+v, not %+v", i, c, want)
		}
	}
	if got := (Record{Round: 13, Recoveries: text}).Recovered(); len(got) != 1 || got[0].Round != 11 {
		t.Errorf("a record of round 13 names %+v as before it", got)
	}
	for _, broken := range []string{"x", "1:WorkerLost", "1:Nothing:2:1:5", "-1:WorkerLost:2:1:5", "::::", "0:Hung:2:1:5"} {
		if got := (Record{Round: 18, Recoveries: broken}).Recovered(); len(got) > 0 {
			t.Errorf("%q is read as %+v", broken, got)
		}
	}
}

// A worker is lost, another joins, and the leader dies before anybody has counted the loss: the next one tells of both changes.
func TestARecoveryOutlivesItsLeader(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target = 1, 3
	l := f.training(3)
	f.end(f.pods["p02"])
	f.pods["p02"].want.Lost, f.pods["p02"].want.Ended = "it has ended", true
	_ = f.handle(l, GangExpected{f.gang()})
	f.turns(l, 8)
	f.makePod()
	_ = f.handle(l, GangExpected{f.gang()})
	f.turns(l, 12)
	if w := l.machine.world; w == nil || w.record.Round != 3 || w.record.Workers != 3 {
		t.Fatalf("%s, where a third worker was to join", l.machine.State())
	}
	f.kill(l)
	for range 2 { // the word of a leader that has only taken over is as good
		f.newLeader()
		l = f.leaders[f.born]
		f.turns(l, 30)
		i := slices.IndexFunc(l.machine.changes, func(c Change) bool { return c.Round == 2 })
		if i < 0 {
			t.Fatalf("the loss is not told of: %+v", l.machine.changes)
		}
		if c := l.machine.changes[i]; c.Reason != ReasonWorkerLost || c.From != 3 || c.To != 2 || !c.Inherited {
			t.Errorf("the loss is told as %+v", c)
		}
		rounds := []uint64{}
		for _, c := range l.machine.changes {
			rounds = append(rounds, c.Round)
		}
		if !slices.Equal(rounds, []uint64{2, 3}) {
			t.Errorf("the changes are those of rounds %d", rounds)
		}
		f.kill(l)
	}
}
