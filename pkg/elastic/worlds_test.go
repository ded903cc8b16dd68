package elastic_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/concertina-dev/concertina/internal/agent/gate"
	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/pkg/elastic"
)

// counter is a state that remembers its steps.
type counter struct{ Steps []uint64 }

// scene is a program of one rank that counts, and its agent.
type scene struct {
	*program
	training *training
	state    *counter
	worlds   *[]elastic.World
	// step gets every step in its body, and lets it end.
	step chan uint64
}

// play runs 6 steps in 2 epochs. After each epoch it evaluates, polling, and says so on evaluated.
func play(t *testing.T, a *agent, evaluate func(context.Context, *elastic.Run, uint64) error) scene {
	t.Helper()
	state := &counter{}
	o := options
	o.State = elastic.Gob(state)
	run, p := a.join(context.Background(), o)
	s := scene{program: p, state: state, worlds: &[]elastic.World{}, step: make(chan uint64)}
	s.training = goTrain(t, run, func(ctx context.Context, w elastic.World) error {
		*s.worlds = append(*s.worlds, w)
		for epoch := range run.Epochs(ctx) {
			for step := range epoch.Steps(ctx) {
				select {
				case s.step <- step.Number():
				case <-ctx.Done():
					state.Steps = append(state.Steps, 1000) // half a step
					return fmt.Errorf("step %d: %w", step.Number(), context.Cause(ctx))
				}
				state.Steps = append(state.Steps, step.Number())
			}
			if err := run.Err(); err != nil {
				return err
			}
			if evaluate != nil {
				if err := evaluate(ctx, run, epoch.Number()); err != nil {
					return err
				}
			}
		}
		return run.Err()
	})
	return s
}

// steps lets the program make the steps from first to last.
func (s scene) steps(t *testing.T, first, last uint64) {
	t.Helper()
	for k := first; k <= last; k++ {
		select {
		case got := <-s.step:
			if got != k {
				t.Fatalf("step %d, want %d", got, k)
			}
		case err := <-s.training.result:
			t.Fatalf("step %d never comes: %v", k, err)
		}
	}
}

// isIn waits until the program has begun a step.
func (s scene) isIn(step uint64) {
	for s.progress().Entered != step {
		runtime.Gosched()
	}
}

// stands lets the program make the steps from first to last, and stops it at a barrier after that.
func (s scene) stands(t *testing.T, first, last uint64) {
	t.Helper()
	s.steps(t, first, last-1)
	s.a.page.Arm(s.slot, last)
	s.steps(t, last, last)
	s.expects(wire.Parked{Type: wire.TypeParked, Step: last})
}

// aborted and finished are what a process says that is not in the middle of a step.
func aborted(step uint64) wire.Aborted {
	return wire.Aborted{Type: wire.TypeAborted, Step: step, Clean: true}
}

func finished(step uint64) wire.Finished {
	return wire.Finished{Type: wire.TypeFinished, Step: step, Clean: true}
}

func (s scene) finishes(t *testing.T) {
	t.Helper()
	s.expects(finished(6))
	if p := s.progress(); p.Phase != gate.PhaseFinished || p.Done != 6 {
		t.Errorf("at the end the page says %+v", p)
	}
	s.says(wire.End{Type: wire.TypeEnd})
	if err := s.training.ends(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]uint64{1, 2, 3, 4, 5, 6}, s.state.Steps); diff != "" {
		t.Errorf("the state has seen (-want +got):\n%s", diff)
	}
}

func TestBarrierThatIsLifted(t *testing.T) {
	s := play(t, begin(t), nil)
	s.start()
	s.stands(t, 1, 2)
	// It looks again, and stays: nothing has changed.
	s.says(wire.Go{Type: wire.TypeGo})
	s.expects(wire.Parked{Type: wire.TypeParked, Step: 2})
	// The barrier moves on by a step.
	s.a.page.Arm(s.slot, 3)
	s.says(wire.Go{Type: wire.TypeGo})
	s.steps(t, 3, 3)
	s.expects(wire.Parked{Type: wire.TypeParked, Step: 3})
	if p := s.progress(); p.Entered != 3 || p.Done != 3 {
		t.Errorf("at the barrier the page says %+v", p)
	}
	s.a.page.Lift(s.slot)
	s.says(wire.Go{Type: wire.TypeGo})
	s.steps(t, 4, 6)
	s.finishes(t)
	if len(*s.worlds) != 1 {
		t.Errorf("%d worlds", len(*s.worlds))
	}
}

func TestTheNextWorldWithLiveState(t *testing.T) {
	s := play(t, begin(t), nil)
	s.start()
	s.stands(t, 1, 2)
	s.world(wire.World{Round: 2, Parent: 1, FromStep: 2, Rank: 1, Size: 3})
	s.steps(t, 3, 6)
	s.finishes(t)
	got := *s.worlds
	if len(got) != 2 || got[1].Round != 2 || got[1].Rank != 1 || got[1].Size != 3 || got[1].MasterListener != nil {
		t.Errorf("the worlds are %+v", got)
	}
}

func TestANewcomerLoadsTheSnapshot(t *testing.T) {
	a := begin(t)
	s := play(t, a, nil)
	s.start()
	s.stands(t, 1, 4)
	path := s.snapshot(1, 4)
	setLocalRank(1)
	newcomer := play(t, a, nil)
	newcomer.expects(wire.Join{Type: wire.TypeJoin})
	newcomer.world(wire.World{Round: 2, Parent: 1, FromStep: 4, Restore: true, Snapshot: path})
	newcomer.steps(t, 5, 6)
	if p := newcomer.progress(); p.Samples < 14 {
		t.Errorf("the newcomer says %+v", p)
	}
	newcomer.finishes(t)
	s.world(wire.World{Round: 2, Parent: 1, FromStep: 4})
	s.steps(t, 5, 6)
	s.finishes(t)
}

func TestRecoveryGoesBack(t *testing.T) {
	s := play(t, begin(t), nil)
	s.start()
	s.stands(t, 1, 2)
	path := s.snapshot(1, 2)
	s.a.page.Lift(s.slot)
	s.says(wire.Go{Type: wire.TypeGo})
	s.steps(t, 3, 4)
	s.isIn(5) // stuck in what stands for a collective
	s.says(wire.Abort{Type: wire.TypeAbort, Round: 1, Reason: "worker 2 is lost"})
	s.expects(wire.Aborted{Type: wire.TypeAborted, Step: 4})
	s.world(wire.World{Round: 2, Parent: 1, FromStep: 2, Restore: true, Snapshot: path})
	s.steps(t, 3, 6)
	s.finishes(t)
}

func TestRecoveryWithoutASnapshotBeginsAnew(t *testing.T) {
	s := play(t, begin(t), nil)
	s.start()
	s.isIn(1)
	s.says(wire.Abort{Type: wire.TypeAbort, Round: 1})
	s.expects(wire.Aborted{Type: wire.TypeAborted})
	s.world(wire.World{Round: 2, Parent: 1, Restore: true})
	s.steps(t, 1, 6)
	s.finishes(t)
}

func TestAWorldThatIsOverBeforeItBegins(t *testing.T) {
	s := play(t, begin(t), nil)
	s.expects(wire.Join{Type: wire.TypeJoin})
	s.says(wire.Abort{Type: wire.TypeAbort, Round: 1, Reason: "lost"})
	s.world(wire.World{Round: 1, Restore: true})
	s.expects(aborted(0))
	s.world(wire.World{Round: 2, Restore: true})
	s.steps(t, 1, 6)
	s.finishes(t)
	if len(*s.worlds) != 1 {
		t.Errorf("%d worlds were entered", len(*s.worlds))
	}
}

func TestAbortOfAParkedProcess(t *testing.T) {
	s := play(t, begin(t), nil)
	s.start()
	s.stands(t, 1, 1)
	s.says(wire.Abort{Type: wire.TypeAbort, Round: 1, Reason: "lost"})
	s.expects(aborted(1))
	s.world(wire.World{Round: 2, Parent: 1, FromStep: 1})
	s.steps(t, 2, 6)
	s.finishes(t)
}

func TestTheContextEndsAfterTheWorld(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	run, p := begin(t).join(ctx, options)
	enough, entered := errors.New("enough"), make(chan struct{})
	training := goTrain(t, run, func(ctx context.Context, _ elastic.World) error {
		close(entered)
		<-ctx.Done()
		cancel(enough)
		return fmt.Errorf("all-reduce: %w", context.Cause(ctx))
	})
	p.start()
	<-entered
	p.says(wire.Abort{Type: wire.TypeAbort, Round: 1, Reason: "lost"})
	if err := training.ends(); !errors.Is(err, enough) {
		t.Errorf("got %v, want %v", err, enough)
	}
}

func TestFaultsAreJudged(t *testing.T) {
	broken := errors.New("connection reset by peer")
	for name, fail := range map[string]func() error{
		"an error": func() error { return broken },
		"a panic":  func() error { panic(broken) },
	} {
		for _, verdict := range []string{"world", "raise", "agent gone"} {
			t.Run(name+", "+verdict, func(t *testing.T) {
				a := begin(t)
				run, p := a.join(context.Background(), options)
				worlds := 0
				result := goTrain(t, run, func(ctx context.Context, _ elastic.World) (err error) {
					if worlds++; worlds > 1 {
						return nil
					}
					for step := range run.Steps(ctx) {
						if step.Number() == 2 {
							return fail()
						}
						step.BeginUpdate()
					}
					return nil
				})
				p.start()
				p.faults(t, 1)
				switch verdict {
				case "world":
					p.world(wire.World{Round: 2, FromStep: 1})
					p.expects(finished(1))
					p.says(wire.End{Type: wire.TypeEnd})
				case "raise":
					p.says(wire.Raise{Type: wire.TypeRaise})
				default:
					p.hangUp()
				}
				err := result.ends()
				if verdict == "world" && (err != nil || worlds != 2) {
					t.Errorf("%v after %d worlds", err, worlds)
				}
				if verdict != "world" && (!errors.Is(err, broken) || worlds != 1 ||
					strings.HasPrefix(err.Error(), "panicked") != (name == "a panic")) {
					t.Errorf("%v after %d worlds", err, worlds)
				}
			})
		}
	}
}

// faults expects the fault of a process that has done so many steps, and not begun to change its state since.
func (p *program) faults(t *testing.T, step uint64) {
	t.Helper()
	message := p.hears()
	if fault, ok := message.(wire.Fault); !ok || fault.Step != step || !fault.Clean || !strings.Contains(fault.Message, "connection reset by peer") {
		t.Fatalf("the program says %+v", message)
	}
}

func TestALateLossCallsAFinishedProcessBack(t *testing.T) {
	s := play(t, begin(t), nil)
	s.start()
	s.stands(t, 1, 4)
	path := s.snapshot(1, 4)
	s.a.page.Lift(s.slot)
	s.says(wire.Go{Type: wire.TypeGo})
	s.steps(t, 5, 6)
	s.expects(finished(6))
	// An abort that crosses it changes nothing.
	s.says(wire.Abort{Type: wire.TypeAbort, Round: 1, Reason: "lost"})
	s.world(wire.World{Round: 2, Parent: 1, FromStep: 4, Restore: true, Snapshot: path})
	s.steps(t, 5, 6)
	s.finishes(t)
}

func TestTheAgentGoesAwayFromWhoWaits(t *testing.T) {
	for name, bring := range map[string]func(scene){
		"before the world": func(s scene) { s.expects(wire.Join{Type: wire.TypeJoin}) },
		"at the barrier":   func(s scene) { s.start(); s.stands(t, 1, 1) },
		"finished":         func(s scene) { s.start(); s.steps(t, 1, 6); s.expects(finished(6)) },
		"aborted": func(s scene) {
			s.start()
			s.stands(t, 1, 1)
			s.says(wire.Abort{Type: wire.TypeAbort, Round: 1})
			s.expects(aborted(1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := play(t, begin(t), nil)
			bring(s)
			s.hangUp()
			if err := s.training.ends(); err == nil || !strings.Contains(err.Error(), "connection to the agent is lost") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// While an epoch is evaluated the world may change; the evaluation then starts over, and none is left out.
func TestPollInEvaluation(t *testing.T) {
	evaluating, poll, polled := make(chan uint64), make(chan bool), make(chan error)
	evaluate := func(ctx context.Context, run *elastic.Run, epoch uint64) error {
		evaluating <- epoch
		for <-poll {
			err := run.Poll(ctx)
			polled <- err
			if err != nil {
				return err
			}
		}
		return nil
	}
	begins := func(want uint64) {
		t.Helper()
		if epoch := <-evaluating; epoch != want {
			t.Errorf("epoch %d is evaluated, want %d", epoch, want)
		}
	}
	goesOn := func() {
		t.Helper()
		if err := <-polled; err != nil {
			t.Errorf("Poll: %v", err)
		}
	}
	ends := func() {
		t.Helper()
		if err := <-polled; !errors.Is(err, elastic.ErrWorldEnded) {
			t.Errorf("Poll: %v", err)
		}
	}
	s := play(t, begin(t), evaluate)
	s.start()
	s.steps(t, 1, 3)
	begins(0)
	poll <- true // no barrier
	goesOn()
	s.a.page.Arm(s.slot, 3)
	poll <- true
	s.expects(wire.Parked{Type: wire.TypeParked, Step: 3})
	s.a.page.Lift(s.slot)
	s.says(wire.Go{Type: wire.TypeGo})
	goesOn()
	s.a.page.Arm(s.slot, 3)
	poll <- true
	s.expects(wire.Parked{Type: wire.TypeParked, Step: 3})
	path := s.snapshot(1, 3)
	s.world(wire.World{Round: 2, Parent: 1, FromStep: 3})
	ends()
	begins(0)
	s.a.page.Interrupt(s.slot)
	poll <- true
	s.expects(wire.Parked{Type: wire.TypeParked, Step: 3})
	s.says(wire.Abort{Type: wire.TypeAbort, Round: 2, Reason: "lost"})
	ends()
	s.expects(aborted(3))
	s.world(wire.World{Round: 3, Parent: 2, FromStep: 3, Restore: true, Snapshot: path})
	begins(0)
	poll <- false
	s.steps(t, 4, 6)
	begins(1)
	poll <- false
	s.finishes(t)
}

// Who stands before the first step of an epoch and who still evaluates the last agree in the next
// world on what comes first.
func TestTheEvaluationIsTheSameOnEveryRank(t *testing.T) {
	var evaluated []uint64
	s := play(t, begin(t), func(_ context.Context, _ *elastic.Run, epoch uint64) error {
		evaluated = append(evaluated, epoch)
		return nil
	})
	s.start()
	s.a.page.Arm(s.slot, 3)
	s.steps(t, 1, 3)
	s.expects(wire.Parked{Type: wire.TypeParked, Step: 3})
	s.world(wire.World{Round: 2, Parent: 1, FromStep: 3})
	s.steps(t, 4, 6)
	s.finishes(t)
	if !slices.Equal(evaluated, []uint64{0, 0, 1}) {
		t.Errorf("evaluated were the epochs %v", evaluated)
	}
}

func TestAWorldAfterTheLastStep(t *testing.T) {
	var evaluated []uint64
	s := play(t, begin(t), func(_ context.Context, _ *elastic.Run, epoch uint64) error {
		evaluated = append(evaluated, epoch)
		return nil
	})
	s.start()
	s.steps(t, 1, 6)
	s.expects(finished(6))
	s.world(wire.World{Round: 2, Parent: 1, FromStep: 6})
	s.finishes(t)
	if !slices.Equal(evaluated, []uint64{0, 1, 1}) {
		t.Errorf("evaluated were the epochs %v", evaluated)
	}
}

func TestWorldsThatCannotBe(t *testing.T) {
	a := begin(t)
	foreign := filepath.Join(a.folder, "1-2")
	if err := os.WriteFile(foreign, []byte(`{"format":"concertina.dev/go/1","step":2,"samples":11,"globalBatch":4,"seed":7}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(a.folder, "1-3")
	if err := os.WriteFile(cut, []byte(`{"format":"concertina.dev/go/1","step":3,"samples":10,"globalBatch":4,"seed":7}`+"\n\x03\x04"), 0o600); err != nil {
		t.Fatal(err)
	}
	long := filepath.Join(a.folder, "1-4")
	if err := os.WriteFile(long, []byte(strings.Repeat("x", 10000)), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		world wire.World
		want  string
	}{
		"live state of another step": {wire.World{Round: 1, FromStep: 2}, "goes on after step 2 with the state after step 0"},
		"no snapshot":                {wire.World{Round: 1, FromStep: 2, Restore: true}, "there is no snapshot"},
		"no such file":               {wire.World{Round: 1, FromStep: 2, Restore: true, Snapshot: "/no/such"}, "no such file"},
		"of another training":        {wire.World{Round: 1, FromStep: 2, Restore: true, Snapshot: foreign}, "of another training or step"},
		"of another step":            {wire.World{Round: 1, FromStep: 1, Restore: true, Snapshot: foreign}, "of another training or step"},
		"cut off":                    {wire.World{Round: 1, FromStep: 3, Restore: true, Snapshot: cut}, "EOF"},
		"no snapshot file":           {wire.World{Round: 1, FromStep: 3, Restore: true, Snapshot: long}, "its first line"},
		"beyond the end":             {wire.World{Round: 1, FromStep: 7, Restore: true}, "the training has 6"},
	} {
		t.Run(name, func(t *testing.T) {
			s := play(t, a, nil)
			s.expects(wire.Join{Type: wire.TypeJoin})
			s.world(row.world)
			message := s.hears()
			if fault, ok := message.(wire.Fault); !ok || !strings.Contains(fault.Message, row.want) {
				t.Fatalf("the program says %+v", message)
			}
			s.says(wire.Raise{Type: wire.TypeRaise})
			if err := s.training.ends(); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("rank out of range", func(t *testing.T) {
		s := play(t, a, nil)
		s.expects(wire.Join{Type: wire.TypeJoin})
		s.world(wire.World{Round: 1, Rank: 3, Size: 3})
		if err := s.training.ends(); err == nil || !strings.Contains(err.Error(), "rank 3 of 3") {
			t.Errorf("got %v", err)
		}
	})
}

func TestSnapshotsThatCannotBe(t *testing.T) {
	a := begin(t)
	for name, row := range map[string]struct {
		folder string
		state  elastic.State
		want   string
	}{
		"no state":     {a.folder, nil, "Options.State is not set"},
		"no folder":    {"", elastic.Gob(&counter{}), "no folder for snapshots"},
		"missing":      {"/no/such", elastic.Gob(&counter{}), "no such file"},
		"not a target": {a.folder, elastic.Gob(counter{}), "wants pointers"},
		"full":         {a.folder, full{}, "give the worker more memory"},
	} {
		t.Run(name, func(t *testing.T) {
			a.folder = row.folder
			o := options
			o.State = row.state
			run, p := a.join(context.Background(), o)
			result := goTrain(t, run, func(ctx context.Context, _ elastic.World) error {
				for range run.Steps(ctx) {
					continue
				}
				return run.Err()
			})
			a.page.Arm(p.slot, 2)
			p.expects(wire.Join{Type: wire.TypeJoin})
			w := wire.World{Round: 1, Restore: true}
			w.Type, w.Size, w.LocalSize, w.Workers, w.Rank, w.Size = wire.TypeWorld, 2, 1, 2, 1, 2
			p.says(w)
			p.expects(wire.Parked{Type: wire.TypeParked, Step: 2})
			p.says(wire.Save{Type: wire.TypeSave, Step: 2})
			message := p.hears()
			if s, ok := message.(wire.Snapshot); !ok || s.Step != 2 || !strings.Contains(s.Error, row.want) {
				t.Errorf("the program answers save with %+v", message)
			}
			a.page.Lift(p.slot)
			p.says(wire.Go{Type: wire.TypeGo})
			p.expects(finished(6))
			p.says(wire.End{Type: wire.TypeEnd})
			if err := result.ends(); err != nil {
				t.Error(err)
			}
			if left, _ := os.ReadDir(a.folder); row.folder != "" && len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// full is a state that fills the volume.
type full struct{}

func (full) Save(io.Writer) error {
	file, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	_, err = file.WriteString("state")
	return err
}

func (full) Load(io.Reader) error { return nil }

func TestPeriodicSnapshots(t *testing.T) {
	a := begin(t)
	a.interval = "0.000000001"
	s := play(t, a, nil)
	s.expects(wire.Join{Type: wire.TypeJoin})
	s.world(wire.World{Round: 1, Restore: true, Writer: true})
	for step := range uint64(6) {
		message := s.hears()
		snapshot, ok := message.(wire.Snapshot)
		if !ok || snapshot.Step != step || snapshot.Error != "" {
			t.Fatalf("before step %d the program says %+v", step+1, message)
		}
		path := s.keep(1, snapshot)
		if step == 3 {
			s.isIn(4)
			s.says(wire.Abort{Type: wire.TypeAbort, Round: 1})
			s.expects(wire.Aborted{Type: wire.TypeAborted, Step: 3})
			s.world(wire.World{Round: 2, Parent: 1, FromStep: 3, Restore: true, Snapshot: path, Writer: true})
		}
		s.steps(t, step+1, step+1)
	}
	if snapshot, ok := s.hears().(wire.Snapshot); !ok || snapshot.Step != 6 {
		t.Errorf("at the end: %+v", snapshot)
	}
	s.finishes(t)
}
