package rendezvous

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
)

// knownBad are the schedules below that still break a promise. A change that mends one takes it out of
// this list.
var knownBad = map[string]bool{}

// schedules are histories that were found by reading. Each says what is wrong at its end; nothing when
// all is well.
var schedules = map[string]func(*fleet) string{
	"a member moves the barrier with every report":            barrierMoved,
	"a planned round comes to an agent that trains":           plannedWhileTraining,
	"a planned round comes to an agent that was let go":       plannedWhenLetGo,
	"a planned round comes when all were let go":              refusedByAll,
	"a planned round comes when some were let go":             refusedBySome,
	"a round that is left turns out to have been refused":     refusedAndLeft,
	"a burned round is reported before its parent is adopted": burnedReported,
	"two raises of the term are unclear":                      unclearTwice,
	"members are left out and not known to have ended":        leftOut,
	"a step is longer than the heartbeat timeout":             longStep,
	"a member is slow to find the next operator":              slowToFind,
	"all sessions drop and one program fails":                 sessionsDrop,
	"nobody leads while a world is parked":                    parkedAlone,
	"the operator dies while a planned round is published":    halfPublished,
	"a planned round is published, and one was let go":        halfPublishedAndLetGo,
	"a planned round is published, and named by nobody":       halfPublishedUnnamed,
	"a planned round is published, and the newcomer ends":     halfPublishedNewcomerEnded,
	"a recovery finds survivors that stand after one step":    liveState,
	"the first step of a world is reported late":              lateReport,
	"a member is cut off from the operator in a long step":    longStepUnheard,
	"a member is cut off from everybody in a long step":       longStepApart,
	"a member that only one peer knows is cut off":            apartFromOne,
	"nobody knows where a member is that is cut off":          apartSomewhere,
	"a node is frozen":                                  frozenNode,
	"a node is not ready, and a peer reaches it":        notReadyAndReached,
	"a node is not ready, and nobody can tell more":     notReady,
	"a peer lies about a member that is not heard":      liar,
	"a member is silent, and its peers know no probes":  unproved,
	"a state is saved when the next world is there":     savedLate,
	"a world is over when a member first hears of it":   overWhenHeard,
	"a member has ended before its world is adopted":    endedBeforeAdopted,
	"one of those that are lost is known to have ended": oneHasEnded,
	"all of a world have ended when nobody led":         endedUnheard,
	"a node is frozen before it has found the operator": frozenAtFailover,
	"all are silent when the first world is there":      silentFromTheStart,
	"nobody who has the snapshot can be reached":        holdersCutOff,
	"a member ends when it has joined the next leader":  endedOnceJoined,
	"nobody is named while a job regroups":              nobodyNamed,
	"all have ended when the first world is there":      goneWhenFounded,
}

func TestSchedules(t *testing.T) {
	for name, play := range schedules {
		t.Run(name, func(t *testing.T) {
			f := emptyFleet(t)
			f.minimum, f.target = 1, 2
			wrong := play(f)
			switch {
			case wrong != "" && !knownBad[name]:
				t.Error(wrong)
			case wrong == "" && knownBad[name]:
				t.Error("it breaks nothing any more: take it out of the list of those that do")
			}
		})
	}
}

// training makes so many pods, and a leader whose world of them makes steps.
func (f *fleet) training(pods int) *modelLeader {
	for range pods {
		f.makePod()
	}
	f.newLeader()
	l := f.leaders[f.born]
	f.turns(l, 8)
	if w := l.machine.world; w == nil || int(w.record.Workers) != pods || l.machine.furthest() == 0 {
		f.t.Fatalf("the world of %d does not train", pods)
	}
	return l
}

func (f *fleet) turns(l *modelLeader, n int) {
	for range n {
		f.turn(l)
	}
}

// parkedBefore takes a leader to the moment before it asks for the next world, which one more pod joins:
// everybody stands at the barrier, and the snapshot is there. The write of the next world is asked for.
func (f *fleet) parkedBefore(l *modelLeader) {
	f.target++
	f.makePod()
	_ = f.handle(l, GangExpected{f.gang()})
	for range 100 {
		if w := l.machine.writing; w != nil && w.plan != nil {
			return
		}
		f.turn(l)
	}
	f.t.Fatal("no next world is asked for")
}

// barrierMoved: one agent says of every barrier that its process stops a step later.
func barrierMoved(f *fleet) string {
	l := f.training(2)
	f.target = 3
	f.makePod()
	_ = f.handle(l, GangExpected{f.gang()})
	for range 200 {
		if l.machine.change != nil {
			break
		}
		f.turn(l)
	}
	c := l.machine.change
	if c == nil {
		return "no change has begun"
	}
	lie := f.pods["p00"].report()
	for l.machine.change == c {
		lie.Processes[0].Barrier, lie.Processes[0].Stop = c.attempt, c.step+1
		f.told(f.pods["p00"], f.handle(l, AgentReported{"p00", lie}))
		f.tellState(f.pods["p01"])
		f.pass(50 * time.Millisecond)
		if c.attempt > 3 {
			return fmt.Sprintf("the barrier of two processes is at its attempt %d", c.attempt)
		}
	}
	return ""
}

// inWorld is a worker whose process has made so many steps in the round 1 of one worker.
func inWorld(f *fleet, steps int) *worker {
	w := newWorker("p00", func() time.Time { return f.now }, InPlace)
	if _, err := w.obey(planned(1, 0, 0)); err != nil {
		f.t.Fatal(err)
	}
	for range steps {
		w.enterStep()
		w.endStep()
	}
	return &w
}

// planned is a directive for a round of one worker, which goes on with the state that it has.
func planned(round, parent, fromStep uint64) Directive {
	return Directive{Term: 1, Round: round, World: &Place{
		Digest: fmt.Sprint("world ", round), Parent: parent, FromStep: fromStep, Workers: 1, Processes: 1,
		Master: Endpoint{"10.0.0.1", 4000},
	}}
}

// barred is the directive of a barrier in round 1.
func barred(attempt, step uint64) Directive {
	d := planned(1, 0, 0)
	d.Barrier = &barrier{Attempt: attempt, Step: step}
	return d
}

// stays says what is wrong when an agent does not refuse a planned round, with its process left alone.
func stays(w *worker, d Directive) string {
	obeyed, err := w.obey(d)
	switch {
	case err != nil:
		return err.Error()
	case obeyed || w.in().Round != 1 || !w.trains():
		return w.String()
	}
	return ""
}

// plannedWhileTraining: the operator has let somebody go on whom it takes for parked.
func plannedWhileTraining(f *fleet) string { return stays(inWorld(f, 3), planned(2, 1, 3)) }

// plannedWhenLetGo: it has stood at the barrier, and was let go.
func plannedWhenLetGo(f *fleet) string {
	w := inWorld(f, 3)
	if _, err := w.obey(barred(1, 3)); err != nil {
		return err.Error()
	}
	if w.look(); w.process.waiting != waitingParked {
		return "it does not stand at the barrier: " + w.String()
	}
	if _, err := w.obey(planned(1, 0, 0)); err != nil {
		return err.Error()
	}
	return stays(w, planned(2, 1, 3))
}

// letGo has a worker's process go on from the barrier, without its leader's knowing.
func (f *fleet) letGo(uid string) {
	p := f.pods[uid]
	in := p.in()
	if _, err := p.obey(Directive{Term: p.machine.Term(), Round: in.Round, World: &Place{Digest: in.World.Digest}}); err != nil || !p.trains() {
		f.t.Fatalf("it is not let go: %v, %s", err, &p.worker)
	}
}

// publishTo has a leader publish the world that it has asked for, and these workers hear of it.
func (f *fleet) publishTo(l *modelLeader, uids ...string) {
	f.finishWrite(l)
	for _, uid := range uids {
		for p := f.pods[uid]; len(p.queue) > 0; {
			f.deliverTo(p)
		}
	}
}

// refusedByAll: both that were to stay have gone on, and the newcomer has not heard of the next world yet.
func refusedByAll(f *fleet) string {
	l := f.training(2)
	f.parkedBefore(l)
	before := f.done[1]
	f.letGo("p00")
	f.letGo("p01")
	f.publishTo(l, "p00", "p01")
	f.drop(f.pods["p02"], l)
	f.connectTo(f.pods["p00"], l)
	for range 40 {
		f.turn(l)
		if w := l.machine.world; w != nil && w.adopted {
			break
		}
	}
	if w := l.machine.world; w == nil || w.record.Round != 1 {
		return "the world that was never left is not the job's"
	}
	if f.turns(l, 4); f.done[1] <= before {
		return "it makes no steps"
	}
	return f.losses(l)
}

// refusedBySome: one has gone on, the other has entered the next world.
func refusedBySome(f *fleet) string {
	l := f.training(2)
	f.parkedBefore(l)
	f.letGo("p00")
	f.publishTo(l, "p01", "p00", "p02")
	f.turns(l, 60)
	if w := l.machine.world; w == nil || w.record.Round < 3 || w.record.Workers != 3 || f.done[w.record.Round] < w.record.FromStep+10 {
		return fmt.Sprintf("the job does not get on: %+v", f.record)
	}
	return ""
}

// refusedAndLeft: both that were to stay have gone on, and nobody hears of it before the newcomer has ended, for which the world is left.
func refusedAndLeft(f *fleet) string {
	l := f.training(2)
	f.parkedBefore(l)
	before := f.done[1]
	for _, uid := range []string{"p00", "p01"} {
		f.letGo(uid)
	}
	f.publishTo(l, "p00", "p01")
	for _, uid := range []string{"p00", "p01"} {
		f.drop(f.pods[uid], l)
	}
	f.end(f.pods["p02"])
	f.pods["p02"].want.Lost, f.pods["p02"].want.Ended = "it has ended", true
	_ = f.handle(l, GangExpected{f.gang()})
	if state := l.machine.State(); state != StateLeaving {
		return fmt.Sprintf("the newcomer has ended, and the leader is %s", state)
	}
	f.connectTo(f.pods["p00"], l)
	if state := l.machine.State(); state != StateInheriting {
		return fmt.Sprintf("one could not go on, and the leader is %s", state)
	}
	f.turns(l, 40)
	if w := l.machine.world; w == nil || f.done[1] <= before {
		return fmt.Sprintf("the world that was never left does not go on: the leader is %s", l.machine.State())
	}
	return ""
}

// burnedReported: the one worker that has entered a round tells the next leader, and is gone before others
// are heard. The world before goes on.
func burnedReported(f *fleet) string {
	l := f.training(2)
	f.parkedBefore(l)
	f.finishWrite(l)
	newcomer := f.pods["p02"]
	for len(newcomer.queue) > 0 {
		f.deliverTo(newcomer)
	}
	f.kill(l)
	f.newLeader()
	l = f.leaders[f.born]
	f.finishWrite(l)
	f.connectTo(newcomer, l)
	f.end(newcomer)
	delete(f.pods, newcomer.uid)
	_ = f.handle(l, GangExpected{f.gang()})
	f.turns(l, 30)
	if w := l.machine.world; w == nil || w.record.Round != 1 {
		return "the world before is not adopted"
	}
	if made := f.done[1]; l.machine.furthest() < made/2 { // what the last turn made is not reported yet
		return fmt.Sprintf("the world is at step %d, and the leader has seen %d", made, l.machine.furthest())
	}
	return ""
}

// unclearTwice: an agent knows a higher term. The leader's raise lands, without an answer; the next one
// has none either.
func unclearTwice(f *fleet) string {
	l := f.training(1)
	r := f.pods["p00"].report()
	r.Term = 7
	_ = f.handle(l, AgentReported{"p00", r})
	f.pass(paced)
	for i := range 2 {
		if l.writing == nil {
			return "no higher term is asked for"
		}
		if w := *l.writing; i == 0 {
			f.apply(l.id, w)
		}
		l.writing = nil
		_ = f.handle(l, RecordAnswered{Err: errors.New("timeout")})
		f.pass(lastRetry)
	}
	for range 4 {
		if l.writing == nil {
			f.pass(lastRetry)
			continue
		}
		f.finishWrite(l)
	}
	if l.machine.deposed {
		return "it has deposed itself"
	}
	return ""
}

// leftOut: both workers of a world that has just begun are cut off, and their pods were deleted by force.
func leftOut(f *fleet) string {
	if f.worldAfter(nil, nil) {
		return "another world is made, and nobody knows that the first has ended"
	}
	return ""
}

// Another world is made when it is known that the members of the one before have ended, whenever that is told.
func TestMembersThatHaveEndedMakeRoomForAnotherWorld(t *testing.T) {
	gone := func(want *Member) { want.Lost, want.Gone = "its pod is gone", true }
	ended := func(want *Member) { want.Lost, want.Ended = "its node is gone", true }
	for name, c := range map[string]struct {
		before, after func(*Member)
		made          bool
	}{
		"named until they have ended, and left out then": {before: ended, made: true},
		"gone, and then known to have ended":             {before: gone, after: ended, made: true},
		"left out, and then known to have ended":         {after: ended, made: true},
		"gone, and nobody knows":                         {before: gone, after: gone},
		"gone, and left out":                             {before: gone},
	} {
		t.Run(name, func(t *testing.T) {
			f := emptyFleet(t)
			f.minimum, f.target = 1, 2
			if made := f.worldAfter(c.before, c.after); made != c.made {
				t.Errorf("another world is made: %v", made)
			}
			lost := map[string]int{}
			for _, loss := range f.leaders[f.born].machine.losses {
				if lost[loss.UID]++; lost[loss.UID] > 1 {
					t.Errorf("%s is lost twice", loss.Name)
				}
			}
		})
	}
}

// worldAfter cuts off both workers of a world that has just begun, and says whether another is made of a
// newcomer when the two are first named like that, and later like this; nil for being left out.
func (f *fleet) worldAfter(before, after func(*Member)) bool {
	for range 2 {
		f.makePod()
	}
	f.newLeader()
	l := f.leaders[f.born]
	for l.machine.world == nil {
		f.turn(l)
	}
	for _, uid := range f.uids() {
		f.drop(f.pods[uid], l)
	}
	f.makePod()
	for _, what := range []func(*Member){before, after} {
		gang := f.gang()
		if what == nil {
			gang.Members = gang.Members[2:]
		} else {
			what(&gang.Members[0])
			what(&gang.Members[1])
		}
		_ = f.handle(l, GangExpected{gang})
		for range 100 {
			f.visit(l, "p02")
			if w := l.writing; w != nil && w.Next.Round > 1 {
				return true
			}
		}
	}
	return false
}

// visit has one worker heard and told, and a moment pass.
func (f *fleet) visit(l *modelLeader, uid string) {
	p := f.pods[uid]
	if p.leader == nil {
		f.connectTo(p, l)
	}
	f.tellState(p)
	for len(p.queue) > 0 {
		f.deliverTo(p)
	}
	f.pass(300 * time.Millisecond)
}

// slow has the world make no step for a while, while everybody but one is heard.
func (f *fleet) slow(l *modelLeader, unheard string, seconds int) {
	for range seconds {
		for _, uid := range f.uids() {
			if p := f.pods[uid]; uid != unheard {
				if p.leader != l {
					f.connectTo(p, l)
				}
				f.tellState(p)
				for len(p.queue) > 0 {
					f.deliverTo(p)
				}
			}
		}
		f.pass(time.Second)
	}
}

// longStep: a worker is cut off from the operator alone, in the middle of a step of 30 s.
func longStep(f *fleet) string {
	l := f.training(2)
	f.drop(f.pods["p01"], l)
	f.slow(l, "p01", 8)
	return f.losses(l)
}

// slowToFind: a leader takes over, and one agent takes 18 s to get there.
func slowToFind(f *fleet) string {
	l := f.training(2)
	f.kill(l)
	f.newLeader()
	l = f.leaders[f.born]
	f.finishWrite(l)
	f.slow(l, "p01", 18)
	return f.losses(l)
}

// sessionsDrop: the operator's link goes, a program fails at that moment, and its agent is back first.
func sessionsDrop(f *fleet) string {
	f.target = 3
	l := f.training(3)
	for _, uid := range f.uids() {
		f.drop(f.pods[uid], l)
	}
	f.pods["p00"].fail("ValueError: bad")
	f.connectTo(f.pods["p00"], l)
	f.pass(time.Second)
	return f.losses(l)
}

func (f *fleet) losses(l *modelLeader) string {
	for _, loss := range l.machine.losses {
		if !loss.Program {
			return fmt.Sprintf("%s is lost: %s", loss.Name, loss.Message)
		}
	}
	return ""
}

// parkedAlone: the operator goes away when all stand at the barrier.
func parkedAlone(f *fleet) string {
	l := f.training(2)
	f.parkedBefore(l)
	f.kill(l)
	for range 60 {
		f.pass(time.Second)
	}
	for _, uid := range []string{"p00", "p01"} {
		if p := f.pods[uid]; !p.trains() {
			return "a minute later: " + p.String()
		}
	}
	return ""
}

// halfPublished: the next world is durable, one of its members has entered it, and the operator dies.
func halfPublished(f *fleet) string {
	l := f.publishedToOne(func() {})
	if w := l.machine.world; w == nil || w.record.Round != 2 || f.done[2] <= w.record.FromStep {
		return fmt.Sprintf("the job goes on in round %d", f.record.Round)
	}
	return f.losses(l)
}

// halfPublishedAndLetGo: and another was let go from the barrier meanwhile. It cannot enter that world any more.
func halfPublishedAndLetGo(f *fleet) string {
	l := f.publishedToOne(func() { f.letGo("p01") })
	return f.goesOnAfter(l, 2)
}

// halfPublishedUnnamed: and an older version has written the record, which names nobody.
func halfPublishedUnnamed(f *fleet) string {
	l := f.publishedToOne(func() { f.record.Members = "" })
	return f.goesOnAfter(l, 2)
}

// halfPublishedNewcomerEnded: and the newcomer has ended.
func halfPublishedNewcomerEnded(f *fleet) string {
	l := f.publishedToOne(func() {
		f.end(f.pods["p02"])
		f.pods["p02"].want.Lost, f.pods["p02"].want.Ended = "it has ended", true
	})
	return f.goesOnAfter(l, 2)
}

// goesOnAfter says what is wrong when no world after a round makes steps.
func (f *fleet) goesOnAfter(l *modelLeader, round uint64) string {
	if w := l.machine.world; w == nil || w.record.Round <= round || f.done[w.record.Round] <= w.record.FromStep {
		return fmt.Sprintf("the job does not get on: %+v", f.record)
	}
	return ""
}

// publishedToOne has a leader die when one member of two has entered the next world of three, something happen,
// and another lead for a while.
func (f *fleet) publishedToOne(meanwhile func()) *modelLeader {
	l := f.training(2)
	f.parkedBefore(l)
	f.finishWrite(l)
	p := f.pods["p00"]
	for len(p.queue) > 0 {
		f.deliverTo(p)
	}
	if p.in().Round != 2 {
		f.t.Fatal("it has not entered the next world: " + p.String())
	}
	f.kill(l)
	meanwhile()
	f.newLeader()
	l = f.leaders[f.born]
	f.turns(l, 60)
	return l
}

// liveState: the snapshot is old, and one of three workers is killed between two steps.
func liveState(f *fleet) string {
	f.target = 3
	l := f.training(3)
	f.pods["p00"].save(lifecycle.Staging{})
	f.turns(l, 20)
	made := f.done[1]
	f.end(f.pods["p02"])
	f.pods["p02"].want.Lost, f.pods["p02"].want.Ended = "it has ended", true
	_ = f.handle(l, GangExpected{f.gang()})
	f.turns(l, 20)
	for _, c := range l.machine.changes {
		if c.Round == 2 && c.StepsLost <= 1 {
			return ""
		}
	}
	return fmt.Sprintf("of %d steps %d are kept", made, f.record.FromStep)
}

// lateReport: the steps of the next world are made at once, and reported a second later.
func lateReport(f *fleet) string {
	l := f.training(2)
	f.parkedBefore(l)
	f.finishWrite(l)
	for _, uid := range f.uids() {
		for p := f.pods[uid]; len(p.queue) > 0; {
			f.deliverTo(p)
		}
	}
	for range 3 {
		for _, uid := range f.uids() {
			f.move(f.pods[uid])
		}
	}
	f.pass(time.Second)
	f.turns(l, 4)
	for _, c := range l.machine.changes {
		if c.Round == 2 {
			if truth := f.firstBegun[2].Sub(f.lastEnded[1]); c.Pause != truth {
				return fmt.Sprintf("a pause of %s is told as %s", truth, c.Pause)
			}
			return ""
		}
	}
	return "nothing is told of the change"
}

// Every record says which job it was made for.
func TestRecordsNameTheirJob(t *testing.T) {
	f := emptyFleet(t)
	f.makePod()
	f.newLeader()
	l := f.leaders[f.born]
	gang := f.gang()
	gang.JobUID = "one"
	_ = f.handle(l, GangExpected{gang})
	l.writing = nil
	_ = f.handle(l, RecordAnswered{Err: errors.New("timeout")})
	f.pass(firstRetry)
	for l.machine.world == nil {
		if l.writing != nil && l.writing.Next.JobUID != "one" {
			t.Fatalf("a record is written for the job %q", l.writing.Next.JobUID)
		}
		f.turn(l)
	}
	if f.record.JobUID != "one" || l.machine.Observe(f.now).JobUID != "one" {
		t.Errorf("the world of the job %q is observed as that of %q", f.record.JobUID, l.machine.Observe(f.now).JobUID)
	}
}
