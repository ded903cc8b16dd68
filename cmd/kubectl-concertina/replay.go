package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/concertina-dev/concertina/internal/console"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/replay"
	"github.com/concertina-dev/concertina/internal/replay/traces"
)

func replayCommand() *cobra.Command {
	var f format
	var o console.ReplayOptions
	var interval, restart time.Duration
	var policies []string
	var profiles, config string
	cmd := &cobra.Command{
		Use:   "replay WORKLOAD",
		Short: "Simulates a list of jobs under fixed sizes, under Optimus, and under the operator's planner.",
		Long: `Simulates the jobs of a CSV file on a cluster of equal nodes, and tells how long they take under published
policies and under the operator's own planner. docs/replay.md has the columns of the file, and what is simulated. No
cluster is asked.

  tiresias     each job has the workers that it asks for, or waits
  optimus      sizes by what the next device saves, all speeds and remaining steps known
  concertina   the operator's planner, asked at the end of intervals like the two above
  events       the operator's planner as it is: asked whenever something happens, with its own short pauses`,
		Example: `  kubectl concertina replay jobs.csv --nodes 8 --devices 4
  kubectl concertina replay jobs.csv --policy tiresias,events --pause 1s -o json
  kubectl concertina replay traces/workloads/workload-6.csv --profiles traces`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			if err := errors.Join(f.validate(), wholeSeconds("interval", interval, time.Second), wholeSeconds("restart", restart, 0),
				notBelowZero("join", o.Join), notBelowZero("pause", o.Pause), knownPolicies(policies)); err != nil {
				return err
			}
			settings, err := fleet.LoadSettings(config)
			if err != nil {
				return err
			}
			o.Settings = settings.Planning()
			o.Ticks = replay.Ticks{Interval: int64(interval.Seconds()), Restart: int64(restart.Seconds())}
			jobs, err := traces.Workload(arguments[0], profiles)
			if err != nil {
				return err
			}
			answer, err := console.NewReplay(jobs, policies, o)
			if err != nil {
				return err
			}
			return f.write(cmd.OutOrStdout(), answer, answer.Write)
		},
	}
	f.addFlags(cmd, "table")
	flags := cmd.Flags()
	flags.IntVar(&o.Cluster.Nodes, "nodes", 16, "nodes of the cluster")
	flags.IntVar(&o.Cluster.DevicesPerNode, "devices", 4, "devices of each node")
	flags.StringSliceVar(&policies, "policy", console.ReplayPolicies(), "which policies, in the order of the answer")
	flags.StringVar(&profiles, "profiles", "", "folder with the profiles of applications; empty: the one above that of the workload")
	flags.StringVar(&config, "fleet-config", "", "file with the settings of the fleet; empty: the operator's defaults")
	flags.DurationVar(&interval, "interval", 60*time.Second, "how often policies are asked, but for events; whole seconds")
	flags.DurationVar(&restart, "restart", 30*time.Second, "what a change of devices costs a job, but for events; whole seconds")
	flags.DurationVar(&o.Join, "join", 30*time.Second, "with events: how long a worker takes until it can join a world; it holds its device meanwhile")
	flags.DurationVar(&o.Pause, "pause", 300*time.Millisecond, "with events: how long a job stands still when its world changes (docs/benchmarks.md)")
	flags.BoolVar(&o.Sight.Speeds, "speeds", false, "the planner sees how fast jobs were at sizes that they had, and how many steps are left")
	flags.BoolVar(&o.Sight.Hidden, "hide-steps", false, "with --speeds: programs do not say how many steps are left")
	flags.Float64Var(&o.Sight.Noise, "noise", 0.05, "with --speeds: how far what it sees is off, as a part of the truth (standard deviation)")
	flags.Uint64Var(&o.Sight.Seed, "seed", 1, "with --speeds: of the noise")
	return cmd
}

func wholeSeconds(name string, d, least time.Duration) error {
	if d < least || d%time.Second != 0 {
		return fmt.Errorf("--%s is %s, it must be whole seconds, at least %s", name, d, least)
	}
	return nil
}

func notBelowZero(name string, d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("--%s is %s, it must not be below 0", name, d)
	}
	return nil
}

func knownPolicies(policies []string) error {
	for _, p := range policies {
		if known := console.ReplayPolicies(); !slices.Contains(known, p) {
			return fmt.Errorf("--policy has %q, it must be of %s", p, strings.Join(known, ", "))
		}
	}
	if len(policies) == 0 {
		return errors.New("--policy names none")
	}
	return nil
}
