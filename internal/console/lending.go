package console

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/internal/allocation"
	"github.com/concertina-dev/concertina/internal/fleet"
)

// lending says what a job has borrowed, and what is being given to whom now.
func (l *Look) lending(j *job) []string {
	var all []string
	if len(j.in.Workers) > 0 {
		all = append(all, l.surplus(j))
	}
	for _, pod := range j.pods {
		if one, marked := fleet.MarkOf(pod); marked {
			all = append(all, l.leaves(pod, one))
		}
	}
	if lenders := l.lendersOf(j); lenders != "" {
		all = append(all, lenders)
	}
	return all
}

// surplus is what the job has borrowed, and may have to give up for others.
func (l *Look) surplus(j *job) string {
	surplus := int32(0)
	for i := range j.in.Workers {
		if w := &j.in.Workers[i]; !w.Own && w.Bound && !w.Ending {
			surplus++
		}
	}
	own := max(j.have()-surplus, 0)
	why := "spec.preemption.policy is Never"
	if j.in.SizedBy != "" {
		why = j.in.SizedBy + " decides its size"
	}
	switch {
	case l.policy(j) == allocation.Never && surplus > 0:
		return fmt.Sprintf("It borrows nothing and lends nothing (%s): it gives up the %s that it has beyond min.", why, count(surplus, "worker"))
	case l.policy(j) == allocation.Never:
		return fmt.Sprintf("It borrows nothing and lends nothing (%s): it has min workers.", why)
	case surplus == 0:
		return "It has borrowed nothing: all of its workers are its own."
	default:
		return fmt.Sprintf("%d of its workers %s surplus, %d %s its own: the surplus is borrowed room, and goes when a gang needs it.",
			surplus, are(surplus), own, are(own))
	}
}

// leaves says that a worker leaves for another job now.
func (l *Look) leaves(pod *corev1.Pod, mark fleet.Mark) string {
	text := fmt.Sprintf("Right now worker %s leaves for job %s (%s, marked %s ago", pod.Name, mark.For, mark.Reason, span(l.now.Sub(mark.At)))
	if pod.DeletionTimestamp != nil {
		text += ", its pod is ending"
	}
	return text + ")."
}

// lendersOf names those who give room to a job right now; empty for none.
func (l *Look) lendersOf(j *job) string {
	counts := map[string]int{}
	for i := range l.jobs {
		other := &l.jobs[i]
		for _, pod := range other.pods {
			if one, marked := fleet.MarkOf(pod); marked && one.For == j.in.Name {
				counts[other.in.Name]++
			}
		}
	}
	var parts []string
	for name, n := range counts {
		parts = append(parts, fmt.Sprintf("%s by %s", count(n, "place"), name))
	}
	slices.Sort(parts)
	if len(parts) == 0 {
		return ""
	}
	return fmt.Sprintf("Room is being given to it: %s.", list(parts))
}
