package controller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// early is how long after the first world of an attempt has begun it may begin anew for larger volumes. It is next to nothing that
// is done again, and no snapshot of it would ever be kept.
const early = 5 * time.Minute

// outgrown is the end of an attempt that is to begin anew with larger volumes, once the size is durable that these go by.
func (p *planner) outgrown(pods []*corev1.Pod) failure {
	found, _ := p.cramped(pods)
	if !p.beginsAnew(p.Job, pods, found) {
		return failure{}
	}
	next := volumeSize(p.Job, p.settings)
	return failure{cause: causeOutgrown, message: fmt.Sprintf("%s; it begins anew with volumes of %s, and makes %d steps again",
		tooSmall(found), next.String(), p.World.Progress.Step)}
}

// mayBeginAnew says whether the attempt has hardly begun, with volumes that nobody has chosen.
func (s *State) mayBeginAnew() bool {
	world := s.Job.Status.World
	_, chosen := s.Job.Spec.Checkpoint.Memory.Quantity()
	return !chosen && hasVolume(&s.Job.Spec) && !s.finished() && !s.suspended() && s.target() > 0 && s.World.Phase == rendezvous.PhaseTraining &&
		world != nil && world.StartedAt != nil && value(world.From) == 0 && value(world.Attempt) == s.attempt() &&
		s.Now.Sub(world.StartedAt.Time) <= early
}

// beginsAnew says whether the attempt is better begun anew: the volumes that it has were made when nobody knew how large the state
// is, no snapshot fits into them, so it could neither grow nor lose a worker for as long as it lives; it has hardly begun; and there is no
// doubt that the pods which would be made of the job fit where these are.
func (p *planner) beginsAnew(job *v1alpha1.TrainingJob, pods []*corev1.Pod, found []cramped) bool {
	if !p.mayBeginAnew() || len(found) == 0 {
		return false
	}
	next := volumeSize(job, p.settings)
	for _, one := range found {
		if !one.unknown || one.needs > next.Value() {
			return false
		}
	}
	return p.haveRoom(pods, next.Value())
}

// haveRoom says whether workers with volumes of that size would fit where those are that there are. Each asks for as much more as its
// volume is larger. The nodes must have that, beside what others have of them, and the namespace must allow it.
func (p *planner) haveRoom(pods []*corev1.Pod, next int64) bool {
	var all int64
	on := map[string]int64{}
	for _, pod := range pods {
		node := p.Nodes.ByName[pod.Spec.NodeName]
		if node == nil || node.Spec.Unschedulable || node.DeletionTimestamp != nil || p.Nodes.drains(pod, p.DrainTaints) != "" {
			return false
		}
		size := volumeOf(pod)
		more := max(0, next-size.Value())
		on[pod.Spec.NodeName] += more
		all += more
	}
	for name, more := range on {
		if free, known := p.Nodes.FreeMemory[name]; !known || free < more {
			return false
		}
	}
	return len(p.Grant.Leave) == 0 && !p.boundsMemory() && p.quotasHold(pods, all)
}

// boundsMemory says whether a LimitRange bounds the memory of single pods or containers.
func (p *planner) boundsMemory() bool {
	for i := range p.Limits {
		for _, limit := range p.Limits[i].Spec.Limits {
			if _, bounded := limit.Max[corev1.ResourceMemory]; bounded && limit.Type != corev1.LimitTypePersistentVolumeClaim {
				return true
			}
		}
	}
	return false
}

// quotasHold says whether the quotas allow workers as much more memory.
func (p *planner) quotasHold(pods []*corev1.Pod, more int64) bool {
	for i := range p.Quotas {
		quota := &p.Quotas[i]
		for name, hard := range quota.Status.Hard {
			used := quota.Status.Used[name]
			meant := name == corev1.ResourceMemory || strings.HasSuffix(string(name), "."+string(corev1.ResourceMemory))
			counts := func(pod *corev1.Pod) bool { return concerns(quota, pod, true) }
			if meant && hard.Value()-used.Value() < more && slices.ContainsFunc(pods, counts) {
				return false
			}
		}
	}
	return true
}
