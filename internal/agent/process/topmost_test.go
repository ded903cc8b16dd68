package process_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/process"
)

// A launcher that handles the signal, a process of its that does, and a child of that process that
// does too.
const tree = `trap 'echo launcher >> "$OUT"' USR2
sh -c 'trap "echo process >> \"$OUT\"" USR2
	sh -c "trap \"echo child >> \\\"\$OUT\\\"\" USR2; echo x > \"\$OUT.child\"; while :; do sleep 0.05; done" &
	while [ ! -s "$OUT.child" ]; do sleep 0.05; done
	echo x > "$OUT.ready"; while :; do sleep 0.05; done' &
while :; do sleep 0.05; done`

func TestTheSignalReachesTheTopmostProcesses(t *testing.T) {
	for name, row := range map[string]struct {
		below bool
		sig   syscall.Signal
		want  string
		sent  int
	}{
		"a launcher gets none":  {true, syscall.SIGUSR2, "process\n", 1},
		"a program gets it":     {false, syscall.SIGUSR2, "launcher\n", 1},
		"nobody handles it":     {false, syscall.SIGUSR1, "", 0},
		"no signal of the kind": {false, 0, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := process.NewReaper()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			out := filepath.Join(t.TempDir(), "out")
			program, err := r.Start([]string{"sh", "-c", tree}, append(os.Environ(), "OUT="+out), func(int) {})
			if err != nil {
				t.Fatal(err)
			}
			defer r.KillAll(10 * time.Second)
			await(t, func() bool { _, err := os.Stat(out + ".ready"); return err == nil })
			if sent := r.SignalTopmost([]*process.Program{nil, program}, row.sig, row.below); sent != row.sent {
				t.Errorf("%d processes got the signal, want %d", sent, row.sent)
			}
			if row.want != "" {
				await(t, func() bool { text, _ := os.ReadFile(out); return strings.HasSuffix(string(text), "\n") })
			}
			if text, _ := os.ReadFile(out); string(text) != row.want {
				t.Errorf("the signal was handled by %q, want %q", text, row.want)
			}
		})
	}
}

func await(t *testing.T, condition func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline:
			t.Fatal("it never comes")
		case <-tick.C:
		}
	}
}
