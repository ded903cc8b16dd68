package controller

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/record"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// A job with spec.workers.spares has more workers than train. To the rendezvous a spare is a standby for which the world has no
// place: it waits with its program started, and is in the next world once somebody is lost or leaves.

// trainsWith is the largest number of workers that the next world should have. Nobody who trains gives that up to become a spare:
// where the job is to have fewer workers its spares go first, and they come back before the world grows.
func (p *planner) trainsWith() int32 {
	members := int32(0)
	if made := record.FromStatus(p.Job); made.Attempt == p.attempt() && made.Round > 0 {
		members = made.Workers
	}
	return p.Job.Spec.Workers.Trains(max(p.target(), p.minimum()), members)
}

// trainsAtMost is the largest legal number of workers that train.
func (p *planner) trainsAtMost() int32 {
	workers := &p.Job.Spec.Workers
	return max(workers.World(workers.Ceiling()), p.minimum())
}

// tooManyTrain are those who leave whatever the job is to have: as many of those who train as are more than max allows. Its spares
// count as workers that it may have, so they are no reason for others to go, and without a leave the world stays as it is. Who
// was let go by it is gone then, and is no spare.
func (p *planner) tooManyTrain(staying []*worker) []*worker {
	if value(p.Job.Spec.Workers.Spares) <= 0 {
		return nil
	}
	var first []*worker
	over := -int(p.trainsAtMost())
	for _, w := range staying {
		switch {
		case w.stands.rank >= 0:
			over++
		case w.seen.Out && p.Memory.Elastic.Told[string(w.pod.UID)]:
			first = append(first, w)
		}
	}
	if over <= 0 {
		return first
	}
	for _, w := range chooseLeavers(staying, len(staying), int(p.minimum())) {
		if over > 0 && w.stands.rank >= 0 {
			first = append(first, w)
			over--
		}
	}
	return first
}

// sparesReady is how many workers are ready to take the place of others.
func (p *planner) sparesReady() int32 {
	var ready, members int32
	for _, pod := range p.gang() {
		seen := p.member(pod)
		switch {
		case !trainerRunning(pod, &p.Job.Spec.Workers) || p.givenUp(pod) || pod.DeletionTimestamp != nil:
		case seen.WorkerRank >= 0 && seen.Joined:
			members++
		case seen.Standby && seen.Connected && p.World.Round > 0:
			ready++
		}
	}
	// Those for whom the next world has a place are on their way into it. It grows by who is there beside the spares.
	next := p.Job.Spec.Workers.World(members + ready)
	if made := record.FromStatus(p.Job); made.Attempt == p.attempt() {
		next = max(next, made.Workers)
	}
	return max(0, ready-max(0, min(p.trainsWith(), next)-members))
}

// tellTakeover tells of those who were ready when others were lost, and by whom the world keeps its size, or grows.
func (p *planner) tellTakeover(c rendezvous.Change) {
	switch {
	case value(p.Job.Spec.Workers.Spares) <= 0 || c.Joined == "" || c.To < c.From:
	case c.To > c.From:
		p.note(corev1.EventTypeNormal, v1alpha1.EventSpareTookOver,
			"round %d: %s came in after the loss, and the world grows from %d to %d workers", c.Round, c.Joined, c.From, c.To)
	default:
		p.note(corev1.EventTypeNormal, v1alpha1.EventSpareTookOver,
			"round %d: %s took the place of who was lost, and the world keeps its %d workers", c.Round, c.Joined, c.To)
	}
}
