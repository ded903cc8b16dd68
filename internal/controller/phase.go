package controller

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// phase is what the current attempt is in the middle of. It follows from what was gathered alone, and is found
// before anything is decided for the attempt: the first that fits.
//
//	phase     how it is recognised                                     what is done
//	refused   the API server has refused its batch                     it is given up before it began
//	unmade    no pod, no group, and it never had all of its nodes      its gang is made, where there is room still
//	elastic   the rendezvous knows its world, which can change         changes are counted, it grows and shrinks
//	over      it had a world, all of whose members have ended well     the job is complete
//	unheard   it had a world, whether that lives is not known here,    nobody is judged; the rendezvous is told
//	          and a worker is left who could tell                      whom to ask
//	burned    it had a world, and the rendezvous knows of none         those who are there form the next one
//	fixed     the rendezvous knows its world, which cannot change      it keeps its workers until it ends
//	placing   a pod has no node                                        the scheduler is asked, startTimeout runs
//	deserted  it had a world, and nobody is left who could tell        its pods say how it ended
//	starting  all pods have nodes, and it had no world yet             the first world forms, startTimeout runs
//
// From placing on, and in fixed, an attempt is lost, evicted and complete as a whole.
type phase int

const (
	phaseRefused phase = iota
	phaseUnmade
	phaseElastic
	phaseOver
	phaseUnheard
	phaseBurned
	phaseFixed
	phasePlacing
	phaseDeserted
	phaseStarting
)

var phaseNames = [...]string{"refused", "unmade", "elastic", "over", "unheard", "burned", "fixed", "placing", "deserted", "starting"}

func (p phase) String() string { return phaseNames[p] }

// phase finds the phase of the current attempt.
func (s *State) phase() phase {
	pods := s.gang()
	if refusal := s.Memory.Refusal; refusal != nil && refusal.Attempt == s.attempt() {
		return phaseRefused
	}
	if len(pods) == 0 && !s.GroupExists && !isTrue(s.Job.Status.Conditions, v1alpha1.ConditionGangScheduled) {
		return phaseUnmade
	}
	_, bound := placement(pods)
	knows, had := s.rendezvousKnows(), s.hadWorld()
	switch {
	case s.elastic():
		return phaseElastic
	case had && s.finishedUnseen(pods):
		return phaseOver
	case had && !knows && s.anyoneThere(pods):
		return phaseUnheard
	case had && knows && s.World.Round == 0:
		return phaseBurned
	case knows && s.World.Round > 0:
		return phaseFixed
	case !bound:
		return phasePlacing
	case had:
		return phaseDeserted
	default:
		return phaseStarting
	}
}

// anyoneThere says whether a worker is left whose agent could tell of the world.
func (s *State) anyoneThere(pods []*corev1.Pod) bool {
	return slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
		return pod.Spec.NodeName != "" && !podEnded(pod) && trainerExit(pod, &s.Job.Spec.Workers) == nil
	})
}
