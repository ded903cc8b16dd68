package replay

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/concertina-dev/concertina/internal/allocation"
	estimate "github.com/concertina-dev/concertina/internal/speed"
)

// Sight is what the operator sees of the steps of jobs.
type Sight struct {
	// Speeds is true where it sees how fast jobs are; sizes go by devices otherwise.
	Speeds bool
	// Hidden is true where programs do not say how many steps they will make.
	Hidden bool
	// Noise is how far paces that it sees are off, as a part of the truth: one standard deviation. It is drawn anew
	// whenever a job gets another size, from Seed and the name of the job.
	Noise float64
	Seed  uint64
	// WarmUp is for how long a job is seen to be half as fast when it has another size. Stragglers is at what part of its sizes one
	// of its workers is slow at first: it is seen at two thirds of its pace for two minutes. Neither keeps it from making steps:
	// how many it makes is up to the workload.
	WarmUp     time.Duration
	Stragglers float64
}

const (
	// known is for how long a job has to make steps at a size until that counts, without the first step of its world: about as
	// internal/speed has it, which looks at whole steps.
	known = 5 * time.Second
	// cold is what part of its pace a job is seen at while it warms up, hindered what part where one of its workers is slow, and
	// hindrance for how long that one is.
	cold, hindered = 0.5, 2. / 3
	hindrance      = 2 * time.Minute
)

// watch is what was seen of one job.
type watch struct {
	sight   Sight
	program Program
	random  *rand.Rand
	// at is the size that it has now, off how far its pace is off there, slow whether one of its workers is slow there at first.
	at   size
	off  float64
	slow bool
	// stayed is for how long it has made steps in the world that it has, first what is left of that world's first step.
	stayed time.Duration
	first  float64
	// steps and seconds are what it had made when it was last looked at; more those of which nothing is entered yet.
	steps, seconds float64
	more           struct{ steps, seconds float64 }
	progress       estimate.Progress
	seen           []estimate.Seen
	fitter         estimate.Fitter
}

type size struct{ workers, nodes int }

func (s Sight) watch(j *Job) *watch {
	sum := fnv.New64a()
	sum.Write([]byte(j.Name))
	return &watch{sight: s, program: j.Program, random: rand.New(rand.NewPCG(s.Seed, sum.Sum64()))}
}

// look is told what a job has made in all, and at which size it has been since the last look.
func (w *watch) look(now time.Duration, p Placement, steps, seconds float64) {
	if len(p) == 0 {
		return
	}
	if at := (size{p.Workers(), len(p)}); at != w.at {
		w.at, w.off, w.first, w.stayed = at, max(0.5, 1+w.sight.Noise*w.random.NormFloat64()), 1, 0
		w.more.steps, w.more.seconds = 0, 0
		w.slow = w.sight.Stragglers > 0 && w.random.Float64() < w.sight.Stragglers
	}
	made, passed := steps-w.steps, seconds-w.seconds
	w.steps, w.seconds = steps, seconds
	if made <= 0 || passed <= 0 {
		return
	}
	if skipped := min(w.first, made); skipped > 0 {
		w.first -= skipped
		passed *= 1 - skipped/made
		if made -= skipped; made <= 0 || passed <= 0 {
			return // the first step goes on
		}
	}
	w.more.steps += made * w.off * w.hindrances(passed)
	w.more.seconds += passed
	if whole := math.Floor(w.more.steps); whole >= 1 && w.more.seconds >= known.Seconds() {
		w.seen = estimate.Add(w.seen, estimate.Seen{
			Workers: w.at.workers, Nodes: w.at.nodes, StepsPerSecond: w.more.steps / w.more.seconds, Steps: int64(min(math.Ceil(w.more.steps), mostSteps)),
			At: beginning.Add(now),
		})
		w.more.steps, w.more.seconds = 0, 0
	}
}

// mostSteps bounds how many steps are entered at a time: more than a minute of them counts for no more.
const mostSteps = 1 << 53

// hindrances are by what the pace differs from what the size has, while so many seconds pass.
func (w *watch) hindrances(seconds float64) float64 {
	from := w.stayed.Seconds()
	w.stayed += time.Duration(min(seconds, patience.Seconds()) * float64(time.Second))
	part := func(lasts time.Duration) float64 { return min(1, max(0, lasts.Seconds()-from)/seconds) }
	pace := 1 - (1-cold)*part(w.sight.WarmUp)
	if w.slow {
		pace *= 1 - (1-hindered)*part(hindrance)
	}
	return pace
}

// change is told which world a job has from now on, and says when enough of it will have been seen.
func (w *watch) change(now time.Duration, p Placement) time.Duration {
	if !w.sight.Speeds || slices.ContainsFunc(estimate.Observations(w.seen, beginning.Add(now)), func(o estimate.Observation) bool {
		return o.Workers == p.Workers() && o.Nodes == len(p)
	}) {
		return never
	}
	step := time.Duration(1.1 * min(w.program.StepTime(p), patience.Seconds()) * float64(time.Second))
	return now + step + max(known+known/10, step)
}

// pace is what the planner is told; nil where too little was seen.
func (w *watch) pace(now time.Duration) *allocation.Pace {
	if !w.sight.Speeds {
		return nil
	}
	at := beginning.Add(now)
	fitted := w.fitter.Look(at, estimate.Observations(w.seen, at), 1)
	if fitted == nil {
		return nil
	}
	total := w.program.Total()
	if w.sight.Hidden {
		total = 0
	}
	w.progress.Report(w.steps, total)
	return &allocation.Pace{Speed: fitted.Model, Tried: fitted.Tried, Done: w.progress.Done(), Left: w.progress.Left(), Seen: w.seen}
}
