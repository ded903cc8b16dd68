package replay

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/concertina-dev/concertina/internal/allocation"
	"github.com/concertina-dev/concertina/internal/replay"
)

// Tune tries other constants of the planner on workloads that are drawn for it, never on those that are reported.
type Tune struct {
	Settings    allocation.Settings
	Pause, Join time.Duration
	Noise       float64
	// Seeds is how many workloads are drawn at each load; those of a bench begin at First.
	Seeds, First uint64
	Say          func(format string, args ...any)
}

// tuneLoads are the loads of the workloads, tuneSpan for how long jobs are submitted.
var tuneLoads = []float64{0.6, 0.9, 1.2}

const tuneSpan = 3 * 3600

var tuneCluster = replay.Cluster{Nodes: 16, DevicesPerNode: 4}

// trial is one choice of constants, and the mean over the workloads of the average completion time relative to Tiresias:
// by the published rules, and by the operator's own.
type trial struct {
	label       string
	pricing     allocation.Pricing
	ticks, fast float64
}

// trials are the constants in force, and those with one of them changed.
func trials() []*trial {
	now := allocation.DefaultPricing
	all := []*trial{{label: "as it is", pricing: now}}
	for _, x := range []float64{0.5, 1, 2, 4, 8, 16} {
		other := now
		other.Crowding = x
		all = append(all, &trial{label: fmt.Sprintf("crowding %g", x), pricing: other})
	}
	for _, x := range []float64{0.001, 0.02, 0.05, 0.1, 0.15, 0.2} {
		other := now
		other.Hesitation = x
		all = append(all, &trial{label: fmt.Sprintf("hesitation %g", x), pricing: other})
	}
	for _, x := range []int32{2, 4, 8} {
		other := now
		other.Trial = x
		all = append(all, &trial{label: fmt.Sprintf("trial %d", x), pricing: other})
	}
	return all
}

// drawn is a workload, and what Tiresias makes of it.
type drawn struct {
	jobs     []replay.Job
	tiresias float64
}

// Run tries all of them and writes a table.
func (t Tune) Run(out io.Writer) error {
	var workloads []drawn
	for _, load := range tuneLoads {
		for seed := range t.Seeds {
			jobs := replay.Generated{Seed: t.First + seed, Load: load, Span: tuneSpan}.Jobs(tuneCluster)
			result, err := replay.PublishedTicks.Run(jobs, tuneCluster, replay.NewTiresias(tuneCluster))
			if err != nil {
				return fmt.Errorf("load %g, seed %d: %w", load, t.First+seed, err)
			}
			workloads = append(workloads, drawn{jobs, result.Average})
		}
	}
	all := trials()
	var group errgroup.Group
	group.SetLimit(2)
	for _, one := range all {
		group.Go(func() error {
			t.Say("%s", one.label)
			return t.try(one, workloads)
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "CONSTANT\tPUBLISHED RULES\tOWN RULES\tBOTH")
	for _, one := range all {
		fmt.Fprintf(table, "%s\t%.3f\t%.3f\t%.3f\n", one.label, one.ticks, one.fast, (one.ticks+one.fast)/2)
	}
	return table.Flush()
}

func (t Tune) try(one *trial, workloads []drawn) error {
	settings := t.Settings
	settings.Pricing = one.pricing
	for i, w := range workloads {
		sight := replay.Sight{Speeds: true, Noise: t.Noise, Seed: t.First + uint64(i)}
		restart := time.Duration(replay.PublishedTicks.Restart) * time.Second
		ticks, err := replay.PublishedTicks.Run(w.jobs, tuneCluster, replay.NewPlanned(tuneCluster, settings, restart, sight))
		if err != nil {
			return fmt.Errorf("%s: %w", one.label, err)
		}
		fast, err := replay.Events{Join: t.Join, Pause: t.Pause, Settings: settings, Sight: sight}.Run(w.jobs, tuneCluster)
		if err != nil {
			return fmt.Errorf("%s: %w", one.label, err)
		}
		one.ticks += ticks.Average / w.tiresias / float64(len(workloads))
		one.fast += fast.Average / w.tiresias / float64(len(workloads))
	}
	return nil
}
