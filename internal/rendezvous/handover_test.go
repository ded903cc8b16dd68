package rendezvous

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// handing is a job whose programs give their state to others over the links of their world.
func handing(t *testing.T, pods int) (*fleet, *modelLeader) {
	f := emptyFleet(t)
	f.hands, f.target = true, int32(pods)
	l := f.training(pods)
	return f, l
}

// wholesale are the snapshots of a whole state that anybody has, after a step.
func (f *fleet) wholesale(step uint64) (who []string) {
	for _, uid := range f.uids() {
		if slices.ContainsFunc(f.pods[uid].snapshots, func(s Snapshot) bool { return s.Step == step }) {
			who = append(who, uid)
		}
	}
	return who
}

// Who joins a world gets the state over its links: nobody writes a snapshot for it, and nobody loads one.
func TestNewcomersGetTheStateOverTheLinks(t *testing.T) {
	f, l := handing(t, 2)
	f.parkedBefore(l)
	w := l.machine.writing
	if !w.plan.handover || w.plan.snapshot != nil {
		t.Fatalf("the plan is %+v", w.plan)
	}
	from := w.Next.FromStep
	f.finishWrite(l)
	for uid, restores := range map[string]bool{"p00": false, "p01": false, "p02": true} {
		d, _ := l.machine.Directive(uid)
		if d.World == nil || !d.World.Handover || d.World.Restore != restores || d.World.Snapshot != nil {
			t.Errorf("%s is told %+v", uid, d.World)
		}
	}
	f.turns(l, 20)
	if world := l.machine.world; world.record.Round != 2 || f.done[2] <= from {
		t.Errorf("the job is in round %d, which has made steps up to %d", world.record.Round, f.done[2])
	}
	if who := f.wholesale(from); len(who) > 0 {
		t.Errorf("%v have snapshots of the barrier", who)
	}
}

// One who does not know how has a snapshot taken for all: a member, or a newcomer.
func TestAllHaveToKnowOfHandovers(t *testing.T) {
	for _, older := range []int{0, 2} {
		f := emptyFleet(t)
		f.hands = true
		for i := range 2 {
			f.makePod()
			f.pods[f.uids()[i]].hands = i != older
		}
		f.newLeader()
		l := f.leaders[f.born]
		f.turns(l, 8)
		f.target++
		f.makePod()
		f.pods["p02"].hands = older != 2
		_ = f.handle(l, GangExpected{f.gang()})
		f.turns(l, 60)
		if w := l.machine.world; w.record.Workers != 3 || w.handover || w.snapshot == nil || f.done[w.record.Round] <= w.record.FromStep {
			t.Errorf("p%02d knows of no handover: round %d of %d workers begins with %v", older, w.record.Round, w.record.Workers, w.snapshot)
		}
	}
}

// A world that was to begin with a handover, and has not begun, is followed by one that begins with a snapshot: whatever the links
// are at, or the states, the job gets on, and no program is at fault. What has begun is followed by a handover again.
func TestAfterAHandoverThatFailedSnapshotsServe(t *testing.T) {
	for text, failing := range map[string][]string{
		"RuntimeError: Connection closed by peer": {"p02"},
		"RuntimeError: the state could not be had from peers: [pair.cc:81] Timed out waiting 120000ms for recv operation to complete": {"p02"},
		"RuntimeError: the state could not be had from peers: each of them holds something that cannot be kept":                       {"p00", "p01", "p02"},
	} {
		f, l := handing(t, 2)
		f.parkedBefore(l)
		f.finishWrite(l)
		for _, uid := range f.uids() {
			f.meet(l, f.pods[uid]) // they are in it, and nothing is handed over
		}
		if !f.pods["p02"].process.lacks {
			t.Fatal("it has the state already")
		}
		for _, uid := range failing {
			f.pods[uid].fail(text)
		}
		f.turns(l, 60)
		w := l.machine.world
		if w.record.Round < 3 || w.record.Workers != 3 || w.handover || w.snapshot == nil || f.done[w.record.Round] <= w.record.FromStep {
			t.Fatalf("%s: round %d of %d workers begins after step %d with %v", text, w.record.Round, w.record.Workers, w.record.FromStep, w.snapshot)
		}
		if w.record.FromStep != f.done[1] || f.pods["p02"].restarted > 0 {
			t.Errorf("%s: it begins after step %d of %d, with %s", text, w.record.FromStep, f.done[1], &f.pods["p02"].worker)
		}
		f.parkedBefore(l)
		if !l.machine.writing.plan.handover {
			t.Errorf("%s: the next newcomer gets a snapshot as well", text)
		}
	}
}

// Who is interrupted when some of the state has come, and not all, has none, whatever it had before. Before anything has come it has that.
func TestWhoIsInterruptedInAHandoverHasNoState(t *testing.T) {
	for _, came := range []bool{false, true} {
		f, l := handing(t, 2)
		f.parkedBefore(l)
		f.finishWrite(l)
		for _, uid := range f.uids() {
			f.meet(l, f.pods[uid])
		}
		w := f.pods["p02"]
		for came && !w.process.came {
			f.move(w)
		}
		if !w.process.lacks {
			t.Fatal("it has the state already")
		}
		w.abort()
		if w.process.clean == came || w.process.handing {
			t.Errorf("some has come: %v; it is %+v", came, w.process)
		}
	}
}

// A survivor that is clean after an older step is what is left when those are lost that were to give it a newer state, and nothing of that has come.
func TestAnOlderStateIsLeftWhenTheNewerOneDoesNotCome(t *testing.T) {
	for _, came := range []bool{false, true} {
		f, l := handing(t, 3)
		f.allInAStep()
		for last := f.pods["p01"]; last.process.stepping; {
			f.move(last)
		}
		f.pods["p00"].process.writing = false
		older, newer := f.pods["p00"].process.made(), f.pods["p01"].process.made()
		f.target = 2
		f.end(f.pods["p02"])
		f.pods["p02"].want.Lost, f.pods["p02"].want.Ended = "it has ended", true
		f.pods["p01"].fail("RuntimeError: Connection closed by peer")
		f.pods["p00"].fail("RuntimeError: Connection closed by peer")
		for l.machine.writing == nil {
			f.turn(l)
		}
		if w := l.machine.writing; newer != older+1 || w.Next.FromStep != newer || !w.plan.handover {
			t.Fatalf("p00 has made %d, p01 %d; the next world begins after %d, handover %v", older, newer, w.Next.FromStep, w.plan.handover)
		}
		f.finishWrite(l)
		for _, uid := range []string{"p00", "p01", "p00", "p01"} {
			f.meet(l, f.pods[uid])
		}
		for came && !f.pods["p00"].process.came {
			f.move(f.pods["p00"])
		}
		f.target, f.minimum = 1, 1
		f.end(f.pods["p01"])
		f.pods["p01"].want.Lost, f.pods["p01"].want.Ended = "it has ended", true
		_ = f.handle(l, GangExpected{f.gang()})
		f.turns(l, 60)
		if w := l.machine.world; (w.record.Round == 3 && w.live["p00"] && w.record.FromStep == older) == came {
			t.Errorf("some has come: %v; round %d begins after step %d of %d, live %v", came, w.record.Round, w.record.FromStep, older, w.live)
		}
	}
}

// A survivor whose state is not that after the step with which the job goes on gets it from the others.
func TestASurvivorThatIsNotCleanGetsTheState(t *testing.T) {
	f := emptyFleet(t)
	f.hands, f.target = true, 3
	l := f.training(3)
	for f.pods["p00"].process.writing || !f.pods["p00"].process.stepping {
		f.move(f.pods["p00"])
	}
	f.pods["p00"].process.writing, f.pods["p01"].process.writing = true, false
	f.target = 2
	f.end(f.pods["p02"])
	f.pods["p02"].want.Lost, f.pods["p02"].want.Ended = "it has ended", true
	made := f.done[1]
	for range 40 {
		f.turn(l)
		if l.machine.world.record.Round > 1 {
			break
		}
	}
	w := l.machine.world
	if w.record.Round != 2 || !w.handover || w.live["p00"] || !w.live["p01"] || w.snapshot != nil {
		t.Fatalf("round %d: handover %v, live %v, snapshot %v", w.record.Round, w.handover, w.live, w.snapshot)
	}
	f.turns(l, 20)
	if f.done[2] <= made {
		t.Errorf("it has made %d steps, and %d were made before", f.done[2], made)
	}
}

// A leader that finds a world half published has the rest of it join the handover that the others wait for, as nobody but those says that
// there is one.
func TestAHandoverIsPublishedAgain(t *testing.T) {
	for name, knows := range map[string]bool{"by one that knows of it": true, "by one that does not": false} {
		t.Run(name, func(t *testing.T) {
			f := emptyFleet(t)
			f.hands, f.minimum, f.target = true, 1, 2
			l := f.publishedToOne(func() { f.older = !knows })
			w := l.machine.world
			if w == nil || f.done[w.record.Round] <= w.record.FromStep {
				t.Fatalf("the job does not get on: %+v", f.record)
			}
			if (w.record.Round == 2) != knows || w.record.FromStep != f.done[1] {
				t.Errorf("it goes on in round %d, after step %d of %d", w.record.Round, w.record.FromStep, f.done[1])
			}
		})
	}
}

// TestHandoversAgainstModel plays the histories of TestChangesAgainstModel with programs of which most hand their state over, and worlds
// that others join time and again.
func TestHandoversAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFleetOf(t, InPlace)
		f.hands, f.sizes = true, nil
		for i, uid := range f.uids() {
			f.pods[uid].hands = i < 2
		}
		f.more = map[string]func(*rapid.T){
			"join":       f.with((*fleet).joined),
			"join again": f.with((*fleet).joined),
			"left out":   f.with((*fleet).leftOut),
			"late word":  f.with((*fleet).lateWord),
			"move":       f.with((*fleet).steps),
		}
		f.turns(f.pick(), 10)
		f.play(t)
	})
}

// joined takes a leader to the moment at which it publishes a world that hands its state over, if it comes to that, where some may have
// entered it.
func (f *fleet) joined() {
	l := f.pick()
	l.machine.nextTry = f.now
	if f.target < 5 {
		f.target++
		f.tellAllLeaders()
	}
	f.addPod()
	for range 60 {
		if w := l.machine.writing; w != nil && w.plan != nil && w.plan.handover && l.writing != nil {
			f.finishWrite(l)
			break
		}
		f.turn(l)
	}
	for range rapid.IntRange(0, 4).Draw(f.draws, "entering") {
		if p := f.pickPod(); p.leader == l {
			f.meet(l, p)
		}
	}
}

// leftOut has a member be out of touch when it has ended a step that the others have not, or is in one with them, and takes the others to a
// world without it, where they may make that step again. Then it is back, and is to get their state, where some of them may be lost before that.
func (f *fleet) leftOut() {
	l := f.pick()
	in := slices.DeleteFunc(f.uids(), func(uid string) bool {
		p := f.pods[uid]
		return p.dead || p.unheard || p.frozen || p.apart || p.process.still || !p.trains() || p.process.round != f.record.Round
	})
	if len(in) < 2 {
		f.t.Skip("nobody can be left out")
	}
	away := f.pods[rapid.SampledFrom(in).Draw(f.draws, "away")]
	f.inOneStep(in)
	if rapid.Bool().Draw(f.draws, "ahead") {
		for range 3 {
			if away.process.stepping {
				f.move(away)
			}
		}
	}
	f.cut(away, true)
	if away.leader != nil {
		f.drop(away, away.leader)
	}
	away.want.Lost = "its node is not ready"
	_ = f.handle(l, GangExpected{f.gang()})
	f.turnUntil(l, func() bool { return f.record.Round > away.process.round && l.writing == nil })
	for range rapid.IntRange(0, 3).Draw(f.draws, "turns") {
		f.turn(l)
	}
	away.unheard, away.apart, away.want.Lost = false, false, ""
	_ = f.handle(l, GangExpected{f.gang()})
	if f.turnUntil(l, func() bool {
		w := l.machine.writing
		return w != nil && w.plan != nil && w.plan.handover && l.writing != nil
	}) {
		f.finishWrite(l)
	}
	for _, uid := range append(in, in...) {
		if p := f.pods[uid]; p != nil && !p.dead && rapid.Bool().Draw(f.draws, "enters") {
			f.meet(l, p)
		}
	}
	for _, uid := range in {
		if p := f.pods[uid]; p != nil && !p.dead && p != away && rapid.Bool().Draw(f.draws, "ends") {
			f.end(p)
		}
	}
	f.notice()
	_ = f.handle(l, GangExpected{f.gang()})
}

// inOneStep has some processes make steps until they have made as many as the first of them, and are in the next one.
func (f *fleet) inOneStep(uids []string) {
	var top uint64
	for _, uid := range uids {
		top = max(top, f.pods[uid].process.made())
	}
	for range 6 {
		for _, uid := range uids {
			if p := f.pods[uid]; p.process.made() < top || !p.process.stepping {
				f.move(p)
			}
		}
	}
	for _, uid := range uids {
		f.pods[uid].process.writing = false
	}
}

// turnUntil lets nothing fail until something holds, and says whether it has come to that.
func (f *fleet) turnUntil(l *modelLeader, holds func() bool) bool {
	for range 80 {
		if holds() {
			return true
		}
		f.turn(l)
	}
	return false
}

// lateWord has one who stands at the barrier of a world hear of the next one when nobody has kept it there for longer than a hold lasts.
func (f *fleet) lateWord() {
	l := f.pick()
	l.machine.nextTry = f.now
	if f.target < 5 {
		f.target++
	}
	f.addPod()
	if !f.turnUntil(l, func() bool {
		w := l.machine.writing
		return w != nil && w.plan != nil && w.plan.change != nil && l.writing != nil
	}) {
		f.t.Skip("no world is to be changed")
	}
	standing := slices.DeleteFunc(f.uids(), func(uid string) bool {
		p := f.pods[uid]
		return p.dead || p.leader != l || p.process.waiting != waitingParked
	})
	if len(standing) == 0 {
		f.t.Skip("nobody stands")
	}
	late := f.pods[rapid.SampledFrom(standing).Draw(f.draws, "late")]
	f.finishWrite(l)
	for _, uid := range f.uids() {
		if p := f.pods[uid]; p != late && !p.dead && rapid.Bool().Draw(f.draws, "enters") {
			f.meet(l, p)
		}
	}
	for range holdTime/time.Second + 1 {
		f.pass(time.Second)
		f.move(late)
	}
	for len(late.queue) > 0 {
		f.deliverTo(late)
	}
}

// Newcomers that wait for a state when all are lost that were to give it have none: the job does not begin anew with what they have, but goes
// back to a checkpoint, or it fails.
func TestNewcomersThatGotNothingHaveNoState(t *testing.T) {
	for _, stored := range []bool{false, true} {
		f := emptyFleet(t)
		f.hands, f.minimum, f.target = true, 1, 1
		if stored {
			f.storage, f.shelf = &Storage{Interval: time.Hour, Keep: 3}, &shelf{}
		}
		l := f.training(1)
		const step = 3
		if stored {
			state := slices.Clone(f.pods["p00"].process.state[:step])
			c := checkpointed{"job/1-3", Snapshot{Round: 1, Step: step, Bytes: 1, Hash: [32]byte{7}}, state, nil}
			f.shelf.kept = append(f.shelf.kept, c)
			f.pods["p00"].durable = Durable{c.snapshot, c.path}
			f.turns(l, 2)
		}
		f.parkedBefore(l)
		f.finishWrite(l)
		for _, uid := range []string{"p00", "p01", "p00", "p01"} {
			f.meet(l, f.pods[uid])
		}
		if p := &f.pods["p01"].process; !p.lacks || p.came {
			t.Fatal("it has some of the state already")
		}
		f.target = 1
		f.lose(l, "p00")
		for range 100 {
			if f.turn(l); l.machine.world == nil || l.machine.world.record.Round > 2 || l.machine.fatal != "" {
				break
			}
		}
		switch w := l.machine.world; {
		case !stored && l.machine.fatal == "":
			t.Errorf("nobody has a state, and the job goes on: %+v", w.record)
		case stored && (w.record.Round != 3 || w.record.FromStep != step || w.snapshot == nil || w.live != nil):
			t.Errorf("a checkpoint of step %d is there: round %d begins after step %d, live %v", step, w.record.Round, w.record.FromStep, w.live)
		}
	}
}

// allInAStep has all make steps until they have made as many as the first of them, and are in the next one; how many these are.
func (f *fleet) allInAStep() (top uint64) {
	for _, uid := range f.uids() {
		top = max(top, f.pods[uid].process.made())
	}
	for moved := true; moved; {
		moved = false
		for _, uid := range f.uids() {
			if p := f.pods[uid]; p.process.made() < top || !p.process.stepping {
				f.move(p)
				moved = true
			}
		}
	}
	return top
}

// apartFrom has a member be out of touch when it has ended a step that the others have not, or is between two, and takes the others to the world
// without it, where they make that step again. Then it is back, and joins the next.
func (f *fleet) apartFrom(l *modelLeader, uid string, ahead bool) {
	f.minimum = 1
	top := f.allInAStep()
	away := f.pods[uid]
	for ahead && away.process.stepping {
		f.move(away)
	}
	var others []string
	for _, other := range f.uids() {
		f.pods[other].process.writing = false
		if other != uid {
			others = append(others, other)
		}
	}
	meet := func(uids ...string) {
		if l.writing != nil {
			f.finishWrite(l)
		}
		for _, uid := range uids {
			f.meet(l, f.pods[uid])
		}
		f.pass(300 * time.Millisecond)
	}
	away.unheard, away.apart = true, true
	f.drop(away, l)
	away.want.Lost = "its node is not ready"
	_ = f.handle(l, GangExpected{f.gang()})
	for range 200 {
		if meet(others...); l.machine.world.record.Round == 2 {
			break
		}
	}
	for range 20 {
		for _, other := range others {
			if p := f.pods[other]; p.process.round == 2 && p.process.made() <= top {
				f.move(p)
			}
		}
		meet(others...)
	}
	away.unheard, away.apart, away.want.Lost = false, false, ""
	_ = f.handle(l, GangExpected{f.gang()})
	for range 200 {
		meet(f.uids()...)
		for _, other := range others {
			if p := f.pods[other].process; p.round == 2 && p.waiting == waitingNone && !p.stepping && p.stop > 0 {
				f.move(f.pods[other])
			}
		}
		if l.machine.world.record.Round == 3 {
			break
		}
	}
	meet(f.uids()...)
	meet(f.uids()...)
	if w := l.machine.world; w.record.Round != 3 || !w.handover || !away.process.lacks || away.process.came {
		f.t.Fatalf("round %d, handover %v; %s", w.record.Round, w.handover, &away.worker)
	}
}

// Who has made a step that others have made again has another state than they, after the same step. It is not gone on with when the handover
// to it comes to nothing.
func TestAStateAfterTheSameStepIsNotTheSame(t *testing.T) {
	f, l := handing(t, 3)
	f.apartFrom(l, "p02", true)
	if mine, from := f.pods["p02"].process.made(), l.machine.world.record.FromStep; mine != from {
		t.Fatalf("it has the state after step %d, the world begins after %d", mine, from)
	}
	f.pods["p02"].fail("RuntimeError: Connection closed by peer")
	f.turns(l, 60)
	if w := l.machine.world; w.record.Round < 4 || f.done[w.record.Round] <= w.record.FromStep {
		t.Errorf("the job does not get on: %+v", w.record)
	}
}

// Who was left out of one world has a state of its history, if that began with it or later, and it is what is left when the newer one does not
// come.
func TestWhoWasLeftOutOfAWorldHasAState(t *testing.T) {
	f, l := handing(t, 3)
	f.apartFrom(l, "p02", false)
	mine := f.pods["p02"].process.made()
	if r := l.machine.world.record; mine != r.ParentFromStep || mine >= r.FromStep {
		t.Fatalf("it has the state after step %d of %+v", mine, r)
	}
	f.target = 1
	f.lose(l, "p00")
	f.lose(l, "p01")
	f.turns(l, 60)
	if w := l.machine.world; l.machine.fatal != "" || w == nil || w.record.Round != 4 || w.record.FromStep != mine || !w.live["p02"] {
		t.Errorf("%+v begins, failed for %q", w, l.machine.fatal)
	}
}

// What a process has from before the world is gone on from where it is of its history: two that have an older one may have different states.
func TestOnlyAStateOfTheWorldsHistoryIsOlderAndGood(t *testing.T) {
	for _, row := range []struct {
		before, clean, done uint64
		want                bool
	}{
		{before: 3, clean: 8, done: 9, want: true},
		{before: 2, clean: 6, done: 9, want: true},
		{before: 2, clean: 7, done: 9}, // the world before has made that step anew
		{before: 1, clean: 6, done: 9},
		{before: 0, clean: 8, done: 9},
		{before: 3, clean: 10, done: 9}, // nobody has made that step since
		{before: 2, clean: 9, done: 9, want: true},
		{before: 2, clean: 11, done: 11, want: true},
		{before: 0, clean: 0, done: 9}, // a newcomer
		{before: 3, clean: 0, done: 9}, // a program that was started anew
		{before: 0, clean: 0, done: 0, want: true},
	} {
		m := &Machine{world: &world{record: Record{Round: 4, Parent: 3, FromStep: min(9, row.done), Grandparent: 2, ParentFromStep: 6}}}
		mem := &member{report: Report{Round: 4, Before: row.before}}
		if got := m.cleanAt(mem, &Process{Clean: true, CleanStep: row.clean, Done: row.done}, row.clean); got != row.want {
			t.Errorf("%+v: %v", row, got)
		}
	}
}

// Who was left out of one world, and hears of the next one only once that is over, is the only one with a state, and another one needs it: it
// saves it at once, though it was never in the world that is left.
func TestWhoWasLeftOutGivesItsState(t *testing.T) {
	for name, heard := range map[string]bool{"it heard of the world in time": true, "it hears of it once it is over": false} {
		t.Run(name, func(t *testing.T) {
			f, l := handing(t, 3)
			f.minimum = 1
			top := f.allInAStep()
			away := f.pods["p02"]
			for _, p := range f.pods {
				p.process.writing = false
			}
			f.cut(away, true)
			f.drop(away, l)
			away.want.Lost = "its node is not ready"
			_ = f.handle(l, GangExpected{f.gang()})
			f.until(l, "a second world trains", func() bool { return f.done[2] > top })
			f.minimum, f.target = 2, 4
			away.unheard, away.apart, away.want.Lost = false, false, ""
			f.makePod()
			_ = f.handle(l, GangExpected{f.gang()})
			f.until(l, "a third is to be handed its state", func() bool {
				w := l.machine.writing
				return w != nil && w.plan != nil && w.plan.handover && l.writing != nil
			})
			for _, p := range f.pods {
				p.queue = nil
			}
			f.finishWrite(l)
			if heard {
				f.meet(l, f.pods["p02"])
				f.meet(l, f.pods["p03"])
			}
			for _, uid := range []string{"p00", "p01"} {
				f.end(f.pods[uid])
				f.pods[uid].want.Lost, f.pods[uid].want.Ended = "it has ended", true
			}
			away.queue, f.pods["p03"].queue = nil, nil // what was not delivered is overtaken
			_ = f.handle(l, GangExpected{f.gang()})
			mine, began := away.process.made(), f.now
			f.turns(l, 120)
			if r := f.record; l.machine.fatal != "" || r.Round != 4 || r.FromStep != mine || f.done[4] <= mine {
				t.Errorf("after %v: failed for %q; round %d begins after step %d, p02 has %d", f.now.Sub(began), l.machine.fatal, r.Round, r.FromStep, mine)
			}
		})
	}
}
