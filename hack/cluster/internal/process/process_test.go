package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParseStat(t *testing.T) {
	rest := " S 1 2 2 0 -1 4194560 1 0 0 0 7 8 0 0 20 0 11 0 %s 22 33"
	tests := map[string]struct {
		line  string
		start uint64
		fails bool
	}{
		"plain":                   {line: "12 (etcd)" + strings.Replace(rest, "%s", "1234", 1), start: 1234},
		"brackets in the name":    {line: "12 (a) S 1 (b)" + strings.Replace(rest, "%s", "77", 1), start: 77},
		"no name":                 {line: "12 etcd S 1", fails: true},
		"cut short":               {line: "12 (etcd) S 1 2 3", fails: true},
		"start time not a number": {line: "12 (etcd)" + strings.Replace(rest, "%s", "x", 1), fails: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			state, start, err := parseStat(tc.line)
			if (err != nil) != tc.fails {
				t.Fatalf("parseStat: %v, want failure %t", err, tc.fails)
			}
			if err == nil && (start != tc.start || state != 'S') {
				t.Errorf("parseStat = %c, %d, want S, %d", state, start, tc.start)
			}
		})
	}
}

func startSleeper(t *testing.T, name, node string, args ...string) ID {
	t.Helper()
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "log")
	id, err := Start(Spec{Name: name, Node: node, Path: shell, Args: args, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = Kill([]ID{id}) })
	return id
}

func TestAReusedPidIsLeftAlone(t *testing.T) {
	id := startSleeper(t, "bystander", "", "-c", "read x < /dev/null; sleep 100")
	for name, other := range map[string]ID{
		"other start": {PID: id.PID, Start: id.Start - 1, Boot: id.Boot},
		"other boot":  {PID: id.PID, Start: id.Start, Boot: "another"},
	} {
		if other.Running() {
			t.Errorf("%s: taken for the process that runs", name)
		}
		if err := other.Stop(0); err != nil {
			t.Errorf("%s: Stop: %v", name, err)
		}
		if err := Kill([]ID{other}); err != nil {
			t.Errorf("%s: Kill: %v", name, err)
		}
	}
	if !id.Running() {
		t.Error("a process with the same pid and another start was killed")
	}
}

func TestStop(t *testing.T) {
	tests := map[string]struct {
		script string
		grace  time.Duration
	}{
		"ends when asked":            {script: "sleep 100", grace: time.Minute},
		"killed when it will not":    {script: "trap '' TERM; while :; do sleep 1; done", grace: 50 * time.Millisecond},
		"killed at once without ado": {script: "sleep 100"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			id := startSleeper(t, "stoppable", "", "-c", tc.script)
			if !id.Running() {
				t.Fatal("not running after Start")
			}
			if err := id.Stop(tc.grace); err != nil {
				t.Fatal(err)
			}
			if id.Running() {
				t.Error("still running after Stop")
			}
			if err := id.Stop(tc.grace); err != nil {
				t.Errorf("second Stop: %v", err)
			}
		})
	}
}

func TestSignal(t *testing.T) {
	id := startSleeper(t, "signalled", "", "-c", "sleep 100")
	if err := id.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for id.Running() {
		if time.Now().After(deadline) {
			t.Fatal("still running after SIGKILL")
		}
	}
	if err := id.Signal(unix.SIGSTOP); err != nil {
		t.Errorf("Signal to a process that is gone: %v", err)
	}
}

func TestMarkedFindsProcessesAndTheirChildren(t *testing.T) {
	name := "probe-" + filepath.Base(t.TempDir())
	id := startSleeper(t, name, "node-7", "-c", "sh -c 'sleep 100; :'; :")
	var mine []Mark
	deadline := time.Now().Add(10 * time.Second)
	for len(mine) < 2 && time.Now().Before(deadline) {
		mine = nil
		all, err := Marked()
		if err != nil {
			t.Fatal(err)
		}
		for _, mark := range all {
			if mark.Component == name {
				mine = append(mine, mark)
			}
		}
	}
	t.Cleanup(func() {
		for _, mark := range mine {
			_ = Kill([]ID{mark.ID})
		}
	})
	if len(mine) < 2 {
		t.Fatalf("found %v, want the process %d and its child", mine, id.PID)
	}
	for _, mark := range mine {
		if mark.Node != "node-7" {
			t.Errorf("process %d is marked with node %q, want node-7", mark.ID.PID, mark.Node)
		}
	}
}

func TestStartTellsWhyAProcessCannotRun(t *testing.T) {
	_, err := Start(Spec{Name: "nothing", Path: "/no/such/program", Log: filepath.Join(t.TempDir(), "log")})
	if err == nil || !strings.Contains(err.Error(), "nothing") {
		t.Errorf("Start = %v, want an error that names the component", err)
	}
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("a\nb\nc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := Tail(path, 2); got != "b\nc" {
		t.Errorf("Tail = %q, want the last two lines", got)
	}
}
