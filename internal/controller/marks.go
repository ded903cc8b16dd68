package controller

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// A worker that is to leave for another job carries a mark, a condition of its pod, before anybody is
// told: whoever leads next goes on with the same workers.

// forOthers says whether a worker that leaves for this reason does so for another job.
func forOthers(reason rendezvous.Reason) bool { return fleet.LeavesForOthers(string(reason)) }

// PodMark is a mark to set on a pod; the zero one takes it away.
type PodMark struct {
	Pod  *corev1.Pod
	Mark fleet.Mark
}

// toMark are the workers that the planner wants to leave for another job, and that nothing says so of yet.
func (p *planner) toMark(crew []worker) []PodMark {
	if !p.Grant.Known {
		return nil
	}
	coming := count(crew, (*worker).starting) > 0
	var marks []PodMark
	for i := range crew {
		w := &crew[i]
		leave, wanted := p.Grant.Leave[w.pod.UID]
		if _, marked := fleet.MarkOf(w.pod); !wanted || marked || leave.For == "" || !w.stays() {
			continue
		}
		if leave.Reason == fleet.Moved && coming {
			continue // who takes its place is ready first, so that there is one pause
		}
		marks = append(marks, PodMark{Pod: w.pod, Mark: fleet.Mark{Reason: leave.Reason, For: leave.For, At: p.Now}})
	}
	return marks
}

// toLift are the workers whose room nobody needs any more, and that are still here. A barrier that is
// armed is finished.
func (p *planner) toLift(crew []worker) []PodMark {
	if !p.Grant.Known || p.World.Phase != rendezvous.PhaseTraining || !p.Memory.Elastic.Elastic {
		return nil // a grant from before this leader knew the world says nothing of who may stay
	}
	var marks []PodMark
	for i := range crew {
		w := &crew[i]
		_, wanted := p.Grant.Leave[w.pod.UID]
		byMark := forOthers(w.leaving) || w.leaving == "" // it is held back
		if _, marked := fleet.MarkOf(w.pod); marked && !wanted && byMark && w.lost == "" && !w.seen.Out {
			marks = append(marks, PodMark{Pod: w.pod})
		}
	}
	return marks
}

// markLeavers makes durable who leaves for other jobs, and who need not any more.
func (p *planner) markLeavers(crew []worker) {
	marks := p.toMark(crew)
	told := map[string][]string{}
	for _, m := range marks {
		leave := p.Grant.Leave[m.Pod.UID]
		key := leave.Reason + " " + leave.For
		told[key] = append(told[key], m.Pod.Name)
	}
	for _, key := range sortedKeys(told) {
		reason, job, _ := strings.Cut(key, " ")
		p.note(corev1.EventTypeNormal, reason, "the room of %s is for job %s", strings.Join(told[key], ", "), job)
	}
	p.plan.Actions.Mark = append(marks, p.toLift(crew)...)
}

// leaveBy is when a worker that leaves for another job is not waited for any longer: then it goes as one
// that is lost, and the steps since the last snapshot are told as lost.
func (p *planner) leaveBy(pod *corev1.Pod) time.Time {
	bound := maxReclaim
	if timeout := value(p.Job.Spec.Checkpoint.Timeout).Duration; timeout > 0 {
		bound = min(bound, timeout)
	}
	if p.ReclaimTimeout > 0 {
		bound = min(bound, p.ReclaimTimeout)
	}
	return p.markedSince(pod).Add(bound + killMargin)
}

// markedSince is when this operator first knew of the mark of a pod. What the mark itself says is another
// leader's clock, and may lie before a time without any: neither takes a lender's barrier away, nor puts it off.
func (p *planner) markedSince(pod *corev1.Pod) time.Time {
	since, known := p.Memory.Elastic.MarkedSince[string(pod.UID)]
	if !known || since.After(p.Now) {
		return p.Now
	}
	return since
}

const (
	// maxReclaim bounds how long a lender may take to a barrier, whatever anybody has set.
	maxReclaim = time.Minute
	// killMargin is how long before its time is over a worker should have been let go.
	killMargin = 5 * time.Second
)
