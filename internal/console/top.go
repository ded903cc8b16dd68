package console

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
)

// Top is what the jobs are doing.
type Top struct {
	Jobs   []TopJob `json:"jobs"`
	Totals Totals   `json:"totals"`
}

// TopJob is one job of a Top.
type TopJob struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	State     string `json:"state"`
	// Running is how many workers run, Target how many it should have now, Min and Max are its bounds; Spares are beyond Max.
	Running int32 `json:"running"`
	Target  int32 `json:"target"`
	Min     int32 `json:"min"`
	Max     int32 `json:"max"`
	Spares  int32 `json:"spares,omitempty"`
	// Step is how many steps are done, TotalSteps how many there will be; 0 when that is not known.
	Step             int64 `json:"step"`
	TotalSteps       int64 `json:"totalSteps,omitempty"`
	SamplesPerSecond int64 `json:"samplesPerSecond"`
	// Goodput is from "0.000" to "1.000"; empty before the first step.
	Goodput string `json:"goodput,omitempty"`
	// Pause is the median of the pauses of its last changes (at most 16); left out when none was seen.
	Pause *metav1.Duration `json:"pause,omitempty"`
	// Devices is how many devices its pods hold, by name.
	Devices map[string]int64 `json:"devices,omitempty"`
	// LeftOut says which of its workers others do not reach, so that they are in no world, and why; empty for none.
	LeftOut string `json:"leftOut,omitempty"`
}

// Totals are sums over the jobs.
type Totals struct {
	Jobs             int              `json:"jobs"`
	Running          int32            `json:"running"`
	SamplesPerSecond int64            `json:"samplesPerSecond"`
	Devices          map[string]int64 `json:"devices,omitempty"`
}

// orders are the columns that jobs can be sorted by: the largest first, names and states by the alphabet.
var orders = map[string]func(a, b *TopJob) int{
	"devices": func(a, b *TopJob) int { return cmp.Compare(b.held(), a.held()) },
	"workers": func(a, b *TopJob) int { return cmp.Compare(b.Running, a.Running) },
	"step":    func(a, b *TopJob) int { return cmp.Compare(b.Step, a.Step) },
	"samples": func(a, b *TopJob) int { return cmp.Compare(b.SamplesPerSecond, a.SamplesPerSecond) },
	"goodput": func(a, b *TopJob) int { return cmp.Compare(b.goodput(), a.goodput()) },
	"pause":   func(a, b *TopJob) int { return cmp.Compare(b.pause(), a.pause()) },
	"state":   func(a, b *TopJob) int { return strings.Compare(a.State, b.State) },
	"name":    func(*TopJob, *TopJob) int { return 0 },
}

// Orders are what Top can sort by.
func Orders() []string {
	var all []string
	for name := range orders {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// Top is what the jobs are doing, in one of the Orders, and by name where that says nothing.
func (l *Look) Top(order string) (Top, error) {
	compare, known := orders[order]
	if !known {
		return Top{}, fmt.Errorf("jobs cannot be sorted by %q: use one of %s", order, strings.Join(Orders(), ", "))
	}
	t := Top{Jobs: []TopJob{}, Totals: Totals{Devices: map[string]int64{}}}
	for i := range l.jobs {
		t.Jobs = append(t.Jobs, l.topJob(&l.jobs[i]))
	}
	slices.SortStableFunc(t.Jobs, func(a, b TopJob) int {
		return cmp.Or(compare(&a, &b), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	t.Totals.Jobs = len(t.Jobs)
	for i := range t.Jobs {
		one := &t.Jobs[i]
		t.Totals.Running += one.Running
		t.Totals.SamplesPerSecond += one.SamplesPerSecond
		for name, n := range one.Devices {
			t.Totals.Devices[name] += n
		}
	}
	return t, nil
}

func (l *Look) topJob(j *job) TopJob {
	status := &j.object.Status
	one := TopJob{
		Namespace: j.object.Namespace, Name: j.object.Name, State: j.state(),
		Running: value(status.Workers.Running), Target: value(status.Workers.Target), Min: j.in.Min, Max: j.in.Max - j.in.Spares, Spares: j.in.Spares,
		Step: value(status.Progress.Step), TotalSteps: value(status.Progress.TotalSteps), Goodput: status.Progress.Goodput,
		Devices: l.held(j),
	}
	if one.Running > 0 { // what was measured last is of no interest once nobody trains
		one.SamplesPerSecond = value(status.Progress.SamplesPerSecond)
	}
	if p, seen := median(status.Resizes); seen {
		one.Pause = &metav1.Duration{Duration: p}
	}
	if full := j.condition(v1alpha1.ConditionFullSize); full != nil && full.Reason == v1alpha1.ReasonWorkersLeftOut {
		one.LeftOut = full.Message
	}
	return one
}

// held are the devices that the pods of a job hold: of those that have a node, until they have ended.
func (l *Look) held(j *job) map[string]int64 {
	held := map[string]int64{}
	for i := range j.in.Workers {
		w := &j.in.Workers[i]
		if w.Node == allocation.None || !w.Bound {
			continue
		}
		for r, amount := range l.cluster.Shapes[w.Shape].Request {
			if amount > 0 && l.device(r) {
				held[l.cluster.Resources[r]] += amount
			}
		}
	}
	return held
}

func (t *TopJob) held() int64 {
	sum := int64(0)
	for _, n := range t.Devices {
		sum += n
	}
	return sum
}

func (t *TopJob) goodput() float64 {
	part, err := strconv.ParseFloat(t.Goodput, 64)
	if err != nil {
		return -1 // a job without any comes last
	}
	return part
}

func (t *TopJob) pause() int64 {
	if t.Pause == nil {
		return -1
	}
	return int64(t.Pause.Duration)
}
