package rendezvous

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous/server"

	"github.com/concertina-dev/concertina/internal/agent"
)

// program notes that it was started, with its environment, and trains until it is told to end.
const program = `env > "$NOTES/env-$RANK" && echo "rank $RANK" >> "$NOTES/started" && read -r code < "$NOTES/end-$RANK" && exit "$code"`

// TestAgentsOutliveTheirLeaders has the agents that workers really run meet leaders that are killed:
// before a world is published, and while it trains.
func TestAgentsOutliveTheirLeaders(t *testing.T) {
	team := newTeam(t, 2)
	socket, address := listen(t)
	notes := t.TempDir()
	binary := buildAgent(t)
	var workers []*worker
	for i := range team.pods {
		workers = append(workers, startWorker(t, team, i, binary, address, notes))
	}
	for range 3 {
		startLeader(t, team.key.Namespace, socket, killDurable).awaitKill(t)
	}
	first := startLeader(t, team.key.Namespace, socket, killNever)
	started := func() string {
		text, _ := os.ReadFile(filepath.Join(notes, "started"))
		return string(text)
	}
	eventually(t, "both programs have started", func() bool { return strings.Count(started(), "\n") == 2 })
	for rank := range workers {
		environment, err := os.ReadFile(filepath.Join(notes, fmt.Sprintf("env-%d", rank)))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "CONCERTINA_ROUND=4"} {
			if !bytes.Contains(environment, []byte("\n"+want+"\n")) {
				t.Errorf("the program of rank %d has no %s", rank, want)
			}
		}
	}
	if err := first.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	first.awaitKill(t)

	// The next leader is in this process: it shows what it sees.
	server := team.leadOn(t, socket)
	server.Expect(team.key, team.gang(durable(t.Context(), t, team.key)))
	eventually(t, "the world is adopted", func() bool {
		seen := server.Observe(team.key)
		for _, member := range seen.Members {
			if !member.InWorld {
				return false
			}
		}
		return seen.Round == 4 && !seen.Adopting
	})
	if got := started(); strings.Count(got, "\n") != 2 {
		t.Errorf("programs were started again:\n%s", got)
	}
	for rank, code := range []string{"0", "3"} {
		fifo, err := os.OpenFile(filepath.Join(notes, fmt.Sprintf("end-%d", rank)), os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fifo.WriteString(code + "\n"); err != nil {
			t.Fatal(err)
		}
		_ = fifo.Close()
	}
	eventually(t, "both exits are known", func() bool {
		codes := map[int32]int32{}
		for _, member := range server.Observe(team.key).Members {
			if member.Exited {
				codes[member.WorkerRank] = member.ExitCode
			}
		}
		return len(codes) == 2 && codes[0] == 0 && codes[1] == 3
	})
	for _, w := range workers {
		select {
		case <-w.ended:
		case <-time.After(patience):
			t.Errorf("worker %s does not end:\n%s", w.name, w.output.String())
		}
	}
	if found := durable(t.Context(), t, team.key); found.Round != 4 || found.Term != 5 {
		t.Errorf("the record is at %+v", found)
	}
}

// built is the folder of the agent's program, which is built for the first test that starts it.
var built = struct {
	sync.Once
	folder string
	err    error
}{}

// buildAgent builds the agent's program and returns its path.
func buildAgent(t *testing.T) string {
	t.Helper()
	built.Do(func() {
		if built.folder, built.err = os.MkdirTemp("", "agent"); built.err != nil {
			return
		}
		if out, err := exec.Command("go", "build", "-o", built.folder, root+"/cmd/agent").CombinedOutput(); err != nil {
			built.err = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatalf("build the agent: %v", built.err)
	}
	return filepath.Join(built.folder, "agent")
}

// worker is an agent's process.
type worker struct {
	name   string
	output bytes.Buffer
	ended  chan struct{}
}

func startWorker(t *testing.T, team *team, number int, binary, address, notes string) *worker {
	t.Helper()
	if err := syscall.Mkfifo(filepath.Join(notes, fmt.Sprintf("end-%d", number)), 0o600); err != nil {
		t.Fatal(err)
	}
	return startAgent(t, team, number, binary, address, map[string]string{"NOTES": notes}, "/bin/sh", "-c", program)
}

// startAgent starts the agent of a pod with a program. Extra variables replace those that it is given otherwise.
func startAgent(t *testing.T, team *team, number int, binary, address string, extra map[string]string, command ...string) *worker {
	t.Helper()
	pod := team.pods[number]
	directory := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(directory, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	_, port, _ := strings.Cut(address, ":")
	w := &worker{name: pod.Name, ended: make(chan struct{})}
	arguments := []string{
		"run", "--token-file", write("token", team.tokens[pod.Name]),
		"--ca-file", write("ca.crt", string(team.authority(t.Context(), t).Bundle())), "--", "timeout", "120",
	}
	cmd := exec.Command(binary, append(arguments, command...)...)
	cmd.Stdout, cmd.Stderr = &w.output, &w.output
	cmd.Env = os.Environ()
	variables := map[string]string{
		agent.EnvNamespace: team.key.Namespace, agent.EnvJob: team.key.Name, agent.EnvAttempt: "1",
		agent.EnvPodName: pod.Name, agent.EnvPodUID: string(pod.UID), agent.EnvPodIP: "127.0.0.1",
		agent.EnvLaunch: string(agent.LaunchPerProcess), agent.EnvProcesses: "1",
		agent.EnvRendezvous: "localhost:" + port,
		agent.EnvSocket:     filepath.Join(directory, "agent.sock"),
	}
	maps.Copy(variables, extra)
	for name, value := range variables {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait()
		close(w.ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-w.ended
		if t.Failed() {
			t.Logf("worker %s:\n%s", w.name, w.output.String())
		}
	})
	return w
}

// leadOn starts a leader in this process on a socket that others have served on.
func (team *team) leadOn(t *testing.T, socket *os.File) *server.Server {
	t.Helper()
	listener, err := net.FileListener(socket)
	if err != nil {
		t.Fatal(err)
	}
	return team.serve(t, listener, recorder())
}
