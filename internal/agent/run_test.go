package agent_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/concertina-dev/concertina/internal/agent/agenttest"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// variables reads what the program found in its environment, as far as it is the agent's business.
func (w *worker) variables(localRank int) map[string]string {
	found := map[string]string{}
	for _, line := range w.file("environment" + strconv.Itoa(localRank)) {
		name, value, _ := strings.Cut(line, "=")
		for _, prefix := range []string{"RANK", "WORLD_SIZE", "LOCAL_", "GROUP_RANK", "MASTER_", "PET_", "JAX_", "TEMPLATE"} {
			if strings.HasPrefix(name, prefix) {
				found[name] = value
			}
		}
		switch name {
		case "CONCERTINA_JOB", "CONCERTINA_NAMESPACE", "CONCERTINA_ATTEMPT", "CONCERTINA_ROUND", "CONCERTINA_SOCKET":
			found[name] = value
		}
	}
	return found
}

func secondOfThree(processes uint32) *rendezvousv1.Directive {
	return &rendezvousv1.Directive{Term: 1, Round: 4, World: &rendezvousv1.World{
		MembersDigest: "abc", WorkerRank: 1, Workers: 3, ProcessesPerWorker: processes,
		MasterAddress: "10.0.0.7", MasterPort: 61234,
	}}
}

func TestEnvironmentPerProcess(t *testing.T) {
	r := agenttest.New(t)
	r.Direct(secondOfThree(2))
	w := startWorker(t, r, []string{"CONCERTINA_PROCESSES=2", "TEMPLATE=kept", "RANK=not kept", "LOCAL_RANK=9"}, "environment")
	if code := w.exit(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	common := map[string]string{
		"WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
		"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "61234",
		"JAX_COORDINATOR_ADDRESS": "10.0.0.7:61234", "JAX_NUM_PROCESSES": "6",
		"CONCERTINA_JOB": "digits", "CONCERTINA_NAMESPACE": "team", "CONCERTINA_ATTEMPT": "2",
		"CONCERTINA_ROUND": "4", "CONCERTINA_SOCKET": w.socket, "TEMPLATE": "kept",
	}
	for localRank := range 2 {
		want := maps.Clone(common)
		want["RANK"], want["JAX_PROCESS_ID"] = strconv.Itoa(2+localRank), strconv.Itoa(2+localRank)
		want["LOCAL_RANK"] = strconv.Itoa(localRank)
		if diff := cmp.Diff(want, w.variables(localRank)); diff != "" {
			t.Errorf("local rank %d (-want +got):\n%s", localRank, diff)
		}
	}
}

func TestEnvironmentPerWorker(t *testing.T) {
	r := agenttest.New(t)
	r.Direct(secondOfThree(2))
	w := startWorker(t, r, []string{"CONCERTINA_PROCESSES=2", "CONCERTINA_LAUNCH=PerWorker", "LOCAL_RANK=0"}, "environment")
	if code := w.exit(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	want := map[string]string{
		"PET_NNODES": "3", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "2",
		"PET_MASTER_ADDR": "10.0.0.7", "PET_MASTER_PORT": "61234",
		"PET_RDZV_BACKEND": "static", "PET_RDZV_ID": "team.digits.2.4",
		"JAX_COORDINATOR_ADDRESS": "10.0.0.7:61234", "JAX_NUM_PROCESSES": "3", "JAX_PROCESS_ID": "1",
		"CONCERTINA_JOB": "digits", "CONCERTINA_NAMESPACE": "team", "CONCERTINA_ATTEMPT": "2",
		"CONCERTINA_ROUND": "4", "CONCERTINA_SOCKET": w.socket, "LOCAL_RANK": "0",
	}
	if diff := cmp.Diff(want, w.variables(0)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	// The one program stands for both processes.
	last := r.Await("the end of both processes", ended(0, 0))
	if len(last.GetProcesses()) != 2 {
		t.Errorf("%d processes are reported, want 2", len(last.GetProcesses()))
	}
}

func TestExitCodes(t *testing.T) {
	for name, row := range map[string]struct {
		processes int
		arguments []string
		want      int
		reported  []int32
	}{
		"success":           {1, []string{"exit", "0"}, 0, []int32{0}},
		"failure":           {1, []string{"exit", "3"}, 3, []int32{3}},
		"the largest":       {1, []string{"exit", "255"}, 255, []int32{255}},
		"a signal":          {1, []string{"die"}, 137, []int32{137}},
		"both succeed":      {2, []string{"exit", "0", "0"}, 0, []int32{0, 0}},
		"no such command":   {2, []string{"exec", "no-such-command"}, 127, []int32{127, 127}},
		"not a program":     {1, []string{"exec", "/"}, 126, []int32{126}},
		"the others follow": {3, []string{"fail-first"}, 7, []int32{7, 143, 143}},
	} {
		t.Run(name, func(t *testing.T) {
			r := agenttest.New(t)
			r.Direct(world(1, 1, uint32(row.processes), 61000))
			w := startWorker(t, r, []string{"CONCERTINA_PROCESSES=" + strconv.Itoa(row.processes)}, row.arguments...)
			if code := w.exit(); code != row.want {
				t.Errorf("exit code %d, want %d", code, row.want)
			}
			if last := r.Last(); !ended(row.reported...)(last) {
				t.Errorf("the last report is %v, want the exit codes %v", last, row.reported)
			}
			if row.arguments[0] == "exec" && !strings.Contains(w.text(), strconv.Quote(row.arguments[1])) {
				t.Errorf("nobody says which command cannot be started:\n%s", w.text())
			}
		})
	}
}

func TestOutputIsUntouched(t *testing.T) {
	r := agenttest.New(t)
	r.Direct(world(1, 1, 1, 61000))
	w := startWorker(t, r, nil, "output")
	w.exit()
	var own []string
	for _, line := range strings.SplitAfter(w.text(), "\n") {
		if !strings.HasPrefix(line, "concertina-agent: ") {
			own = append(own, line)
		}
	}
	if got := strings.Join(own, ""); got != "to stdout, no newline\nto stderr\n" {
		t.Errorf("the program's output is %q", got)
	}
}

func TestTheAgentIntroducesItself(t *testing.T) {
	r := agenttest.New(t)
	startWorker(t, r, nil, "sleep")
	r.AwaitSessions(1)
	hello := r.Hellos()[0]
	port := hello.GetMasterPort()
	want := &rendezvousv1.Hello{
		Protocol: 2, Namespace: "team", Job: "digits", Attempt: 2, PodName: "digits-2-0", PodUid: "uid-0",
		Address: "127.0.0.1", MasterPort: port,
		SnapshotPort: hello.GetSnapshotPort(), SnapshotCertificate: hello.GetSnapshotCertificate(), Parts: true,
	}
	if hello.GetSnapshotPort() == 0 || len(hello.GetSnapshotCertificate()) != 32 {
		t.Error("nobody can find out whether the agent is there")
	}
	if diff := cmp.Diff(want, hello, protocmp.Transform()); diff != "" {
		t.Errorf("hello (-want +got):\n%s", diff)
	}
	if listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port)))); err == nil {
		_ = listener.Close()
		t.Errorf("the master port %d is not held", port)
	}
}

func TestAProgramThatKnowsNothingBindsTheMasterPort(t *testing.T) {
	r := agenttest.New(t)
	w := startWorker(t, r, nil, "serve")
	join(r, 1, 1)
	if code := w.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestAProgramWithTheSDK(t *testing.T) {
	r := agenttest.New(t)
	w := startWorker(t, r, nil, "elastic")
	join(r, 3, 1)
	if diff := cmp.Diff([]string{"rank 0 of 1 in round 3"}, w.file("ready")); diff != "" {
		t.Errorf("the program's world (-want +got):\n%s", diff)
	}
	// Steps are read from the gate, metrics come in a message that may be later.
	report := r.Await("step 3 and the metrics", func(report *rendezvousv1.Report) bool {
		return len(report.GetProcesses()) == 1 && report.GetProcesses()[0].GetEntered() == 3 &&
			len(report.GetProcesses()[0].GetMetrics()) > 0
	})
	if port := report.GetMasterPort(); port == 0 || port == r.Hellos()[0].GetMasterPort() {
		t.Errorf("port %d is kept for the next world, this one has %d", port, r.Hellos()[0].GetMasterPort())
	}
	want := &rendezvousv1.Report{
		Sequence: report.GetSequence(), MasterPort: report.GetMasterPort(), Term: 1, Round: 3, MembersDigest: "digest-3",
		PauseNanos: proto.Uint64(0),
		Processes: []*rendezvousv1.Process{{
			Phase: rendezvousv1.Phase_PHASE_STEP, Entered: 3, Done: 2, LastStep: 3, Samples: 8, Elastic: true,
			Metrics: []*rendezvousv1.Metric{{Name: "loss", Value: 1}},
		}},
	}
	if diff := cmp.Diff(want, report, protocmp.Transform()); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	w.signal(syscall.SIGUSR1)
	finish(r, world(1, 3, 1, 61000))
	if code := w.exit(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	last := r.Last().GetProcesses()[0]
	if last.GetDone() != 3 || last.GetPhase() != rendezvousv1.Phase_PHASE_FINISHED || last.GetSamples() != 10 ||
		last.GetMetrics()[0].GetValue() != 1.0/3 || last.GetExit() == nil {
		t.Errorf("the last report says %v", last)
	}
	if _, err := os.Stat(w.socket); err == nil {
		t.Error("the socket is still there")
	}
}

func TestAFaultReachesTheOperatorWithTheExit(t *testing.T) {
	r := agenttest.New(t)
	w := startWorker(t, r, nil, "fault")
	join(r, 1, 1)
	want := &rendezvousv1.Fault{Step: 1, Message: "the loss is not a number"}
	first := r.Await("the fault", waits(rendezvousv1.Waiting_WAITING_FAULT))
	if !first.GetOut() {
		t.Error("a worker with a fault is not out")
	}
	raise := world(1, 1, 1, 61000)
	raise.Raise = true
	r.Direct(raise)
	if code := w.exit(); code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
	if diff := cmp.Diff(want, first.GetProcesses()[0].GetFault(), protocmp.Transform()); diff != "" {
		t.Errorf("fault (-want +got):\n%s", diff)
	}
}

func TestAProgramThatDiesWithoutHello(t *testing.T) {
	r := agenttest.New(t)
	r.Direct(world(1, 1, 1, 61000))
	w := startWorker(t, r, nil, "die")
	w.exit()
	p := r.Last().GetProcesses()[0]
	if p.GetEntered() != 0 || p.GetPhase() != rendezvousv1.Phase_PHASE_UNSPECIFIED || p.GetFault() != nil || p.GetExit().GetCode() != 137 {
		t.Errorf("the last report says %v", p)
	}
}

func TestTwoProgramsClaimOneSlot(t *testing.T) {
	r := agenttest.New(t)
	w := startWorker(t, r, nil, "elastic")
	join(r, 1, 1)
	w.file("ready")
	conn, err := net.Dial("unix", w.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = conn.Write([]byte(`{"type":"hello","protocol":2,"localRank":0}` + "\n"))
	var answer struct{ Type, Message string }
	if err := json.NewDecoder(conn).Decode(&answer); err != nil || answer.Type != "error" {
		t.Errorf("the second program heard %+v, %v", answer, err)
	}
	w.signal(syscall.SIGUSR1)
	finish(r, world(1, 1, 1, 61000))
	if code := w.exit(); code != 0 {
		t.Errorf("exit code %d: the first program was disturbed", code)
	}
}

func TestGrandchildren(t *testing.T) {
	r := agenttest.New(t)
	r.Direct(world(1, 1, 1, 61000))
	w := startWorker(t, r, nil, "orphans")
	w.file("ready")
	short, err := strconv.Atoi(w.file("short")[0])
	if err != nil {
		t.Fatal(err)
	}
	// A zombie would still have its directory.
	eventually(t, "the orphan to be reaped", func() bool {
		_, err := os.Stat(filepath.Join("/proc", strconv.Itoa(short)))
		return err != nil
	})
	if !w.alive("long") || !w.alive("away") {
		t.Error("the agent ended grandchildren of a program that runs")
	}
	w.signal(syscall.SIGUSR1)
	if code := w.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if w.alive("long") || w.alive("away") {
		t.Error("grandchildren outlived the agent")
	}
}

// What the operator says of the device is for the programs of the first world alone.
func TestARestartInANewWorld(t *testing.T) {
	r := agenttest.New(t)
	w := startWorker(t, r, []string{"CONCERTINA_CHECK_DEVICE=1"}, "rounds")
	join(r, 1, 1)
	w.file("rounds")
	r.Direct(world(1, 2, 1, 61000))
	if code := w.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if diff := cmp.Diff([]string{"1 looks", "2"}, w.file("rounds")); diff != "" {
		t.Errorf("rounds (-want +got):\n%s", diff)
	}
	r.Await("round 2", func(report *rendezvousv1.Report) bool {
		return report.GetRound() == 2 && report.GetMembersDigest() == "digest-2"
	})
}

func TestAStubbornProgramIsKilledForTheNewWorld(t *testing.T) {
	r := agenttest.New(t)
	w := startWorker(t, r, []string{"AGENT_TEST_STOP_GRACE=50ms"}, "stubborn")
	join(r, 1, 1)
	first := w.file("pid0")[0]
	r.Direct(world(1, 2, 1, 61000))
	eventually(t, "another process", func() bool { return w.file("pid0")[0] != first })
	if pid, _ := strconv.Atoi(first); syscall.Kill(pid, 0) == nil {
		t.Error("the first process is still there")
	}
}

func TestLowerTermsAndRoundsAreRefused(t *testing.T) {
	r := agenttest.New(t)
	w := startWorker(t, r, nil, "sleep")
	r.AwaitSessions(1)
	r.Direct(world(5, 3, 1, 61000))
	pid := w.file("pid0")[0]
	for i, d := range []*rendezvousv1.Directive{world(4, 9, 1, 61000), world(5, 2, 1, 61000), {Term: 4, Released: true}} {
		sessions := len(r.Hellos())
		r.Direct(d)
		// It leaves whoever leads no more, and comes back.
		r.AwaitSessions(sessions + 2)
		if report := r.Last(); report.GetRound() != 3 || report.GetTerm() != 5 {
			t.Errorf("directive %d was obeyed: %v", i, report)
		}
	}
	r.Direct(world(6, 3, 1, 61000))
	r.Await("term 6", func(report *rendezvousv1.Report) bool { return report.GetTerm() == 6 && report.GetRound() == 3 })
	if got := w.file("pid0")[0]; got != pid {
		t.Errorf("the program was started anew: %s, before %s", got, pid)
	}
}

// Promise 8: training outlives the operator.
func TestTheOperatorIsAwayAndComesBack(t *testing.T) {
	r := agenttest.New(t)
	w := startWorker(t, r, nil, "elastic")
	join(r, 1, 1)
	w.file("ready")
	r.Leave()
	r.Forget()
	r.Direct(&rendezvousv1.Directive{Term: 2})
	r.Return()
	// The new leader learns from the report which world there is, and adopts it.
	report := r.Await("the old world", func(report *rendezvousv1.Report) bool {
		return running(1)(report) && report.GetProcesses()[0].GetEntered() == 3
	})
	if report.GetRound() != 1 || report.GetMembersDigest() != "digest-1" {
		t.Errorf("the new leader hears %v", report)
	}
	r.Direct(world(2, 1, 1, 61000))
	r.Await("the new term", func(report *rendezvousv1.Report) bool { return report.GetTerm() == 2 })
	w.signal(syscall.SIGUSR1)
	finish(r, world(2, 1, 1, 61000))
	if code := w.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// A program without an SDK needs nobody's word to end; one with an SDK waits, because it may be needed
// again until everybody has finished.
func TestTheProgramEndsWhileTheOperatorIsAway(t *testing.T) {
	r := agenttest.New(t)
	w := startWorker(t, r, nil, "orphans")
	join(r, 1, 1)
	w.file("ready")
	r.Leave()
	w.signal(syscall.SIGUSR1)
	if code := w.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestTheProgramFinishesWhileTheOperatorIsAway(t *testing.T) {
	r := agenttest.New(t)
	w := startWorker(t, r, nil, "elastic")
	join(r, 1, 1)
	w.file("ready")
	r.Leave()
	r.Forget()
	w.signal(syscall.SIGUSR1)
	r.Direct(&rendezvousv1.Directive{Term: 2})
	r.Return()
	finish(r, world(2, 1, 1, 61000))
	if code := w.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestProblemsThatTheAgentNames(t *testing.T) {
	r := agenttest.New(t)
	for name, row := range map[string]struct{ variable, want string }{
		"no job":         {"CONCERTINA_JOB=", "CONCERTINA_JOB is not set"},
		"bad launch":     {"CONCERTINA_LAUNCH=Both", `CONCERTINA_LAUNCH is "Both"`},
		"too many":       {"CONCERTINA_PROCESSES=65", "a number from 1 to 64"},
		"no address":     {"CONCERTINA_POD_IP=host", "an IP address"},
		"no attempt":     {"CONCERTINA_ATTEMPT=0", "CONCERTINA_ATTEMPT"},
		"bad strategy":   {"CONCERTINA_STRATEGY=Anyhow", "InPlace or Restart"},
		"bad interval":   {"CONCERTINA_SNAPSHOT_INTERVAL=-1", "auto or a number of seconds"},
		"bad signal":     {"CONCERTINA_CHECKPOINT_SIGNAL=USR2", "the name of a signal"},
		"bad timeout":    {"CONCERTINA_CHECKPOINT_TIMEOUT=0", "CONCERTINA_CHECKPOINT_TIMEOUT"},
		"no memory":      {"CONCERTINA_MEMORY=/proc/no", "make the folder"},
		"bad grace":      {"CONCERTINA_GRACE_SECONDS=soon", "CONCERTINA_GRACE_SECONDS"},
		"no port":        {"CONCERTINA_RENDEZVOUS=operator", "form host:port"},
		"no token":       {"TEST_TOKEN=/no/such/file", "service account token"},
		"no CA":          {"TEST_CA=/no/such/file", "operator's CA"},
		"a bad socket":   {"CONCERTINA_SOCKET=/proc/no/agent.sock", "socket for the training program"},
		"too long a one": {"CONCERTINA_SOCKET=/" + strings.Repeat("x", 200), "longer than 107 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			w := startWorker(t, r, []string{row.variable}, "exit", "0")
			if code := w.exit(); code != 125 || !strings.Contains(w.text(), row.want) {
				t.Errorf("exit code %d, want 125 and %q:\n%s", code, row.want, w.text())
			}
		})
	}
}

func TestTroubleWithTheOperatorIsNamed(t *testing.T) {
	r := agenttest.New(t)
	r.Fail(codes.PermissionDenied)
	w := startWorker(t, r, nil, "exit", "0")
	eventually(t, "a message", func() bool { return strings.Contains(w.text(), "this pod is not a worker of that job") })
	r.Direct(world(1, 1, 1, 61000))
	r.Fail(0)
	if code := w.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if n := strings.Count(w.text(), "no session with the operator"); n != 1 {
		t.Errorf("the same trouble was mentioned %d times", n)
	}
}

func TestReportsStaySmall(t *testing.T) {
	r := agenttest.New(t)
	w := startWorker(t, r, []string{"CONCERTINA_PROCESSES=64"}, "sleep")
	join(r, 1, 64)
	for i := range 64 {
		w.file("pid" + strconv.Itoa(i))
	}
	var metrics []string
	for i := range 8 {
		metrics = append(metrics, fmt.Sprintf(`"%s%d":1.5`, strings.Repeat("m", 31), i))
	}
	for i := range 64 {
		conn, err := net.Dial("unix", w.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		fmt.Fprintf(conn, `{"type":"hello","protocol":2,"localRank":%d}`+"\n", i)
		fmt.Fprintf(conn, `{"type":"progress","metrics":{%s}}`+"\n", strings.Join(metrics, ","))
		fmt.Fprintf(conn, `{"type":"fault","step":1,"message":"%s"}`+"\n", strings.Repeat("x", 20000))
	}
	report := r.Await("every fault", func(report *rendezvousv1.Report) bool {
		return len(report.GetProcesses()) == 64 && !slices.ContainsFunc(report.GetProcesses(), func(p *rendezvousv1.Process) bool {
			return p.GetFault() == nil
		})
	})
	if size := proto.Size(report); size > 64<<10 {
		t.Errorf("a report of %d bytes: the operator takes 64 KiB", size)
	}
	whole := 0
	for _, p := range report.GetProcesses() {
		if len(p.GetFault().GetMessage()) == 16<<10 {
			whole++
		}
	}
	if whole != 1 {
		t.Errorf("%d faults came whole, want the first alone", whole)
	}
}
