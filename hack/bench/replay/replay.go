// Package replay compares the operator's planner, in simulation, with results that were published with Pollux. It takes
// nothing but time: the same data gives the same figures.
package replay

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	Say   func(format string, args ...any)
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

// workload is one of them, and what became of it.
type workload struct {
	load, name                string
	pollux, bound             float64
	tiresias, optimus         *replay.Result
	ours, blind, fast, fastBl *replay.Result
}

// Measure replays them all.
func (b Bench) Measure() ([]figures.Figure, error) {
	var known published
	var least bounds
	if err := readJSON(filepath.Join(b.Data, "pollux", "golden.json"), &known); err != nil {
		return nil, err
	}
	if err := readJSON(filepath.Join(b.Data, "pollux", "bounds.json"), &least); err != nil {
		return nil, err
	}
	cluster := replay.Cluster{Nodes: known.Cluster.Nodes, DevicesPerNode: known.Cluster.GPUsPerNode}
	var all []*workload
	for load, runs := range known.Loads {
		for name, run := range runs {
			all = append(all, &workload{load: load, name: name, pollux: run.Policies["pollux"].Average, bound: least.Loads[load][name].LP - startOfTicks})
		}
	}
	slices.SortFunc(all, func(a, b *workload) int { return strings.Compare(a.load+a.name, b.load+b.name) })
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
	folder := "workloads-" + w.load
	if w.load == "1.0" {
		folder = "workloads"
	}
	jobs, err := traces.Workload(filepath.Join(b.Data, "pollux", folder, w.name+".csv"), "")
	if err != nil {
		return err
	}
	ticks := replay.PublishedTicks
	restart := time.Duration(ticks.Restart) * time.Second
	sees := replay.Sight{Speeds: true, Noise: b.Noise, Seed: b.Seed}
	blind := sees
	blind.Hidden = true
	for _, one := range []struct {
		result **replay.Result
		run    func() (*replay.Result, error)
	}{
		{&w.tiresias, func() (*replay.Result, error) { return ticks.Run(jobs, cluster, replay.NewTiresias(cluster)) }},
		{&w.optimus, func() (*replay.Result, error) { return ticks.Run(jobs, cluster, replay.NewOptimus(cluster)) }},
		{&w.ours, func() (*replay.Result, error) {
			return ticks.Run(jobs, cluster, replay.NewPlanned(cluster, b.Settings, restart, sees))
		}},
		{&w.blind, func() (*replay.Result, error) {
			return ticks.Run(jobs, cluster, replay.NewPlanned(cluster, b.Settings, restart, blind))
		}},
		{&w.fast, func() (*replay.Result, error) { return b.events(sees).Run(jobs, cluster) }},
		{&w.fastBl, func() (*replay.Result, error) { return b.events(blind).Run(jobs, cluster) }},
	} {
		if *one.result, err = one.run(); err != nil {
			return fmt.Errorf("%s at load %s: %w", w.name, w.load, err)
		}
	}
	return nil
}

func (b Bench) events(sight replay.Sight) replay.Events {
	return replay.Events{Join: b.Join, Pause: b.Pause, Settings: b.Settings, Sight: sight}
}
