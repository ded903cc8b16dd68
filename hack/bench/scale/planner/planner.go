package planner

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/concertina-dev/concertina/internal/allocation"
)

// Figure is one result. Its unit is milliseconds, or a count.
type Figure struct {
	Name  string
	Value float64
	Unit  string
}

// Measure makes a plan the given number of times: of whole clusters in which much is to be done, and of
// clusters at rest in which one thing has happened.
func Measure(size Size, runs int) []Figure {
	full, event := make([]time.Duration, 0, runs), make([]time.Duration, 0, runs)
	const clusters, rounds = 5, 30
	var p allocation.Planner // one for all plans, as the operator has it
	for seed := range min(runs, clusters) {
		size.Seed = uint64(seed + 1)
		c := Cluster(size)
		if size.Paced {
			pace(c, size.Seed)
		}
		tally(c)
		for range (runs + clusters - 1) / clusters {
			begin := time.Now()
			p.Plan(c)
			full = append(full, time.Since(begin))
		}
		Settle(&p, c, rounds)
		for turn := range (runs + clusters - 1) / clusters {
			Event(c, turn)
			begin := time.Now()
			tally(c)
			p.Plan(c)
			event = append(event, time.Since(begin))
			Settle(&p, c, rounds)
		}
	}
	kind := ""
	if size.Kinds {
		kind += "kinds_"
	}
	if size.Paced {
		kind += "paced_"
	}
	return []Figure{
		{"plan_full_" + kind + "p50", quantile(full, 0.5), "ms"},
		{"plan_full_" + kind + "p99", quantile(full, 0.99), "ms"},
		{"plan_event_" + kind + "p50", quantile(event, 0.5), "ms"},
		{"plan_event_" + kind + "p99", quantile(event, 0.99), "ms"},
	}
}

// Event lets one thing happen: a pod of some job ends, or a job is queued that looks like another one.
func Event(c *allocation.Cluster, turn int) {
	id := turn * 7919 % len(c.Jobs)
	for len(c.Jobs[id].Workers) == 0 {
		id = (id + 1) % len(c.Jobs)
	}
	j := &c.Jobs[id]
	if turn%2 == 1 {
		another := *j
		another.Name, another.UID = fmt.Sprintf("%s-again-%d", j.Name, turn), fmt.Sprintf("%s-again-%d", j.UID, turn)
		another.Stage, another.Workers, another.Tally, another.Target = allocation.Queued, nil, nil, 0
		another.Submitted, another.Queued = c.Now, c.Now
		c.Jobs = append(c.Jobs, another)
		return
	}
	b := &builder{Cluster: c}
	last := j.Workers[len(j.Workers)-1]
	b.give(last.Node, last.Shape)
	j.Workers, j.Tally = slices.Delete(slices.Clone(j.Workers), len(j.Workers)-1, len(j.Workers)), nil
}

// tally sums up the workers of jobs whose workers changed, as internal/fleet does. Whoever changes them leaves the
// job without one.
func tally(c *allocation.Cluster) {
	for i := range c.Jobs {
		if j := &c.Jobs[i]; j.Tally == nil {
			j.Tally = allocation.TallyOf(j.Workers)
		}
	}
}

func quantile(samples []time.Duration, q float64) float64 {
	sorted := slices.Sorted(slices.Values(samples))
	return float64(sorted[min(int(q*float64(len(sorted))), len(sorted)-1)].Microseconds()) / 1000
}

// Print writes the figures, one line each: name value unit.
func Print(out io.Writer, all []Figure) error {
	for _, f := range all {
		if _, err := fmt.Fprintf(out, "%s %.3f %s\n", f.Name, f.Value, f.Unit); err != nil {
			return fmt.Errorf("print %s: %w", f.Name, err)
		}
	}
	return nil
}
