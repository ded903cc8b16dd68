package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func consoleFor(out io.Writer, terminal bool) *Console {
	return &Console{
		out: out, terminal: terminal, now: time.Now, began: time.Now(),
		size: func() (int, int) { return 60, 24 },
	}
}

// sleepy is a step that takes its time and says something at its start.
func sleepy(path string, takes time.Duration, says string, err error) Step {
	return Step{Title: "Build it", Log: path, Run: func(_ context.Context, out io.Writer) error {
		if _, err := fmt.Fprint(out, says); err != nil {
			return err
		}
		time.Sleep(takes)
		return err
	}}
}

func TestStepInPlainLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "step.log")
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		if err := consoleFor(&out, false).Do(t.Context(), sleepy(path, 25*time.Second, "compiling\n", nil)); err != nil {
			t.Fatal(err)
		}
		want := "[    0.0s] Build it\n" +
			"[   10.0s] Build it: 10s so far  compiling\n" +
			"[   20.0s] Build it: 20s so far  compiling\n" +
			"[   25.0s] Build it: done in 25s\n"
		if out.String() != want {
			t.Errorf("printed\n%s\nwant\n%s", out.String(), want)
		}
	})
	if log, _ := os.ReadFile(path); string(log) != "compiling\n" {
		t.Errorf("the log holds %q", log)
	}
}

func TestFailedStepTellsWhatItSaidLast(t *testing.T) {
	path := filepath.Join(t.TempDir(), "step.log")
	synctest.Test(t, func(t *testing.T) {
		var said strings.Builder
		for i := range 100 {
			fmt.Fprintf(&said, "line %d\n", i)
		}
		said.WriteString("10%\r20%\rno \x1b[31mspace")
		var out bytes.Buffer
		broken := errors.New("exit status 1")
		err := consoleFor(&out, true).Do(t.Context(), sleepy(path, time.Second, said.String(), broken))
		if !errors.Is(err, broken) {
			t.Fatalf("the error is %v", err)
		}
		text := err.Error()
		for _, want := range []string{"build it: exit status 1", "\n    line 85\n", "\n    no [31mspace\n", path} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in the error:\n%s", want, text)
			}
		}
		if strings.Contains(text, "line 84\n") || strings.Contains(text, "10%") {
			t.Errorf("more than the end of the output is in the error:\n%s", text)
		}
		if !strings.Contains(out.String(), "✗ Build it") {
			t.Errorf("printed %q", out.String())
		}
	})
}

func TestStepInATerminal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "step.log")
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		long := strings.Repeat("x", 200) + "\n"
		if err := consoleFor(&out, true).Do(t.Context(), sleepy(path, 3*time.Second, long, nil)); err != nil {
			t.Fatal(err)
		}
		screen := newScreen(60)
		screen.show(t, out.String())
		if got := screen.text(); got != "✓ Build it                                     done in 3.0s" {
			t.Errorf("the terminal shows %q", got)
		}
		if screen.hidden {
			t.Error("the cursor is still hidden")
		}
	})
}

func TestPaintReplacesWhatWasPainted(t *testing.T) {
	var out bytes.Buffer
	c := consoleFor(&out, true)
	c.Print("before\n")
	c.Paint("one\ntwo\nthree")
	c.Paint("ONE\nTWO")
	c.Keep()
	c.Print("after\n")
	screen := newScreen(60)
	screen.show(t, out.String())
	if got, want := screen.text(), "before\nONE\nTWO\nafter"; got != want {
		t.Errorf("the terminal shows %q, want %q", got, want)
	}
	if screen.hidden {
		t.Error("the cursor is still hidden")
	}
}

// screen is as much of a terminal as the console needs.
type screen struct {
	columns  int
	lines    []string
	row, col int
	hidden   bool
}

func newScreen(columns int) *screen { return &screen{columns: columns, lines: []string{""}} }

func (s *screen) show(t *testing.T, text string) {
	t.Helper()
	for text != "" {
		var up int
		switch {
		case strings.HasPrefix(text, "\n"):
			s.row, s.col = s.row+1, 0
			if s.row == len(s.lines) {
				s.lines = append(s.lines, "")
			}
			text = text[1:]
		case strings.HasPrefix(text, "\r"):
			s.col, text = 0, text[1:]
		case strings.HasPrefix(text, hideCursor), strings.HasPrefix(text, showCursor):
			s.hidden, text = strings.HasPrefix(text, hideCursor), text[len(hideCursor):]
		case strings.HasPrefix(text, clearLine):
			s.lines[s.row], text = "", text[len(clearLine):]
		case strings.HasPrefix(text, clearBelow):
			s.lines, text = append(s.lines[:s.row:s.row], ""), text[len(clearBelow):]
		case strings.HasPrefix(text, "\x1b["):
			if _, err := fmt.Sscanf(text, "\x1b[%dA", &up); err != nil || up > s.row {
				t.Fatalf("unexpected sequence at %q in row %d", text, s.row)
			}
			s.row, text = s.row-up, text[strings.Index(text, "A")+1:]
		default:
			next := strings.IndexAny(text[1:], "\r\n\x1b") + 1
			if next == 0 {
				next = len(text)
			}
			s.lines[s.row] = string([]rune(s.lines[s.row])[:s.col]) + text[:next]
			s.col += len([]rune(text[:next]))
			if s.col >= s.columns {
				t.Fatalf("a line of %d columns wraps: %q", s.col, text[:next])
			}
			text = text[next:]
		}
	}
}

func (s *screen) text() string { return strings.TrimRight(strings.Join(s.lines, "\n"), "\n ") }
