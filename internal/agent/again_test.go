package agent_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/concertina-dev/concertina/internal/agent/agenttest"
	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

func restarts(n uint64) func(*rendezvousv1.Directive) {
	return func(d *rendezvousv1.Directive) { d.Restarts = proto.Uint64(n) }
}

// killed is the worker of growing whose process was killed at the barrier, in front of an operator that lets it stay.
func killed(t *testing.T, r *agenttest.Rendezvous, content []byte) (w *worker, trains *rendezvousv1.Directive) {
	t.Helper()
	w, s, first := growing(t, r, content)
	first = change(first, func(d *rendezvousv1.Directive) { d.Barrier, d.Restarts = nil, proto.Uint64(0) })
	r.Direct(first)
	hears[wire.Go](s)
	s.say(wire.Fault{Type: wire.TypeFault, Step: 3, Message: "ValueError: bad"})
	r.Await("the fault", waits(rendezvousv1.Waiting_WAITING_FAULT))
	_ = s.conn.Close()
	if err := os.WriteFile(filepath.Join(s.welcome.Snapshots, "4.half.part"), []byte("stat"), 0o600); err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(w.file("pid0")[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(w.directory + "/pid0"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	report := r.Await("the end of the process", func(report *rendezvousv1.Report) bool { return report.GetOut() && ended(137)(report) })
	if !report.GetStays() || report.GetRound() != 1 || !holds(1, 3)(report) {
		t.Fatalf("the worker reports %v", report)
	}
	return w, first
}

func TestAKilledProcessIsStartedAnewAndItsSnapshotsAreStillThere(t *testing.T) {
	r := agenttest.New(t)
	content := bytes.Repeat([]byte("weights "), 1000)
	w, first := killed(t, r, content)
	r.Direct(change(first, restarts(1)))
	w.file("pid0")
	report := r.Await("the next program", func(report *rendezvousv1.Report) bool { return report.GetRestarts() == 1 && running(1)(report) })
	want := &rendezvousv1.Failure{Round: 1, Code: 137, Message: "ValueError: bad"}
	if got := report.GetFailure(); !proto.Equal(got, want) {
		t.Errorf("it failed as %v, want %v", got, want)
	}
	if p := report.GetProcesses()[0]; !report.GetOut() || p.GetElastic() || p.GetFault() != nil || p.CleanStep != nil {
		t.Errorf("what was started anew reports %v", report)
	}
	s := w.speak(0)
	eventually(t, "what the other had begun to write to go", func() bool {
		left, err := filepath.Glob(filepath.Join(s.welcome.Snapshots, "*.part"))
		return err == nil && len(left) == 0
	})
	s.say(wire.Join{Type: wire.TypeJoin})
	r.Await("the standby", waits(rendezvousv1.Waiting_WAITING_ABORTED))

	next := change(second(r, 0, true), restarts(1))
	next.World.Snapshot = r.Last().GetSnapshots()[0] // and nobody else has it
	r.Direct(next)
	got := hears[wire.World](s)
	loaded, err := os.ReadFile(got.Snapshot)
	if err != nil || !bytes.Equal(loaded, content) || got.Round != 2 || !got.Restore {
		t.Errorf("its world is %+v, with %d bytes (%v)", got, len(loaded), err)
	}
	r.Await("the world", func(r *rendezvousv1.Report) bool { return r.GetRound() == 2 && !r.GetOut() && holds(1, 3)(r) })
}

func TestAWorkerEndsWithTheCodeOfItsProgramWhenItIsNotToStay(t *testing.T) {
	r := agenttest.New(t)
	w, first := killed(t, r, []byte("state"))
	r.Direct(change(first, func(d *rendezvousv1.Directive) { d.Restarts = nil }))
	if code := w.exit(); code != 137 {
		t.Errorf("exit code %d, want 137", code)
	}
}
