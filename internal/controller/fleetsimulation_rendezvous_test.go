package controller

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// simCoordinator is the rendezvous of one operator.
type simCoordinator struct{ op *simOperator }

func simName(key rendezvous.JobKey) types.NamespacedName {
	return types.NamespacedName{Namespace: key.Namespace, Name: key.Name}
}

// Expect implements rendezvous.Coordinator.
func (r *simCoordinator) Expect(key rendezvous.JobKey, gang rendezvous.Gang) {
	s := r.op.sim
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.op.dead {
		return
	}
	l := r.op.leading[key]
	if l != nil && l.gang.JobUID == gang.JobUID && gang.Attempt < l.gang.Attempt {
		return
	}
	if l == nil || l.gang.JobUID != gang.JobUID || l.gang.Attempt < gang.Attempt {
		l = &simLeader{heard: map[string]time.Time{}, since: time.Now(), phase: rendezvous.PhaseForming}
		w := s.worlds[simName(key)]
		l.adopting = w != nil && string(w.uid) == gang.JobUID && w.attempt == gang.Attempt
		r.op.leading[key] = l
	}
	l.gang = gang
	s.touch(simName(key))
}

// Release implements rendezvous.Coordinator.
func (r *simCoordinator) Release(key rendezvous.JobKey, uid string) {
	s := r.op.sim
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := r.op.leading[key]; l != nil && l.gang.JobUID == uid && !r.op.dead {
		l.released = true
		s.kubelets.release(simName(key), l.gang.Attempt)
	}
}

// Forget implements rendezvous.Coordinator.
func (r *simCoordinator) Forget(key rendezvous.JobKey, uid string) {
	s := r.op.sim
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := r.op.leading[key]; l != nil && l.gang.JobUID == uid && !r.op.dead {
		delete(r.op.leading, key)
	}
}

// Changed implements rendezvous.Coordinator.
func (r *simCoordinator) Changed() <-chan rendezvous.JobKey { return r.op.worlds }

// Observe implements rendezvous.Coordinator.
func (r *simCoordinator) Observe(key rendezvous.JobKey) rendezvous.Observation {
	s := r.op.sim
	s.mu.Lock()
	defer s.mu.Unlock()
	l := r.op.leading[key]
	if l == nil {
		return rendezvous.Observation{}
	}
	seen := rendezvous.Observation{
		Known: len(l.gang.Members) > 0, JobUID: l.gang.JobUID, Attempt: l.gang.Attempt, Adopting: l.adopting, Phase: l.phase, Why: l.why, Fatal: l.fatal,
		Members: map[string]rendezvous.MemberObservation{}, Changes: slices.Clone(l.changes), Losses: slices.Clone(l.losses),
	}
	w := s.worldOf(key, l)
	if w != nil && !l.adopting {
		seen.Round, seen.Elastic = w.round, !w.foreign
		if s.reports() && !w.warmAt.After(time.Now()) {
			off := 1 + s.noise*(2*s.dice.Float64()-1)
			seen.Progress = rendezvous.Progress{Step: uint64(w.step()), TotalSteps: uint64(w.last), Samples: uint64(w.step()) * 32,
				StepTime: time.Duration(off / w.pace() * float64(time.Second))}
		}
	}
	for _, m := range l.gang.Members {
		connected := s.kubelets.agents[types.UID(m.UID)]
		if connected {
			l.heard[m.UID] = time.Now()
		}
		rank := -1
		if w != nil {
			rank = slices.Index(w.members, m.UID)
		}
		one := rendezvous.MemberObservation{Joined: !l.heard[m.UID].IsZero(), Connected: connected, WorkerRank: -1, LastSeen: l.heard[m.UID]}
		if one.Joined {
			one.WorkerRank, one.InWorld = int32(rank), rank >= 0
		}
		one.Standby = connected && rank < 0
		one.Out = w != nil && w.out[m.UID] && m.Leaving != ""
		if pod := s.podWith(simName(key), m.UID); pod != nil && connected {
			one.Terminating = pod.DeletionTimestamp != nil
		}
		seen.Members[m.UID] = one
	}
	return seen
}
