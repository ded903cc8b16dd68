package main

import (
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// build makes the binary as the images do.
func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent")
	command := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, ".")
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("build the agent: %v\n%s", err, out)
	}
	return path
}

func TestBinary(t *testing.T) {
	binary := build(t)
	t.Run("is small and static", func(t *testing.T) {
		info, err := os.Stat(binary)
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() >= 20<<20 {
			t.Errorf("%d bytes: it must stay under 20 MiB", info.Size())
		}
		file, err := elf.Open(binary)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = file.Close() }()
		for _, program := range file.Progs {
			if program.Type == elf.PT_INTERP {
				t.Error("it needs a dynamic linker, which an image may not have")
			}
		}
	})
	t.Run("installs itself", func(t *testing.T) { installs(t, binary) })
	t.Run("cannot install", func(t *testing.T) {
		directory := filepath.Join(t.TempDir(), "agent")
		if err := os.Mkdir(directory, 0o755); err != nil {
			t.Fatal(err)
		}
		code, out := run(t, binary, "install", directory)
		if code != 125 || !strings.Contains(out, "install the agent at "+directory) {
			t.Errorf("exit code %d: %s", code, out)
		}
		if left, _ := os.ReadDir(filepath.Dir(directory)); len(left) != 1 {
			t.Errorf("a part of it was left behind: %v", left)
		}
	})
	t.Run("says how it is used", func(t *testing.T) {
		for _, row := range []struct {
			arguments []string
			want      string
		}{
			{[]string{"run", "--", "true"}, "CONCERTINA_JOB is not set"},
			{[]string{"run"}, "no command to run"},
			{[]string{"install"}, "accepts 1 arg"},
			{[]string{"sing"}, "unknown command"},
		} {
			if code, out := run(t, binary, row.arguments...); code != 125 || !strings.Contains(out, row.want) {
				t.Errorf("%v: exit code %d: %s", row.arguments, code, out)
			}
		}
	})
}

func installs(t *testing.T, binary string) {
	destination := filepath.Join(t.TempDir(), "bin", "agent")
	// An image may have any umask.
	old := syscall.Umask(0o077)
	code, out := run(t, binary, "install", destination)
	syscall.Umask(old)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, out)
	}
	// Again, while the first copy runs: the file is replaced, not written to.
	first, err := os.Stat(destination)
	if err != nil {
		t.Fatal(err)
	}
	if code, out := run(t, destination, "install", destination); code != 0 {
		t.Fatalf("exit code %d: %s", code, out)
	}
	second, err := os.Stat(destination)
	if err != nil {
		t.Fatal(err)
	}
	if second.Mode().Perm() != 0o755 || second.Size() != first.Size() {
		t.Errorf("installed %v with %d bytes, want 0755 and %d", second.Mode(), second.Size(), first.Size())
	}
	if directory, err := os.Stat(filepath.Dir(destination)); err != nil || directory.Mode().Perm() != 0o755 {
		t.Errorf("its directory has mode %v, %v", directory.Mode(), err)
	}
	if os.SameFile(first, second) {
		t.Error("the file was written over")
	}
	if left, _ := os.ReadDir(filepath.Dir(destination)); len(left) != 1 {
		t.Errorf("something was left behind: %v", left)
	}
}

// run returns the exit code and all output. The agent's own variables are not set.
func run(t *testing.T, binary string, arguments ...string) (int, string) {
	t.Helper()
	command := exec.Command(binary, arguments...)
	command.Env = []string{}
	out, err := command.CombinedOutput()
	if failed := new(exec.ExitError); errors.As(err, &failed) {
		return failed.ExitCode(), string(out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return 0, string(out)
}
