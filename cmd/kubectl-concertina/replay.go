package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/concertina-dev/concertina/internal/allocation"
	"github.com/concertina-dev/concertina/internal/console"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/replay"
	"github.com/concertina-dev/concertina/internal/replay/recorded"
	"github.com/concertina-dev/concertina/internal/replay/traces"
)

// replaying is what the command was given.
type replaying struct {
	format            format
	options           console.ReplayOptions
	from              fromCluster
	interval, restart time.Duration
	keepHalves        bool
	policies          []string
	profiles, config  string
}

func replayCommand(a *access) *cobra.Command {
	var r replaying
	cmd := &cobra.Command{
		Use:   "replay WORKLOAD | --from-cluster",
		Short: "Simulates a list of jobs under fixed sizes, under Optimus, and under the operator's planner.",
		Long: `Simulates the jobs of a CSV file on a cluster of equal nodes, and tells how long they take under published
policies and under the operator's own planner. docs/replay.md has the columns of the file, and what is simulated. No
cluster is asked, unless --from-cluster has its nodes and jobs be the workload, those that are over as well: TrainingJobs as they
were measured, anything else by its pods. With -o csv the jobs are written in place of an answer, as WORKLOAD has them.

  tiresias     each job has the workers that it asks for, or waits
  optimus      sizes by what the next device saves, all speeds and remaining steps known
  concertina   the operator's planner, asked at the end of intervals like the two above
  events       the operator's planner as it is: asked whenever something happens, with its own short pauses`,
		Example: `  kubectl concertina replay jobs.csv --nodes 8 --devices 4
  kubectl concertina replay jobs.csv --policy tiresias,events --pause 1s -o json
  kubectl concertina replay jobs.csv --speeds -o svg > jobs.svg
  grep -v huge jobs.csv | kubectl concertina replay -
  kubectl concertina replay traces/workloads/workload-6.csv --profiles traces
  kubectl concertina replay --from-cluster --speeds
  kubectl concertina replay --from-cluster --nodes 12 -o csv > jobs.csv`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, arguments []string) error { return r.run(cmd, a, arguments) },
	}
	r.format.addFlags(cmd, "table", "svg", "csv")
	r.addFlags(cmd.Flags())
	return cmd
}

func (r *replaying) addFlags(flags *pflag.FlagSet) {
	o := &r.options
	flags.IntVar(&o.Cluster.Nodes, "nodes", 16, "nodes of the cluster; with --from-cluster as many as it has, unless this is given")
	flags.IntVar(&o.Cluster.DevicesPerNode, "devices", 4, "devices of each node; with --from-cluster as many as they have, unless this is given")
	flags.StringSliceVar(&r.policies, "policy", console.ReplayPolicies(), "which policies, in the order of the answer")
	flags.StringVar(&r.profiles, "profiles", "", "folder with the profiles of applications; empty: the one above that of the workload")
	flags.StringVar(&r.config, "fleet-config", "", "file with the settings of the fleet; empty: the operator's defaults")
	flags.DurationVar(&r.interval, "interval", 60*time.Second, "how often policies are asked, but for events; whole seconds")
	flags.DurationVar(&r.restart, "restart", 30*time.Second, "what a change of devices costs a job, but for events; whole seconds")
	flags.DurationVar(&o.Join, "join", 30*time.Second, "with events: how long a worker takes until it can join a world; it holds its device meanwhile")
	flags.DurationVar(&o.Pause, "pause", 300*time.Millisecond, "with events: how long a job stands still when its world changes (docs/benchmarks.md)")
	addSight(flags, &o.Sight)
	flags.BoolVar(&r.keepHalves, "keep-halves", true, "with --speeds: nobody has less than half of its share for longer than backfill; without, what that costs shows")
	r.from.addFlags(flags)
}

func (r *replaying) validate(arguments []string) error {
	return errors.Join(r.from.validate(arguments, r.format.name), r.format.validate(), wholeSeconds("interval", r.interval, time.Second),
		wholeSeconds("restart", r.restart, 0), notBelowZero("join", r.options.Join), notBelowZero("pause", r.options.Pause),
		notBelowZero("warm-up", r.options.Sight.WarmUp), validSight(&r.options.Sight), knownPolicies(r.policies))
}

func (r *replaying) run(cmd *cobra.Command, a *access, arguments []string) error {
	if err := r.validate(arguments); err != nil {
		return err
	}
	if err := r.dependent(cmd.Flags()); err != nil {
		return err
	}
	settings, err := fleet.LoadSettings(r.config)
	if err != nil {
		return err
	}
	if err := r.share(cmd.Flags(), settings); err != nil {
		return err
	}
	r.options.Settings = settings.Planning()
	if !r.keepHalves {
		r.options.Settings.Pricing = allocation.DefaultPricing
		r.options.Settings.Pricing.NoHalves = true
	}
	r.options.Ticks = replay.Ticks{Interval: int64(r.interval.Seconds()), Restart: int64(r.restart.Seconds())}
	var jobs []replay.Job
	if r.from.asked {
		jobs, err = r.from.read(cmd, a, &r.options.Cluster)
	} else {
		jobs, err = traces.Workload(arguments[0], r.profiles)
	}
	if err != nil {
		return err
	}
	if r.format.name == "csv" {
		return traces.Write(cmd.OutOrStdout(), jobs)
	}
	answer, err := console.NewReplay(jobs, r.policies, r.options)
	if err != nil {
		return err
	}
	if r.format.name == "svg" {
		return answer.WriteSVG(cmd.OutOrStdout())
	}
	return r.format.write(cmd.OutOrStdout(), answer, answer.Write)
}

// dependent refuses flags that have no effect without another one: who gives them means it.
func (r *replaying) dependent(flags *pflag.FlagSet) error {
	var wrong []error
	for _, needs := range []struct {
		flag  string
		there bool
		of    []string
	}{
		{"--speeds, or sharing: ByValue in --fleet-config", r.options.Sight.Speeds || r.byValue(), []string{"hide-steps", "noise", "seed", "warm-up", "stragglers", "keep-halves"}},
		{"--from-cluster", r.from.asked, []string{"device", "widen"}},
	} {
		for _, name := range needs.of {
			if flags.Changed(name) && !needs.there {
				wrong = append(wrong, fmt.Errorf("--%s has no effect without %s", name, needs.flag))
			}
		}
	}
	return errors.Join(wrong...)
}

// said is what the file of settings says itself of how jobs share; empty for nothing.
func (r *replaying) said() fleet.Sharing {
	var file struct {
		Sharing fleet.Sharing `json:"sharing"`
	}
	if text, err := os.ReadFile(r.config); err != nil || yaml.Unmarshal(text, &file) != nil {
		return "" // whoever reads all of it says what is wrong
	}
	return file.Sharing
}

func (r *replaying) byValue() bool { return r.said() == fleet.ByValue }

// share has the planner see speeds where the settings have it share by them, as --speeds does; the two must not contradict each
// other.
func (r *replaying) share(flags *pflag.FlagSet, settings fleet.Settings) error {
	sees := &r.options.Sight.Speeds
	switch {
	case *sees && r.said() == fleet.Even:
		return fmt.Errorf("--speeds has jobs share by value, and %s says sharing: %s: leave one of them out", r.config, fleet.Even)
	case settings.Sharing != fleet.ByValue:
	case flags.Changed("speeds") && !*sees:
		return fmt.Errorf("--speeds=false has jobs share in equal parts, and %s says sharing: %s: leave one of them out", r.config, fleet.ByValue)
	default:
		*sees = true
	}
	return nil
}

// fromCluster has a cluster be the workload.
type fromCluster struct {
	asked  bool
	device string
	widen  int
}

func (c *fromCluster) addFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&c.asked, "from-cluster", false, "the workload is what the cluster has and has had, of one namespace with --namespace")
	flags.StringVar(&c.device, "device", "", "with --from-cluster: the resource that jobs share; empty: the one device that nodes have")
	flags.IntVar(&c.widen, "widen", 4, "with --from-cluster: how many times its devices a job can use of which only pods are known")
}

func (c *fromCluster) validate(arguments []string, output string) error {
	switch {
	case c.asked && len(arguments) > 0:
		return fmt.Errorf("%s and --from-cluster exclude each other: there is one workload", arguments[0])
	case !c.asked && len(arguments) == 0:
		return errors.New("name the file of a workload, or give --from-cluster")
	case !c.asked && output == "csv":
		return errors.New("-o csv writes the jobs of --from-cluster")
	case c.widen < 1:
		return fmt.Errorf("--widen is %d, it must be at least 1", c.widen)
	}
	return nil
}

// read lists the cluster, and says what is assumed. Nodes and devices that were given stay.
func (c *fromCluster) read(cmd *cobra.Command, a *access, cluster *replay.Cluster) ([]replay.Job, error) {
	from, err := a.lister()
	if err != nil {
		return nil, err
	}
	objects, err := from.Past(cmd.Context(), *a.flags.Namespace)
	if err != nil {
		return nil, err
	}
	options := recorded.Options{Device: c.device, Widen: c.widen, Now: time.Now()}
	if cmd.Flags().Changed("nodes") {
		options.Nodes = cluster.Nodes
	}
	if cmd.Flags().Changed("devices") {
		options.DevicesPerNode = cluster.DevicesPerNode
	}
	workload, err := recorded.New(&objects, options)
	if err != nil {
		return nil, err
	}
	for _, note := range workload.Notes {
		warn(cmd, "%s", note)
	}
	*cluster = workload.Cluster
	return workload.Jobs, nil
}

// addSight adds the flags that say what the planner sees.
func addSight(flags *pflag.FlagSet, sight *replay.Sight) {
	flags.BoolVar(&sight.Speeds, "speeds", false, "the planner sees how fast jobs were at sizes that they had, and how many steps are left, and shares by value: as an operator whose settings say sharing: ByValue, which is not the default")
	flags.BoolVar(&sight.Hidden, "hide-steps", false, "with --speeds: programs do not say how many steps are left")
	flags.Float64Var(&sight.Noise, "noise", 0.05, "with --speeds: how far what it sees is off, as a part of the truth (standard deviation)")
	flags.Uint64Var(&sight.Seed, "seed", 1, "with --speeds: of the noise")
	flags.DurationVar(&sight.WarmUp, "warm-up", 0, "with --speeds: for how long a job is seen at half its pace when it has another size")
	flags.Float64Var(&sight.Stragglers, "stragglers", 0, "with --speeds: at what part of its sizes a job is seen at two thirds of its pace for two minutes, 0 to 1")
}

func validSight(sight *replay.Sight) error {
	switch {
	case !(sight.Noise >= 0 && sight.Noise <= 1):
		return fmt.Errorf("--noise is %g, it must be from 0 to 1", sight.Noise)
	case !(sight.Stragglers >= 0 && sight.Stragglers <= 1):
		return fmt.Errorf("--stragglers is %g, it must be from 0 to 1", sight.Stragglers)
	}
	return nil
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
