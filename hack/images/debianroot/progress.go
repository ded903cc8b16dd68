package debianroot

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"time"
)

// every is how long a reader waits at most for a sign of life.
const every = 5 * time.Second

// progress turns debootstrap's many lines into a few: what it is doing, how many packages it
// has come to, how long it took. Everything goes to log as well.
type progress struct {
	out     io.Writer
	log     io.Writer
	now     func() time.Time
	start   time.Time
	shown   time.Time
	doing   string
	count   int
	partial []byte
}

func newProgress(out, log io.Writer, now func() time.Time) *progress {
	return &progress{out: out, log: log, now: now, start: now(), shown: now()}
}

func (p *progress) Write(text []byte) (int, error) {
	if _, err := p.log.Write(text); err != nil {
		return 0, err
	}
	p.partial = append(p.partial, text...)
	for {
		line, rest, ok := bytes.Cut(p.partial, []byte("\n"))
		if !ok {
			return len(text), nil
		}
		p.partial = rest
		p.line(string(line))
	}
}

func (p *progress) line(line string) {
	line, ok := strings.CutPrefix(line, "I: ")
	if !ok {
		return
	}
	verb, _, _ := strings.Cut(line, " ")
	switch verb {
	case "Retrieving", "Extracting", "Unpacking", "Configuring":
	default:
		return
	}
	if verb != p.doing {
		p.doing, p.count = verb, 0
	}
	p.count++
	if p.now().Sub(p.shown) >= every {
		p.shown = p.now()
		p.say(fmt.Sprintf("%s packages: %d so far", strings.ToLower(p.doing), p.count))
	}
}

// say prints one line with the time since the start.
func (p *progress) say(what string) {
	p.shown = p.now()
	fmt.Fprintf(p.out, "  pytorch-root %4ds  %s\n", int(p.now().Sub(p.start).Seconds()), what)
}
