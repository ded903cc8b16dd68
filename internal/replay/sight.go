package replay

import (
	"cmp"
	"hash/fnv"
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
}

const (
	// believed is for how long a job is watched at a size before it counts.
	believed = 10 * time.Second
	// mostSizes bounds how many sizes of a job are remembered.
	mostSizes = 16
)

// watch is what was seen of one job.
type watch struct {
	sight   Sight
	program Program
	random  *rand.Rand
	// at is the size that it has now, off how far its pace is off there, since what was seen there before.
	at  size
	off float64
	// steps and seconds are what it had made when it was last looked at.
	steps, seconds float64
	progress       estimate.Progress
	sizes          map[size]*seen
	// model is what was fitted last, and fresh until when it will do.
	model estimate.Model
	fresh time.Duration
	tried int32
}

type size struct{ workers, nodes int }

type seen struct {
	steps, seconds float64
	last           time.Duration
}

func (s Sight) watch(j *Job) *watch {
	sum := fnv.New64a()
	sum.Write([]byte(j.Name))
	return &watch{sight: s, program: j.Program, random: rand.New(rand.NewPCG(s.Seed, sum.Sum64())), sizes: map[size]*seen{}}
}

// look is told what a job has made in all, and at which size it has been since the last look.
func (w *watch) look(now time.Duration, p Placement, steps, seconds float64) {
	if len(p) == 0 {
		return
	}
	if at := (size{p.Workers(), len(p)}); at != w.at {
		w.at, w.off, w.fresh = at, max(0.5, 1+w.sight.Noise*w.random.NormFloat64()), 0
	}
	s := w.sizes[w.at]
	if s == nil {
		s = &seen{}
		w.sizes[w.at] = s
	}
	was := s.seconds
	if passed := seconds - w.seconds; passed > 0 {
		s.steps += (steps - w.steps) * w.off
		s.seconds += passed
		s.last = now
	}
	w.steps, w.seconds = steps, seconds
	if was < believed.Seconds() && s.seconds >= believed.Seconds() {
		w.fresh = 0
	}
	w.forget()
}

// change is told which world a job has from now on, and says when enough of it will have been seen.
func (w *watch) change(now time.Duration, p Placement) time.Duration {
	step := time.Duration(2 * w.program.StepTime(p) * float64(time.Second))
	if s := w.sizes[size{p.Workers(), len(p)}]; !w.sight.Speeds || s != nil && s.seconds >= believed.Seconds() {
		return never
	}
	return now + max(believed, step)
}

// forget forgets the size that was seen longest ago, where there are too many.
func (w *watch) forget() {
	if len(w.sizes) <= mostSizes {
		return
	}
	oldest := w.at
	for at, s := range w.sizes {
		o := w.sizes[oldest]
		if s.last < o.last || s.last == o.last && (at.workers < oldest.workers || at.workers == oldest.workers && at.nodes < oldest.nodes) {
			oldest = at
		}
	}
	delete(w.sizes, oldest)
}

// pace is what the planner is told; nil where too little was seen.
func (w *watch) pace(now time.Duration) *allocation.Pace {
	if !w.sight.Speeds {
		return nil
	}
	if now >= w.fresh {
		w.fit(now)
	}
	if !w.model.Known() {
		return nil
	}
	total := w.program.Total()
	if w.sight.Hidden {
		total = 0
	}
	w.progress.Report(w.steps, total)
	return &allocation.Pace{Speed: w.model, Tried: w.tried, Done: w.progress.Done(), Left: w.progress.Left()}
}

// refit is how long a fit will do at most, while the size stays the same.
const refit = time.Minute

func (w *watch) fit(now time.Duration) {
	var all []estimate.Observation
	for at, s := range w.sizes {
		if s.seconds >= believed.Seconds() && s.steps >= 1 {
			all = append(all, estimate.Observation{
				Workers: at.workers, Nodes: at.nodes, StepsPerSecond: s.steps / s.seconds, Steps: int64(s.steps), Age: now - s.last,
			})
			w.tried = max(w.tried, int32(at.workers))
		}
	}
	sortObservations(all)
	w.model, w.fresh = estimate.Fit(all, 1), now+refit
}

// sortObservations puts them in an order that does not depend on the map that they come from.
func sortObservations(all []estimate.Observation) {
	slices.SortFunc(all, func(a, b estimate.Observation) int {
		return cmp.Or(cmp.Compare(a.Workers, b.Workers), cmp.Compare(a.Nodes, b.Nodes))
	})
}
