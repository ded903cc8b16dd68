package replay

import (
	"math"
	"slices"
)

// JobResult is what became of a job. Times are seconds.
type JobResult struct {
	Name string `json:"name"`
	// Submitted, Completed and JCT, the completion time: how long it took from the one to the other.
	Submitted float64 `json:"submitted"`
	Completed float64 `json:"completed"`
	JCT       float64 `json:"jct"`
	// Deadline is when it was to be complete, 0 for at any time; Late is true where it was not.
	Deadline float64 `json:"deadline,omitempty"`
	Late     bool    `json:"late,omitempty"`
	// Resizes is how often it was given other devices after it had first been given some, Largest the most workers
	// that it had.
	Resizes int `json:"resizes"`
	Largest int `json:"largest"`
	// HeldSeconds are the device-seconds that it held, StepSeconds those of them in which it made progress.
	HeldSeconds float64 `json:"heldSeconds"`
	StepSeconds float64 `json:"stepSeconds"`

	// Sizes are the sizes that it had, in the order of time, and why; 0 while it had no devices.
	Sizes []Size `json:"-"`

	started bool
}

// Size is how many workers a job had from a time on, in seconds, and why.
type Size struct {
	At      float64
	Workers int
	Why     string
}

func newJobResult(j *Job) JobResult {
	return JobResult{Name: j.Name, Submitted: float64(j.Submitted), Deadline: float64(j.Deadline)}
}

// changed counts that a job was given devices.
func (r *JobResult) changed(at float64, workers int, why string) {
	r.has(at, workers, why)
	if r.started {
		r.Resizes++
	}
	r.started = true
	r.Largest = max(r.Largest, workers)
}

// has notes a size.
func (r *JobResult) has(at float64, workers int, why string) {
	r.Sizes = append(r.Sizes, Size{At: at, Workers: workers, Why: why})
}

func (r *JobResult) complete(at float64) {
	r.has(at, 0, "it is done")
	r.Completed, r.JCT = at, at-r.Submitted
	r.Late = r.Deadline > 0 && at > r.Deadline
}

// Result is what became of a workload. Times are seconds.
type Result struct {
	// Average, Median, P90, P99 and Worst are of the completion times: a percentile is the smallest of them that so
	// many jobs do not exceed.
	Average float64 `json:"average"`
	Median  float64 `json:"median"`
	P90     float64 `json:"p90"`
	P99     float64 `json:"p99"`
	Worst   float64 `json:"worst"`
	// Makespan is from the first submission to the last completion.
	Makespan float64 `json:"makespan"`
	// Utilisation is the part of all devices that were held, over the makespan; Goodput the part of the time that
	// devices were held in which steps were made. From 0 to 1.
	Utilisation float64 `json:"utilisation"`
	Goodput     float64 `json:"goodput"`
	// Resizes is of all jobs, ResizesPerJob their mean.
	Resizes       int     `json:"resizes"`
	ResizesPerJob float64 `json:"resizesPerJob"`
	// Deadlines is how many jobs have one, Late how many of them missed it.
	Deadlines int `json:"deadlines,omitempty"`
	Late      int `json:"late,omitempty"`
	// Ticks is how many intervals passed, 0 where time does not pass in intervals.
	Ticks int         `json:"ticks,omitempty"`
	Jobs  []JobResult `json:"jobs"`
}

func (r *Result) summarize(c Cluster) {
	times := make([]float64, len(r.Jobs))
	first, last, held, steps := math.Inf(1), 0.0, 0.0, 0.0
	for i, j := range r.Jobs {
		times[i] = j.JCT
		r.Average += j.JCT
		r.Resizes += j.Resizes
		if j.Deadline > 0 {
			r.Deadlines++
		}
		if j.Late {
			r.Late++
		}
		first, last = min(first, j.Submitted), max(last, j.Completed)
		held += j.HeldSeconds
		steps += j.StepSeconds
	}
	n := float64(len(r.Jobs))
	r.Average /= n
	r.ResizesPerJob = float64(r.Resizes) / n
	slices.Sort(times)
	r.Median, r.P90, r.P99, r.Worst = percentile(times, 50), percentile(times, 90), percentile(times, 99), times[len(times)-1]
	r.Makespan = last - first
	// In intervals devices are held to the end of the one in which their job is done, which may be after the last
	// completion.
	r.Utilisation = min(1, held/(float64(c.Devices())*r.Makespan))
	r.Goodput = steps / held
}

// percentile is the smallest of sorted numbers that p percent of them do not exceed.
func percentile(sorted []float64, p int) float64 {
	return sorted[(p*len(sorted)+99)/100-1]
}
