package fleet

import (
	"strconv"
	"time"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
	"github.com/concertina-dev/concertina/internal/speed"
)

// paceOf is what the planner is told of a job of which that was fitted, and what its program reports as far as that is
// believed; nil where nothing was fitted.
func paceOf(f *speed.Fitted, status *v1alpha1.TrainingJobStatus) *allocation.Pace {
	if f == nil {
		return nil
	}
	told := ProgressOf(status)
	return &allocation.Pace{Speed: f.Model, Tried: f.Tried, Done: told.Done(), Left: told.Left(), Kept: keptPart(status), Seen: SizesSeen(&status.Speed)}
}

// evens is so much time at the beginning of a job that is counted as spent in steps: the first minutes say little of those to come.
const evens = time.Minute

// keptPart is the part of its time since its first step, without suspensions, in which a job made its steps, each at the pace that was
// seen then; 0 for not known. Evaluation is no part of it, unlike of status.progress.keptTime.
func keptPart(status *v1alpha1.TrainingJobStatus) float64 {
	progress := &status.Progress
	goodput, err := strconv.ParseFloat(progress.Goodput, 64)
	if err != nil || !(goodput > 0) || goodput > 1 || progress.KeptTime == nil || progress.KeptTime.Duration <= 0 {
		return 0
	}
	steps, seconds := 0.0, 0.0
	all := SizesSeen(&status.Speed)
	for i := range all {
		seen := &all[i]
		if seen.StepsPerSecond > 0 && seen.Steps > 0 {
			steps += float64(seen.Steps)
			seconds += seen.Spent().Seconds()
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
	if a.fitted != b.fitted || a.fitted == nil {
		return a.fitted == b.fitted
	}
	here, _, _ := speed.Here(a.job.Pace.Seen)
	now, _, _ := speed.Here(b.job.Pace.Seen)
	return (a.job.Pace.Left > 0) == (b.job.Pace.Left > 0) && here == now
}
