package rendezvous

import (
	"testing"
	"time"
)

// One worker has made a step more than the others, who are to get its state, and is lost before they have: they still have theirs, of one
// step before, and go on from that. Nobody has a snapshot.
func TestTheStateBeforeTheOneThatIsLostServes(t *testing.T) {
	const unread = "another operator leads when the next world is written, of which nobody has heard"
	for name, adopted := range map[string]bool{"": false, "another operator leads by then": true, unread: true} {
		t.Run(name, func(t *testing.T) {
			f := emptyFleet(t)
			f.minimum, f.target, f.hang = 2, 3, 10*time.Minute
			l := f.training(3)
			ahead, behind := f.pods["p02"], f.pods["p00"]
			for n := 0; ahead.process.done <= behind.process.done || ahead.process.done <= f.pods["p01"].process.done; n++ {
				f.move(f.pods[f.uids()[n%3]])
			}
			state := behind.process.done
			ahead.apart = true
			f.breaks("p00")
			f.breaks("p01")
			for n := 0; f.record.Round == 1 || behind.machine.In().Round == 1 || f.pods["p01"].machine.In().Round == 1; n++ {
				if f.turn(l); n == 2000 {
					t.Fatal("no world follows")
				}
			}
			if f.record.FromStep != state+1 {
				t.Fatalf("the world goes on after step %d, and one has made step %d", f.record.FromStep, state+1)
			}
			f.lose(l, "p02")
			if name == unread {
				f.until(l, "the next world is asked for", func() bool { return l.machine.writing != nil && l.machine.writing.plan != nil })
				f.finishWrite(l)
				for _, p := range f.pods {
					p.queue = nil
				}
				l = f.succeeded(l)
			} else if adopted {
				f.turns(l, 2)
				f.kill(l)
				f.newLeader()
				l = f.leaders[f.born]
			}
			f.lasting(l, time.Minute)
			if wrong := f.goesOn(l, 2); wrong != "" || f.record.FromStep != state {
				t.Errorf("%s (%s); it goes on after step %d, and two have the state after step %d", wrong, l.machine.fatal, f.record.FromStep, state)
			}
		})
	}
}
