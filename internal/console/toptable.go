package console

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Write writes a table with a line of totals, with namespaces if wanted, and below it which workers are left out.
func (t *Top) Write(out io.Writer, namespaces bool) error {
	if len(t.Jobs) == 0 {
		_, err := fmt.Fprintln(out, "no jobs")
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	row := func(namespace string, cells ...string) {
		if namespaces {
			cells = append([]string{namespace}, cells...)
		}
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	row("NAMESPACE", "NAME", "STATE", "RUNNING", "TARGET", "MIN-MAX", "STEP", "SAMPLES/S", "GOODPUT", "PAUSE-P50", "DEVICES")
	for i := range t.Jobs {
		one := &t.Jobs[i]
		row(one.Namespace, one.Name, dash(one.State), number(one.Running), number(one.Target), one.bounds(),
			one.steps(), number(one.SamplesPerSecond), dash(one.Goodput), one.pauseWords(), devices(one.Devices))
	}
	all := &t.Totals
	row("", "total: "+count(all.Jobs, "job"), "", number(all.Running), "", "", "", number(all.SamplesPerSecond), "", "", devices(all.Devices))
	if err := table.Flush(); err != nil {
		return err
	}
	for i := range t.Jobs {
		if one := &t.Jobs[i]; one.LeftOut != "" {
			if _, err := fmt.Fprintf(out, "\n%s/%s: %s\n", one.Namespace, one.Name, sentence(one.LeftOut)); err != nil {
				return err
			}
		}
	}
	return nil
}

// bounds are those of its number of workers, as in status.workers.summary.
func (t *TopJob) bounds() string {
	if t.Spares > 0 {
		return fmt.Sprintf("%d-%d+%d", t.Min, t.Max, t.Spares)
	}
	return fmt.Sprintf("%d-%d", t.Min, t.Max)
}

func (t *TopJob) steps() string {
	if t.TotalSteps > 0 {
		return fmt.Sprintf("%d/%d", t.Step, t.TotalSteps)
	}
	return number(t.Step)
}

func (t *TopJob) pauseWords() string {
	if t.Pause == nil {
		return "-"
	}
	return pause(t.Pause.Duration)
}

func devices(held map[string]int64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(held)) {
		parts = append(parts, fmt.Sprintf("%d %s", held[name], name))
	}
	if len(parts) == 0 {
		return "0"
	}
	return strings.Join(parts, ", ")
}

func number[N int32 | int64](n N) string { return strconv.FormatInt(int64(n), 10) }
