package controller

import (
	"hash/fnv"
	"slices"
	"strconv"
	"time"

	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/speed"
)

const (
	// status.progress of all jobs together is written progressBudget times a second: of a few jobs every
	// leastProgress, of thousands every mostProgress. The jobs of a cluster are spread over a sixth of that.
	progressBudget = 5
	leastProgress  = 2 * time.Second
	mostProgress   = 2 * time.Minute
	// firstProgress is how often we look whether a world has anything to report at all.
	firstProgress = 10 * time.Second
	// A size that is not known yet is reported as soon as so many seconds of steps were made, in each of the first earlyReports
	// reports of a world: by the next regular one the world may be another.
	firstMeasure = 5 * time.Second
	earlyReports = 4
)

// refreshProgress brings status.progress up to date when its time has come: at the first step of a world,
// and regularly while it trains.
func (p *planner) refreshProgress() {
	p.forgetRetries()
	p.forgetNodes()
	every := progressEvery(p.Training)
	regular := every + jitter(string(p.Job.UID), every/6)
	due := p.Memory.ReportedAt.Add(regular)
	reported := !p.Memory.ReportedAt.IsZero() && p.Memory.ReportedRound == p.World.Round
	firstStep := p.Job.Status.Progress.Since == nil && p.World.Progress.Step > 0
	if reported && !firstStep && p.Now.Before(due) {
		if wait := p.untilMeasured(); wait > 0 {
			p.lookAgain(min(due.Sub(p.Now), wait))
			return
		}
	}
	if p.makesSteps() {
		p.reportProgress()
	}
	switch {
	case !p.plan.Progress:
		p.lookAgain(min(firstProgress, every))
	case p.untilMeasured() < mostProgress:
		p.lookAgain(min(every, firstMeasure))
	default:
		p.lookAgain(regular)
	}
}

// untilMeasured is in how long enough steps may have been made for the size of the world to be known, 0 for now; long where it is
// known, or should have been told by earlier reports.
func (p *planner) untilMeasured() time.Duration {
	memory, seen := &p.Memory, &p.World.Progress
	if memory.Reports > earlyReports && memory.ReportedRound == p.World.Round {
		return mostProgress
	}
	workers, nodes := p.worldSpan()
	known := slices.ContainsFunc(speed.Observations(fleet.SizesSeen(&p.Job.Status.Speed), p.Now), func(o speed.Observation) bool {
		return o.Workers == workers && o.Nodes == nodes
	})
	if known || workers == 0 {
		return mostProgress
	}
	if seen.Step <= memory.ReportedStep || seen.StepTime <= 0 {
		return firstMeasure
	}
	made := float64(seen.Step-memory.ReportedStep) * seen.StepTime.Seconds()
	if made >= firstMeasure.Seconds() {
		return 0
	}
	return max(firstMeasure-time.Duration(made*float64(time.Second)), time.Second)
}

func (p *planner) reportProgress() {
	if !p.rendezvousKnows() || p.World.Round == 0 {
		return
	}
	seen, memory := p.World.Progress, p.Memory
	if seen.Step == 0 && seen.TotalSteps == 0 && len(seen.Metrics) == 0 {
		return // a program that imports no SDK reports nothing, which is not the same as step 0
	}
	next := v1alpha1.ProgressStatus{Step: ptr.To(int64(seen.Step))}
	if seen.TotalSteps > 0 {
		next.TotalSteps = ptr.To(int64(seen.TotalSteps))
	}
	elapsed := p.Now.Sub(memory.ReportedAt)
	if memory.ReportedRound == p.World.Round && elapsed > 0 && seen.Samples >= memory.ReportedSamples {
		rate := float64(seen.Samples-memory.ReportedSamples) / elapsed.Seconds()
		next.SamplesPerSecond = ptr.To(int64(rate))
	}
	p.measure(&next)
	for _, metric := range seen.Metrics {
		next.Metrics = append(next.Metrics, v1alpha1.Metric{
			Name: metric.Name, Value: strconv.FormatFloat(metric.Value, 'g', 6, 64),
		})
	}
	p.plan.Status.Progress = next
	p.reportMemory()
	p.reportStragglers()
	p.measureSpeed()
	p.plan.Progress = true
}

// progressEvery is how often the progress of each of so many jobs that train is written.
func progressEvery(training int) time.Duration {
	return min(max(time.Duration(training)*time.Second/progressBudget, leastProgress), mostProgress)
}

// jitter is a time below most that is always the same for a job.
func jitter(uid string, most time.Duration) time.Duration {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(uid))
	return time.Duration(hash.Sum64() % uint64(max(most, 1)))
}
