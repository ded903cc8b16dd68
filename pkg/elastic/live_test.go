package elastic_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/pkg/elastic"
)

// exact is a program that says where it changes its state. Its step has two moments at which the world may end:
// step gets it before the update, and updated in the middle of it.
type exact struct {
	*program
	training *training
	state    *counter
	step     chan uint64
	updated  chan uint64
}

func playExact(t *testing.T) exact {
	t.Helper()
	state := &counter{}
	o := options
	o.State = elastic.Gob(state)
	run, p := begin(t).join(context.Background(), o)
	s := exact{program: p, state: state, step: make(chan uint64), updated: make(chan uint64)}
	reach := func(ctx context.Context, at chan uint64, step uint64) error {
		select {
		case at <- step:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("step %d: %w", step, context.Cause(ctx))
		}
	}
	s.training = goTrain(t, run, func(ctx context.Context, _ elastic.World) error {
		for step := range run.Steps(ctx) {
			if err := reach(ctx, s.step, step.Number()); err != nil {
				return err
			}
			step.BeginUpdate()
			state.Steps = append(state.Steps, step.Number())
			if err := reach(ctx, s.updated, step.Number()); err != nil {
				return err
			}
		}
		return run.Err()
	})
	return s
}

// steps lets the program make the steps from first to last.
func (s exact) steps(t *testing.T, first, last uint64) {
	t.Helper()
	for k := first; k <= last; k++ {
		if before, within := <-s.step, <-s.updated; before != k || within != k {
			t.Fatalf("steps %d and %d, want %d", before, within, k)
		}
	}
}

func (s exact) aborts() {
	s.says(wire.Abort{Type: wire.TypeAbort, Round: 1, Reason: "worker 2 is lost"})
}

// finishes lets a process that has made all steps end.
func (s exact) finishes(t *testing.T) {
	t.Helper()
	s.expects(finished(6))
	s.says(wire.End{Type: wire.TypeEnd})
	if err := s.training.ends(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]uint64{1, 2, 3, 4, 5, 6}, s.state.Steps); diff != "" {
		t.Errorf("the state has seen (-want +got):\n%s", diff)
	}
}

// Before the update of step 5 the state is that of step 4: it is given to others, and gone on with.
func TestRecoveryFromLiveState(t *testing.T) {
	s := playExact(t)
	s.start()
	s.steps(t, 1, 4)
	s.aborts()
	s.expects(aborted(4))
	path := s.snapshot(1, 4)
	s.world(wire.World{Round: 2, Parent: 1, FromStep: 4})
	s.steps(t, 5, 6)
	s.finishes(t)

	other := playExact(t)
	other.expects(wire.Join{Type: wire.TypeJoin})
	other.world(wire.World{Round: 2, Parent: 1, FromStep: 4, Restore: true, Snapshot: path})
	other.steps(t, 5, 6)
	other.expects(finished(6))
	other.says(wire.End{Type: wire.TypeEnd})
	if err := other.training.ends(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(s.state, other.state); diff != "" {
		t.Errorf("one has (-), the other (+):\n%s", diff)
	}
}

// A snapshot that was written while training went on may be of the very step that a barrier asks for. Its file is not written over:
// the agent may be about to take it.
func TestEachSnapshotHasItsOwnFile(t *testing.T) {
	s := playExact(t)
	s.start()
	s.steps(t, 1, 4)
	s.aborts()
	s.expects(aborted(4))
	var told []wire.Snapshot
	for range 2 {
		s.says(wire.Save{Type: wire.TypeSave, Step: 4})
		message := s.hears()
		snapshot, ok := message.(wire.Snapshot)
		if !ok || snapshot.Error != "" {
			t.Fatalf("the program answers save with %+v", message)
		}
		told = append(told, snapshot)
	}
	if told[0].File == told[1].File {
		t.Errorf("both are in %s", told[0].File)
	}
	for _, snapshot := range told {
		s.keep(1, snapshot)
	}
	s.world(wire.World{Round: 2, Parent: 1, FromStep: 4})
	s.steps(t, 5, 6)
	s.finishes(t)
}

// In the middle of the update the state is that of no step: nobody gets it.
func TestAnUpdateThatIsBrokenOff(t *testing.T) {
	s := playExact(t)
	s.start()
	s.steps(t, 1, 1)
	<-s.step
	s.a.page.Arm(s.slot, 2)
	<-s.updated
	s.expects(wire.Parked{Type: wire.TypeParked, Step: 2})
	path := s.snapshot(1, 2)
	s.a.page.Lift(s.slot)
	s.says(wire.Go{Type: wire.TypeGo})
	s.steps(t, 3, 4)
	<-s.step
	s.aborts()
	s.expects(wire.Aborted{Type: wire.TypeAborted, Step: 4})
	s.says(wire.Save{Type: wire.TypeSave, Step: 4})
	if said, ok := s.hears().(wire.Snapshot); !ok || said.Step != 4 || !strings.Contains(said.Error, "in the middle of a step") {
		t.Errorf("the program answers save with %+v", said)
	}
	s.world(wire.World{Round: 2, Parent: 1, FromStep: 2, Restore: true, Snapshot: path})
	s.steps(t, 3, 6)
	s.finishes(t)
}

// Before its first update nobody knows where in a step a program changes its state.
func TestTheFirstStepIsNotKnown(t *testing.T) {
	s := playExact(t)
	s.start()
	for s.progress().Entered == 0 {
		if err := context.Cause(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.aborts()
	s.expects(wire.Aborted{Type: wire.TypeAborted})
	s.world(wire.World{Round: 2, Restore: true})
	s.steps(t, 1, 6)
	s.finishes(t)
}

// A process that has finished has the state after the last step, and gives it to one that does not.
func TestAFinishedProcessGivesItsState(t *testing.T) {
	s := playExact(t)
	s.start()
	s.steps(t, 1, 6)
	s.expects(finished(6))
	s.aborts()
	s.snapshot(1, 6)
	s.world(wire.World{Round: 2, Parent: 1, FromStep: 6})
	s.finishes(t)
}
