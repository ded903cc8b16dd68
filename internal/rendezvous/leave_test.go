package rendezvous

import (
	"testing"

	"pgregory.net/rapid"
)

// TestStartedAnewAgainstModel plays random histories of programs that are started anew in each world, as
// TestChangesAgainstModel does: most of them look at the gate, and save when they are told to leave. A round that says
// after which step it begins begins after the last one that was made, and its programs find the state after just that.
func TestStartedAnewAgainstModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) { newFleetOf(t, Restart).play(t) })
}

// A world of the same size says that somebody was replaced, unless that one was moved for another job.
func TestWhyAWorldOfTheSameSizeFollows(t *testing.T) {
	for leaving, want := range map[Reason]Reason{ReasonMoved: ReasonMoved, ReasonNodeTainted: ReasonReplaced} {
		t.Run(string(leaving), func(t *testing.T) {
			f := emptyFleet(t)
			f.minimum, f.target = 2, 2
			l := f.training(2)
			f.makePod()
			f.pods["p00"].want.Leaving = leaving
			for range 200 {
				_ = f.handle(l, GangExpected{f.gang()})
				if f.turn(l); l.machine.world.record.Round == 2 {
					break
				}
			}
			if record := l.machine.world.record; record.Round != 2 || record.Workers != 2 || record.Reason != want {
				t.Errorf("the world is %+v, its reason should be %s", record, want)
			}
		})
	}
}
