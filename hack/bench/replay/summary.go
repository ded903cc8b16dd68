package replay

import (
	"slices"

	"github.com/concertina-dev/concertina/hack/bench/figures"
)

// ratio is one figure: of each workload a number, and of these the mean or the largest.
type ratio struct {
	name    string
	of      func(w *workload) float64
	largest bool
}

var ratios = []ratio{
	{"jct_over_tiresias_mean", func(w *workload) float64 { return w.ours.Average / w.tiresias.Average }, false},
	{"jct_over_tiresias_max", func(w *workload) float64 { return w.ours.Average / w.tiresias.Average }, true},
	{"jct_over_pollux_mean", func(w *workload) float64 { return w.ours.Average / w.pollux }, false},
	{"p99_over_tiresias_mean", func(w *workload) float64 { return w.ours.P99 / w.tiresias.P99 }, false},
	{"worst_over_own_tiresias_max", func(w *workload) float64 {
		worst := 0.0
		for i := range w.ours.Jobs {
			worst = max(worst, w.ours.Jobs[i].JCT/w.tiresias.Jobs[i].JCT)
		}
		return worst
	}, true},
	{"makespan_over_optimus_max", func(w *workload) float64 { return w.ours.Makespan / w.optimus.Makespan }, true},
	{"resizes_per_job_mean", func(w *workload) float64 { return w.ours.ResizesPerJob }, false},
	{"blind_jct_over_tiresias_mean", func(w *workload) float64 { return w.blind.Average / w.tiresias.Average }, false},
	{"fastpause_jct_over_tiresias_mean", func(w *workload) float64 { return w.fast.Average / w.tiresias.Average }, false},
	{"fastpause_jct_over_pollux_mean", func(w *workload) float64 { return w.fast.Average / w.pollux }, false},
	{"fastpause_jct_over_pollux_max", func(w *workload) float64 { return w.fast.Average / w.pollux }, true},
	{"fastpause_jct_over_bound_mean", func(w *workload) float64 { return w.fast.Average / w.bound }, false},
	{"fastpause_resizes_per_job_mean", func(w *workload) float64 { return w.fast.ResizesPerJob }, false},
	{"fastpause_blind_jct_over_tiresias_mean", func(w *workload) float64 { return w.fastBl.Average / w.tiresias.Average }, false},
}

// summaries are the figures of each load, and of those that fill the cluster (1.0 and above) together.
func summaries(all []*workload) []figures.Figure {
	var loads []string
	var full []*workload
	of := map[string][]*workload{}
	for _, w := range all {
		if !slices.Contains(loads, w.load) {
			loads = append(loads, w.load)
		}
		of[w.load] = append(of[w.load], w)
		if w.load >= "1.0" {
			full = append(full, w)
		}
	}
	var out []figures.Figure
	for _, r := range ratios {
		if len(full) > 0 {
			out = append(out, r.figure("", full))
		}
		for _, load := range loads {
			out = append(out, r.figure("_load_"+load, of[load]))
		}
	}
	return out
}

func (r *ratio) figure(suffix string, some []*workload) figures.Figure {
	sum, most := 0.0, 0.0
	for _, w := range some {
		x := r.of(w)
		sum += x
		most = max(most, x)
	}
	value := sum / float64(len(some))
	if r.largest {
		value = most
	}
	return figures.Figure{Name: r.name + suffix, Value: value, Unit: "ratio"}
}
