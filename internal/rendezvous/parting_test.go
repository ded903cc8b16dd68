package rendezvous

import (
	"testing"
	"time"
)

// Who was to leave, and has said that it has left its world as it was told to, is not lost when its pod goes before the
// next world is there: nothing was left to it but to wait for its end. The controller says of a pod that has ended, or
// is gone, no more that it was to leave.
func TestWhoHasLeftAsPlannedIsNotLost(t *testing.T) {
	ended := func(m *Member) { m.Lost, m.Ended = "it has ended", true }
	gone := func(m *Member) { m.Lost, m.Gone = "it was deleted by force", true }
	for name, c := range map[string]struct {
		strategy Strategy
		ends     func(*Member)
		stays    bool // whether nobody wants it gone
		early    bool // whether it ends before it has left
		another  bool // whether another operator leads by then
		losses   int
	}{
		"its pod has ended":                               {ends: ended},
		"its pod was deleted by force":                    {ends: gone},
		"its programs are started anew, and it has ended": {strategy: Restart, ends: ended},
		"its programs are started anew, and it is gone":   {strategy: Restart, ends: gone},
		"another operator leads when its pod has ended":   {ends: ended, another: true},
		"another operator leads, and it is still there":   {another: true},
		"it ends before it has left":                      {ends: ended, early: true, losses: 1},
		"another one ends, which was to stay":             {ends: ended, stays: true, losses: 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := emptyFleet(t)
			f.minimum, f.target, f.strategy = 2, 2, c.strategy
			if f.strategy == Restart {
				f.disk = &disk{}
			}
			l := f.training(2)
			f.pods["p01"].want.Leaving, f.pods["p01"].want.LeaveBy = ReasonEvicted, f.now.Add(17*time.Second)
			_ = f.handle(l, GangExpected{f.gang()})
			f.until(l, "the world is left", func() bool {
				return l.machine.broken != nil && (c.early || l.machine.State() == StateRegrouping)
			})
			if c.another {
				l = f.succeeded(l)
				f.until(l, "it regroups", func() bool { return l.machine.State() == StateRegrouping })
			}
			victim := f.pods["p01"]
			if c.stays {
				victim = f.pods["p00"]
			}
			if out := l.machine.members[victim.uid].report.Out; out == c.early {
				t.Fatalf("it has left its world: %v", out)
			}
			if c.ends != nil {
				f.end(victim)
				victim.want.Leaving, victim.want.LeaveBy = "", time.Time{}
				c.ends(&victim.want)
			}
			f.makePod()
			f.makePod()
			_ = f.handle(l, GangExpected{f.gang()})
			f.until(l, "the next world trains", func() bool { return f.record.Round == 2 && f.done[2] > f.record.FromStep })
			if losses := l.machine.losses; len(losses) != c.losses {
				t.Errorf("the losses are %+v", losses)
			}
			if f.record.Reason != ReasonEvicted {
				t.Errorf("round 2 was made because of %s", f.record.Reason)
			}
		})
	}
}

// Nor is one that stands at the barrier when the record of the world that goes on without it is being written. One that was to
// stay is, and the change is made anew without it.
func TestWhoStandsForItsLeaveIsNotLost(t *testing.T) {
	for name, c := range map[string]struct {
		victim string
		gone   bool // whether the controller says nothing more of it
		losses int
	}{
		"who leaves":                 {victim: "p01"},
		"who leaves, and is no more": {victim: "p01", gone: true},
		"who stays":                  {victim: "p02", losses: 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := emptyFleet(t)
			f.minimum, f.target = 1, 3
			l := f.training(3)
			f.pods["p01"].want.Leaving = ReasonDeleted
			_ = f.handle(l, GangExpected{f.gang()})
			f.until(l, "the next world is asked for", func() bool { return l.machine.writing != nil && l.machine.writing.plan != nil })
			victim := f.pods[c.victim]
			f.end(victim)
			victim.want.Leaving, victim.want.Lost, victim.want.Gone = "", "it was deleted by force", true
			if c.gone {
				delete(f.pods, c.victim)
			}
			_ = f.handle(l, GangExpected{f.gang()})
			f.until(l, "the next world trains", func() bool { return f.record.Round > 1 && f.done[f.record.Round] > f.record.FromStep })
			if losses := l.machine.losses; len(losses) != c.losses {
				t.Errorf("the losses are %+v", losses)
			}
			if c.losses == 0 && (f.record.Reason != ReasonDeleted || f.record.Round != 2 || f.record.Workers != 2) {
				t.Errorf("the record is %+v", f.record)
			}
		})
	}
}
