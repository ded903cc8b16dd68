package replay

import (
	"errors"
	"math"
	"slices"
	"time"
)

// patience is the time after which a replay is given up: ten years.
const patience = 10 * 365 * 24 * time.Hour

// errEndless says that jobs will never be done.
var errEndless = errors.New("not all jobs are done after ten years")

// Ticks are the rules of the simulator that was published with Pollux: time passes in intervals, a policy is asked at
// the end of each, and a job that is given other devices makes no progress for a while.
type Ticks struct {
	// Interval is the length of one, Restart what each change of devices costs, the first start included; both in
	// seconds.
	Interval, Restart int64
}

// PublishedTicks are those of the published results.
var PublishedTicks = Ticks{Interval: 60, Restart: 30}

// Policy says at a tick which devices each job has.
type Policy interface {
	// Assign is given the jobs that were submitted and are not done, in the order of the workload. It returns the nodes
	// of each, one entry for each device: devices of one node lie side by side.
	Assign(now int64, active []*Run) ([][]int, error)
	// Why is why a job has what it was assigned last.
	Why(r *Run) string
}

// Run is a job under way.
type Run struct {
	*Job
	// Nodes are those of its devices, one entry for each.
	Nodes []int
	// Epoch is how many epochs are over, Progress what has been reached.
	Epoch    int
	Progress float64
	// Steps and Seconds are how many steps it has made in how much time.
	Steps, Seconds float64

	placement Placement
	delay     int64
	done      bool
	result    JobResult
}

// Run runs jobs until all are done.
func (t Ticks) Run(jobs []Job, c Cluster, policy Policy) (*Result, error) {
	if err := check(jobs, c); err != nil {
		return nil, err
	}
	runs := make([]*Run, len(jobs))
	for i := range jobs {
		runs[i] = &Run{Job: &jobs[i], result: newJobResult(&jobs[i])}
	}
	ticks := 0
	for now := int64(0); slices.ContainsFunc(runs, func(r *Run) bool { return !r.done }); ticks++ {
		for _, r := range runs {
			r.advance(now, t.Interval)
		}
		if now += t.Interval; now > int64(patience.Seconds()) {
			return nil, errEndless
		}
		active := slices.DeleteFunc(slices.Clone(runs), func(r *Run) bool { return r.done || r.Submitted > now })
		if len(active) == 0 {
			continue
		}
		assigned, err := policy.Assign(now, active)
		if err != nil {
			return nil, err
		}
		for i, nodes := range assigned {
			active[i].assign(now, nodes, t.Restart, policy)
		}
	}
	result := &Result{Ticks: ticks}
	for _, r := range runs {
		result.Jobs = append(result.Jobs, r.result)
	}
	result.summarize(c)
	return result, nil
}

func (r *Run) assign(now int64, nodes []int, restart int64, policy Policy) {
	if slices.Equal(nodes, r.Nodes) {
		return
	}
	r.Nodes, r.placement = nodes, placementOn(nodes)
	if len(nodes) == 0 {
		r.result.has(float64(now), 0, policy.Why(r))
		return
	}
	r.delay = restart
	r.result.changed(float64(now), len(nodes), policy.Why(r))
}

// advance lets an interval pass that begins at a time. The devices of a job that is done within it are held to its end.
func (r *Run) advance(at, left int64) {
	if r.done || len(r.Nodes) == 0 {
		return
	}
	r.result.HeldSeconds += float64(left) * float64(len(r.Nodes))
	delay := min(r.delay, left)
	r.delay -= delay
	left -= delay
	at += delay
	for left > 0 && !r.done {
		rate, until := speed(r.Program, r.placement, r.Epoch), r.Program.Until(r.Epoch)
		passed := left
		if made := float64(rate * float64(left)); r.Progress+made < until {
			r.Progress += made
		} else {
			passed = int64(math.RoundToEven((until - r.Progress) / rate))
			r.Epoch++
			r.Progress = until
		}
		r.Seconds += float64(passed)
		r.Steps += float64(passed) / r.Program.StepTime(r.placement)
		at += passed
		left -= passed
		r.result.StepSeconds += float64(passed) * float64(len(r.Nodes))
		if r.Epoch == r.Program.Epochs() {
			r.done = true
			r.result.complete(float64(at))
		}
	}
}
