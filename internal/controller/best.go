package controller

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/score"
)

// bestOf is which checkpoints of a job are kept for their scores; the zero value for none.
func bestOf(job *v1alpha1.TrainingJobSpec) score.Best {
	if uploaderAt(job) == "" || job.Checkpoint.Storage.Best == nil {
		return score.Best{}
	}
	spec := job.Checkpoint.Storage.Best
	return score.Best{Metric: spec.Metric, Lowest: spec.Order == v1alpha1.BestMinimize, Keep: int(max(value(spec.Keep), 1))}
}

// best is the same, with those that are known. What was kept by another metric is not known any more.
func (p *planner) best() rendezvous.Best {
	best := rendezvous.Best{Best: bestOf(&p.Job.Spec)}
	for i := range p.Job.Status.Checkpoint.Best {
		of := &p.Job.Status.Checkpoint.Best[i]
		value, err := strconv.ParseFloat(of.Score, 64)
		if of.Metric != best.Metric || err != nil || !score.IsFinite(value) || of.Step == nil || of.Round == nil {
			continue
		}
		best.Known = append(best.Known, rendezvous.Kept{Round: uint64(*of.Round), Step: uint64(*of.Step), Path: of.Location, Score: value})
	}
	return best
}

// refreshBest brings status.checkpoint.best up to date, and tells of what is new there.
func (p *planner) refreshBest() {
	best, known := bestOf(&p.Job.Spec), p.Job.Status.Checkpoint.Best
	if told := &p.plan.Elastic.Missed; *told != p.World.Missed {
		if *told = p.World.Missed; *told != "" {
			p.note(corev1.EventTypeWarning, v1alpha1.EventBestMissed, "%s", *told)
		}
	}
	var next []v1alpha1.BestCheckpoint
	if len(p.World.Best) == 0 {
		for i := range known[:min(len(known), best.Keep)] {
			if known[i].Metric == best.Metric {
				next = append(next, known[i])
			}
		}
	}
	for i := range p.World.Best[:min(len(p.World.Best), best.Keep)] {
		next = append(next, p.bestCheckpoint(best, &p.World.Best[i], known))
	}
	p.plan.Status.Checkpoint.Best = next
}

// bestCheckpoint is one of the best as the status has it: as it is known, or from now on.
func (p *planner) bestCheckpoint(best score.Best, of *rendezvous.Kept, known []v1alpha1.BestCheckpoint) v1alpha1.BestCheckpoint {
	for i := range known {
		if known[i].Location == of.Path && known[i].Metric == best.Metric {
			return known[i]
		}
	}
	text := score.Text(of.Score)
	p.note(corev1.EventTypeNormal, v1alpha1.EventBestCheckpoint, "the state after step %d, with %s %s, is one of the best: %s", of.Step, best.Metric, text, of.Path)
	return v1alpha1.BestCheckpoint{
		Metric: best.Metric, Score: text, Step: ptr.To(int64(of.Step)), Round: ptr.To(int64(of.Round)), Location: of.Path,
		At: ptr.To(metav1.NewTime(p.Now)),
	}
}
