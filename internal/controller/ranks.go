package controller

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/record"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// standing is what is known of a worker's place in the current world.
type standing struct {
	// rank is its worker rank; -1 for none, or when nobody knows which.
	rank int32
	// open is true while it may have one of which nobody knows.
	open bool
}

// roll is what the record of the newest world says of who is in it. It tells of the workers that this operator has not heard
// yet, and is all that is durable of ranks.
type roll struct {
	made rendezvous.Record
	// ranks are those of the members by the ordinals of their pods; nil when the record names nobody.
	ranks map[int32]int32
	// parent is true while it may be the world before that trains, burned while it is known to be: nobody has entered the
	// newest one. The record does not name who is in the one before.
	parent, burned bool
	// since is when the world before began; zero when that is not known.
	since time.Time
}

func (s *State) roll() *roll {
	r := &roll{made: record.FromStatus(s.Job)}
	r.ranks, _ = record.Ranks(s.Job)
	reached := s.rendezvousKnows() && s.World.Round >= r.made.Round
	r.parent = r.made.Parent > 0 && !reached && !s.stepSeen(&r.made)
	r.burned = r.parent && s.rendezvousKnows() && s.World.Round == r.made.Parent
	if before := s.resize(r.made.Parent); before != nil {
		r.since = value(before.At).Time
	}
	return r
}

// resize is the durable entry of the change that made a round; nil for none.
func (s *State) resize(round uint64) *v1alpha1.Resize {
	for i := range s.Job.Status.Resizes {
		if resize := &s.Job.Status.Resizes[i]; value(resize.Round) == int64(round) {
			return resize
		}
	}
	return nil
}

// stepSeen says whether it is durable that a step was made in the world of a record: then the one before it makes none.
func (s *State) stepSeen(made *rendezvous.Record) bool {
	resize := s.resize(made.Round)
	return resize != nil && resize.Pause != nil
}

// clocksApart is how far the clocks of the API server, which says when a pod was created, and of the operator, which says when a
// record was made, may be from each other. Further apart no lease would hold and no certificate be valid.
const clocksApart = 2 * time.Minute

// standing is that of the pod of an attempt with an ordinal, which was created at a time. Whoever came after the record was
// made is in no world of which it does not tell.
func (r *roll) standing(attempt, ordinal int32, created time.Time) standing {
	if r.made.Round == 0 || attempt != r.made.Attempt {
		return standing{rank: -1}
	}
	if rank, named := r.ranks[ordinal]; named && !r.burned {
		return standing{rank: rank}
	}
	return standing{rank: -1, open: (r.ranks == nil || r.parent) && !created.After(r.made.StartedAt.Add(clocksApart))}
}

// recorded is the standing of a worker by the record alone. Whoever had ended before the world before the newest one began is in
// neither.
func (p *planner) recorded(pod *corev1.Pod) standing {
	if p.rolled == nil {
		p.rolled = p.roll()
	}
	stands := p.rolled.standing(podAttempt(pod), podOrdinal(pod), pod.CreationTimestamp.Time)
	stands.open = stands.open && !p.endedBefore(pod, p.rolled.since)
	return stands
}

// standing is that of a worker, by its own word or else by the record.
func (p *planner) standing(pod *corev1.Pod) standing {
	if seen := p.member(pod); seen.Joined {
		return standing{rank: seen.WorkerRank}
	}
	return p.recorded(pod)
}
