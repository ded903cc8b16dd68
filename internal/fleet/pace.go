package fleet

import (
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
	"github.com/concertina-dev/concertina/internal/speed"
)

const (
	// refit is how long a fit will do while the job is seen at no other size.
	refit = time.Minute
	// alike is by what part a fit may differ from the one before, at any size that the planner looks at, and count for
	// the same: that is noise, and a plan that followed it would have jobs trade workers back and forth.
	alike = 0.05
	// looksUpTo bounds up to which size fits are compared.
	looksUpTo = 256
)

// fitted is how fast a job is by what was seen of it. It stays as it is.
type fitted struct {
	model speed.Model
	// least is its least number of workers, tried the most that it was seen with.
	least, tried int32
}

// pacer keeps what was fitted of one job, so that not every event has it fitted anew. The zero value has fitted nothing.
type pacer struct {
	fitted *fitted
	// sizes are the workers and nodes that it was fitted from, at is when.
	sizes [][2]int
	at    time.Time
}

// look is what is to be made of a job's status now: the fit before, where another one would say the same; nil where too
// little was seen.
func (p *pacer) look(now time.Time, status *v1alpha1.SpeedStatus, least int32) *fitted {
	seen := speed.Observations(SizesSeen(status), now)
	var sizes [][2]int
	most := 0
	for i := range seen {
		sizes = append(sizes, [2]int{seen[i].Workers, seen[i].Nodes})
		most = max(most, seen[i].Workers)
	}
	known := slices.Equal(sizes, p.sizes) && (p.fitted == nil || p.fitted.least == least)
	if age := now.Sub(p.at); known && age >= 0 && age < refit {
		return p.fitted
	}
	p.sizes, p.at = sizes, now
	next := &fitted{model: speed.Fit(seen, int(max(least, 1))), least: least, tried: int32(most)}
	switch {
	case !next.model.Known():
		p.fitted = nil
	case p.fitted == nil || !p.fitted.like(next, sizes):
		p.fitted = next
	}
	return p.fitted
}

// like says whether two fits say the same but for noise: at sizes that were seen, and on one node up to twice the largest
// of those.
func (f *fitted) like(other *fitted, seen [][2]int) bool {
	if f.least != other.least || f.tried != other.tried {
		return false
	}
	same := func(workers, nodes int) bool {
		return math.Abs(f.model.Speed(workers, nodes)/other.model.Speed(workers, nodes)-1) <= alike
	}
	for _, size := range seen {
		if !same(size[0], size[1]) {
			return false
		}
	}
	for n := int(max(f.least, 1)); n <= min(2*int(f.tried), looksUpTo); n++ {
		if !same(n, 1) {
			return false
		}
	}
	return true
}

// paceOf is what the planner is told of a job of which that was fitted, and what its program reports as far as that is
// believed; nil where nothing was fitted.
func paceOf(f *fitted, status *v1alpha1.TrainingJobStatus) *allocation.Pace {
	if f == nil {
		return nil
	}
	told := ProgressOf(status)
	return &allocation.Pace{Speed: f.model, Tried: f.tried, Done: told.Done(), Left: told.Left(), Kept: keptPart(status)}
}

// evens is so much time at the beginning of a job that is counted as spent in steps: the first minutes say little of those to come.
const evens = time.Minute

// keptPart is the part of its time since its first step, without suspensions, in which a job made its steps, at the paces that were
// seen; 0 for not known. Evaluation is no part of it, unlike of status.progress.keptTime.
func keptPart(status *v1alpha1.TrainingJobStatus) float64 {
	progress := &status.Progress
	goodput, err := strconv.ParseFloat(progress.Goodput, 64)
	if err != nil || !(goodput > 0) || goodput > 1 || progress.KeptTime == nil || progress.KeptTime.Duration <= 0 {
		return 0
	}
	steps, seconds := 0.0, 0.0
	for _, seen := range SizesSeen(&status.Speed) {
		if seen.StepsPerSecond > 0 && seen.Steps > 0 {
			steps += float64(seen.Steps)
			seconds += float64(seen.Steps) / seen.StepsPerSecond
		}
	}
	held := progress.KeptTime.Seconds() / goodput // until the progress was written
	part := (float64(value(progress.Step))*seconds/steps + evens.Seconds()) / (held + evens.Seconds())
	if !(part > 0) {
		return 0
	}
	return min(part, 1)
}

// samePace says whether two paces are the same to a planner that looks again within a minute anyway: that steps were made
// is no news.
func samePace(a, b *built) bool {
	return a.fitted == b.fitted && (a.fitted == nil || (a.job.Pace.Left > 0) == (b.job.Pace.Left > 0))
}
