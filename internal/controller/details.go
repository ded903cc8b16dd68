package controller

import (
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
)

// detailsRest is how long after a write of the status nothing is written for details alone. A gang of a
// thousand pods that start one by one would be written a thousand times.
const detailsRest = time.Second

// restDetails keeps back what changes with every single pod while the job itself stays what it is: how many
// workers run, what exactly a job that keeps its place in the queue waits for, and the words of a condition
// whose reason stays. It comes with the next write, or when the rest is over.
func (p *planner) restDetails() {
	left := p.Memory.Own.WrittenAt.Add(detailsRest).Sub(p.Now)
	if left <= 0 || left > detailsRest || len(p.plan.Notes) > 0 || p.plan.Progress {
		return
	}
	old, next := &p.Job.Status, p.plan.Status.DeepCopy()
	next.Workers.Running, next.Workers.Standby, next.Workers.Summary = old.Workers.Running, old.Workers.Standby, old.Workers.Summary
	next.Workers.Spares = old.Workers.Spares
	next.Queue.WaitsFor, next.Queue.EstimatedStart = old.Queue.WaitsFor, old.Queue.EstimatedStart
	for i := range next.Conditions {
		one := &next.Conditions[i]
		was := meta.FindStatusCondition(old.Conditions, one.Type)
		if was != nil && was.Status == one.Status && was.Reason == one.Reason {
			one.Message = was.Message
		}
	}
	if apiequality.Semantic.DeepEqual(old, next) && !apiequality.Semantic.DeepEqual(old, &p.plan.Status) {
		p.plan.Status, p.plan.SizeTold = *next, false
		p.lookAgain(left)
	}
}
