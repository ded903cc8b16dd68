package agent_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/concertina-dev/concertina/internal/agent/agenttest"
	"github.com/concertina-dev/concertina/internal/agent/gate"
	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
	"github.com/concertina-dev/concertina/internal/ticket"
)

// speaker is a process of a worker, played by the test: it knows the socket and the gate page.
type speaker struct {
	t       *testing.T
	conn    *wire.Conn
	slot    *gate.Slot
	welcome wire.Welcome
}

func (w *worker) speak(localRank int, change ...func(*wire.Hello)) *speaker {
	w.t.Helper()
	conn, err := net.Dial("unix", w.socket)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	s := &speaker{t: w.t, conn: wire.NewReceiver(conn.(*net.UnixConn))}
	hello := wire.Hello{Type: wire.TypeHello, Protocol: wire.Protocol, LocalRank: localRank, Shares: true}
	for _, c := range change {
		c(&hello)
	}
	s.say(hello)
	s.welcome = hears[wire.Welcome](s)
	files, err := s.conn.Take(1)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = files[0].Close() }()
	if s.slot, err = gate.Open(files[0], s.welcome.Slot); err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (s *speaker) say(message any) {
	s.t.Helper()
	if err := s.conn.Write(message); err != nil {
		s.t.Fatalf("say %+v: %v", message, err)
	}
}

// hears is the next message, which must be of one kind.
func hears[M any](s *speaker) M {
	s.t.Helper()
	_ = s.conn.SetReadDeadline(time.Now().Add(agenttest.Patience))
	line, err := s.conn.ReadLine()
	if err != nil {
		s.t.Fatalf("hear %T: %v", *new(M), err)
	}
	message, err := wire.FromAgent(line)
	if err != nil {
		s.t.Fatalf("hear %T: %v", *new(M), err)
	}
	got, ok := message.(M)
	if !ok {
		s.t.Fatalf("heard %s, want %T", line, *new(M))
	}
	return got
}

func (s *speaker) join() wire.World {
	s.t.Helper()
	s.say(wire.Join{Type: wire.TypeJoin})
	return hears[wire.World](s)
}

// save writes a snapshot of a step and tells the agent.
func (s *speaker) save(step uint64, content []byte) {
	s.t.Helper()
	name := strconv.FormatUint(step, 10) + ".test.part"
	if err := os.WriteFile(filepath.Join(s.welcome.Snapshots, name), content, 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.say(wire.Snapshot{Type: wire.TypeSnapshot, Step: step, File: name, Bytes: uint64(len(content))})
}

func stopsAt(step uint64) func(*rendezvousv1.Report) bool {
	return func(r *rendezvousv1.Report) bool {
		return len(r.GetProcesses()) == 1 && r.GetProcesses()[0].GetStop() == step
	}
}

func parkedAt(step, attempt uint64) func(*rendezvousv1.Report) bool {
	return func(r *rendezvousv1.Report) bool {
		if len(r.GetProcesses()) != 1 {
			return false
		}
		p := r.GetProcesses()[0]
		return p.GetWaiting() == rendezvousv1.Waiting_WAITING_PARKED && p.GetDone() == step && p.GetEntered() == step &&
			p.GetStop() == step && p.GetBarrierAttempt() == attempt
	}
}

func holds(round, step uint64) func(*rendezvousv1.Report) bool {
	return func(r *rendezvousv1.Report) bool {
		return len(r.GetSnapshots()) > 0 && r.GetSnapshots()[0].GetRound() == round && r.GetSnapshots()[0].GetStep() == step
	}
}

func out(round uint64) func(*rendezvousv1.Report) bool {
	return func(r *rendezvousv1.Report) bool { return r.GetRound() == round && r.GetOut() }
}

// change is a directive with one thing more.
func change(d *rendezvousv1.Directive, how func(*rendezvousv1.Directive)) *rendezvousv1.Directive {
	d, _ = proto.Clone(d).(*rendezvousv1.Directive)
	how(d)
	return d
}

func barrier(d *rendezvousv1.Directive, attempt, step uint64, save bool) *rendezvousv1.Directive {
	return change(d, func(d *rendezvousv1.Directive) {
		d.Barrier = &rendezvousv1.Barrier{Attempt: attempt, Step: step, Save: save}
	})
}

func abort(d *rendezvousv1.Directive, planned bool) *rendezvousv1.Directive {
	return change(d, func(d *rendezvousv1.Directive) {
		d.Abort = &rendezvousv1.Abort{Reason: "a worker was lost", Planned: planned}
	})
}

var secret = []byte("a secret of the operator")

// keyOf is the key of the holder that shows a certificate.
func keyOf(certificate []byte) []byte { return ticket.KeyOf(secret, [32]byte(certificate)) }

// admitted are holders with tickets of term 1 for a worker.
func admitted(fetcher *rendezvousv1.Hello, want *rendezvousv1.Snapshot, holders ...*rendezvousv1.Holder) []*rendezvousv1.Holder {
	grant := ticket.Grant{Fetcher: [32]byte(fetcher.GetSnapshotCertificate()), Round: want.GetRound(), Step: want.GetStep()}
	for _, h := range holders {
		h.Ticket = ticket.Issue(keyOf(h.GetCertificate()), 1, grant, time.Now().Add(time.Hour))
	}
	return holders
}

// growing is one worker that trains, is parked at step 3, and has a snapshot of it.
func growing(t *testing.T, r *agenttest.Rendezvous, content []byte) (*worker, *speaker, *rendezvousv1.Directive) {
	t.Helper()
	w, s, first := parkedAtThree(t, r, nil)
	if save := hears[wire.Save](s); save.Step != 3 || save.Staging != nil {
		t.Fatalf("heard %+v", save)
	}
	s.save(3, content)
	r.Await("the snapshot", holds(1, 3))
	return w, s, first
}

// older makes hello that of a program that knows no shares.
func older(hello *wire.Hello) { hello.Shares = false }

// parkedAtThree is one worker that trains, is parked at step 3, and is asked for a snapshot of that.
func parkedAtThree(
	t *testing.T, r *agenttest.Rendezvous, staging *rendezvousv1.Staging, change ...func(*wire.Hello),
) (*worker, *speaker, *rendezvousv1.Directive) {
	t.Helper()
	w := startWorker(t, r, []string{"CONCERTINA_MEMORY=" + t.TempDir()}, "sleep")
	r.AwaitSessions(1)
	first := world(1, 1, 1, r.Hellos()[0].GetMasterPort())
	first.TicketKey = keyOf(r.Hellos()[0].GetSnapshotCertificate())
	first.World.Restore = true
	first.World.Writer = true
	r.Direct(first)
	w.file("pid0")
	s := w.speak(0, change...)
	if world := s.join(); !world.Restore || world.Snapshot != "" || !world.Writer || world.Round != 1 {
		t.Fatalf("the first world is %+v", world)
	}
	for k := uint64(1); k <= 3; k++ {
		s.slot.Enter(k)
		s.slot.Done(k, k)
	}
	r.Direct(barrier(first, 1, 3, false))
	r.Await("the stop", stopsAt(3))
	if stop := s.slot.Enter(4); stop != 3 {
		t.Fatalf("step 4 may go up to %d", stop)
	}
	s.say(wire.Parked{Type: wire.TypeParked, Step: 3})
	r.Await("the parked process", parkedAt(3, 1))
	first = barrier(first, 1, 3, true)
	first.Staging = staging
	r.Direct(first)
	return w, s, first
}

// damagedHolder serves another state under the name of growing's snapshot.
func damagedHolder(t *testing.T, content []byte) *rendezvousv1.Holder {
	t.Helper()
	store, err := checkpoint.Open(t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(content)
	damaged[len(damaged)/2] ^= 1
	if err := os.WriteFile(filepath.Join(store.Directory(), "x.part"), damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Take(checkpoint.ID{Round: 1, Step: 3}, "x.part", uint64(len(damaged))); err != nil {
		t.Fatal(err)
	}
	identity, err := checkpoint.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	server, err := checkpoint.Serve(store, "127.0.0.1:0", identity, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	certificate := identity.Sum()
	server.SetKey(1, keyOf(certificate[:]))
	return &rendezvousv1.Holder{Address: "127.0.0.1", Port: uint32(server.Port()), Certificate: certificate[:]}
}

// second is the directive of the world that follows growing's, at the port that is kept for it.
func second(r *agenttest.Rendezvous, rank uint32, restore bool) *rendezvousv1.Directive {
	d := world(1, 2, 1, r.Last().GetMasterPort())
	d.World.Workers, d.World.WorkerRank, d.World.Parent, d.World.FromStep, d.World.Restore = 2, rank, 1, 3, restore
	return d
}

func TestAWorldGrowsWithoutAStop(t *testing.T) {
	old, fresh := agenttest.New(t), agenttest.New(t)
	content := bytes.Repeat([]byte("weights "), 100000)
	_, survivor, _ := growing(t, old, content)

	fresh.Direct(&rendezvousv1.Directive{Term: 1, Standby: true})
	newcomer := startWorker(t, fresh, []string{"CONCERTINA_MEMORY=" + t.TempDir(), "RANK=3"}, "environment-sleep")
	if got := newcomer.variables(0); got["RANK"] != "" || got["MASTER_ADDR"] != "" || got["LOCAL_RANK"] != "0" ||
		got["LOCAL_WORLD_SIZE"] != "1" || got["CONCERTINA_ROUND"] != "" || got["CONCERTINA_JOB"] != "digits" {
		t.Errorf("a program without a place finds %v", got)
	}
	s := newcomer.speak(0)
	fresh.Await("a program that runs", running(1))
	s.say(wire.Join{Type: wire.TypeJoin})
	fresh.Await("the standby", func(r *rendezvousv1.Report) bool {
		return r.GetStandby() && waits(rendezvousv1.Waiting_WAITING_JOIN)(r)
	})

	// The first of the holders has another file of that name, the second the right one.
	right := old.Hellos()[0]
	snapshot := old.Last().GetSnapshots()[0]
	damaged := damagedHolder(t, content)
	d := second(old, 1, true)
	d.World.Snapshot = snapshot
	d.World.Holders = admitted(fresh.Hellos()[0], snapshot, damaged, &rendezvousv1.Holder{
		Address: right.GetAddress(), Port: right.GetSnapshotPort(), Certificate: right.GetSnapshotCertificate(),
	})
	fresh.Direct(d)
	got := hears[wire.World](s)
	text, err := os.ReadFile(got.Snapshot)
	if err != nil || !bytes.Equal(text, content) || got.Rank != 1 || got.Size != 2 || !got.Restore || got.FromStep != 3 {
		t.Errorf("the newcomer's world is %+v, the file has %d bytes, %v", got, len(text), err)
	}
	report := fresh.Await("the world", func(r *rendezvousv1.Report) bool {
		return r.GetRound() == 2 && waits(rendezvousv1.Waiting_WAITING_UNSPECIFIED)(r) && holds(1, 3)(r)
	})
	if p := report.GetProcesses()[0]; p.GetDone() != 3 || report.GetStandby() || report.GetOut() {
		t.Errorf("the newcomer reports %v", report)
	}

	old.Direct(second(old, 0, false))
	if got := hears[wire.World](survivor); got.Restore || got.Round != 2 || got.FromStep != 3 || got.FDs != 1 || got.Parent != 1 {
		t.Errorf("the survivor's world is %+v", got)
	}
	if survivor.slot.Stop() != 0 {
		t.Errorf("the survivor still stops at %d", survivor.slot.Stop())
	}
	report = old.Await("the world", func(r *rendezvousv1.Report) bool { return r.GetRound() == 2 && holds(1, 3)(r) })
	if p := report.GetProcesses()[0]; p.GetStop() != 0 || p.GetBarrierAttempt() != 0 || p.GetDone() != 3 {
		t.Errorf("the survivor reports %v", p)
	}
}

func TestAWorkerIsLost(t *testing.T) {
	r := agenttest.New(t)
	_, s, first := growing(t, r, []byte("state after step 3"))
	first.Barrier = nil
	r.Direct(first)
	hears[wire.Go](s)
	s.slot.Enter(4)
	s.slot.Done(4, 4)
	s.save(4, []byte("state after step 4"))
	r.Await("the next snapshot", holds(1, 4))
	r.Direct(abort(first, false))
	if got := hears[wire.Abort](s); got.Round != 1 || got.Reason != "a worker was lost" || s.slot.Stop() != 1 {
		t.Errorf("heard %+v, the gate says %d", got, s.slot.Stop())
	}
	s.say(wire.Aborted{Type: wire.TypeAborted, Step: 4})
	report := r.Await("the way out", out(1))
	d := second(r, 0, true)
	d.World.Snapshot = report.GetSnapshots()[1]
	r.Direct(d)
	got := hears[wire.World](s)
	if text, err := os.ReadFile(got.Snapshot); err != nil || string(text) != "state after step 3" || !got.Restore {
		t.Errorf("the world is %+v with %q, %v", got, text, err)
	}
	report = r.Await("the world", func(r *rendezvousv1.Report) bool { return r.GetRound() == 2 && holds(1, 3)(r) })
	if report.GetOut() || len(report.GetSnapshots()) != 1 || report.GetProcesses()[0].GetDone() != 3 {
		t.Errorf("the survivor reports %v", report)
	}
}

// A process that has left its world says which state it has, saves that for others, and goes on with it.
func TestLiveStateSurvivesALoss(t *testing.T) {
	r := agenttest.New(t)
	_, s, first := growing(t, r, []byte("state after step 3"))
	first.Barrier = nil
	r.Direct(first)
	hears[wire.Go](s)
	s.slot.Enter(4)
	s.slot.Done(4, 4)
	s.slot.Enter(5)
	broken := abort(first, false)
	r.Direct(broken)
	hears[wire.Abort](s)
	s.say(wire.Aborted{Type: wire.TypeAborted, Step: 4, Clean: true})
	report := r.Await("the way out", out(1))
	if p := report.GetProcesses()[0]; p.CleanStep == nil || p.GetCleanStep() != 4 || p.GetDone() != 4 {
		t.Errorf("the survivor reports %v", p)
	}
	r.Direct(change(broken, func(d *rendezvousv1.Directive) { d.Abort.SaveStep = 4 }))
	if got := hears[wire.Save](s); got.Step != 4 {
		t.Errorf("it is to save %+v", got)
	}
	s.save(4, []byte("state after step 4"))
	r.Await("the snapshot", holds(1, 4))
	r.Direct(change(second(r, 0, false), func(d *rendezvousv1.Directive) { d.World.FromStep = 4 }))
	if got := hears[wire.World](s); got.Restore || got.Round != 2 || got.FromStep != 4 {
		t.Errorf("the survivor's world is %+v", got)
	}
	report = r.Await("the world", func(r *rendezvousv1.Report) bool { return r.GetRound() == 2 && holds(1, 4)(r) })
	if p := report.GetProcesses()[0]; p.CleanStep != nil || p.GetDone() != 4 || p.GetEntered() != 4 {
		t.Errorf("in its next world the survivor reports %v", p)
	}
}

func TestAProgramThatIgnoresItsGateIsKilled(t *testing.T) {
	r := agenttest.New(t)
	w := startWorker(t, r, []string{"AGENT_TEST_ANSWER=2s"}, "stacks")
	join(r, 1, 1)
	w.file("pid0")
	s := w.speak(0)
	s.join()
	s.slot.Enter(1)
	s.slot.Done(1, 8)
	r.Direct(abort(world(1, 1, 1, 61000), false))
	if code := w.exit(); code != 137 || !strings.Contains(w.text(), "has not left the world of round 1") {
		t.Errorf("exit code %d, want 137:\n%s", code, w.text())
	}
	asked, killed := strings.Index(w.text(), "the stacks of all threads"), strings.Index(w.text(), "killing it")
	if asked < 0 || killed < asked {
		t.Errorf("the program was not asked for its stacks before it was killed:\n%s", w.text())
	}
}

// Whoever only takes its time is not asked for its stacks: that may cost a program its life. Of two processes one makes steps, one
// hangs, and both are told to leave their world.
func TestOnlyWhoHangsIsAskedForItsStacks(t *testing.T) {
	r := agenttest.New(t)
	w := startWorker(t, r, []string{"AGENT_TEST_ANSWER=5s", "CONCERTINA_PROCESSES=2"}, "stacks")
	join(r, 1, 2)
	w.file("pid0")
	w.file("pid1")
	slow, hangs := w.speak(0), w.speak(1)
	slow.join()
	hangs.join()
	for _, s := range []*speaker{slow, hangs} {
		s.slot.Enter(1)
		s.slot.Done(1, 8)
		s.slot.Enter(2)
	}
	r.Direct(abort(world(1, 1, 2, 61000), false))
	hears[wire.Abort](slow)
	slow.slot.Done(2, 16)
	if code := w.exit(); code != 137 {
		t.Errorf("exit code %d, want 137:\n%s", code, w.text())
	}
	if text := w.text(); strings.Contains(text, "the stacks of all threads of 0") || !strings.Contains(text, "the stacks of all threads of 1") {
		t.Errorf("process 0 has made a step since it was told to leave, process 1 has not:\n%s", text)
	}
}

func TestASnapshotThatCannotBeWritten(t *testing.T) {
	r := agenttest.New(t)
	_, s, first := growing(t, r, []byte("state"))
	if got := r.Last().GetSnapshotError(); got != "" {
		t.Errorf("an error without a cause: %s", got)
	}
	r.Direct(barrier(first, 2, 3, true))
	hears[wire.Save](s)
	s.say(wire.Snapshot{
		Type: wire.TypeSnapshot, Step: 3, Error: "no space left on device: 3.part", Size: &wire.Size{State: 1 << 30, Own: 5, Shards: 1 << 28, Written: 1 << 29},
	})
	r.Await("the error, and what would have been written", func(r *rendezvousv1.Report) bool {
		size := r.GetStateSize()
		return strings.Contains(r.GetSnapshotError(), "no space left") &&
			size.GetState() == 1<<30 && size.GetOwn() == 5 && size.GetShards() == 1<<28 && size.GetWritten() == 1<<29
	})
	// A file that is shorter than it was said is none either.
	r.Direct(barrier(first, 3, 3, true))
	hears[wire.Save](s)
	s.say(wire.Snapshot{Type: wire.TypeSnapshot, Step: 3, File: "missing.part", Bytes: 9})
	r.Await("the error", func(r *rendezvousv1.Report) bool { return strings.Contains(r.GetSnapshotError(), "missing.part") })
}

func TestAWorkerWithoutMemoryTakesNoSnapshots(t *testing.T) {
	r := agenttest.New(t)
	w := startWorker(t, r, nil, "sleep")
	join(r, 1, 1)
	w.file("pid0")
	s := w.speak(0)
	s.join()
	s.slot.Enter(1)
	s.slot.Done(1, 1)
	s.slot.Enter(2)
	d := world(1, 1, 1, 61000)
	r.Direct(barrier(d, 1, 1, false))
	r.Await("a stop after the step that was begun", stopsAt(2))
	r.Direct(barrier(d, 2, 2, false))
	s.slot.Done(2, 2)
	s.say(wire.Parked{Type: wire.TypeParked, Step: 2})
	r.Await("the parked process", parkedAt(2, 2))
	r.Direct(barrier(d, 2, 2, true))
	r.Await("the error", func(r *rendezvousv1.Report) bool { return strings.Contains(r.GetSnapshotError(), "no memory volume") })
}

func TestASnapshotThatNobodyHas(t *testing.T) {
	r := agenttest.New(t)
	r.Direct(&rendezvousv1.Directive{Term: 1, Standby: true})
	w := startWorker(t, r, []string{"CONCERTINA_MEMORY=" + t.TempDir()}, "sleep")
	w.file("pid0")
	w.speak(0).say(wire.Join{Type: wire.TypeJoin})
	content := []byte("state")
	d := second(r, 1, true)
	d.World.Snapshot = &rendezvousv1.Snapshot{Round: 1, Step: 3, Bytes: uint64(len(content)), Hash: make([]byte, 32)}
	d.World.Holders = admitted(r.Hellos()[0], d.World.Snapshot, damagedHolder(t, content))
	r.Direct(d)
	r.Await("that it left the world", func(r *rendezvousv1.Report) bool { return r.GetRound() == 2 && r.GetOut() })
	d = second(r, 1, true)
	d.Round, d.World.Snapshot = 3, &rendezvousv1.Snapshot{Round: 1, Step: 2, Bytes: 5, Hash: make([]byte, 32)}
	d.World.FromStep, d.World.Holders = 2, admitted(r.Hellos()[0], d.World.Snapshot, damagedHolder(t, content))
	r.Direct(d)
	if code := w.exit(); code != 137 || !strings.Contains(w.text(), "its snapshot is not to be had") {
		t.Errorf("exit code %d:\n%s", code, w.text())
	}
	fault := r.Last().GetProcesses()[0].GetFault().GetMessage()
	if !strings.Contains(fault, "round 2 cannot begin here") || !strings.Contains(fault, "have the hash") || !strings.Contains(fault, "round 3 cannot") {
		t.Errorf("the last report says %q of the end", fault)
	}
}

func TestRestartAsksForACheckpoint(t *testing.T) {
	r := agenttest.New(t)
	saved := t.TempDir()
	w := startWorker(t, r, []string{
		"CONCERTINA_STRATEGY=Restart", "CONCERTINA_CHECKPOINT_SIGNAL=SIGUSR2",
		"CONCERTINA_CHECKPOINT_COMPLETE=" + saved + "/**/.metadata",
		"CONCERTINA_CHECKPOINT_TIMEOUT=20", "AGENT_TEST_SAVE=" + saved,
	}, "checkpoints")
	join(r, 1, 1)
	w.file("ready")
	r.Direct(abort(world(1, 1, 1, 61000), true))
	report := r.Await("the end of the program", out(1))
	if p := report.GetProcesses()[0]; p.GetExit() != nil || p.GetWaiting() != rendezvousv1.Waiting_WAITING_UNSPECIFIED {
		t.Errorf("a program that was stopped for another world is reported as %v", p)
	}
	if text, err := os.ReadFile(filepath.Join(saved, "1", ".metadata")); err != nil || string(text) != "complete" {
		t.Errorf("the checkpoint holds %q, %v", text, err)
	}
	if !strings.Contains(w.text(), "the checkpoint is complete") {
		t.Error("the agent did not see that the checkpoint is complete")
	}
	r.Direct(world(1, 2, 1, 61000))
	r.Await("round 2", func(r *rendezvousv1.Report) bool { return r.GetRound() == 2 && !r.GetOut() && running(1)(r) })
}

func TestRestartHoldsAProgramThatFails(t *testing.T) {
	fault := waits(rendezvousv1.Waiting_WAITING_FAULT)
	t.Run("a peer was lost", func(t *testing.T) {
		r := agenttest.New(t)
		w := startWorker(t, r, []string{"CONCERTINA_STRATEGY=Restart", "AGENT_TEST_HOLD=1m"}, "fails-once")
		join(r, 1, 1)
		report := r.Await("the fault", fault)
		if p := report.GetProcesses()[0]; p.GetExit() != nil || p.GetFault().GetMessage() != "the program ended with exit code 4" {
			t.Errorf("reported %v", p)
		}
		r.Direct(abort(world(1, 1, 1, 61000), false))
		r.Await("the way out", out(1))
		r.Direct(world(1, 2, 1, 61000))
		if code := w.exit(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	})
	t.Run("its own fault", func(t *testing.T) {
		r := agenttest.New(t)
		w := startWorker(t, r, []string{"CONCERTINA_STRATEGY=Restart", "AGENT_TEST_HOLD=1m"}, "fails-once")
		join(r, 1, 1)
		r.Await("the fault", fault)
		r.Direct(change(abort(world(1, 1, 1, 61000), false), func(d *rendezvousv1.Directive) { d.Raise = true }))
		if code := w.exit(); code != 4 || !ended(4)(r.Last()) {
			t.Errorf("exit code %d, the last report is %v", code, r.Last())
		}
	})
	t.Run("nobody says anything", func(t *testing.T) {
		r := agenttest.New(t)
		w := startWorker(t, r, []string{"CONCERTINA_STRATEGY=Restart", "AGENT_TEST_HOLD=50ms"}, "fails-once")
		join(r, 1, 1)
		if code := w.exit(); code != 4 {
			t.Errorf("exit code %d", code)
		}
	})
}

// The strategy Restart leaves no snapshots and no barrier to a program; SIGTERM ends a worker that
// is out.
func TestRestartThatIsToldToGoWhileItIsOut(t *testing.T) {
	r := agenttest.New(t)
	w := startWorker(t, r, []string{"CONCERTINA_STRATEGY=Restart"}, "sleep")
	join(r, 1, 1)
	w.file("pid0")
	r.Direct(abort(world(1, 1, 1, 61000), false))
	r.Await("the way out", out(1))
	w.signal(syscall.SIGTERM)
	if code := w.exit(); code != 143 {
		t.Errorf("exit code %d, want 143", code)
	}
}

// part writes a part of a snapshot of step 3.
func (s *speaker) part(key string, content []byte) wire.Part {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.welcome.Snapshots, key+".part"), content, 0o600); err != nil {
		s.t.Fatal(err)
	}
	return wire.Part{Key: key, File: key + ".part", Bytes: uint64(len(content))}
}

// Two workers stand at a barrier, each writes a share of the state and what is its own, and a newcomer is given all of it.
func TestAWorldGrowsFromShares(t *testing.T) {
	const layout = ".2.0123456789abcdef"
	shares := [][]byte{bytes.Repeat([]byte("weights "), 200000), bytes.Repeat([]byte("moments "), 50000)}
	fresh := agenttest.New(t)
	var parts []*rendezvousv1.Snapshot
	var holders []*rendezvousv1.Holder
	for i, share := range shares {
		r := agenttest.New(t)
		_, s, _ := parkedAtThree(t, r, &rendezvousv1.Staging{Of: 2, Shares: []uint32{uint32(i)}})
		if save := hears[wire.Save](s); save.Step != 3 || save.Staging == nil || save.Staging.Of != 2 || save.Staging.Shares[0] != i {
			t.Fatalf("heard %+v", save)
		}
		written := []wire.Part{
			s.part(fmt.Sprint("r", i, layout), fmt.Append(nil, "of rank ", i)), s.part(fmt.Sprint("s", i, layout), share),
		}
		s.say(wire.Snapshot{Type: wire.TypeSnapshot, Step: 3, Parts: &written})
		held := r.Await("the parts", func(r *rendezvousv1.Report) bool { return len(r.GetSnapshots()) == 2 }).GetSnapshots()
		hello := r.Hellos()[0]
		if !hello.GetParts() {
			t.Error("the agent does not say that it knows parts")
		}
		holder := &rendezvousv1.Holder{
			Address: hello.GetAddress(), Port: hello.GetSnapshotPort(), Certificate: hello.GetSnapshotCertificate(), Parts: []uint32{uint32(i + 1)},
		}
		for _, part := range held {
			if part.GetPart() == "r0"+layout {
				parts, holder.Parts = append([]*rendezvousv1.Snapshot{part}, parts...), append(holder.Parts, 0)
			} else if part.GetPart() == fmt.Sprint("s", i, layout) {
				parts = append(parts, part)
			}
		}
		holders = append(holders, holder)
	}
	fresh.Direct(&rendezvousv1.Directive{Term: 1, Standby: true})
	newcomer := startWorker(t, fresh, []string{"CONCERTINA_MEMORY=" + t.TempDir()}, "environment-sleep")
	newcomer.variables(0)
	s := newcomer.speak(0)
	s.say(wire.Join{Type: wire.TypeJoin})
	fresh.Await("the standby", func(r *rendezvousv1.Report) bool {
		return r.GetStandby() && waits(rendezvousv1.Waiting_WAITING_JOIN)(r)
	})
	d := second(fresh, 1, true)
	d.World.Snapshot = &rendezvousv1.Snapshot{Round: 1, Step: 3, Bytes: 1, Hash: make([]byte, 32)}
	d.World.Parts, d.World.Holders = parts, admitted(fresh.Hellos()[0], d.World.GetSnapshot(), holders...)
	d.World.Staging = &rendezvousv1.Staging{Of: 2, Shares: []uint32{1}}
	fresh.Direct(d)
	got := hears[wire.World](s)
	if got.Staging == nil || got.Staging.Shares[0] != 1 || len(got.Shares) != 2 {
		t.Fatalf("the newcomer's world is %+v", got)
	}
	for i, want := range [][]byte{[]byte("of rank 0"), shares[0], shares[1]} {
		path := append([]string{got.Snapshot}, got.Shares...)[i]
		if text, err := os.ReadFile(path); err != nil || !bytes.Equal(text, want) {
			t.Errorf("file %d of the newcomer's snapshot has %d bytes, want %d (%v)", i, len(text), len(want), err)
		}
	}
}

// A program that knows no shares writes everything, where it would have the first of them.
func TestAProgramThatKnowsNoShares(t *testing.T) {
	r := agenttest.New(t)
	_, s, _ := parkedAtThree(t, r, &rendezvousv1.Staging{Of: 2, Shares: []uint32{0}}, older)
	if save := hears[wire.Save](s); save.Step != 3 || save.Staging != nil {
		t.Fatalf("heard %+v", save)
	}
	content := bytes.Repeat([]byte("weights "), 1000)
	s.save(3, content)
	if held := r.Await("the snapshot", holds(1, 3)).GetSnapshots(); len(held) != 1 || held[0].GetPart() != "" {
		t.Errorf("it holds %v", held)
	}
}
