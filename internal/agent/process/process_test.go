package process

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of these tests.
const patience = 20 * time.Second

func newReaper(t *testing.T) *Reaper {
	t.Helper()
	r, err := NewReaper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if left := r.KillAll(patience); left > 0 {
			t.Errorf("%d processes are left", left)
		}
		r.Close()
	})
	return r
}

func start(t *testing.T, r *Reaper, command ...string) (*Program, <-chan int) {
	t.Helper()
	ended := make(chan int, 1)
	program, err := r.Start(command, os.Environ(), func(code int) { ended <- code })
	if err != nil {
		t.Fatal(err)
	}
	return program, ended
}

func wait(t *testing.T, ended <-chan int) int {
	t.Helper()
	select {
	case code := <-ended:
		return code
	case <-time.After(patience):
		t.Fatal("the program did not end")
		return 0
	}
}

// waitFor waits for a file that a program makes, and returns what it holds.
func waitFor(t *testing.T, path string) string {
	t.Helper()
	content := ""
	eventually(t, "a file "+path, func() bool {
		text, err := os.ReadFile(path)
		content = strings.TrimSpace(string(text))
		return err == nil && content != ""
	})
	return content
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(patience)
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

func TestExitCodes(t *testing.T) {
	r := newReaper(t)
	for script, want := range map[string]int{
		"exit 0":         0,
		"exit 42":        42,
		"kill -KILL $$":  137,
		"kill -TERM $$":  143,
		"exec sleep 0.0": 0,
	} {
		if _, ended := start(t, r, "sh", "-c", script); wait(t, ended) != want {
			t.Errorf("%q did not end with %d", script, want)
		}
	}
}

func TestProgramsThatCannotBeStarted(t *testing.T) {
	r := newReaper(t)
	directory := t.TempDir()
	plain := filepath.Join(directory, "plain")
	broken := filepath.Join(directory, "broken")
	orphan := filepath.Join(directory, "script")
	for path, file := range map[string]struct {
		content string
		mode    os.FileMode
	}{
		plain:  {"#!/bin/sh\n", 0o644},
		broken: {"not a program", 0o755},
		orphan: {"#!/no/such/interpreter\n", 0o755},
	} {
		if err := os.WriteFile(path, []byte(file.content), file.mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, row := range map[string]struct {
		command string
		code    int
	}{
		"not in PATH":        {"no-such-program", 127},
		"no such file":       {"/no/such/program", 127},
		"no interpreter":     {orphan, 127},
		"not executable":     {plain, 126},
		"not a program":      {broken, 126},
		"a directory":        {directory, 126},
		"through a file":     {plain + "/x", 126},
		"an empty directory": {directory + "/", 126},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := r.Start([]string{row.command}, nil, func(int) { t.Error("it has ended") })
			failed := new(StartError)
			if !errors.As(err, &failed) || failed.Code != row.code {
				t.Fatalf("got %v, want exit code %d", err, row.code)
			}
			if !strings.Contains(err.Error(), strconv.Quote(row.command)) {
				t.Errorf("the error does not name the command: %v", err)
			}
		})
	}
}

func TestEnvironmentAndProcessGroup(t *testing.T) {
	r := newReaper(t)
	out := filepath.Join(t.TempDir(), "out")
	ended := make(chan int, 1)
	_, err := r.Start([]string{"sh", "-c", `echo "$RANK $(ps -o pgid= -p $$) $$" > ` + out},
		[]string{"RANK=7", "PATH=" + os.Getenv("PATH")}, func(code int) { ended <- code })
	if err != nil {
		t.Fatal(err)
	}
	wait(t, ended)
	fields := strings.Fields(waitFor(t, out))
	if len(fields) != 3 || fields[0] != "7" || fields[1] != fields[2] {
		t.Errorf("the program saw %q: want rank 7, and itself at the head of its group", fields)
	}
}

func TestSignalReachesTheProgramAlone(t *testing.T) {
	r := newReaper(t)
	directory := t.TempDir()
	ready, child := filepath.Join(directory, "ready"), filepath.Join(directory, "child")
	program, ended := start(t, r, "sh", "-c", `
		trap 'exit 9' TERM
		(trap 'echo got > `+child+`; exit' TERM; echo up > `+ready+`; while :; do sleep 0.01; done) &
		while :; do sleep 0.01; done`)
	waitFor(t, ready)
	program.Signal(syscall.SIGTERM)
	if code := wait(t, ended); code != 9 {
		t.Errorf("exit code %d, want 9", code)
	}
	if _, err := os.Stat(child); err == nil {
		t.Error("the program's child got the signal too")
	}
	program.Signal(syscall.SIGTERM)
	(*Program)(nil).Signal(syscall.SIGTERM)
}

func TestKillAllReachesWhoLeftTheGroup(t *testing.T) {
	r := newReaper(t)
	pidFile := filepath.Join(t.TempDir(), "pid")
	_, ended := start(t, r, "sh", "-c", `setsid sh -c 'echo $$ > `+pidFile+`; exec sleep 1000' & exit 3`)
	if code := wait(t, ended); code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
	pid, err := strconv.Atoi(waitFor(t, pidFile))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the orphan to become a child", func() bool {
		return slices.Contains(Descendants(os.Getpid()), pid) && IsDescendant(pid, os.Getpid())
	})
	if left := r.KillAll(patience); left != 0 {
		t.Errorf("%d processes are left", left)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the orphan is still there: %v", err)
	}
}

func TestOrphansAreReaped(t *testing.T) {
	r := newReaper(t)
	pids := filepath.Join(t.TempDir(), "pids")
	// Grandchildren that outlive their parent, and end by themselves.
	_, ended := start(t, r, "sh", "-c", `for i in 1 2 3 4 5; do (sh -c 'echo $$ >> `+pids+`; sleep 0.05' &); done; sleep 0.2`)
	wait(t, ended)
	eventually(t, "no child to be left", func() bool { return len(Descendants(os.Getpid())) == 0 })
	if n := len(strings.Fields(waitFor(t, pids))); n != 5 {
		t.Fatalf("%d grandchildren were started, want 5", n)
	}
}

func TestManyProgramsAtOnce(t *testing.T) {
	r := newReaper(t)
	var all []<-chan int
	for i := range 40 {
		_, ended := start(t, r, "sh", "-c", "exit "+strconv.Itoa(i))
		all = append(all, ended)
	}
	for i, ended := range all {
		if code := wait(t, ended); code != i {
			t.Errorf("program %d ended with %d", i, code)
		}
	}
}

func TestStartedProgramsInheritNoFiles(t *testing.T) {
	r := newReaper(t)
	fd, err := unix.MemfdCreate("secret", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	out := filepath.Join(t.TempDir(), "out")
	_, ended := start(t, r, "sh", "-c", "ls -l /proc/$$/fd > "+out+"; exit 0")
	wait(t, ended)
	if text := waitFor(t, out); strings.Contains(text, "secret") || strings.Contains(text, "socket") {
		t.Errorf("the program has files of the agent:\n%s", text)
	}
}

func TestDescent(t *testing.T) {
	r := newReaper(t)
	pidFile := filepath.Join(t.TempDir(), "pid")
	start(t, r, "sh", "-c", "sh -c 'echo $$ > "+pidFile+"; exec sleep 1000'; :")
	grandchild, err := strconv.Atoi(waitFor(t, pidFile))
	if err != nil {
		t.Fatal(err)
	}
	if !IsDescendant(grandchild, os.Getpid()) || !slices.Contains(Descendants(os.Getpid()), grandchild) {
		t.Error("a grandchild is no descendant")
	}
	if IsDescendant(os.Getpid(), grandchild) || IsDescendant(1<<22+1, os.Getpid()) || IsDescendant(os.Getpid(), os.Getpid()) {
		t.Error("a process that was not started by another descends from it")
	}
}
