package console

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/concertina-dev/concertina/internal/allocation"
	"github.com/concertina-dev/concertina/internal/replay"
)

// Replay is what would become of a list of jobs, under one policy after the other.
type Replay struct {
	Jobs           int `json:"jobs"`
	Nodes          int `json:"nodes"`
	DevicesPerNode int `json:"devicesPerNode"`
	// Sharing is how the operator's planner shares what is left over, as its settings have it: Even or ByValue.
	Sharing string      `json:"sharing"`
	Runs    []ReplayRun `json:"runs"`
}

// ReplayRun is one policy's.
type ReplayRun struct {
	Policy string `json:"policy"`
	replay.Result
}

// ReplayOptions are what jobs are run on, and by which rules.
type ReplayOptions struct {
	Cluster  replay.Cluster
	Settings allocation.Settings
	// Ticks are the rules of all policies but events, Join and Pause those of events.
	Ticks       replay.Ticks
	Join, Pause time.Duration
	// Sight is what the operator's planner sees of the jobs' steps.
	Sight replay.Sight
}

// ReplayPolicies are all that there are.
func ReplayPolicies() []string { return []string{"tiresias", "optimus", "concertina", "events"} }

// NewReplay runs the jobs under each of these policies.
func NewReplay(jobs []replay.Job, policies []string, o ReplayOptions) (*Replay, error) {
	if err := o.Cluster.Check(); err != nil {
		return nil, err
	}
	r := &Replay{Jobs: len(jobs), Nodes: o.Cluster.Nodes, DevicesPerNode: o.Cluster.DevicesPerNode, Sharing: "Even"}
	if o.Sight.Speeds {
		r.Sharing = "ByValue"
	}
	for _, policy := range policies {
		result, err := o.run(jobs, policy)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", policy, err)
		}
		r.Runs = append(r.Runs, ReplayRun{Policy: policy, Result: *result})
	}
	return r, nil
}

func (o *ReplayOptions) run(jobs []replay.Job, policy string) (*replay.Result, error) {
	switch policy {
	case "tiresias":
		return o.Ticks.Run(jobs, o.Cluster, replay.NewTiresias(o.Cluster))
	case "optimus":
		return o.Ticks.Run(jobs, o.Cluster, replay.NewOptimus(o.Cluster))
	case "concertina":
		return o.Ticks.Run(jobs, o.Cluster, replay.NewPlanned(o.Cluster, o.Settings, time.Duration(o.Ticks.Restart)*time.Second, o.Sight))
	case "events":
		return replay.Events{Join: o.Join, Pause: o.Pause, Settings: o.Settings, Sight: o.Sight}.Run(jobs, o.Cluster)
	}
	return nil, fmt.Errorf("no such policy; there are %s", strings.Join(ReplayPolicies(), ", "))
}

// Write writes a table: times in seconds.
func (r *Replay) Write(out io.Writer) error {
	if _, err := fmt.Fprintf(out, "%s on %s with %s each; the operator's planner shares as with sharing: %s; completion times in seconds\n\n",
		count(r.Jobs, "job"), count(r.Nodes, "node"), count(r.DevicesPerNode, "device"), r.Sharing); err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	header := "POLICY\tAVERAGE\tMEDIAN\tP90\tP99\tMAKESPAN\tUTILISATION\tGOODPUT\tRESIZES/JOB"
	deadlines := len(r.Runs) > 0 && r.Runs[0].Deadlines > 0
	if deadlines {
		header += "\tLATE"
	}
	fmt.Fprintln(table, header)
	for i := range r.Runs {
		one := &r.Runs[i]
		cells := []string{one.Policy}
		for _, x := range []float64{one.Average, one.Median, one.P90, one.P99, one.Makespan} {
			cells = append(cells, strconv.FormatFloat(x, 'f', 0, 64))
		}
		fmt.Fprintf(table, "%s\t%.1f%%\t%.1f%%\t%.1f", strings.Join(cells, "\t"), 100*one.Utilisation, 100*one.Goodput, one.ResizesPerJob)
		if deadlines {
			fmt.Fprintf(table, "\t%d of %d", one.Late, one.Deadlines)
		}
		fmt.Fprintln(table)
	}
	return table.Flush()
}
