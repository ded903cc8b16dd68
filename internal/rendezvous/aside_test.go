package rendezvous

import (
	"strings"
	"testing"
	"time"
)

// Whoever is left out since others do not reach it is heard and lives: the world that goes on without it has lost nobody, and neither
// the record nor what is told says otherwise.
func TestWhoIsSetAsideIsNotLost(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target, f.hang = 1, 3, 10*time.Minute
	if wrong := goesOnAlone(f); wrong != "" {
		t.Fatal(wrong)
	}
	l := f.leaders[f.born]
	said := map[Reason]string{}
	for _, c := range l.machine.changes {
		said[c.Reason] += c.Message
	}
	if lost, is := said[ReasonWorkerLost]; is && !strings.Contains(lost, "connection reset") || !strings.Contains(said[ReasonUnreached], "could not be reached by") {
		t.Errorf("nobody is lost, and of the worlds it is told: %v", said)
	}
}

// Of whoever is left out it is said why, and since when, as long as it is; of nobody else.
func TestWhyAWorkerIsSetAsideIsTold(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target, f.hang = 1, 3, 10*time.Minute
	l, _ := f.soleHolder(false)
	f.pods["p02"].apart = true
	f.breaks("p00")
	f.lasting(l, 60*time.Second)
	seen := l.machine.Observe(f.now).Members
	for _, uid := range []string{"p00", "p01"} {
		if one := seen[uid]; !strings.Contains(one.Aside, "it could not reach p02: i/o timeout") || f.now.Sub(one.AsideSince) > time.Minute {
			t.Errorf("of %s, which does not reach p02, it is said %q, since %s", uid, one.Aside, one.AsideSince)
		}
	}
	if one := seen["p02"]; one.Aside != "" || !one.AsideSince.IsZero() {
		t.Errorf("of the one that trains it is said %q", one.Aside)
	}
	if page := l.machine.Inspect(f.now); page.Count.Aside != 2 || page.Members[0].Aside == "" || page.Members[1].Aside == "" {
		t.Errorf("the page of the job counts %+v, and begins with %+v", page.Count, page.Members[0])
	}
	f.pods["p02"].apart = false
	f.lasting(l, time.Minute)
	for uid, one := range l.machine.Observe(f.now).Members {
		if one.Aside != "" {
			t.Errorf("all are reached, and of %s it is said %q", uid, one.Aside)
		}
	}
}

// A snapshot that is not what it was makes a worker leave the world that was to begin with it. Nobody is lost by that either.
func TestWhoLeavesForASnapshotThatIsGoneIsNotLost(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target, f.hang = 1, 3, 10*time.Minute
	l, newest := f.soleHolder(true)
	holder := f.pods["p02"]
	for _, s := range holder.snapshots {
		if s.Step == newest {
			holder.altered[s] = true
		}
	}
	f.breaks("p00")
	f.lasting(l, 90*time.Second)
	if wrong := f.goesOn(l, 3); wrong != "" || len(l.machine.losses) > 0 || f.record.FromStep >= newest {
		t.Fatalf("%s; it goes on after step %d, and the snapshot of step %d is gone; losses %+v", wrong, f.record.FromStep, newest, l.machine.losses)
	}
	if f.record.Reason != ReasonRetried {
		t.Errorf("nobody is lost, and the record says %s", f.record.Reason)
	}
}
