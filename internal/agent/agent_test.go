package agent_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/concertina-dev/concertina/internal/agent"
	"github.com/concertina-dev/concertina/internal/agent/agenttest"
	"github.com/concertina-dev/concertina/internal/agent/process"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// The test binary is also the agent, and the programs that the agent runs: a process is the first
// only when it finds roleVariable.
const (
	roleVariable = "AGENT_TEST_ROLE"
	roleAgent    = "agent"
	// outOfReachVariable shortens the agent's wait for an operator that is away.
	outOfReachVariable = "AGENT_TEST_OUT_OF_REACH"
	// exitLeak is the exit code of an agent that left goroutines behind.
	exitLeak = 99
)

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleVariable); {
	case role == roleAgent:
		os.Exit(beAgent())
	case role != "":
		os.Exit(beProgram(role))
	}
	goleak.VerifyTestMain(m)
}

// beAgent is cmd/agent with shorter waits. Its program is the test binary in the role of the first
// argument, or a command when the first argument is "exec".
func beAgent() int {
	command := os.Args[1:]
	if command[0] == "exec" {
		command = command[1:]
	} else {
		_ = os.Setenv(roleVariable, command[0])
		command = append([]string{os.Args[0]}, command[1:]...)
	}
	config, err := agent.ConfigFromEnvironment(os.Getenv, os.Getenv("TEST_TOKEN"), os.Getenv("TEST_CA"), command)
	if err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		return agent.ExitAgentFailed
	}
	config.Session.Heartbeat = 50 * time.Millisecond
	config.LastReport = 500 * time.Millisecond
	if text := os.Getenv(outOfReachVariable); text != "" {
		config.Limits.OutOfReach, err = time.ParseDuration(text)
	}
	if text := os.Getenv("AGENT_TEST_STOP_GRACE"); text != "" && err == nil {
		config.Limits.StopGrace, err = time.ParseDuration(text)
	}
	if text := os.Getenv("AGENT_TEST_ANSWER"); text != "" && err == nil {
		config.Limits.Answer, err = time.ParseDuration(text)
	}
	if text := os.Getenv("AGENT_TEST_HOLD"); text != "" && err == nil {
		config.Limits.Hold, err = time.ParseDuration(text)
	}
	if text := os.Getenv("AGENT_TEST_SUPPLY"); text != "" && err == nil {
		config.Limits.Supply, err = time.ParseDuration(text)
	}
	if err != nil {
		return agent.ExitAgentFailed
	}
	code, err := agent.Run(context.Background(), config, os.Stderr)
	if err != nil {
		_, _ = os.Stderr.WriteString("concertina-agent: " + err.Error() + "\n")
	}
	// os/signal keeps a goroutine for ever.
	if err := goleak.Find(goleak.IgnoreTopFunction("os/signal.signal_recv"), goleak.IgnoreTopFunction("os/signal.loop")); err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		return exitLeak
	}
	return code
}

// worker is an agent that runs as a process of its own.
type worker struct {
	t         *testing.T
	command   *exec.Cmd
	directory string
	socket    string

	mu     sync.Mutex
	output bytes.Buffer
	ended  chan struct{}
}

// Write collects what agent and program write, on either stream.
func (w *worker) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.output.Write(p)
}

func (w *worker) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.output.String()
}

// startWorker starts an agent whose program is the test binary in the given role. Extra variables
// replace those that the operator would set.
func startWorker(t *testing.T, r *agenttest.Rendezvous, extra []string, arguments ...string) *worker {
	t.Helper()
	w := &worker{t: t, directory: t.TempDir(), ended: make(chan struct{})}
	w.socket = filepath.Join(w.directory, "run", "agent.sock")
	w.command = exec.Command(os.Args[0], arguments...)
	w.command.Env = append(os.Environ(),
		// Programs under the race detector wait a second before they end, unless told not to.
		"GORACE=atexit_sleep_ms=0",
		roleVariable+"="+roleAgent, "TEST_TOKEN="+r.TokenFile, "TEST_CA="+r.CAFile, "TEST_DIRECTORY="+w.directory,
		"CONCERTINA_NAMESPACE=team", "CONCERTINA_JOB=digits", "CONCERTINA_ATTEMPT=2",
		"CONCERTINA_POD_NAME=digits-2-0", "CONCERTINA_POD_UID=uid-0", "CONCERTINA_POD_IP=127.0.0.1",
		"CONCERTINA_LAUNCH=PerProcess", "CONCERTINA_PROCESSES=1",
		"CONCERTINA_RENDEZVOUS="+r.Address, "CONCERTINA_SOCKET="+w.socket)
	w.command.Env = append(w.command.Env, extra...)
	w.command.Stdout, w.command.Stderr = w, w
	if err := w.command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = w.command.Wait()
		close(w.ended)
	}()
	t.Cleanup(func() {
		// Without their agent they would be nobody's.
		left := process.Descendants(w.command.Process.Pid)
		_ = w.command.Process.Kill()
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		<-w.ended
		if t.Failed() {
			t.Logf("output of the worker:\n%s", w.text())
		}
	})
	return w
}

// exit waits for the agent's end and returns its exit code.
func (w *worker) exit() int {
	w.t.Helper()
	select {
	case <-w.ended:
		return w.command.ProcessState.ExitCode()
	case <-time.After(agenttest.Patience):
		w.t.Fatal("the agent did not end")
		return 0
	}
}

func (w *worker) signal(sig syscall.Signal) {
	w.t.Helper()
	if err := w.command.Process.Signal(sig); err != nil {
		w.t.Fatal(err)
	}
}

// file waits until the program has written a file of this name, and returns its lines.
func (w *worker) file(name string) []string {
	w.t.Helper()
	var content string
	eventually(w.t, "the program to write "+name, func() bool {
		text, err := os.ReadFile(filepath.Join(w.directory, name))
		content = string(text)
		return err == nil && strings.HasSuffix(content, "\n")
	})
	return strings.Split(strings.TrimSuffix(content, "\n"), "\n")
}

// absent fails when the program has written a file of this name.
func (w *worker) absent(name string) {
	w.t.Helper()
	if _, err := os.Stat(filepath.Join(w.directory, name)); !errors.Is(err, os.ErrNotExist) {
		w.t.Errorf("the program has written %s (%v)", name, err)
	}
}

// alive is true while the process whose pid is in the file runs.
func (w *worker) alive(name string) bool {
	w.t.Helper()
	pid, err := strconv.Atoi(w.file(name)[0])
	if err != nil {
		w.t.Fatal(err)
	}
	return syscall.Kill(pid, 0) == nil
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(agenttest.Patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("waited for %s", what)
		case <-tick.C:
		}
	}
}

// world is a directive of one worker with so many processes.
func world(term, round uint64, processes, masterPort uint32) *rendezvousv1.Directive {
	return &rendezvousv1.Directive{Term: term, Round: round, World: &rendezvousv1.World{
		MembersDigest: "digest-" + strconv.FormatUint(round, 10), WorkerRank: 0, Workers: 1,
		ProcessesPerWorker: processes, MasterAddress: "127.0.0.1", MasterPort: masterPort,
	}}
}

// join lets the agent say hello and puts it into a world of its own, at the port that it offers.
func join(r *agenttest.Rendezvous, round uint64, processes uint32) {
	r.AwaitSessions(1)
	r.Direct(world(1, round, processes, r.Hellos()[0].GetMasterPort()))
}

// finish waits until every process has finished, and lets them end.
func finish(r *agenttest.Rendezvous, d *rendezvousv1.Directive) {
	r.Await("the end of training", waits(rendezvousv1.Waiting_WAITING_FINISHED))
	d.Finish = true
	r.Direct(d)
}

// waits is a report in which every process waits for the same.
func waits(what rendezvousv1.Waiting) func(*rendezvousv1.Report) bool {
	return func(report *rendezvousv1.Report) bool {
		return len(report.GetProcesses()) > 0 && !slices.ContainsFunc(report.GetProcesses(), func(p *rendezvousv1.Process) bool {
			return p.GetWaiting() != what
		})
	}
}

func running(n int) func(*rendezvousv1.Report) bool {
	return func(report *rendezvousv1.Report) bool {
		return len(report.GetProcesses()) == n && !slices.ContainsFunc(report.GetProcesses(), func(p *rendezvousv1.Process) bool {
			return p.GetExit() != nil
		})
	}
}

// ended is a report in which every process has ended, with these codes.
func ended(codes ...int32) func(*rendezvousv1.Report) bool {
	return func(report *rendezvousv1.Report) bool {
		var got []int32
		for _, p := range report.GetProcesses() {
			if p.GetExit() != nil {
				got = append(got, p.GetExit().GetCode())
			}
		}
		return slices.Equal(got, codes)
	}
}
