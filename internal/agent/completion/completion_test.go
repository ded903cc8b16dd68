package completion

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func put(t *testing.T, elements ...string) {
	t.Helper()
	name := filepath.Join(elements...)
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(name), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestPatterns(t *testing.T) {
	for name, row := range map[string]struct {
		pattern string
		want    bool
	}{
		"the name":                {"a/b/.metadata", true},
		"any folders":             {"**/.metadata", true},
		"any folders, none there": {"a/b/**/.metadata", true},
		"one folder":              {"a/*/.metadata", true},
		"folders in the middle":   {"a/**/.meta*", true},
		"two stars twice":         {"**/b/**/.metadata", true},
		"too few folders":         {"*/.metadata", false},
		"another name":            {"**/.meta", false},
		"a folder is no file":     {"a/b", false},
		"no folder of that name":  {"x/**/.metadata", false},
		"a broken pattern":        {"a/[/.metadata", false},
		"everything":              {"**", true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			put(t, dir, "a", "b", ".metadata")
			if got := len(find(filepath.Join(dir, row.pattern))) > 0; got != row.want {
				t.Errorf("%s matches: %v", row.pattern, got)
			}
		})
	}
	t.Chdir(t.TempDir())
	put(t, "saved", "1", "done")
	if len(find("saved/*/done")) != 1 || len(find("**/done")) != 1 {
		t.Error("a relative pattern does not count from the working folder")
	}
}

func TestAsk(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "1", ".metadata")
	request := Request{Signal: syscall.SIGUSR2, Pattern: filepath.Join(dir, "**", ".metadata"), Timeout: time.Minute}
	for name, row := range map[string]struct {
		change func(*Request)
		send   func(syscall.Signal) int
		want   string
	}{
		"another file": {send: func(syscall.Signal) int { put(t, dir, "2", ".metadata"); return 1 }, want: "is complete: " + filepath.Join(dir, "2")},
		"the same file anew": {send: func(syscall.Signal) int {
			later := time.Now().Add(time.Second)
			if err := os.Chtimes(filepath.Join(dir, "1", ".metadata"), later, later); err != nil {
				t.Error(err)
			}
			return 1
		}, want: "is complete: " + filepath.Join(dir, "1")},
		"an old file is none": {func(r *Request) { r.Timeout = 100 * time.Millisecond }, func(syscall.Signal) int { return 1 }, "was written in time"},
		"nobody listens":      {send: func(syscall.Signal) int { return 0 }, want: "no process handles"},
		"nobody is asked":     {change: func(r *Request) { r.Signal = 0 }, want: "no checkpoint is asked for"},
		"a fixed time":        {func(r *Request) { r.Pattern, r.Timeout = "", time.Millisecond }, func(syscall.Signal) int { return 1 }, "has had its time"},
	} {
		t.Run(name, func(t *testing.T) {
			r := request
			if row.change != nil {
				row.change(&r)
			}
			synctest.Test(t, func(t *testing.T) {
				if got := Ask(t.Context(), r, row.send); !strings.Contains(got, row.want) {
					t.Errorf("got %q, want %q", got, row.want)
				}
			})
		})
	}
}

// A file exists before all of it is written, and whoever is stopped then leaves a checkpoint that cannot be read.
func TestAFileThatIsStillWritten(t *testing.T) {
	const pieces = 20
	synctest.Test(t, func(t *testing.T) {
		name := filepath.Join(t.TempDir(), ".metadata")
		request := Request{Signal: syscall.SIGUSR2, Pattern: name, Timeout: time.Minute}
		said := Ask(t.Context(), request, func(syscall.Signal) int {
			go func() {
				for i := range pieces {
					if err := os.WriteFile(name, []byte(strings.Repeat("x", i+1)), 0o600); err != nil {
						t.Error(err)
					}
					time.Sleep(still * 4 / 5) // in the time of the test, which costs nothing
				}
			}()
			return 1
		})
		if text, err := os.ReadFile(name); err != nil || len(text) != pieces || !strings.Contains(said, "is complete: "+name) {
			t.Errorf("%q with %q, %v", said, text, err)
		}
	})
}

func TestAFileThatIsWrittenTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		name := filepath.Join(t.TempDir(), ".metadata")
		request := Request{Signal: syscall.SIGUSR2, Pattern: name, Timeout: still / 2}
		said := Ask(t.Context(), request, func(syscall.Signal) int { put(t, name); return 1 })
		if !strings.Contains(said, name+" was still being written") {
			t.Errorf("%q", said)
		}
	})
}
