package replay

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/concertina-dev/concertina/hack/bench/figures"
	"github.com/concertina-dev/concertina/internal/allocation"
	"github.com/concertina-dev/concertina/internal/replay"
	"github.com/concertina-dev/concertina/internal/replay/traces"
)

// Churn replays jobs that scale linearly on recorded nodes that come and go, one device each.
type Churn struct {
	// Data is the folder; docs/replay.md says what is in it.
	Data     string
	Settings allocation.Settings
	// Pause, Join and Recovery are those of a cluster with the operator, Saved how often programs save what they go on
	// from.
	Pause, Join, Recovery, Saved time.Duration
	Say                          func(format string, args ...any)
}

// trace is one of the recordings.
type trace struct {
	name, file string
	read       func(file string) ([]replay.NodeChange, time.Duration, error)
}

var recordings = []trace{
	{"us-west-2a", "us-west-2a_v100_1.json", traces.Counted},
	{"us-east-2b", "us-east-2b_v100_1.json", traces.Counted},
	{"p3", "p3-trace.csv", traces.Named},
}

// notices are for how long beforehand it is known that a node goes.
var notices = []struct {
	name string
	long time.Duration
}{{"", 0}, {"_notice_30s", 30 * time.Second}, {"_notice_120s", 2 * time.Minute}}

// Measure replays them all: steps that were made and kept, over those of one who knows beforehand when each node goes.
func (b Churn) Measure() ([]figures.Figure, error) {
	var out []figures.Figure
	for _, notice := range notices {
		sums := map[string]float64{}
		names := []string{"elastic_1", "elastic_10", "rigid", "restarting"}
		for _, t := range recordings {
			b.Say("%s%s", t.name, notice.name)
			changes, end, err := t.read(filepath.Join(b.Data, "churn", t.file))
			if err != nil {
				return nil, err
			}
			churn := replay.Churn{Changes: changes, Until: end, Notice: notice.long, Recovery: b.Recovery, Saved: b.Saved}
			made, err := b.contend(churn)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", t.file, err)
			}
			for _, name := range names {
				sums[name] += made[name] / float64(len(recordings))
				out = append(out, figures.Figure{Name: "churn_" + name + "_over_clairvoyant_" + t.name + notice.name, Value: made[name], Unit: "ratio"})
			}
		}
		for _, name := range names {
			out = append(out, figures.Figure{Name: "churn_" + name + "_over_clairvoyant" + notice.name, Value: sums[name], Unit: "ratio"})
		}
	}
	return out, nil
}

// contend is what each makes of a trace, over what a clairvoyant does.
func (b Churn) contend(churn replay.Churn) (map[string]float64, error) {
	most := churn.Clairvoyant(1, b.Join)
	rigid, _ := churn.Rigid(1, b.Join)
	made := map[string]float64{"rigid": rigid / most, "restarting": churn.Restarting(1, b.Join) / most}
	for _, n := range []int{1, 10} {
		var jobs []replay.Job
		for i := range n {
			jobs = append(jobs, replay.Job{Name: fmt.Sprint("job-", i), Workers: 1, Program: &replay.Scaling{Steps: endless, Parallel: 1, Most: churn.Nodes()}})
		}
		got, err := replay.Events{Join: b.Join, Pause: b.Pause, Settings: b.Settings}.Churn(jobs, 1, churn)
		if err != nil {
			return nil, err
		}
		made[fmt.Sprint("elastic_", n)] = got.Steps / most
	}
	return made, nil
}

// endless is more steps than anybody makes.
const endless = 1_000_000_000
