package platform

import (
	"context"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMissingPackages(t *testing.T) {
	t.Parallel()
	status := map[string]string{"runc": "installed", "iptables": "config-files"}
	got := missingPackages([]string{"runc", "iptables", "iproute2"}, func(name string) string { return status[name] })
	if diff := cmp.Diff([]string{"iptables", "iproute2"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestRelative(t *testing.T) {
	t.Parallel()
	p := &Platform{Checkout: "/src/concertina"}
	for path, want := range map[string]string{
		"/src/concertina/.cache/bin/kubectl": ".cache/bin/kubectl", "/src/other": "/src/other", "kubectl": "kubectl",
	} {
		if got := p.Relative(path); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
}

// An interrupt must reach what a tool has started, and the tool must get to clear up.
func TestInterruptLetsTheToolClearUp(t *testing.T) {
	t.Parallel()
	// A shell cannot trap a signal that was ignored when it started, as it is for all that a script
	// starts in the background.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, os.Interrupt)
	t.Cleanup(func() { signal.Stop(caught) })
	dir := t.TempDir()
	p := &Platform{Checkout: dir}
	ctx, interrupt := context.WithCancel(t.Context())
	output, input := io.Pipe()
	go func() {
		buffer := make([]byte, 64)
		if n, _ := output.Read(buffer); strings.HasPrefix(string(buffer[:n]), "up") {
			interrupt()
		}
		_, _ = io.Copy(io.Discard, output)
	}()
	began := time.Now()
	err := p.run(ctx, input, "sh", "-c", `trap 'echo cleared > note; kill $!; exit 1' INT; sleep 60 & echo up; wait`)
	_ = input.Close()
	if err == nil || time.Since(began) > 20*time.Second {
		t.Errorf("the tool ended after %s with %v", time.Since(began), err)
	}
	if note, _ := os.ReadFile(filepath.Join(dir, "note")); string(note) != "cleared\n" {
		t.Errorf("the tool did not clear up: %q", note)
	}
}
