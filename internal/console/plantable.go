package console

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// mostNamed is how many nodes or pods a cell of a table names.
const mostNamed = 3

// Write writes the plan as a table: the jobs that would change or that wait, or all of them.
func (p *Plan) Write(out io.Writer, all bool) error {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	shown := 0
	for i := range p.Jobs {
		one := &p.Jobs[i]
		if !all && !one.Changes && !one.Waits {
			continue
		}
		if shown++; shown == 1 {
			fmt.Fprintln(table, "JOB\tPRIORITY\tSTATE\tWORKERS\tQUEUE\tNEW ON\tLEAVING\tWHY")
		}
		fmt.Fprintf(table, "%s/%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", one.Namespace, one.Name, one.Priority, dash(one.State),
			one.workers(), one.queue(), dash(one.newOn()), dash(one.leaving()), dash(one.Why))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if shown > 0 {
		fmt.Fprintln(out)
	}
	_, err := fmt.Fprintln(out, p.Summary.line())
	return err
}

// line is the last one of the table.
func (s *Summary) line() string {
	parts := make([]string, 0, len(s.Devices))
	for _, one := range s.Devices {
		what := one.Name
		if len(s.Devices) == 1 && what != "cpu" {
			what = "devices"
		}
		parts = append(parts, fmt.Sprintf("%s of %s %s free", quantity(one.Name, one.Free), quantity(one.Name, one.Capacity), what))
	}
	text := fmt.Sprintf("%s, %d %s, %d %s", count(s.Jobs, "job"), s.Changing, does(s.Changing, "change"), s.Waiting, does(s.Waiting, "wait"))
	if len(parts) == 0 {
		return text + "; no node offers anything"
	}
	return text + "; " + strings.Join(parts, ", ")
}

// does is a verb for so many.
func does(n int, verb string) string {
	if n == 1 {
		return verb + "s"
	}
	return verb
}

func (p *PlannedJob) workers() string {
	if p.Now == p.Planned {
		return strconv.Itoa(int(p.Now))
	}
	return fmt.Sprintf("%d -> %d", p.Now, p.Planned)
}

func (p *PlannedJob) queue() string {
	if p.Position == 0 {
		return "-"
	}
	return strconv.Itoa(int(p.Position))
}

func (p *PlannedJob) newOn() string {
	var parts []string
	for _, one := range p.New {
		text := one.Node
		if text == "" {
			text = "(the scheduler chooses)"
		}
		if one.Count > 1 {
			text += fmt.Sprintf(" x%d", one.Count)
		}
		parts = append(parts, text)
	}
	return few(parts, mostNamed)
}

// leaving names those who leave, and for whom.
func (p *PlannedJob) leaving() string {
	if p.EvictedFor != "" {
		return "all, for " + p.EvictedFor
	}
	var order []string
	names := map[string][]string{}
	for _, one := range p.Leaving {
		if names[one.For] == nil {
			order = append(order, one.For)
		}
		names[one.For] = append(names[one.For], one.Pod)
	}
	var parts []string
	for _, whom := range order {
		text := few(names[whom], mostNamed)
		if whom != "" {
			text += " for " + whom
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
