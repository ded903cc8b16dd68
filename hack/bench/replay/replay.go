// Package replay compares the operator's planner, in simulation, with results that were published with Pollux. It takes
// nothing but time: the same data gives the same figures.
package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/concertina-dev/concertina/hack/bench/figures"
	"github.com/concertina-dev/concertina/internal/allocation"
	"github.com/concertina-dev/concertina/internal/replay"
	"github.com/concertina-dev/concertina/internal/replay/traces"
)

// Bench replays all workloads of a folder.
type Bench struct {
	// Data is the folder; docs/replay.md says what is in it.
	Data     string
	Settings allocation.Settings
	// Pause and Join are those of a cluster with the operator.
	Pause, Join time.Duration
	// Noise is how far observed speeds are off, and Seed that of it.
	Noise float64
	Seed  uint64
	// WarmUp and Stragglers are what else hinders jobs where they are looked at (replay.Sight).
	WarmUp     time.Duration
	Stragglers float64
	Say        func(format string, args ...any)
}

// published are the results that are in the folder.
type published struct {
	Cluster struct {
		Nodes       int `json:"nodes"`
		GPUsPerNode int `json:"gpus_per_node"`
	} `json:"cluster"`
	Loads map[string]map[string]struct {
		Policies map[string]struct {
			Average float64 `json:"avg_jct_s"`
		} `json:"policies"`
	} `json:"loads"`
}

// bounds are times that no policy can be below.
type bounds struct {
	Loads map[string]map[string]struct {
		LP float64 `json:"lp_avg_jct_s"`
	} `json:"loads"`
}

// startOfTicks are the seconds of a bound that are due to intervals and first starts, which the operator's own rules do
// not have.
const startOfTicks = 90

// workload is one of them, and what became of it. What was published of it, and its bound, are 0 where the folder does not say.
type workload struct {
	load, name, file          string
	pollux, bound             float64
	tiresias, optimus         *replay.Result
	ours, blind, fast, fastBl *replay.Result
	// unkept and fastUnkept are without the rule that nobody is kept below half of its share.
	unkept, fastUnkept *replay.Result
}

// usual is the cluster where no result was published that says on which it was.
var usual = replay.Cluster{Nodes: 16, DevicesPerNode: 4}

// Measure replays them all.
func (b Bench) Measure() ([]figures.Figure, error) {
	var known published
	var least bounds
	for file, into := range map[string]any{"golden.json": &known, "bounds.json": &least} {
		if err := readJSON(filepath.Join(b.Data, "pollux", file), into); errors.Is(err, fs.ErrNotExist) {
			b.Say("%v: figures that need it are left out", err)
		} else if err != nil {
			return nil, err
		}
	}
	cluster := usual
	if known.Cluster.Nodes > 0 {
		cluster = replay.Cluster{Nodes: known.Cluster.Nodes, DevicesPerNode: known.Cluster.GPUsPerNode}
	}
	all, err := found(filepath.Join(b.Data, "pollux"))
	if err != nil {
		return nil, err
	}
	for _, w := range all {
		w.pollux = known.Loads[w.load][w.name].Policies["pollux"].Average
		if lp := least.Loads[w.load][w.name].LP; lp > startOfTicks {
			w.bound = lp - startOfTicks
		}
	}
	var group errgroup.Group
	group.SetLimit(2)
	for _, w := range all {
		group.Go(func() error {
			b.Say("%s at load %s", w.name, w.load)
			return b.run(w, cluster)
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return summaries(all), nil
}

func readJSON(file string, into any) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// run replays one workload in all ways.
func (b Bench) run(w *workload, cluster replay.Cluster) error {
	jobs, err := traces.Workload(w.file, "")
	if err != nil {
		return err
	}
	ticks := replay.PublishedTicks
	restart := time.Duration(ticks.Restart) * time.Second
	sees := replay.Sight{Speeds: true, Noise: b.Noise, Seed: b.Seed, WarmUp: b.WarmUp, Stragglers: b.Stragglers}
	blind := sees
	blind.Hidden = true
	unkept := b
	unkept.Settings.Pricing = allocation.DefaultPricing
	unkept.Settings.Pricing.NoHalves = true
	planned := func(b Bench, sight replay.Sight) func() (*replay.Result, error) {
		return func() (*replay.Result, error) {
			return ticks.Run(jobs, cluster, replay.NewPlanned(cluster, b.Settings, restart, sight))
		}
	}
	events := func(b Bench, sight replay.Sight) func() (*replay.Result, error) {
		return func() (*replay.Result, error) {
			return replay.Events{Join: b.Join, Pause: b.Pause, Settings: b.Settings, Sight: sight}.Run(jobs, cluster)
		}
	}
	for _, one := range []struct {
		result **replay.Result
		run    func() (*replay.Result, error)
	}{
		{&w.tiresias, func() (*replay.Result, error) { return ticks.Run(jobs, cluster, replay.NewTiresias(cluster)) }},
		{&w.optimus, func() (*replay.Result, error) { return ticks.Run(jobs, cluster, replay.NewOptimus(cluster)) }},
		{&w.ours, planned(b, sees)}, {&w.blind, planned(b, blind)}, {&w.unkept, planned(unkept, sees)},
		{&w.fast, events(b, sees)}, {&w.fastBl, events(b, blind)}, {&w.fastUnkept, events(unkept, sees)},
	} {
		if *one.result, err = one.run(); err != nil {
			return fmt.Errorf("%s at load %s: %w", w.name, w.load, err)
		}
	}
	return nil
}
