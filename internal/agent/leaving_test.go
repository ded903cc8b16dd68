package agent_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/concertina-dev/concertina/internal/agent/agenttest"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
	"github.com/concertina-dev/concertina/pkg/elastic"
)

// leaves is a program that is started anew in each world, and makes a step every few milliseconds. It cannot save in the
// round that AGENT_TEST_FULL names.
func leaves() int {
	step := savedStep(directory())
	addLine("began", fmt.Sprint(os.Getenv("CONCERTINA_ROUND"), " after ", step))
	gate, err := elastic.OpenGate(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for range time.Tick(3 * time.Millisecond) {
		step++
		stop, err := gate.ShouldStop(step)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if !stop {
			continue
		}
		if os.Getenv("AGENT_TEST_FULL") == os.Getenv("CONCERTINA_ROUND") {
			return 28
		}
		write("saved", strconv.FormatUint(step, 10))
		gate.Left()
		return 0
	}
	return 0
}

// savedStep is the step whose state a program has saved; 0 for none.
func savedStep(directory string) uint64 {
	text, _ := os.ReadFile(filepath.Join(directory, "saved"))
	step, _ := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return step
}

// stand has the world of a directive stop at a barrier, and returns the step after which it stands.
func stand(t *testing.T, r *agenttest.Rendezvous, d *rendezvousv1.Directive) uint64 {
	t.Helper()
	report := r.Await("steps", trainsBeyond(d.GetRound(), 3))
	if p := report.GetProcesses()[0]; !p.GetLeaves() || !p.GetElastic() || p.LeavingStep != 0 {
		t.Errorf("a process that leaves its world when it is told to is reported as %v", p)
	}
	r.Direct(barrier(d, 1, 1, false))
	var n uint64
	r.Await("the barrier", func(r *rendezvousv1.Report) bool {
		if r.GetRound() != d.GetRound() || !running(1)(r) {
			return false
		}
		p := r.GetProcesses()[0]
		n = p.GetDone()
		return p.GetWaiting() == rendezvousv1.Waiting_WAITING_PARKED && p.GetStop() == n
	})
	return n
}

func leaveAfter(d *rendezvousv1.Directive, step uint64) *rendezvousv1.Directive {
	return change(abort(d, true), func(d *rendezvousv1.Directive) { d.Abort.LeaveStep = step })
}

func TestAProgramLeavesItsWorld(t *testing.T) {
	r := agenttest.New(t)
	w := startWorker(t, r, []string{"CONCERTINA_STRATEGY=Restart", "AGENT_TEST_FULL=2"}, "leaves")
	join(r, 1, 1)
	d := world(1, 1, 1, r.Hellos()[0].GetMasterPort())
	n := stand(t, r, d)
	r.Direct(leaveAfter(d, n))
	report := r.Await("the end of the program", out(1))
	p := report.GetProcesses()[0]
	if p.GetExit() != nil || p.CleanStep == nil || p.GetCleanStep() != n || p.GetLeavingStep() != n || p.GetDone() != n ||
		p.GetWaiting() != rendezvousv1.Waiting_WAITING_ABORTED {
		t.Errorf("a program that has left after step %d is reported as %v", n, p)
	}
	if saved := savedStep(w.directory); saved != n {
		t.Errorf("step %d is saved, want %d", saved, n)
	}
	for _, no := range []string{"checkpoint", "SIG"} {
		if strings.Contains(w.text(), no) {
			t.Errorf("the program was asked in the other way too: %q", no)
		}
	}

	d = world(1, 2, 1, 61000)
	d.World.Parent, d.World.FromStep = 1, n
	r.Direct(d)
	report = r.Await("steps of round 2", trainsBeyond(2, n))
	if began := w.file("began"); began[len(began)-1] != fmt.Sprintf("2 after %d", n) {
		t.Errorf("the program began in round %v, want 2 after %d", began, n)
	}
	if pause := report.PauseNanos; pause == nil || *pause == 0 || *pause > uint64(agenttest.Patience) {
		t.Errorf("a pause of %v ns is told", pause)
	}

	// It cannot save: it ends, and nobody is told that it has.
	n = stand(t, r, d)
	r.Direct(leaveAfter(d, n))
	report = r.Await("the end of the program", out(2))
	if p := report.GetProcesses()[0]; p.GetExit() != nil || p.CleanStep != nil || p.GetLeavingStep() != n {
		t.Errorf("a program that could not save is reported as %v", p)
	}
	eventually(t, "the agent to say that it could not save", func() bool { // which it writes beside what it reports
		return strings.Contains(w.text(), "exit code 28 before it had saved")
	})
	r.Direct(world(1, 3, 1, 61000))
	r.Await("round 3", trainsBeyond(3, 0))
}

// Another operator, which knows nothing of it, has the world go on: those that were not told to leave do.
func TestAProgramThatStandsIsLetGo(t *testing.T) {
	r := agenttest.New(t)
	w := startWorker(t, r, []string{"CONCERTINA_STRATEGY=Restart"}, "leaves")
	join(r, 1, 1)
	d := world(1, 1, 1, r.Hellos()[0].GetMasterPort())
	n := stand(t, r, d)
	d.Term = 2
	r.Direct(d)
	r.Await("further steps", func(r *rendezvousv1.Report) bool { return r.GetTerm() == 2 && trainsBeyond(1, n)(r) })
	if began := w.file("began"); len(began) != 1 {
		t.Errorf("the program was started %d times", len(began))
	}
}

// Where programs live on in other worlds such a program is refused, and says why.
func TestAProgramThatLeavesIsRefusedInPlace(t *testing.T) {
	r := agenttest.New(t)
	w := startWorker(t, r, nil, "leaves")
	join(r, 1, 1)
	if code := w.exit(); code != 1 || !strings.Contains(w.text(), "set spec.resize.strategy to Restart") {
		t.Errorf("exit code %d, and the program says %s", code, w.text())
	}
	if p := r.Last().GetProcesses()[0]; !proto.Equal(p.GetExit(), &rendezvousv1.Exit{Code: 1}) || p.GetElastic() {
		t.Errorf("it is reported as %v", p)
	}
}
