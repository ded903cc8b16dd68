package recorded

import (
	"time"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/replay"
	"github.com/concertina-dev/concertina/internal/speed"
)

// readJob enters a TrainingJob with the speeds that were measured. Where sizes are fixed it asks for its min.
func (r *reading) readJob(job *v1alpha1.TrainingJob) {
	each := r.devices(&job.Spec.Workers.Template.Spec)
	if each == 0 {
		r.leaveOut("they do not ask for " + r.out.Device)
		return
	}
	step := value(job.Status.Progress.Step)
	if step < 1 {
		r.leaveOut("they have made no step yet")
		return
	}
	seen := r.observations(job)
	if len(seen) == 0 {
		r.leaveOut("it is not known how fast they are")
		return
	}
	usual := seen[0]
	for _, o := range seen {
		if o.Steps > usual.Steps {
			usual = o
		}
	}
	model := speed.Fit(seen, 1)
	program := scaling(&model, usual, each)
	program.Steps = r.steps(job, step)
	least := each * int(value(job.Spec.Workers.Min))
	program.Most = max(least, each*int(value(job.Spec.Workers.Max)))
	one := found{name: job.Namespace + "/" + job.Name, submitted: job.CreationTimestamp.Time, workers: least, program: program}
	if job.Spec.Deadline != nil {
		one.deadline = max(time.Second, job.Spec.Deadline.Sub(one.submitted))
	}
	r.add(&one)
}

// steps is how many a job makes from beginning to end: of one that is over those that it has made, else what its program
// says, else as many again.
func (r *reading) steps(job *v1alpha1.TrainingJob, made int64) int64 {
	total := made
	switch told := value(job.Status.Progress.TotalSteps); {
	case job.Status.CompletionTime != nil:
	case told > made:
		total = told
	default:
		total = 2 * min(made, MostSteps)
		r.guessed++
	}
	return min(total, MostSteps)
}

// observations are the sizes that were measured; without one, the size of its world with the mean of all of its steps.
func (r *reading) observations(job *v1alpha1.TrainingJob) []speed.Observation {
	if seen := speed.Observations(fleet.SizesSeen(&job.Status.Speed), r.Now); len(seen) > 0 {
		return seen
	}
	progress, world := &job.Status.Progress, job.Status.World
	if progress.KeptTime == nil || progress.KeptTime.Duration <= 0 || world == nil || value(world.Workers) < 1 {
		return nil
	}
	workers := int(value(world.Workers))
	return []speed.Observation{{
		Workers: workers, Nodes: 1, Steps: value(progress.Step), StepsPerSecond: float64(value(progress.Step)) / progress.KeptTime.Seconds(),
	}}
}

// scaling is what a model says in the terms of a workload, with what grows with the number of workers as it is at the size
// that is usual. A worker with several devices counts as that many workers.
func scaling(m *speed.Model, usual speed.Observation, each int) *replay.Scaling {
	n := max(2, usual.Workers)
	serial, compute := m.Alone()
	near := m.StepTime(n, 1) - serial - compute/float64(n)
	far := m.StepTime(n, 2) - m.StepTime(n, 1)
	// A step that workers share nothing of is no program; the workload has a number above 0 there.
	return &replay.Scaling{
		Serial: serial, Parallel: max(compute, 1e-6*serial, 1e-9) * float64(each), Near: max(0, near), Far: max(0, far),
	}
}

func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
