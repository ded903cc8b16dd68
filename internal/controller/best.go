package controller

import (
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
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
	found, listed, missed := p.World.Best, p.World.BestListed, p.World.Missed
	if by := p.World.BestBy; by != "" && by != best.Metric { // of an attempt that has not ended all of its pods yet
		found, listed, missed = nil, false, ""
	}
	if told := &p.plan.Elastic.Missed; *told != missed {
		if *told = missed; missed != "" {
			p.note(corev1.EventTypeWarning, v1alpha1.EventBestMissed, "%s", missed)
		}
	}
	var next []v1alpha1.BestCheckpoint
	if len(found) == 0 && !listed { // a new leader has yet to hear of them
		for i := range known[:min(len(known), best.Keep)] {
			if known[i].Metric == best.Metric {
				next = append(next, known[i])
			}
		}
	}
	for i := range found[:min(len(found), best.Keep)] {
		next = append(next, p.bestCheckpoint(best, &found[i], known))
	}
	p.plan.Status.Checkpoint.Best = next
	p.describeBest(best, next, missed)
}

// describeBest writes BestKept. why: see rendezvous.Observation.Missed. That a state was missed stays until one is kept that the status does not know of: neither a leader that
// has just begun, and has missed nothing, nor an evaluation that is none of the best changes that. What was said by another metric goes,
// and so does what was said of checkpoints that are there no more.
func (p *planner) describeBest(best score.Best, kept []v1alpha1.BestCheckpoint, why string) {
	told, known := meta.FindStatusCondition(p.plan.Status.Conditions, v1alpha1.ConditionBestKept), p.Job.Status.Checkpoint.Best
	stays := told != nil && told.Status == metav1.ConditionFalse
	isNew := func(k v1alpha1.BestCheckpoint) bool {
		return !slices.ContainsFunc(known, func(of v1alpha1.BestCheckpoint) bool { return of.Location == k.Location && of.Metric == k.Metric })
	}
	isOfAnother := func(k v1alpha1.BestCheckpoint) bool { return k.Metric != best.Metric }
	switch {
	case best.Keep == 0, why == "" && len(kept) == 0 && (!stays || slices.ContainsFunc(known, isOfAnother)):
		meta.RemoveStatusCondition(&p.plan.Status.Conditions, v1alpha1.ConditionBestKept)
	case why != "":
		p.set(v1alpha1.ConditionBestKept, metav1.ConditionFalse, v1alpha1.EventBestMissed, why)
	case len(kept) > 0 && (!stays || slices.ContainsFunc(kept, isNew)):
		p.set(v1alpha1.ConditionBestKept, metav1.ConditionTrue, v1alpha1.EventBestCheckpoint,
			fmt.Sprintf("the best checkpoint is of the state after step %d, with %s %s", value(kept[0].Step), kept[0].Metric, kept[0].Score))
	}
}

// forgetMetric takes BestKept back where checkpoints are kept by another metric than when the status was written: it may be False by the
// one before, of which nothing was kept that would name it. The metric changes while no program runs, so nothing is known by the new one.
func (p *planner) forgetMetric() {
	seen := p.Job.Status.ObservedGeneration
	if seen != nil && *seen > 0 && p.Memory.GangOf == *seen && p.Memory.Metric != bestOf(&p.Job.Spec).Metric && !p.finished() {
		meta.RemoveStatusCondition(&p.plan.Status.Conditions, v1alpha1.ConditionBestKept)
	}
}

// withoutBest says, behind something else, that a job ends that has not kept a single one of the checkpoints that it was to keep for
// their scores, and why; empty for any other.
func (p *planner) withoutBest() string {
	told := meta.FindStatusCondition(p.plan.Status.Conditions, v1alpha1.ConditionBestKept)
	if bestOf(&p.Job.Spec).Keep == 0 || len(p.plan.Status.Checkpoint.Best) > 0 || told == nil || told.Status != metav1.ConditionFalse {
		return ""
	}
	return "; no checkpoint was kept for its score: " + told.Message
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
