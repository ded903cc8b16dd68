package rendezvous

import (
	"fmt"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
)

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
	f.pods["p00"].save(lifecycle.Staging{})
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

// endedBeforeAdopted: a leader is told that a member of the world that it finds has ended, and then of that member no
// more, before it has adopted the world. The other one was deleted by force, and nobody knows what becomes of it: the
// world makes no step without the first, so the attempt is over, with its state.
func endedBeforeAdopted(f *fleet) string {
	f.kill(f.training(2))
	f.end(f.pods["p00"])
	f.pods["p00"].want.Lost, f.pods["p00"].want.Ended = "it has ended", true
	f.newLeader()
	l := f.leaders[f.born]
	delete(f.pods, "p00")
	_ = f.handle(l, GangExpected{f.gang()})
	f.turns(l, 2)
	f.end(f.pods["p01"])
	f.pods["p01"].want.Lost, f.pods["p01"].want.Gone = "its pod is gone", true
	f.makePod()
	_ = f.handle(l, GangExpected{f.gang()})
	f.turns(l, 40)
	if state := l.machine.State(); state != StateFailed {
		_, why := l.machine.doing()
		return fmt.Sprintf("one has ended, and the leader is %s (%s)", state, why)
	}
	return ""
}

// endedUnheard: a world has lost a member that is only cut off, goes on without it, and ends when nobody leads. The next
// leader gives up waiting for its members before the one that was cut off is back, which stands in the world before. What
// was trained after that is not thrown away for the world before, as if it had never been, and the job goes on.
func endedUnheard(f *fleet) string {
	l := f.training(2)
	f.pods["p00"].save(lifecycle.Staging{})
	f.turns(l, 2)
	f.cut(f.pods["p01"], true)
	for turn := 0; f.record.Round < 2 || f.done[2] <= f.record.FromStep; turn++ {
		if f.turn(l); turn > 100 {
			return "the world does not go on without the one that is cut off"
		}
	}
	f.kill(l)
	f.end(f.pods["p00"])
	f.pods["p00"].want.Lost, f.pods["p00"].want.Ended = "it has ended", true
	f.makePod()
	f.newLeader()
	l = f.leaders[f.born]
	f.turns(l, 40)
	f.pods["p01"].unheard, f.pods["p01"].apart = false, false
	f.turns(l, 60)
	if m := l.machine; m.fatal == "" && (m.world == nil || m.world.record.Round <= 2) {
		return fmt.Sprintf("the leader is %s, in %+v", m.State(), f.record)
	}
	return ""
}

// frozenAtFailover: a node freezes in the moment after its operator has ended. The next one never hears its member, and has
// no peer to ask, since nobody can say where its agent is. The world stands still for that one, and not for the time after
// which it counts as hung.
func frozenAtFailover(f *fleet) string {
	f.minimum, f.target, f.hang = 1, 3, 10*time.Minute
	l := f.training(3)
	for _, p := range f.pods {
		p.stepTime = time.Second
	}
	f.turns(l, 2)
	f.kill(l)
	f.pods["p02"].frozen, f.pods["p02"].awayAt = true, f.now
	f.newLeader()
	l = f.leaders[f.born]
	began := f.now
	for f.now.Sub(began) < time.Minute {
		if f.turn(l); l.machine.world != nil && l.machine.world.record.Round > 1 {
			return ""
		}
	}
	return fmt.Sprintf("after a minute the leader is %s", l.machine.State())
}

// oneHasEnded: both members of a world are lost. One is known to have ended, of the other nobody knows.
func oneHasEnded(f *fleet) string {
	l := f.training(2)
	for _, uid := range []string{"p00", "p01"} {
		f.end(f.pods[uid])
		f.pods[uid].want.Lost, f.pods[uid].want.Gone = "its pod is gone", true
	}
	f.pods["p01"].want.Ended = true
	f.makePod()
	_ = f.handle(l, GangExpected{f.gang()})
	f.turns(l, 40)
	if state := l.machine.State(); state != StateFailed {
		_, why := l.machine.doing()
		return fmt.Sprintf("one has ended, and the leader is %s (%s)", state, why)
	}
	return ""
}

// silentFromTheStart: the one worker that is to stay has got ready, and is not heard again before the record of the
// first world is there. It is lost at once, and nobody is left.
func silentFromTheStart(f *fleet) string {
	f.target = 1
	f.makePod()
	f.makePod()
	f.pods["p01"].want.Leaving = ReasonScaledDown
	f.newLeader()
	l := f.leaders[f.born]
	f.finishWrite(l)
	f.connectTo(f.pods["p01"], l)
	f.connectTo(f.pods["p00"], l)
	for l.machine.State() != StateFounding {
		f.visit(l, "p00")
	}
	for asked := f.now; f.now.Sub(asked) <= f.hang; {
		f.visit(l, "p01")
	}
	f.finishWrite(l)
	if state := l.machine.State(); state != StateRegrouping {
		return fmt.Sprintf("the leader is %s", state)
	}
	return ""
}

// holdersCutOff: a newcomer hears the operator, and for 75 s none of its peers, who have the snapshot that its world
// begins with.
func holdersCutOff(f *fleet) string {
	l := f.training(2)
	f.parkedBefore(l)
	f.pods["p02"].apart = true
	for began := f.now; f.now.Sub(began) < 75*time.Second; {
		f.turn(l)
	}
	tried := f.record.Round - 1
	f.pods["p02"].apart = false
	f.turns(l, 100)
	switch w := l.machine.world; {
	case len(l.machine.losses) > 0 || l.machine.fatal != "":
		return fmt.Sprintf("it is nobody's fault, and %+v is lost", l.machine.losses)
	case tried > 4:
		return fmt.Sprintf("%d rounds were made in 75 s", tried)
	case w == nil || w.record.Workers != 3 || f.done[w.record.Round] < w.record.FromStep+10:
		return fmt.Sprintf("the job does not get on: %+v", f.record)
	}
	return ""
}

// endedOnceJoined: the one member of a first world has not heard of it. It joins the next leader, and ends before it
// obeys that.
func endedOnceJoined(f *fleet) string {
	f.target = 1
	f.makePod()
	f.newLeader()
	l := f.leaders[f.born]
	for l.machine.State() != StateFounding {
		f.turn(l)
	}
	f.finishWrite(l)
	f.kill(l)
	f.newLeader()
	l = f.leaders[f.born]
	f.connectTo(f.pods["p00"], l)
	f.lose(l, "p00")
	f.makePod()
	_ = f.handle(l, GangExpected{f.gang()})
	if f.turns(l, 40); f.record.Round != 2 {
		return fmt.Sprintf("no other world is made: the leader is %s", l.machine.State())
	}
	return ""
}

// nobodyNamed: the one worker of a job is gone, and the controller has not named another yet.
func nobodyNamed(f *fleet) string {
	l := f.training(1)
	f.lose(l, "p00")
	delete(f.pods, "p00")
	_ = f.handle(l, GangExpected{f.gang()})
	if u := l.machine.Underway(); u.Left != 1 || u.Stage != StageRegroup {
		return fmt.Sprintf("a job that regroups says that this is under way: %+v", u)
	}
	return ""
}

// goneWhenFounded: the one member of a first world has ended when its record is written. Another one has come meanwhile, so
// the next world is asked for at once.
func goneWhenFounded(f *fleet) string {
	f.strategy, f.disk = Restart, &disk{} // in place a program has to be started before it is a standby
	f.makePod()
	f.makePod()
	gone, late := f.pods["p00"], f.pods["p01"]
	late.unheard, late.want.Starting = true, true
	f.newLeader()
	l := f.leaders[f.born]
	for l.machine.State() != StateFounding {
		f.turn(l)
	}
	late.unheard = false
	f.connectTo(late, l)
	for len(late.queue) > 0 {
		f.deliverTo(late)
	}
	f.tellState(late)
	gone.want.Ended = true
	_ = f.handle(l, GangExpected{f.gang()})
	f.end(gone)
	f.finishWrite(l)
	if state := l.machine.State(); state != StateRenewing {
		return fmt.Sprintf("all have ended who are in the first world, and the leader is %s", state)
	}
	if f.turns(l, 10); f.record.Round != 2 || f.done[2] == 0 {
		return fmt.Sprintf("the job does not get on: %+v", f.record)
	}
	return ""
}
