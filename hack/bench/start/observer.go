package start

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// observer puts a timeline together from what is seen of the workers.
type observer struct {
	timeline
	// seen tells for every moment which pods have come to it.
	seen [points]map[string]bool
}

// reach notes that a pod has come to a moment; only the first time counts.
func (o *observer) reach(p point, pod string, at time.Time) {
	if o.seen[p] == nil {
		o.seen[p] = map[string]bool{}
	}
	if !o.seen[p][pod] {
		o.seen[p][pod] = true
		o.latest(p, at)
	}
}

// pod takes in the state of a pod as seen at a time, and says whether its log can be read.
func (o *observer) pod(pod *corev1.Pod, container string, at time.Time) (logged bool) {
	if pod.Spec.NodeName != "" {
		o.reach(bound, pod.Name, at)
	}
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == container && (status.State.Running != nil || status.State.Terminated != nil) {
			o.reach(running, pod.Name, at)
			return true
		}
	}
	return false
}

// mark takes in a line of a log.
func (o *observer) mark(m mark) {
	switch m.kind {
	case started:
		o.reach(program, m.pod, m.at)
	case asking:
		o.reach(rendezvous, m.pod, m.at)
	case stepped:
		// One rank prints it, for all.
		if o.at[step].IsZero() {
			o.at[step] = m.at
		}
	}
}

// complete says whether every one of these moments has come, for all workers where it is theirs.
func (o *observer) complete(wanted ...point) bool {
	for _, p := range wanted {
		ofWorkers := p != formed && p != step
		if o.at[p].IsZero() || (ofWorkers && len(o.seen[p]) < workers) {
			return false
		}
	}
	return true
}
