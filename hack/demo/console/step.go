package console

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode"
)

const (
	// repaint is how often a terminal sees the time of a running step.
	repaint = 100 * time.Millisecond
	// signOfLife is how long a reader of plain lines waits for one at most.
	signOfLife = 10 * time.Second
	// tailLines is how much of its output a failed step shows.
	tailLines = 15
	maxLine   = 4096
)

var spinner = []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")

// Step is a part of the work that somebody waits for.
type Step struct {
	// Title says what is done, such as "Build the images".
	Title string
	// Log is the file that gets the whole output.
	Log string
	// Run does it, and writes to out what a curious person wants to read.
	Run func(ctx context.Context, out io.Writer) error
}

// Do runs a step and shows that it is alive, and for how long. The error of a failed step holds
// the last lines of its output and the path of the rest.
func (c *Console) Do(ctx context.Context, step Step) error {
	output, err := newOutput(step.Log)
	if err != nil {
		return err
	}
	defer func() { _ = output.log.Close() }()
	began := c.now()
	if !c.terminal {
		c.Logf("%s", step.Title)
	}
	done := make(chan error, 1)
	go func() { done <- step.Run(ctx, output) }()
	err = c.wait(step.Title, began, output, done)
	took := short(c.now().Sub(began))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wipe()
	if err != nil {
		how := "failed after "
		if ctx.Err() != nil {
			how = "stopped after "
		}
		c.write(c.ended("✗", step.Title, how+took))
		return fmt.Errorf("%s: %w%s", lowerFirst(step.Title), err, output.tail(step.Log))
	}
	c.write(c.ended("✓", step.Title, "done in "+took))
	return nil
}

func (c *Console) ended(mark, title, how string) string {
	if c.terminal {
		return fmt.Sprintf("%s %-44s %s\n", mark, title, how)
	}
	return c.stamped(title + ": " + how)
}

func (c *Console) wait(title string, began time.Time, output *output, done <-chan error) error {
	every := signOfLife
	if c.terminal {
		every = repaint
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for turn := 0; ; turn++ {
		if c.terminal {
			columns, _ := c.size()
			line := fmt.Sprintf("%c %-44s %s  %s", spinner[turn%len(spinner)], title,
				short(c.now().Sub(began)), output.last())
			c.Paint(clip(line, columns-1))
		} else if turn > 0 {
			c.Logf("%s: %s so far  %s", title, short(c.now().Sub(began)), output.last())
		}
		select {
		case err := <-done:
			return err
		case <-ticker.C:
		}
	}
}

// output keeps what a step writes: all of it in a file, the last lines in memory.
type output struct {
	mu      sync.Mutex
	log     *os.File
	partial []byte
	lines   []string
}

func newOutput(path string) (*output, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("create the folder of logs: %w", err)
	}
	log, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("create the log: %w", err)
	}
	return &output{log: log}, nil
}

func (o *output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, err := o.log.Write(text); err != nil {
		return 0, err
	}
	o.partial = append(o.partial, text...)
	for {
		line, rest, complete := bytes.Cut(o.partial, []byte("\n"))
		if !complete && len(line) < maxLine {
			return len(text), nil
		}
		o.partial = rest
		if line := clean(string(line)); line != "" {
			o.lines = append(o.lines, line)
			o.lines = o.lines[max(0, len(o.lines)-tailLines):]
		}
	}
}

func (o *output) last() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.lines) == 0 {
		return ""
	}
	return o.lines[len(o.lines)-1]
}

// tail is the end of an error: what the step wrote last, and where the rest is.
func (o *output) tail(path string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	lines := o.lines
	if rest := clean(string(o.partial)); rest != "" {
		lines = append(lines, rest)
	}
	if len(lines) == 0 {
		return ""
	}
	return fmt.Sprintf("\n    %s\n  (the whole output: %s)", strings.Join(lines, "\n    "), path)
}

// clean makes one line of text fit to be shown: of a line that was written over with carriage
// returns the last state counts, and control characters go.
func clean(line string) string {
	line = strings.TrimRight(line, "\r \t")
	line = line[strings.LastIndexByte(line, '\r')+1:]
	line = strings.ReplaceAll(line, "\t", " ")
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, line)
}

// clip cuts text to a number of columns.
func clip(text string, columns int) string {
	runes := []rune(text)
	if len(runes) <= columns {
		return text
	}
	return string(runes[:max(0, columns-1)]) + "…"
}

// short is a duration for people: 4.2s, 59s, 3m07s.
func short(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0fs", d.Seconds())
	default:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
}

func lowerFirst(text string) string {
	for i, first := range text {
		return string(unicode.ToLower(first)) + text[i+len(string(first)):]
	}
	return text
}
