package rendezvous

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// What a new leader makes of a round that was to follow on another, case by case. Two workers have trained in round 1, and
// round 2 is durable, in which a third joins them.
func TestAdoption(t *testing.T) {
	for name, c := range map[string]struct {
		entered   []string                   // who has heard of round 2
		meanwhile func(*fleet)               // before the next leader is there
		after     func(*fleet, *modelLeader) // before it trains
		round     uint64                     // that the job goes on in
		lost      bool                       // whether somebody is
		check     func(*testing.T, *modelLeader)
	}{
		"a step was made in it: it is adopted": {
			entered:   []string{"p00", "p01", "p02"},
			meanwhile: func(f *fleet) { f.makeStep("p00", "p01", "p02") },
			after: func(f *fleet, l *modelLeader) {
				f.connectTo(f.pods["p01"], l)
				if w := l.machine.world; w == nil || w.record.Round != 2 || w.ranks.rank("p00") != 0 || w.ranks.rank("p02") != 2 {
					f.t.Error("one who has made a step of it is heard, and it is not adopted with the members that the record names")
				}
			},
			round: 2,
		},
		"a step was made in it, and one has ended since": {
			entered: []string{"p00", "p01", "p02"},
			meanwhile: func(f *fleet) {
				f.makeStep("p00", "p01", "p02")
				f.end(f.pods["p02"])
				f.pods["p02"].want.Lost, f.pods["p02"].want.Ended = "it has ended", true
			},
			after: func(f *fleet, l *modelLeader) {
				f.connectTo(f.pods["p01"], l)
				f.pass(time.Millisecond)
				if losses := l.machine.losses; len(losses) != 1 || losses[0].Rank != 2 || losses[0].Name != "p02" {
					f.t.Errorf("the losses are %+v", losses)
				}
			},
			round: 3, lost: true,
		},
		"one is in it, and the others can follow: it is published again": {entered: []string{"p00"}, round: 2},
		"all but rank 0 are in it: they meet where the record says": {
			entered: []string{"p01", "p02"}, round: 2,
			check: func(t *testing.T, l *modelLeader) {
				if met := l.machine.world.master; met != (Endpoint{"10.0.0.p00", 4000}) {
					t.Errorf("they meet at %v", met)
				}
			},
		},
		"one is in it, another was let go: a recovery": {
			entered: []string{"p00"}, meanwhile: func(f *fleet) { f.letGo("p01") }, round: 3,
		},
		"one is in it, another was lost: a recovery": {
			entered: []string{"p00"}, round: 3,
			meanwhile: func(f *fleet) {
				f.end(f.pods["p01"])
				f.pods["p01"].want.Lost, f.pods["p01"].want.Ended = "it has ended", true
			},
			lost: true,
		},
		"one is in it, and the pod of another is gone: a recovery": {
			entered: []string{"p00"}, round: 3,
			meanwhile: func(f *fleet) {
				f.pods["p01"].unheard = true
				f.pods["p01"].want.Lost, f.pods["p01"].want.Gone = "its pod is gone", true
			},
			after: func(f *fleet, l *modelLeader) {
				began := f.now
				f.turns(l, 4)
				if w := l.machine.world; w == nil || f.now.Sub(began) > 2*time.Second {
					f.t.Errorf("%s after %s: nobody else can come", l.machine.State(), f.now.Sub(began))
				}
			},
			lost: true,
		},
		"nobody is in it: it is burned, and the one before goes on": {round: 1},
		"nobody is in it, and one is heard late: all are held until then": {
			meanwhile: func(f *fleet) { f.pods["p01"].unheard = true },
			after: func(f *fleet, l *modelLeader) {
				f.turns(l, 40)
				if l.machine.State() != StateInheriting || f.pods["p00"].process.waiting != waitingParked {
					f.t.Errorf("after 12 s the leader is %s, and %s", l.machine.State(), &f.pods["p00"].worker)
				}
				f.pods["p01"].unheard = false
			},
			round: 1,
		},
		"nobody is in it, and one is not heard: it is burned in the end": {
			meanwhile: func(f *fleet) { f.pods["p01"].unheard = true },
			after: func(f *fleet, l *modelLeader) {
				f.turns(l, 60)
				if w := l.machine.world; w == nil || w.record.Round != 1 {
					f.t.Errorf("after 18 s the leader is %s", l.machine.State())
				}
				f.pods["p01"].unheard = false
			},
			round: 1,
		},
		"nobody is in it, and a pod that it names is gone: it is burned at once": {
			meanwhile: func(f *fleet) {
				f.pods["p02"].unheard = true
				f.pods["p02"].want.Lost, f.pods["p02"].want.Gone = "its pod is gone", true
			},
			after: func(f *fleet, l *modelLeader) {
				f.turns(l, 4)
				if w := l.machine.world; w == nil || w.record.Round != 1 {
					f.t.Errorf("after a second the leader is %s", l.machine.State())
				}
			},
			round: 1, lost: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := emptyFleet(t)
			f.minimum, f.target, f.hang = 1, 2, 10*time.Minute
			l := f.training(2)
			f.parkedBefore(l)
			f.finishWrite(l)
			for _, p := range f.pods {
				if !slices.Contains(c.entered, p.uid) {
					p.queue = nil
				}
				for len(p.queue) > 0 {
					f.deliverTo(p)
				}
			}
			f.kill(l)
			if c.meanwhile != nil {
				c.meanwhile(f)
			}
			f.target = int32(f.members())
			f.newLeader()
			l = f.leaders[f.born]
			f.finishWrite(l)
			if c.after != nil {
				c.after(f, l)
			}
			made := f.done[c.round]
			for range 40 {
				if w := l.machine.world; w != nil && w.record.Round == c.round && f.done[c.round] > max(made, w.record.FromStep) {
					break
				}
				f.turn(l)
			}
			w := l.machine.world
			if w == nil || w.record.Round != c.round || f.done[c.round] <= max(made, w.record.FromStep) {
				t.Fatalf("the leader is %s, and the job in round %d", l.machine.State(), f.record.Round)
			}
			if lost := f.losses(l); (lost != "") != c.lost {
				t.Errorf("lost: %q", lost)
			}
			if c.check != nil {
				c.check(t, l)
			}
		})
	}
}

// makeStep has workers make a step together.
func (f *fleet) makeStep(uids ...string) {
	for range 3 {
		for _, uid := range uids {
			f.move(f.pods[uid])
		}
	}
}

// members is how many workers are wanted and may train.
func (f *fleet) members() int {
	n := 0
	for _, p := range f.pods {
		if p.want.Lost == "" {
			n++
		}
	}
	return n
}

// The next world of two was never entered, and its leader has died. One of the two lies about the world before: the
// record says who was in it, so the other one stays where it is.
func TestALieAboutTheWorldBeforeEndsTheLiarsSession(t *testing.T) {
	for range 20 { // in whatever order members are looked at
		f := emptyFleet(t)
		f.minimum, f.target = 1, 2
		l := f.training(2)
		f.parkedBefore(l)
		f.finishWrite(l)
		made := f.done[1]
		f.kill(l)
		f.newLeader()
		l = f.leaders[f.born]
		f.finishWrite(l)
		lie := f.pods["p00"].join(1)
		lie.Report.Digest = strings.Repeat("0", 64)
		f.pods["p00"].leader = l
		f.told(f.pods["p00"], f.handle(l, lie))
		if f.pods["p00"].leader == l {
			t.Fatal("the session of the one that lies is not ended")
		}
		f.connectTo(f.pods["p01"], l)
		f.turns(l, 20)
		if w := l.machine.world; w == nil || f.done[1] <= made {
			t.Fatalf("the world before does not go on: %s", l.machine.State())
		}
		if wrong := f.losses(l); wrong != "" {
			t.Fatal(wrong)
		}
	}
}

// A planned change that was refused is tried again after a while, like any other that came to nothing, and the world
// trains meanwhile.
func TestARefusedChangeIsTriedAgainLater(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target = 1, 2
	if wrong := refusedByAll(f); wrong != "" {
		t.Fatal(wrong)
	}
	l, began := f.leaders[f.born], f.now
	f.connectTo(f.pods["p02"], l)
	for f.now.Sub(began) < firstAgain-5*time.Second {
		if f.turn(l); l.machine.State() != StateTraining {
			t.Fatalf("the leader is %s after %s", l.machine.State(), f.now.Sub(began))
		}
	}
	f.turns(l, 40)
	if w := l.machine.world; w == nil || w.record.Workers != 3 {
		t.Errorf("the third has not joined after %s: %s", f.now.Sub(began), l.machine.State())
	}
}

// A program has failed in a world, and a later round is in doubt, so that its leader finds out like a new one who is where: the failure was
// told, and is not told again as that of a newcomer.
func TestAFailureIsNotToldAgainWhenARoundIsInDoubt(t *testing.T) {
	for name, lost := range map[string]string{"its pod is there": "", "the controller says that its pod has failed": "its pod has failed"} {
		f := emptyFleet(t)
		f.minimum, f.target, f.spent = 1, 3, true
		l := f.training(3)
		failed := f.pods["p02"]
		failed.exits(1)
		f.until(l, "the others go on", func() bool { return l.machine.base.Round == 2 && l.machine.State() == StateTraining })
		failed.want.Lost, f.target = lost, 2
		f.parkedBefore(l)
		f.letGo("p00")
		f.letGo("p01")
		f.publishTo(l, "p00", "p01")
		f.drop(f.pods["p03"], l)
		f.connectTo(f.pods["p00"], l)
		f.until(l, "the world before is adopted", func() bool { w := l.machine.world; return w != nil && w.adopted && w.record.Round == 2 })
		f.turns(l, 10)
		var told []Loss
		for _, loss := range l.machine.losses {
			if loss.UID == failed.uid {
				told = append(told, loss)
			}
		}
		if len(told) != 1 || told[0].Round != 1 || !told[0].Program || l.machine.Observe(f.now).Members[failed.uid].LostIn != 1 {
			t.Errorf("%s: it is told of %+v", name, told)
		}
	}
}
