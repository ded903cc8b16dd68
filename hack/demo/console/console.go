// Package console talks to the person in front of the terminal: long steps with a sign of life
// and the time they take, and a view that is painted over itself. Where the output is no terminal
// it writes plain lines.
package console

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	hideCursor = "\x1b[?25l"
	showCursor = "\x1b[?25h"
	clearLine  = "\x1b[2K"
	clearBelow = "\x1b[J"
)

// Console writes to one output. Its methods may be called from several goroutines.
type Console struct {
	mu       sync.Mutex
	out      io.Writer
	terminal bool
	size     func() (columns, rows int)
	now      func() time.Time
	began    time.Time
	// painted is how many lines above the cursor belong to what will be painted over.
	painted int
}

// New returns a console on the given file, which is asked whether it is a terminal.
func New(file *os.File) *Console {
	fd := int(file.Fd())
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	size := func() (int, int) {
		window, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		if err != nil || window.Col == 0 || window.Row == 0 {
			return 80, 24
		}
		return int(window.Col), int(window.Row)
	}
	return &Console{out: file, terminal: err == nil, size: size, now: time.Now, began: time.Now()}
}

// Terminal says whether a person sees the output as it is written.
func (c *Console) Terminal() bool { return c.terminal }

// Colour says whether colours are wanted: in a terminal, unless NO_COLOR is set (no-color.org).
func (c *Console) Colour() bool { return c.terminal && os.Getenv("NO_COLOR") == "" }

// Size is the terminal's size in columns and rows, 80 and 24 where it is not known.
func (c *Console) Size() (columns, rows int) { return c.size() }

// Print writes text as it is, below everything painted.
func (c *Console) Print(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep()
	c.write(text)
}

// Logf writes one line with the time since the console was made.
func (c *Console) Logf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep()
	c.write(c.stamped(fmt.Sprintf(format, args...)))
}

// Donef says that something is done that took no time.
func (c *Console) Donef(format string, args ...any) {
	if c.terminal {
		c.Print("✓ " + fmt.Sprintf(format, args...) + "\n")
		return
	}
	c.Logf(format, args...)
}

// Paint shows text in place of what was painted before. The text has at most as many lines and
// columns as the terminal; it ends without a newline.
func (c *Console) Paint(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paint(text)
}

// Keep leaves what was painted last where it is; what follows goes below.
func (c *Console) Keep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep()
}

func (c *Console) paint(text string) {
	var b strings.Builder
	b.WriteString(hideCursor)
	b.WriteString(c.back())
	lines := strings.Split(text, "\n")
	for _, line := range lines {
		b.WriteString(clearLine + line + "\r\n")
	}
	b.WriteString(clearBelow)
	c.write(b.String())
	c.painted = len(lines)
}

// wipe takes what was painted off the terminal.
func (c *Console) wipe() {
	if c.painted > 0 {
		c.write(c.back() + clearBelow)
	}
	c.keep()
}

func (c *Console) keep() {
	if c.painted > 0 {
		c.write(showCursor)
	}
	c.painted = 0
}

func (c *Console) back() string {
	if c.painted == 0 {
		return "\r"
	}
	return fmt.Sprintf("\r\x1b[%dA", c.painted)
}

func (c *Console) stamped(line string) string {
	return fmt.Sprintf("[%7.1fs] %s\n", c.now().Sub(c.began).Seconds(), line)
}

// write drops errors: when the terminal is gone there is nobody to tell.
func (c *Console) write(text string) { _, _ = io.WriteString(c.out, text) }
