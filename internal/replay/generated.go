package replay

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Generated describes workloads that are drawn from a seed: what the planner's constants are chosen on, so that they are
// not chosen on the workloads that are reported.
type Generated struct {
	Seed uint64
	// Load is how much there is to do, in device-seconds of a single worker, over what the devices could do while jobs
	// are submitted. Above 1 more comes than can be done.
	Load float64
	// Span is for how long jobs are submitted, in seconds.
	Span int64
}

const (
	// medianWork and spreadOfWork are of the device-seconds of a job: most are short, and a few have most of the work.
	medianWork, spreadOfWork = 1200, 1.7
	leastWork, mostWork      = 60, 60 * 3600
	// keepsUp is the part of a linear speed that a size has to reach for a user to ask for it.
	keepsUp = 0.5
)

// Jobs draws jobs until there is as much to do as the load says: when each is submitted, how much it has to do, and how it
// scales, from not at all to nearly linearly.
func (g Generated) Jobs(c Cluster) []Job {
	r := rand.New(rand.NewPCG(g.Seed, 0))
	var jobs []Job
	for work, all := 0.0, g.Load*float64(c.Devices())*float64(g.Span); work < all; {
		seconds := min(max(medianWork*math.Exp(spreadOfWork*r.NormFloat64()), leastWork), mostWork)
		program := scalingOf(r, c)
		program.Steps = max(1, int64(seconds/program.StepTime(Placement{1})))
		work += seconds
		jobs = append(jobs, Job{
			Name: fmt.Sprintf("job-%d", len(jobs)), Submitted: r.Int64N(max(g.Span, 1)), Workers: asked(r, program, c), Program: program,
		})
	}
	return jobs
}

// scalingOf draws how a program scales: its step takes from a twentieth of a second to half a minute with one worker.
func scalingOf(r *rand.Rand, c Cluster) *Scaling {
	parallel := 0.05 * math.Pow(600, r.Float64())
	part := func(most float64) float64 { return parallel * most * math.Pow(r.Float64(), 3) }
	return &Scaling{
		Serial: part(0.1), Parallel: parallel, Near: part(0.1), Far: part(0.3),
		Most: min(c.Devices(), 1<<(1+r.IntN(6))),
	}
}

// asked draws how many workers a user asks for who has tried that they are of use: powers of two.
func asked(r *rand.Rand, s *Scaling, c Cluster) int {
	alone, most := s.StepTime(Placement{1}), 1
	for n := 2; n <= min(s.Most, 16); n *= 2 {
		if alone/s.StepTime(filled(n, c.DevicesPerNode)) < keepsUp*float64(n) {
			break
		}
		most = n
	}
	return 1 << r.IntN(1+int(math.Log2(float64(most))))
}
