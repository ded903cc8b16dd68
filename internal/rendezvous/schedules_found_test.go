package rendezvous

import "fmt"

// The schedules in this file were found by random histories.

// lose has a worker end, and the controller say so.
func (f *fleet) lose(l *modelLeader, uid string) {
	f.end(f.pods[uid])
	f.pods[uid].want.Lost, f.pods[uid].want.Ended = "it has ended", true
	_ = f.handle(l, GangExpected{f.gang()})
}

// savedLate: a worker is asked for its live state, which others need, and is so slow that the world goes back to an
// older snapshot. It saves when the agent has entered that world.
func savedLate(f *fleet) string {
	f.minimum = 2
	l := f.training(2)
	f.pods["p00"].save()
	f.turns(l, 4)
	f.makePod()
	f.lose(l, "p01")
	slow := f.pods["p00"]
	for l.machine.broken == nil || l.machine.broken.saver == "" {
		f.turn(l)
		slow.process.still = slow.process.clean
	}
	for l.machine.world.record.Round == 1 {
		f.turn(l)
	}
	f.turns(l, 2)
	from := f.record.FromStep
	if slow.in().Round != 2 || from >= uint64(len(slow.process.state)) {
		return fmt.Sprintf("the world does not go back: it begins after step %d, and %s", from, &slow.worker)
	}
	slow.wake()
	for _, s := range slow.snapshots {
		if s.Step > from {
			return fmt.Sprintf("the world begins after step %d and has made none, and there is the snapshot %d of round %d", from, s.Step, s.Round)
		}
	}
	if f.turns(l, 4); f.done[2] <= from {
		return "it makes no steps"
	}
	return ""
}

// overWhenHeard: a planned world is published, and the member that has its snapshot ends. The other one that was to
// go on there with its state hears of that world only now.
func overWhenHeard(f *fleet) string {
	l := f.training(2)
	f.parkedBefore(l)
	f.finishWrite(l)
	made := f.record.FromStep
	f.pods["p01"].queue, f.pods["p02"].queue = nil, nil
	f.lose(l, "p00")
	f.turns(l, 1)
	if p := f.pods["p01"]; p.process.waiting == waitingParked {
		return "it stands at the barrier of a world that is over: " + p.String()
	}
	f.turns(l, 10)
	if m := l.machine; m.fatal != "" || m.world.record.Round != 3 || m.world.record.FromStep != made {
		return fmt.Sprintf("the state after step %d is lost: %+v %s", made, f.record, m.fatal)
	}
	if f.done[3] <= made {
		return "it makes no steps"
	}
	return ""
}
