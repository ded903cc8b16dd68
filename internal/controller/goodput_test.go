package controller

import (
	"encoding/json"
	"math"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// life is a job that trains at a step per second, and what its operator remembers.
type life struct {
	t      *testing.T
	job    *v1alpha1.TrainingJob
	memory Memory
	world  rendezvous.Observation
}

func newLife(t *testing.T) *life {
	l := &life{t: t, job: jobWith(scheduled)}
	l.memory.Since = start
	l.begin(0, 1, rendezvous.Change{Reason: rendezvous.ReasonStart, To: 2})
	return l
}

// begin is a world that was made after so many seconds; the change to it is known with its first step.
func (l *life) begin(second int, round uint64, change rendezvous.Change) {
	l.job.Status.World = &v1alpha1.WorldStatus{
		Round: ptr.To(int64(round)), Attempt: l.job.Status.Attempt,
		StartedAt: ptr.To(metav1.NewTime(start.Add(time.Duration(second) * time.Second))),
	}
	change.Round = round
	l.world.Known, l.world.Attempt, l.world.Round = true, value(l.job.Status.Attempt), round
	l.world.Phase = rendezvous.PhaseTraining
	l.world.Changes = append(l.world.Changes, change)
}

// look is a look at the job after so many seconds.
func (l *life) look(second int, step uint64) {
	l.t.Helper()
	l.report(second, step, false)
}

// report is a look which may be the last, at the end of the training. What it writes goes through the API.
func (l *life) report(second int, step uint64, last bool) {
	l.t.Helper()
	l.world.Progress = rendezvous.Progress{Step: step, TotalSteps: 1000}
	state := &State{Now: start.Add(time.Duration(second) * time.Second), Job: l.job, World: l.world, Memory: l.memory}
	p := &planner{State: state}
	p.plan.Status = *l.job.Status.DeepCopy()
	if last {
		p.reportProgress()
	} else {
		p.refreshProgress()
	}
	if !p.plan.Progress {
		return
	}
	l.write(&p.plan.Status)
	l.memory.reported(state)
}

func (l *life) write(status *v1alpha1.TrainingJobStatus) {
	l.t.Helper()
	encoded, err := json.Marshal(status)
	if err != nil {
		l.t.Fatal(err)
	}
	l.job.Status = v1alpha1.TrainingJobStatus{}
	if err := json.Unmarshal(encoded, &l.job.Status); err != nil {
		l.t.Fatal(err)
	}
}

// train looks every 5 s, from one second on to another.
func (l *life) train(from, to int, step uint64) {
	l.t.Helper()
	for second := from; second <= to; second += 5 {
		l.report(second, step+uint64(second-from), second+5 > to)
	}
}

// forget is another operator, which knows only what is durable.
func (l *life) forget(second int) {
	l.memory = Memory{Since: start.Add(time.Duration(second) * time.Second)}
	l.world.Changes = nil
}

func (l *life) expect(want float64) {
	l.t.Helper()
	progress := &l.job.Status.Progress
	got, err := strconv.ParseFloat(progress.Goodput, 64)
	if err != nil || math.Abs(got-want) > 0.015 {
		l.t.Errorf("goodput is %q, want %.3f: %s of the time since %s, suspended for %s",
			progress.Goodput, want, progress.KeptTime, progress.Since, progress.SuspendedTime)
	}
}

func TestGoodputOfATrainingThatLosesNothing(t *testing.T) {
	l := newLife(t)
	l.look(0, 0) // the world has formed, and makes no step yet
	l.look(20, 1)
	if since := l.job.Status.Progress.Since; since == nil || !since.Time.Equal(start.Add(20*time.Second)) {
		t.Errorf("the first step was made at %v", since)
	}
	l.train(20, 320, 1)
	l.expect(1)
}

// 20 of 100 steps are made again, after a pause of 30 s.
func TestGoodputAfterARecovery(t *testing.T) {
	l := newLife(t)
	l.train(0, 100, 1)
	l.recover()
	l.look(132, 82)
	l.expect(81. / 132)
	l.train(135, 335, 85)
	l.expect(284. / 335)
}

// What a pause has cost is taken off once it is known, though steps are made before.
func TestGoodputWaitsForThePause(t *testing.T) {
	l := newLife(t)
	l.train(0, 100, 1)
	known := l.world.Changes
	l.recover()
	told := l.world.Changes
	l.world.Changes, l.world.Untold = known, true
	l.look(132, 82)
	l.world.Changes, l.world.Untold = told, false
	l.look(135, 85)
	l.train(140, 335, 90)
	l.expect(284. / 335)
}

// A world of fewer workers may take twice as long for a step: each counts as long as it took.
func TestGoodputOfSlowerSteps(t *testing.T) {
	l := newLife(t)
	l.train(0, 100, 1)
	l.recover()
	for second := 132; second <= 332; second += 4 {
		l.report(second, uint64(82+(second-132)/2), second == 332)
	}
	l.expect(281. / 332)
}

// recover loses 20 steps after second 100, and makes the first step of the next world in second 131.
func (l *life) recover() {
	l.t.Helper()
	l.world.Phase = rendezvous.PhaseRecovering
	l.look(115, 101)
	changes := l.world.Changes
	l.begin(130, 2, rendezvous.Change{
		Reason: rendezvous.ReasonWorkerLost, From: 2, To: 2, Pause: 30 * time.Second, StepsLost: 20,
	})
	l.job.Status.World.FromStep = ptr.To[int64](81)
	begun := l.world.Changes
	l.world.Changes = changes
	l.look(130, 81) // its first step has yet to be made
	if step := value(l.job.Status.Progress.Step); step != 101 {
		l.t.Errorf("step %d is written before it is known what the recovery has cost", step)
	}
	l.world.Changes = begun
}

func TestGoodputAfterAnOperatorRestart(t *testing.T) {
	for name, play := range map[string]func(*life){
		"in the first world": func(l *life) {
			l.train(0, 100, 1)
			l.forget(100)
			l.train(160, 200, 161)
			l.expect(1)
		},
		"before it has looked twice": func(l *life) {
			l.look(0, 1)
			l.forget(10)
			l.train(160, 200, 161)
			l.expect(1)
		},
		"while the world recovers": func(l *life) {
			l.train(0, 100, 1)
			l.forget(100)
			l.recover()
			l.world.Changes = nil
			l.train(132, 332, 82)
			l.expect(281. / 332)
		},
		"after a recovery, again and again": func(l *life) {
			l.train(0, 100, 1)
			l.recover()
			for second := 132; second <= 332; second += 5 {
				l.forget(second)
				l.look(second, uint64(second-50))
			}
			l.expect(281. / 332)
		},
		"between two looks of one that leads again": func(l *life) {
			l.train(0, 100, 1)
			l.recover()
			l.train(132, 172, 82)
			memory := l.memory
			l.forget(180)
			l.look(240, 190)
			l.memory = memory
			l.train(245, 345, 195)
			l.expect(294. / 345)
		},
		"before it has seen any step": func(l *life) {
			l.forget(300)
			l.begin(100, 7, rendezvous.Change{})
			l.world.Changes = nil
			l.job.Status.World.FromStep = ptr.To[int64](50)
			l.train(300, 400, 250)
			l.expect(1)
			if since := l.job.Status.Progress.Since; !since.Time.Equal(start.Add(100 * time.Second)) {
				l.t.Errorf("it counts from %s, and its world is older", since)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLife(t)
			l.t = t
			play(l)
		})
	}
}

// attempt begins another attempt.
func (l *life) attempt(second int, round uint64) {
	l.job.Status.Attempt = ptr.To(value(l.job.Status.Attempt) + 1)
	l.world = rendezvous.Observation{}
	l.begin(second, round, rendezvous.Change{Reason: rendezvous.ReasonStart, To: 2})
}

func TestGoodputOfAnotherAttempt(t *testing.T) {
	for name, tc := range map[string]struct {
		step        uint64
		first, last float64
	}{
		"that starts from nothing": {1, 0, 200. / 400},
		"that goes on":             {90, 90. / 200, 290. / 400},
		"that went far unseen":     {110, 110. / 200, 310. / 400},
	} {
		for memory, forget := range map[string]bool{"": false, ", by another operator": true} {
			t.Run(name+memory, func(t *testing.T) {
				l := newLife(t)
				l.train(0, 100, 1)
				l.attempt(195, 2)
				if forget {
					l.forget(150)
				}
				l.look(196, 0)
				l.look(200, tc.step)
				l.expect(tc.first)
				l.train(200, 400, tc.step)
				l.expect(tc.last)
			})
		}
	}
}

// Programs that are started anew in every world tell only by their step what they have lost.
func TestGoodputOfProgramsThatResumeByThemselves(t *testing.T) {
	l := newLife(t)
	l.job.Spec.Resize.Strategy = v1alpha1.ResizeRestart
	l.train(0, 100, 1)
	l.begin(110, 2, rendezvous.Change{Reason: rendezvous.ReasonWorkerLost, From: 2, To: 2, Pause: 10 * time.Second})
	l.look(111, 51)
	l.expect(50. / 111)
}

// A suspension that began by a clock that was ahead takes nothing off those before it.
func TestASuspensionThatBeganAheadTakesNoTime(t *testing.T) {
	l := newLife(t)
	l.train(0, 100, 1)
	l.job.Status.Progress.SuspendedTime = &metav1.Duration{Duration: time.Minute}
	l.job.Status.Conditions = append(l.job.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionSuspended, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSuspended,
		LastTransitionTime: metav1.NewTime(start.Add(time.Hour)),
	})
	l.job.Status.Workers.Target = ptr.To[int32](0)
	state := stateOf(l.job)
	state.Now = start.Add(10 * time.Minute)
	plan := NewPlan(state, settings)
	if got := value(plan.Status.Progress.SuspendedTime).Duration; got != time.Minute {
		t.Errorf("it was suspended for a minute before, and %s are counted", got)
	}
}

func TestGoodputLeavesSuspensionsOut(t *testing.T) {
	l := newLife(t)
	l.train(0, 100, 1)
	suspended := metav1.Condition{
		Type: v1alpha1.ConditionSuspended, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSuspended,
		LastTransitionTime: metav1.NewTime(start.Add(100 * time.Second)),
	}
	l.job.Status.Conditions = append(l.job.Status.Conditions, suspended)
	l.job.Status.Workers.Target = ptr.To[int32](0)
	for _, second := range []int{3700, 3705} { // it is resumed in the first look, and waits for nothing in the second
		state := stateOf(l.job)
		state.Now = start.Add(time.Duration(second) * time.Second)
		plan := NewPlan(state, settings)
		plan.Status.Attempt, plan.Status.Workers.Target = ptr.To[int32](1), ptr.To[int32](0)
		l.write(&plan.Status)
	}
	if got := value(l.job.Status.Progress.SuspendedTime).Duration; got != time.Hour {
		t.Errorf("the job was suspended for an hour, and %s are counted", got)
	}
	l.attempt(3710, 2)
	l.train(3710, 3810, 101)
	l.expect(200. / 210)
}

// A clock that went back to before the first step says nothing of how long steps took, and nothing is lost by it.
func TestAClockThatWentBackKeepsTheTime(t *testing.T) {
	l := newLife(t)
	l.look(0, 1)
	l.look(100, 101)
	want := value(l.job.Status.Progress.KeptTime)
	goodput := l.job.Status.Progress.Goodput
	l.memory.ReportedAt = time.Time{}
	l.look(-50, 110)
	if got := l.job.Status.Progress; value(got.KeptTime) != want || got.Goodput != goodput || value(got.Step) != 110 {
		t.Errorf("kept are %s, goodput is %s at step %d, want %s and %s", got.KeptTime, got.Goodput, value(got.Step), want, goodput)
	}
}
