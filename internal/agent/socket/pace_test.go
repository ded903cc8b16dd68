package socket

import (
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/gate"
)

// looks has a pace look at a page once a second.
type looks struct {
	t     *testing.T
	pace  pace
	now   time.Time
	round uint64
	from  uint64
	// worked is for how long the process has worked, in seconds.
	worked float64
}

// at looks at a page that says that so many steps are done, the last of them ended at a second; -1 for no stamp.
func (l *looks) at(done uint64, ended float64, phase gate.Phase) {
	stamps := gate.Stamps{Worked: uint64(l.worked * 1e9)}
	if ended >= 0 {
		stamps.Ended = uint64(ended * 1e9)
	}
	l.now = l.now.Add(time.Second)
	l.pace.look(l.now, l.round, l.from, gate.Progress{Entered: done + 1, Done: done, Phase: phase}, stamps)
}

func (l *looks) takes(want time.Duration) {
	l.t.Helper()
	if got := median(l.pace.last); got != want {
		l.t.Errorf("a step takes %s, want %s", got, want)
	}
}

func newLooks(t *testing.T) *looks {
	return &looks{t: t, now: time.Unix(1e9, 0), round: 3, from: 10}
}

func TestPaceOfLongSteps(t *testing.T) {
	l := newLooks(t)
	l.at(10, 0, gate.PhaseStep)
	l.at(11, 100, gate.PhaseStep) // the first
	l.takes(0)
	l.at(11, 100, gate.PhaseStep)
	l.at(12, 130, gate.PhaseStep)
	l.takes(30 * time.Second)
	l.at(13, 161, gate.PhaseStep)
	l.at(14, 193, gate.PhaseStep)
	l.takes(31 * time.Second)
	l.at(14, 193, gate.PhaseEval)
	l.at(15, 900, gate.PhaseStep)
	l.at(15, 900, gate.PhaseSaving)
	l.at(16, 1900, gate.PhaseStep)
	l.takes(31 * time.Second)
	for i := range uint64(paces) {
		l.at(17+i, float64(1910+10*i), gate.PhaseStep)
	}
	l.takes(10 * time.Second) // the last eight count
}

func TestPaceOfShortSteps(t *testing.T) {
	l := newLooks(t)
	l.at(15, 100, gate.PhaseStep)
	l.at(25, 101, gate.PhaseStep)
	l.takes(100 * time.Millisecond)
}

// What a process waits for others in a step is not its own time, and neither is what it does in evaluations. One long pause
// among eight looks changes nothing.
func TestPaceOfOwnWork(t *testing.T) {
	l := newLooks(t)
	own := func(want time.Duration) {
		t.Helper()
		if got := median(l.pace.own); got != want {
			t.Errorf("a step takes %s of its own, want %s", got, want)
		}
	}
	at := func(done uint64, ended, worked float64, phase gate.Phase) {
		l.worked = worked
		l.at(done, ended, phase)
	}
	at(11, 100, 40, gate.PhaseStep) // the first, with a compiler
	own(0)
	at(12, 110, 44, gate.PhaseStep)
	own(4 * time.Second)
	at(14, 130, 50, gate.PhaseStep)
	at(15, 160, 80, gate.PhaseStep)
	at(16, 170, 84, gate.PhaseStep)
	own(4 * time.Second)
	l.takes(10 * time.Second)
	at(16, 170, 84, gate.PhaseEval)
	at(17, 900, 500, gate.PhaseStep)
	own(4 * time.Second)
	l.round, l.from = 4, 17
	at(17, 900, 500, gate.PhaseForming)
	own(0)
}

// A program that does not know how long it has worked says so with a 0, and one that begins to know has not worked all that
// in one step.
func TestPaceOfUnknownWork(t *testing.T) {
	l := newLooks(t)
	for i, worked := range []float64{0, 0, 1e6, 0, 1e6} {
		l.worked = worked
		l.at(11+uint64(i), float64(100+i), gate.PhaseStep)
		if got := median(l.pace.own); got != 0 {
			t.Errorf("look %d: a step takes %s of its own", i, got)
		}
	}
}

// What a process has worked in a step may be known some steps later only, of several at once: it is that of all steps since
// something was known last, whenever looks are made. Such looks tell nothing of steps between which it has evaluated.
func TestPaceOfWorkThatIsKnownLate(t *testing.T) {
	l := newLooks(t)
	for done := uint64(11); done <= 40; done++ {
		l.worked = 5 + 3*float64((done-10)/3) // three steps of a second each are known with the third
		l.at(done, 100+float64(done), gate.PhaseStep)
	}
	if got := median(l.pace.own); got != time.Second {
		t.Errorf("a step takes %s of its own, want 1s", got)
	}
	l = newLooks(t)
	l.worked = 5
	l.at(11, 100, gate.PhaseStep)
	l.at(12, 101, gate.PhaseStep)
	l.at(12, 101, gate.PhaseEval)
	l.at(13, 300, gate.PhaseStep)
	l.worked = 7
	l.at(14, 301, gate.PhaseStep)
	if got := l.pace.own; len(got) != 1 || got[0] != 2*time.Second {
		t.Errorf("steps take %s of its own, want 2s", got)
	}
}

func TestPaceWithoutStamps(t *testing.T) {
	l := newLooks(t)
	l.at(11, -1, gate.PhaseStep)
	l.at(11, -1, gate.PhaseStep)
	l.at(11, -1, gate.PhaseStep)
	l.at(12, -1, gate.PhaseStep)
	l.takes(3 * time.Second)
}

func TestPaceBeginsAnewInAnotherWorld(t *testing.T) {
	l := newLooks(t)
	l.at(11, 100, gate.PhaseStep)
	l.at(12, 101, gate.PhaseStep)
	l.takes(time.Second)
	l.round, l.from = 4, 12
	l.at(12, 101, gate.PhaseForming)
	l.takes(0)
	l.at(13, 140, gate.PhaseStep)
	l.takes(0)
	l.at(14, 142, gate.PhaseStep)
	l.takes(2 * time.Second)
}

// The states that are reported say it.
func TestStatesSayHowLongAStepTakes(t *testing.T) {
	f, _, write := joined(t)
	for i := range uint64(3) {
		write(entered, i+1)
		write(ended, 1000+uint64(time.Second)*i)
		write(worked, 1000+uint64(time.Millisecond)*i)
		write(done, i+1)
		_ = f.States()
	}
	if got := f.States()[0].StepTime; got != time.Second {
		t.Errorf("a step takes %s, want 1s", got)
	}
	if got := f.States()[0].OwnTime; got != time.Millisecond {
		t.Errorf("a step takes %s of its own, want 1ms", got)
	}
}
