package rendezvous

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
	"github.com/concertina-dev/concertina/internal/score"
)

// mark puts the score of what a worker has made durable beside that.
func (w *worker) mark(u *upload) {
	if w.durable.Snapshot != w.marked {
		w.scored, w.marked = false, w.durable.Snapshot
	}
	if u.Durable && w.shelf.hang[w.uid] {
		return
	}
	if u.Score != nil && w.durable.Snapshot == u.Snapshot && (u.Put == nil || u.Manifest != nil) && w.uploadError == "" && !w.shelf.away {
		w.scored, w.score = true, *u.Score
		w.shelf.scores[w.durable.Path] = *u.Score
	}
}

// list says which checkpoints of the shelf are the best, where it was asked.
func (w *worker) list(d *Directive) {
	switch b := &w.shelf.best; {
	case d.ListBest == 0 || w.shelf.mum[w.uid]:
		w.listed = Listed{}
	case d.ListBest != w.listed.Number && b.Keep > 0:
		w.listed = Listed{Number: d.ListBest}
		w.shelf.lists++
		for _, c := range slices.Backward(w.shelf.kept) {
			if value, ok := w.shelf.scores[c.path]; ok {
				w.listed.Best = append(w.listed.Best, Kept{c.snapshot.Round, c.snapshot.Step, c.path, value})
			}
		}
		slices.SortStableFunc(w.listed.Best, func(x, y Kept) int { return b.Compare(x.Score, y.Score) })
		w.listed.Best = w.listed.Best[:min(len(w.listed.Best), b.Keep)]
	}
}

// graded is a world of three that write their state in shares, or whole, whose job keeps the best two by accuracy.
func graded(t *testing.T, shares bool, interval time.Duration) (*fleet, *modelLeader) {
	t.Helper()
	f := emptyFleet(t)
	f.shares, f.minimum, f.target = shares, 1, 3
	f.storage = &Storage{Interval: interval, Keep: 3, Best: Best{Best: score.Best{Metric: "accuracy", Keep: 2}}}
	f.shelf = &shelf{scores: map[string]float64{}, best: f.storage.Best.Best}
	return f, f.training(3)
}

// evaluate has all workers write the state that they have, and rank 0 say how good it is; it returns its step.
func (f *fleet) evaluate(l *modelLeader, value float64) uint64 {
	step := f.stage(l)
	f.scores(l, Score{Step: step, Value: value})
	return step
}

// says has rank 0 say what an evaluation has found, in the world that there is.
func (f *fleet) scores(l *modelLeader, s Score) {
	s.Round = l.machine.world.record.Round
	p := f.pods[l.machine.world.ranks.uids[0]]
	p.scores = append(p.scores, s)
	f.turns(l, 8)
}

func (o *Observation) kept() (steps []uint64) {
	for _, k := range o.Best {
		steps = append(steps, k.Step)
	}
	return steps
}

// What is among the best is made durable at once, with its score, and what is not is not.
func TestTheBestStatesAreMadeDurable(t *testing.T) {
	for name, shares := range map[string]bool{"whole": false, "in shares": true} {
		t.Run(name, func(t *testing.T) {
			f, l := graded(t, shares, time.Hour)
			var steps []uint64
			for _, value := range []float64{0.5, 0.75, 0.25, 0.75, 0.5} {
				steps = append(steps, f.evaluate(l, value))
			}
			seen := l.machine.Observe(f.now)
			if want := []uint64{steps[3], steps[1]}; !slices.Equal(seen.kept(), want) || seen.Missed != "" {
				t.Errorf("of %v %v are the best, and the best are %v (%q)", steps, seen.kept(), want, seen.Missed)
			}
			if len(f.shelf.kept) != 3 || len(f.shelf.scores) != 3 {
				t.Errorf("%d checkpoints with the scores %v", len(f.shelf.kept), f.shelf.scores)
			}
			for _, c := range f.shelf.kept {
				if uint64(len(c.state)) != c.snapshot.Step || !slices.Contains([]uint64{steps[0], steps[1], steps[3]}, c.snapshot.Step) {
					t.Errorf("%+v is durable", c.snapshot)
				}
			}
			f.storage.Best.Known = seen.Best // as the controller has it
			next := f.succeeded(l)
			f.turns(next, 20)
			if seen := next.machine.Observe(f.now); seen.Missed != "" || len(f.shelf.kept) != 3 {
				t.Errorf("the next leader misses something: %q, and there are %d checkpoints", seen.Missed, len(f.shelf.kept))
			}
		})
	}
}

// A state that was made durable before it was evaluated gets its score afterwards.
func TestAScoreThatComesLate(t *testing.T) {
	f, l := graded(t, true, 10*time.Second)
	step := f.stage(l)
	f.pass(11 * time.Second)
	f.until(l, "it is durable", func() bool { return l.machine.durable.Snapshot.Step == step })
	f.scores(l, Score{Step: step, Value: 0.5})
	f.until(l, "its score is known", func() bool { seen := l.machine.Observe(f.now); return slices.Equal(seen.kept(), []uint64{step}) })
	if len(f.shelf.kept) != 1 || len(f.shelf.scores) != 1 {
		t.Errorf("%d checkpoints with %v", len(f.shelf.kept), f.shelf.scores)
	}
	f.turns(l, 4)
	if m := l.machine; m.scores.marking != nil || m.scores.next != nil || len(m.scores.waiting) > 0 {
		t.Errorf("%+v is left", m.scores)
	}
}

// What waits while another one is uploaded is kept by the workers until it is its turn, whatever they write meanwhile.
func TestAStateThatWaitsForItsTurnIsKept(t *testing.T) {
	f, l := graded(t, true, time.Hour)
	f.shelf.away = true
	first := f.evaluate(l, 0.5)
	f.until(l, "it is uploaded", func() bool { return l.machine.uploading != nil })
	second := f.evaluate(l, 0.75)
	for range 4 {
		f.stage(l)
	}
	f.shelf.away = false
	f.turns(l, 20)
	seen := l.machine.Observe(f.now)
	if !slices.Equal(seen.kept(), []uint64{second, first}) || seen.Missed != "" {
		t.Errorf("%v are kept (%q), and %d and %d were evaluated", seen.kept(), seen.Missed, first, second)
	}
}

// A storage that takes nothing has no evaluated state in the way of later ones, and it is said what is missing.
func TestAStateThatCannotBeUploadedIsGivenUp(t *testing.T) {
	f, l := graded(t, true, 10*time.Second)
	f.evaluate(l, 0.5)
	f.shelf.failing = map[string]string{"p00": "403", "p01": "403", "p02": "403"}
	step := f.evaluate(l, 0.75)
	for range 3 {
		f.pass(11 * time.Second)
		f.stage(l)
	}
	if seen := l.machine.Observe(f.now); !strings.Contains(seen.Missed, "with accuracy 0.75, is not kept: p0") || !strings.Contains(seen.Missed, "403") {
		t.Errorf("it says %q", seen.Missed)
	}
	f.shelf.failing = nil
	f.pass(11 * time.Second)
	last := f.stage(l)
	f.pass(11 * time.Second)
	f.turns(l, 20)
	if got := l.machine.durable.Snapshot.Step; got <= step {
		t.Errorf("step %d is durable, of %d", got, last)
	}
}

// A state of which there is no snapshot is not waited for once there is one of a later state.
func TestAStateWithoutASnapshotIsNotKept(t *testing.T) {
	f, l := graded(t, true, time.Hour)
	f.stage(l)
	f.turns(l, 2)
	f.settleSteps()
	step := f.pods["p00"].process.done
	f.scores(l, Score{Step: step, Value: 0.5})
	if seen := l.machine.Observe(f.now); seen.Missed != "" {
		t.Errorf("at once it says %q", seen.Missed)
	}
	f.stage(l)
	if seen := l.machine.Observe(f.now); !strings.Contains(seen.Missed, "the workers hold no whole snapshot of it") {
		t.Errorf("it says %q", seen.Missed)
	}
}

// Words in the place of a score are passed on, and are over with the next score.
func TestWhyThereIsNoScore(t *testing.T) {
	f, l := graded(t, false, time.Hour)
	f.scores(l, Score{Step: 1, Why: "evaluations report loss, and no accuracy"})
	if seen := l.machine.Observe(f.now); seen.Missed != "evaluations report loss, and no accuracy" {
		t.Errorf("it says %q", seen.Missed)
	}
	f.evaluate(l, 1)
	if seen := l.machine.Observe(f.now); len(seen.Best) != 1 || seen.Missed != "" {
		t.Errorf("it says %q, and keeps %v", seen.Missed, seen.Best)
	}
}

// A world that is to be let go makes the best state durable first.
func TestAParkedWorldMakesTheBestDurableFirst(t *testing.T) {
	f, l := graded(t, true, time.Hour)
	f.shelf.away = true
	step := f.evaluate(l, 0.5)
	f.storage.Park = "spec.suspend is true"
	_ = f.handle(l, GangExpected{f.gang()})
	f.turns(l, 10)
	f.shelf.away = false
	f.until(l, "it is parked", func() bool { return l.machine.Observe(f.now).Parked })
	seen := l.machine.Observe(f.now)
	if !slices.Equal(seen.kept(), []uint64{step}) || seen.Durable.Snapshot.Step <= step {
		t.Errorf("%v are kept, and step %d is durable", seen.kept(), seen.Durable.Snapshot.Step)
	}
}

// knows has another leader come, whose controller knows of checkpoints, while nobody lists the storage.
func (f *fleet) knows(l *modelLeader, known ...Kept) *modelLeader {
	f.shelf.mum = map[string]bool{"p00": true, "p01": true, "p02": true}
	f.storage.Best.Known = known
	next := f.succeeded(l)
	f.until(next, "its world stands", func() bool { return next.machine.scores.listing != nil })
	f.storage.Best.Known = nil
	return next
}

// What the controller knows counts, of equals the newest, and the best first.
func TestWhatIsKnownOfTheBest(t *testing.T) {
	f, l := graded(t, true, time.Hour)
	l = f.knows(l, Kept{Round: 1, Step: 1, Path: "job/1-1", Score: 0.5}, Kept{Round: 1, Step: 2, Path: "job/1-2", Score: 0.9}, Kept{Round: 1, Step: 3, Path: "job/1-3", Score: 0.1})
	if seen := l.machine.Observe(f.now); !slices.Equal(seen.kept(), []uint64{2, 1}) {
		t.Errorf("%v are known", seen.kept())
	}
	f.evaluate(l, 0.4)
	if len(f.shelf.kept) != 0 {
		t.Errorf("%+v is durable, and two others are better", f.shelf.kept)
	}
	step := f.evaluate(l, 0.5)
	if seen := l.machine.Observe(f.now); !slices.Equal(seen.kept(), []uint64{2, step}) {
		t.Errorf("%v are the best, and step %d is as good as another one, and newer", seen.kept(), step)
	}
}

// finish has all programs say that their training is over.
func (f *fleet) finish(l *modelLeader) {
	f.settleSteps()
	for _, uid := range f.uids() {
		p := f.pods[uid]
		p.process.waiting = waitingFinished
		p.speak(lifecycle.Finished, p.process.done)
	}
	f.turns(l, 6)
}

// The state after the last step may be the best: a world that has finished stays until it is durable, and no longer than a barrier may take.
func TestTheLastStateIsDurableBeforeTheEnd(t *testing.T) {
	for name, c := range map[string]struct {
		change func(f *fleet)
		kept   int
		missed string
	}{
		"it is taken":              {func(f *fleet) { f.shelf.away = false }, 1, ""},
		"the storage says nothing": {func(*fleet) {}, 0, "nothing has come of its upload for"},
	} {
		t.Run(name, func(t *testing.T) {
			f, l := graded(t, true, time.Hour)
			f.shelf.away = true
			f.evaluate(l, 0.5)
			f.finish(l)
			if l.machine.world.finishing {
				t.Fatal("the processes may end, and their state is not durable")
			}
			c.change(f)
			f.turns(l, 6)
			for range 7 {
				f.pass(10 * time.Second)
				f.turns(l, 1)
			}
			seen := l.machine.Observe(f.now)
			if !l.machine.world.finishing || len(seen.Best) != c.kept || !strings.Contains(seen.Missed, c.missed) || c.missed == "" && seen.Missed != "" {
				t.Errorf("finishing: %v, kept are %v, it says %q", l.machine.world.finishing, seen.Best, seen.Missed)
			}
		})
	}
}

// Nobody waits at the end for a state that is none of the best, and a training without any score is told.
func TestTheEndWithoutScores(t *testing.T) {
	f, l := graded(t, false, time.Hour)
	f.finish(l)
	if seen := l.machine.Observe(f.now); !l.machine.world.finishing || !strings.Contains(seen.Missed, "no evaluation has reported accuracy") {
		t.Errorf("finishing: %v, it says %q", l.machine.world.finishing, seen.Missed)
	}
}

// A state that was evaluated, and of which no snapshot has come, keeps no older one from the storage.
func TestAStateThatNobodyHoldsIsInNobodysWay(t *testing.T) {
	f, l := graded(t, true, 10*time.Second)
	held := f.stage(l)
	f.turns(l, 2)
	f.settleSteps()
	f.scores(l, Score{Step: f.pods["p00"].process.done, Value: 0.5})
	f.pass(11 * time.Second)
	f.turns(l, 4)
	if got := l.machine.durable.Snapshot.Step; got != held {
		t.Errorf("step %d is durable, and the workers hold that after step %d", got, held)
	}
}

// Who says nothing of a score that it is to put beside a checkpoint gives way to another one, and later checkpoints are made whatever
// becomes of that.
func TestAScoreThatNobodyPutsKeepsNothingFromTheStorage(t *testing.T) {
	for name, c := range map[string]struct {
		silent []string
		missed string
	}{
		"one hangs": {[]string{"p00"}, ""},
		"all do":    {[]string{"p00", "p01", "p02"}, "is not kept: p0"},
	} {
		t.Run(name, func(t *testing.T) {
			f, l := graded(t, true, 10*time.Second)
			step := f.stage(l)
			f.pass(11 * time.Second)
			f.until(l, "it is durable", func() bool { return l.machine.durable.Snapshot.Step == step })
			f.shelf.hang = map[string]bool{}
			for _, uid := range c.silent {
				f.shelf.hang[uid] = true
			}
			f.scores(l, Score{Step: step, Value: 0.5})
			if l.machine.scores.marking == nil && len(c.silent) < 3 {
				t.Fatal("nobody hangs")
			}
			for begun := f.now; f.now.Before(begun.Add(2*hangTime + time.Minute)); {
				for range 12 {
					f.pass(5 * time.Second)
					f.turns(l, 1)
				}
				f.stage(l)
			}
			seen := l.machine.Observe(f.now)
			if seen.Durable.Snapshot.Step == step || !strings.Contains(seen.Missed, c.missed) || c.missed == "" && (seen.Missed != "" || len(seen.Best) != 1) {
				t.Errorf("step %d is durable, kept are %v, it says %q", seen.Durable.Snapshot.Step, seen.Best, seen.Missed)
			}
		})
	}
}

// Who fails to put a score gives way to another one.
func TestAnotherOnePutsAScore(t *testing.T) {
	f, l := graded(t, true, 10*time.Second)
	step := f.stage(l)
	f.pass(11 * time.Second)
	f.until(l, "it is durable", func() bool { return l.machine.durable.Snapshot.Step == step })
	f.storage.Interval = time.Hour
	_ = f.handle(l, GangExpected{f.gang()})
	f.shelf.failing = map[string]string{l.machine.finisher(): "403"}
	f.scores(l, Score{Step: step, Value: 0.5})
	f.turns(l, 10)
	if seen := l.machine.Observe(f.now); len(seen.Best) != 1 || seen.Missed != "" {
		t.Errorf("kept are %v, it says %q", seen.Best, seen.Missed)
	}
}

// The state that a world stands with when it is to be let go has half of the time at least, as what is kept for its score is not durable
// by then. What is given up for it is told.
func TestAParkedWorldGivesUpTheBestForTheNewest(t *testing.T) {
	f, l := graded(t, true, time.Hour)
	f.shelf.away = true
	best := f.evaluate(l, 0.5)
	f.storage.Park = "evicted"
	_ = f.handle(l, GangExpected{f.gang()})
	m, half := l.machine, f.now.Add(l.machine.gang.BarrierTimeout/2+time.Second)
	seenBest := false
	for f.now.Before(half) {
		f.pass(500 * time.Millisecond)
		f.turns(l, 1)
		seenBest = seenBest || m.change != nil && m.change.arrived && m.uploading != nil && m.uploading.snapshot.Step == best
	}
	if m.change == nil || !m.change.arrived || m.uploading == nil || m.uploading.snapshot.Step != m.change.step || !seenBest {
		t.Errorf("after half of the time %+v is uploaded of %+v; first that after step %d: %v", m.uploading, m.change, best, seenBest)
	}
	if seen := m.Observe(f.now); !strings.Contains(seen.Missed, "is not kept: the workers are to go, and") {
		t.Errorf("it says %q", seen.Missed)
	}
	f.shelf.away = false
	f.until(l, "it is parked", func() bool { return m.Observe(f.now).Parked })
}

// What a storage with trouble does not take of a world that is suspended is told as well.
func TestWhatIsLostOfAParkedWorldIsTold(t *testing.T) {
	f, l := graded(t, true, time.Hour)
	f.shelf.failing = map[string]string{"p00": "403", "p01": "403", "p02": "403"}
	f.evaluate(l, 0.5)
	f.storage.Park = "spec.suspend is true"
	_ = f.handle(l, GangExpected{f.gang()})
	m := l.machine
	f.until(l, "the newest state is uploaded", func() bool {
		return m.change != nil && m.change.arrived && m.uploading != nil && m.uploading.snapshot.Step == m.change.step
	})
	f.shelf.failing = nil
	f.until(l, "it is parked", func() bool { return m.Observe(f.now).Parked })
	if seen := m.Observe(f.now); len(seen.Best) == 0 && !strings.Contains(seen.Missed, "is not kept") {
		t.Errorf("the best are %v, and it says %q", seen.Best, seen.Missed)
	}
}

// A state that is evaluated again after a restart, with the same score, is kept once.
func TestCopiesOfAStateAreKeptOnce(t *testing.T) {
	f, l := graded(t, true, time.Hour)
	step := f.stage(l)
	l = f.knows(l, Kept{Round: 0, Step: step - 5, Path: "job/0-5", Score: 0.8}, Kept{Round: 0, Step: step - 1, Path: "attempt-1/0-9", Score: 0.9},
		Kept{Round: 1, Step: step - 1, Path: "attempt-2/1-9", Score: 0.9})
	if seen := l.machine.Observe(f.now); !slices.Equal(seen.kept(), []uint64{step - 1, step - 5}) || seen.Best[0].Path != "attempt-2/1-9" {
		t.Errorf("kept are %+v", seen.Best)
	}
	l = f.knows(l, append(l.machine.Observe(f.now).Best, Kept{Round: 0, Step: step, Path: "attempt-1/0-10", Score: 0.95})...)
	f.scores(l, Score{Step: step, Value: 0.95})
	f.turns(l, 10)
	if seen := l.machine.Observe(f.now); !slices.Equal(seen.kept(), []uint64{step, step - 1}) || len(f.shelf.kept) > 0 || seen.Missed != "" {
		t.Errorf("kept are %+v of %d checkpoints, it says %q", seen.Best, len(f.shelf.kept), seen.Missed)
	}
}

// The next leader hears again of what is in the storage, and there is nothing wrong with that.
func TestTheNextLeaderMissesNothing(t *testing.T) {
	for name, shares := range map[string]bool{"whole": false, "in shares": true} {
		t.Run(name, func(t *testing.T) {
			f, l := graded(t, shares, 10*time.Second)
			step := f.evaluate(l, 0.9)
			f.until(l, "it is kept", func() bool { seen := l.machine.Observe(f.now); return slices.Equal(seen.kept(), []uint64{step}) })
			f.pass(11 * time.Second)
			later := f.stage(l)
			f.until(l, "a later one is durable", func() bool { return l.machine.durable.Snapshot.Step == later })
			seen := l.machine.Observe(f.now)
			f.storage.Best.Known = seen.Best
			f.storage.Known, f.storage.KnownRound = later, seen.Durable.Snapshot.Round
			next := f.succeeded(l)
			f.turns(next, 20)
			if seen := next.machine.Observe(f.now); seen.Missed != "" || !slices.Equal(seen.kept(), []uint64{step}) {
				t.Errorf("kept are %v, it says %q", seen.kept(), seen.Missed)
			}
		})
	}
}

// Nothing is held back once a training is over, and all wait for its last state.
func TestTheLastUploadIsNotHeldBack(t *testing.T) {
	f, l := graded(t, true, time.Hour)
	f.storage.Rate = 1000
	_ = f.handle(l, GangExpected{f.gang()})
	f.shelf.away = true
	f.evaluate(l, 0.5)
	f.finish(l)
	if l.machine.world.finishing || l.machine.uploading == nil {
		t.Fatal("nothing is waited for")
	}
	for _, uid := range l.machine.uploading.at() {
		if u := l.machine.uploadFor(uid); u.Rate != 0 {
			t.Errorf("all wait for the upload, and %s may send %d bytes a second", uid, u.Rate)
		}
	}
}

// A state may be evaluated in several ways, of which one reports its score.
func TestAStateThatIsEvaluatedTwice(t *testing.T) {
	for name, first := range map[string]bool{"the score is first": true, "the score is last": false} {
		t.Run(name, func(t *testing.T) {
			f, l := graded(t, false, time.Hour)
			step := f.stage(l)
			said := []Score{{Step: step, Why: "evaluations report test_loss, and no accuracy"}, {Step: step, Value: 0.9}}
			if first {
				slices.Reverse(said)
			}
			for _, s := range said {
				f.scores(l, s)
			}
			f.turns(l, 20)
			if seen := l.machine.Observe(f.now); !slices.Equal(seen.kept(), []uint64{step}) || seen.Missed != "" {
				t.Errorf("kept are %v, it says %q", seen.kept(), seen.Missed)
			}
		})
	}
}

// What the record has lost of the best checkpoints, a new leader finds in the storage, and what is there no more it forgets.
func TestTheBestAreFoundInTheStorage(t *testing.T) {
	f, l := graded(t, true, time.Hour)
	var steps []uint64
	for _, value := range []float64{0.5, 0.75, 0.9} {
		steps = append(steps, f.evaluate(l, value))
	}
	gone := Kept{Round: 1, Step: 1, Path: "job/1-1", Score: 0.99}
	f.storage.Best.Known = []Kept{gone} // the record is an old one, and somebody has deleted what it knows of
	next := f.succeeded(l)
	f.until(next, "the storage was listed", func() bool { return next.machine.Observe(f.now).BestListed })
	seen := next.machine.Observe(f.now)
	if !slices.Equal(seen.kept(), []uint64{steps[2], steps[1]}) || !strings.Contains(seen.Missed, "the state after step 1, with accuracy 0.99, is not kept: checkpoint job/1-1 is in the storage no more") {
		t.Errorf("of %v %v are the best, it says %q", steps, seen.kept(), seen.Missed)
	}
	f.turns(next, 4)
	if f.shelf.lists != 2 || next.machine.listsFor(next.machine.world.ranks.uids[0]) != 0 {
		t.Errorf("the storage was listed %d times, by two leaders", f.shelf.lists)
	}
	// By what it has found 0.8 is one of the best, and 0.6 is not.
	made := len(f.shelf.kept)
	f.evaluate(next, 0.6)
	step := f.evaluate(next, 0.8)
	if seen := next.machine.Observe(f.now); !slices.Equal(seen.kept(), []uint64{steps[2], step}) || seen.Missed != "" || len(f.shelf.kept) != made+1 {
		t.Errorf("%v are the best, it says %q, and %d are durable", seen.kept(), seen.Missed, len(f.shelf.kept)-made)
	}
}

// Who does not say what is in the storage gives way to another one, and what becomes durable while it is listed is not forgotten.
func TestAnotherOneListsTheStorage(t *testing.T) {
	f, l := graded(t, false, time.Hour)
	first := f.evaluate(l, 0.6)
	told := f.evaluate(l, 0.5) // which its worker still tells of
	f.shelf.mum = map[string]bool{"p00": true, "p01": true}
	f.storage.Best.Known = nil
	next := f.succeeded(l)
	f.turns(next, 8)
	second := f.evaluate(next, 0.75)
	if seen := next.machine.Observe(f.now); seen.BestListed || !slices.Equal(seen.kept(), []uint64{second, told}) {
		t.Fatalf("%v are the best, and the storage is listed: %v", seen.kept(), seen.BestListed)
	}
	for range 60 {
		f.pass(5 * time.Second)
		f.turns(next, 1)
	}
	if seen := next.machine.Observe(f.now); !seen.BestListed || !slices.Equal(seen.kept(), []uint64{second, first}) || seen.Missed != "" {
		t.Errorf("%v are the best, it says %q, and the storage is listed: %v", seen.kept(), seen.Missed, seen.BestListed)
	}
}

// What the storage has no more does not come back by a record that was read before that was known, and nothing is compared with it.
func TestAnOldRecordBringsNothingBack(t *testing.T) {
	f, l := graded(t, true, time.Hour)
	f.storage.Best.Keep, f.shelf.best.Keep = 1, 1
	f.storage.Best.Known = []Kept{{Round: 1, Step: 1, Path: "job/1-1", Score: 0.99}}
	next := f.succeeded(l)
	f.until(next, "the storage was listed", func() bool { return next.machine.Observe(f.now).BestListed })
	_ = f.handle(next, GangExpected{f.gang()})
	f.storage.Best.Known = nil
	if seen := next.machine.Observe(f.now); len(seen.Best) > 0 {
		t.Errorf("%+v are the best, and there is none", seen.Best)
	}
	step := f.evaluate(next, 0.9)
	f.turns(next, 10)
	if seen := next.machine.Observe(f.now); !slices.Equal(seen.kept(), []uint64{step}) || seen.Missed != "" {
		t.Errorf("%+v are the best, it says %q, and step %d was evaluated", seen.Best, seen.Missed, step)
	}
}

// What the storage has no more does not come back by the word of who has made it durable.
func TestWhatIsDeletedStaysForgottenThoughItsWorkerTellsOfIt(t *testing.T) {
	f, l := graded(t, true, time.Hour)
	f.evaluate(l, 0.9)
	f.storage.Best.Known = l.machine.Observe(f.now).Best
	if len(f.storage.Best.Known) != 1 {
		t.Fatalf("%+v are the best", f.storage.Best.Known)
	}
	f.shelf.kept, f.shelf.scores = nil, map[string]float64{}
	next := f.succeeded(l)
	f.until(next, "the storage was listed", func() bool { return next.machine.Observe(f.now).BestListed })
	f.turns(next, 6)
	if seen := next.machine.Observe(f.now); len(seen.Best) > 0 || seen.BestWaits {
		t.Errorf("%+v are the best, and the storage has none; one waits: %v", seen.Best, seen.BestWaits)
	}
	step := f.evaluate(next, 0.5)
	if seen := next.machine.Observe(f.now); !slices.Equal(seen.kept(), []uint64{step}) {
		t.Errorf("%+v are the best, and step %d was evaluated", seen.Best, step)
	}
}

// A storage that answers nobody soon is given more time after each three that were asked, however many could be.
func TestWhoListsTheStorageHasMoreTimeAfterThree(t *testing.T) {
	f, l := graded(t, false, time.Hour)
	l = f.knows(l)
	var took []time.Duration
	for number, since := l.machine.scores.listing.number, l.machine.scores.listing.since; len(took) < 7; {
		f.pass(5 * time.Second)
		f.turns(l, 1)
		if on := l.machine.scores.listing; on.number != number {
			took = append(took, on.since.Sub(since).Round(time.Minute))
			number, since = on.number, on.since
		}
	}
	const two, four = 2 * time.Minute, 4 * time.Minute
	if want := []time.Duration{two, two, two, four, four, four, 2 * four}; !slices.Equal(took, want) {
		t.Errorf("they had %v, and were to have %v", took, want)
	}
}

// A state that is not among the best only by a record that is wrong is judged again once the storage was listed.
func TestAStateIsJudgedAgainOnceTheStorageIsListed(t *testing.T) {
	f, l := graded(t, true, time.Hour)
	f.storage.Best.Keep, f.shelf.best.Keep = 1, 1
	l = f.knows(l, Kept{Round: 1, Step: 1, Path: "job/1-1", Score: 0.99})
	var steps []uint64
	for i := range mostDoubted + 4 {
		steps = append(steps, f.evaluate(l, 0.5+float64(i)/100))
	}
	if seen := l.machine.Observe(f.now); len(f.shelf.kept) > 0 || seen.BestListed || len(l.machine.scores.doubted) != mostDoubted {
		t.Fatalf("%d checkpoints were made, and %+v are doubted", len(f.shelf.kept), l.machine.scores.doubted)
	}
	f.shelf.mum = nil
	f.turns(l, 20)
	if seen := l.machine.Observe(f.now); !seen.BestListed || !slices.Equal(seen.kept(), steps[len(steps)-1:]) || len(l.machine.scores.doubted) > 0 {
		t.Errorf("listed: %v, %+v are the best of %v, it says %q", seen.BestListed, seen.Best, steps, seen.Missed)
	}
}

// A job may have another metric while pods of an attempt are there whose programs were asked for the one before.
func TestWhatIsBestIsByTheMetricOfTheAttempt(t *testing.T) {
	f, l := graded(t, true, 0)
	f.evaluate(l, 0.5)
	f.until(l, "one of the best is durable", func() bool { return len(l.machine.Observe(f.now).Best) == 1 })
	storage, next := *f.storage, f.gang()
	storage.Best.Metric, next.Storage = "loss", &storage
	_ = f.handle(l, GangExpected{next})
	if seen := l.machine.Observe(f.now); seen.BestBy != "accuracy" || len(seen.Best) != 1 {
		t.Errorf("in its attempt it has %+v by %q", seen.Best, seen.BestBy)
	}
	next.Attempt++
	l.machine.Handle(f.now, GangExpected{next}) // a history has one attempt
	if seen := l.machine.Observe(f.now); seen.BestBy != "loss" || len(seen.Best) != 0 {
		t.Errorf("in the next one it has %+v by %q", seen.Best, seen.BestBy)
	}
}
