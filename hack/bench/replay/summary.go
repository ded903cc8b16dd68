package replay

import (
	"math"
	"slices"

	"github.com/concertina-dev/concertina/hack/bench/figures"
)

// ratio is one figure: of each workload a number, not finite where one of the two is not known, and of these the mean or the largest.
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
	{"halfshare_cost_jct", func(w *workload) float64 { return w.ours.Average/w.unkept.Average - 1 }, false},
	{"fastpause_halfshare_cost_jct", func(w *workload) float64 { return w.fast.Average/w.fastUnkept.Average - 1 }, false},
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
		if w.atLoad() >= 1 {
			full = append(full, w)
		}
	}
	var out []figures.Figure
	for _, r := range ratios {
		out = append(out, r.figure("", full)...)
		for _, load := range loads {
			out = append(out, r.figure("_load_"+load, of[load])...)
		}
	}
	return out
}

// figure is of those workloads of which it is known; none where it is of none.
func (r *ratio) figure(suffix string, some []*workload) []figures.Figure {
	sum, most, known := 0.0, math.Inf(-1), 0
	for _, w := range some {
		x := r.of(w)
		if math.IsInf(x, 0) || math.IsNaN(x) {
			continue
		}
		sum += x
		most = max(most, x)
		known++
	}
	if known == 0 {
		return nil
	}
	value := sum / float64(known)
	if r.largest {
		value = most
	}
	return []figures.Figure{{Name: r.name + suffix, Value: value, Unit: "ratio"}}
}
