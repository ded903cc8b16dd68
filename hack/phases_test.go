// Package hack_test tests the scripts of this folder that have logic of their own.
package hack_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// phases runs hack/phases.sh in a folder whose targets note that they ran.
func phases(t *testing.T, targets ...string) (code int, output, ran string) {
	t.Helper()
	script, err := filepath.Abs("phases.sh")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	makefile := "good fine:\n\t@echo $@ >> ran\nbad:\n\t@echo $@ >> ran; echo '--- FAIL: TestIt'; echo '    seven is no prime'; exit 1\n"
	if err := os.WriteFile(filepath.Join(folder, "Makefile"), []byte(makefile), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), script, targets...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "CONCERTINA_CACHE="+filepath.Join(folder, "cache"))
	said, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	noted, err := os.ReadFile(filepath.Join(folder, "ran"))
	if err != nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(said), strings.Join(strings.Fields(string(noted)), " ")
}

func TestAPhaseThatFailsKeepsNoOtherFromRunning(t *testing.T) {
	code, output, ran := phases(t, "good", "bad", "fine")
	if code == 0 || ran != "good bad fine" {
		t.Errorf("exit status %d after %q, want a failure after all three", code, ran)
	}
	_, summary, _ := strings.Cut(output, " end\n")
	for _, line := range strings.Split(summary, "\n") {
		if strings.Contains(line, " s") && strings.Contains(line, "FAILED") != strings.Contains(line, "bad") {
			t.Errorf("the summary says %q", line)
		}
	}
	if !strings.Contains(summary, "1 of 3 failed") {
		t.Errorf("the summary does not count what failed:\n%s", summary)
	}
	if !strings.Contains(summary, "--- FAIL: TestIt\n    seven is no prime") {
		t.Errorf("the summary does not say what failed:\n%s", summary)
	}
}

func TestPhasesThatAllPass(t *testing.T) {
	if code, output, ran := phases(t, "good", "fine"); code != 0 || ran != "good fine" || strings.Contains(output, "ailed") {
		t.Errorf("exit status %d after %q:\n%s", code, ran, output)
	}
}
