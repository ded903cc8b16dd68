package rendezvous

import (
	"slices"
	"testing"
	"time"
)

// nobody has so much time pass without an operator.
func (f *fleet) nobody(d time.Duration) {
	for began := f.now; f.now.Sub(began) < d; {
		f.pass(time.Second)
		for _, uid := range f.uids() {
			f.move(f.pods[uid])
		}
	}
}

// next is another operator.
func (f *fleet) next() *modelLeader {
	f.newLeader()
	return f.leaders[f.born]
}

// outagesOfALeave are ways in which nobody leads a world whose programs were told to save and to end: each returns who leads then.
var outagesOfALeave = map[string]func(*fleet, *modelLeader) *modelLeader{
	"the operator is away": func(f *fleet, l *modelLeader) *modelLeader {
		f.kill(l)
		f.nobody(20 * time.Minute)
		return f.next()
	},
	"the API server is away": func(f *fleet, l *modelLeader) *modelLeader {
		f.outage(l, time.Minute)
		return l
	},
	"the operator ends since the API server is away": func(f *fleet, l *modelLeader) *modelLeader {
		f.outage(l, 15*time.Second)
		f.kill(l)
		f.nobody(20 * time.Minute)
		return f.next()
	},
	"the next operator finds no API server": func(f *fleet, l *modelLeader) *modelLeader {
		f.outage(l, 15*time.Second)
		f.kill(l)
		f.nobody(time.Minute)
		l = f.next()
		f.outage(l, time.Minute)
		return l
	},
}

// changesThatLeave are changes of a world of two: how many are in the next one.
var changesThatLeave = map[string]func(*fleet) int32{
	"it grows": func(f *fleet) int32 {
		f.target = 3
		f.makePod()
		return 3
	},
	"one leaves": func(f *fleet) int32 {
		f.pods["p01"].want.Leaving = ReasonReclaimed
		return 1
	},
	"one is replaced": func(f *fleet) int32 {
		f.pods["p01"].want.Leaving = ReasonReclaimed
		f.makePod()
		return 2
	},
	"one leaves, and is killed": func(f *fleet) int32 {
		f.pods["p01"].want.Leaving, f.pods["p01"].want.LeaveBy = ReasonReclaimed, f.now.Add(time.Minute)
		return 1
	},
}

// Programs that are started anew were told to save and to end, and then nobody leads for long: nothing hangs, nothing is counted as the
// program's failure, the next world goes on from this one, and after the step that was saved wherever all had been told.
func TestAnOutageAfterALeaveWasToldLosesNothing(t *testing.T) {
	for change, begin := range changesThatLeave {
		for outage, happen := range outagesOfALeave {
			for _, deaf := range []int{0, 1} {
				for _, after := range []int{0, 1, 3} {
					f, l := restarting(t, deaf)
					size := begin(f)
					_ = f.handle(l, GangExpected{f.gang()})
					f.until(l, "it is told to leave", func() bool { return l.machine.broken != nil })
					f.turns(l, after)
					if l.machine.world.record.Round > 1 {
						continue
					}
					all := f.tellLeaving(change == "one leaves, and is killed")
					l = happen(f, l)
					for _, uid := range []string{"p00", "p01"} {
						if p := f.pods[uid]; p != nil && p.process.runs && p.process.stepping {
							p.exits(1) // it went on, and somebody it needs has left
						}
					}
					name, made := change+", "+outage, f.done[1]
					f.until(l, name+": another world follows", func() bool { return l.machine.world != nil && l.machine.world.record.Parent > 0 })
					next := l.machine.world.record
					f.turns(l, 200)
					if w := l.machine.world; w == nil || next.Parent != 1 || w.record.Workers != size || f.done[w.record.Round] == 0 {
						t.Fatalf("%s, %d look at no gate, %d turns after it was told: %+v, the leader is %s", name, deaf, after, f.record, l.machine.State())
					}
					if slices.ContainsFunc(l.machine.losses, func(one Loss) bool { return one.Program || one.UID != "p01" || change != "one leaves, and is killed" }) {
						t.Errorf("%s, %d look at no gate, %d turns after it was told: losses %+v", name, deaf, after, l.machine.losses)
					}
					if all && next.FromStep != made {
						t.Errorf("%s, %d turns after it was told: it goes on after step %d, and %d were made", name, after, next.FromStep, made)
					}
				}
			}
		}
	}
}

// tellLeaving says whether both programs were told to leave after a step, and do; the pod of one of them ends then, if it is to.
func (f *fleet) tellLeaving(killed bool) (all bool) {
	all = !killed
	for _, uid := range []string{"p00", "p01"} {
		report := f.pods[uid].report()
		all = all && report.any(func(p *Process) bool { return p.Leaving > 0 })
	}
	if p := f.pods["p01"]; killed && !p.process.runs {
		f.end(p)
		f.notice()
	}
	return all
}
