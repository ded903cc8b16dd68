package replay

import "slices"

// longService is the attained service, in device-seconds, from which a job waits behind those with less.
const longService = 16 * 3600

// Tiresias is the policy of Gu et al. (NSDI 2019) as it was simulated for Pollux: sizes are those that were asked for,
// all or nothing, and jobs wait in two queues, by the service that they have had.
type Tiresias struct {
	cluster Cluster
	queues  [2][]*Run
	served  map[*Run]*service
	last    int64
}

// service is what Tiresias keeps of a job.
type service struct {
	queue   int
	running bool
	seconds int64
}

// NewTiresias is for one run.
func NewTiresias(c Cluster) *Tiresias { return &Tiresias{cluster: c, served: map[*Run]*service{}} }

// Assign says which devices each job has.
func (t *Tiresias) Assign(now int64, active []*Run) ([][]int, error) {
	for q := range t.queues {
		t.queues[q] = slices.DeleteFunc(t.queues[q], func(r *Run) bool { return r.done })
	}
	passed := now - t.last
	t.last = now
	for _, r := range active {
		if t.served[r] == nil {
			t.served[r] = &service{}
			t.queues[0] = append(t.queues[0], r)
		}
	}
	for _, r := range active {
		t.serve(r, passed)
	}
	order := slices.Concat(t.queues[0], t.queues[1])
	t.admit(order)
	return t.place(order, active), nil
}

// Why is by which of the queues.
func (t *Tiresias) Why(r *Run) string {
	if t.served[r].queue == 0 {
		return "it has had less than 16 device-hours"
	}
	return "it has had 16 device-hours, and stands behind those with less"
}

// serve counts the time that has passed for a job that ran.
func (t *Tiresias) serve(r *Run, passed int64) {
	s := t.served[r]
	if !s.running {
		return
	}
	s.seconds += passed
	if s.queue == 0 && s.seconds*int64(r.Workers) >= longService {
		s.queue = 1
		t.queues[0] = slices.DeleteFunc(t.queues[0], func(other *Run) bool { return other == r })
		t.queues[1] = append(t.queues[1], r)
	}
}

// admit lets jobs run in order as far as there are devices; smaller ones may pass one that does not fit.
func (t *Tiresias) admit(order []*Run) {
	free := t.cluster.Devices()
	for _, r := range order {
		s := t.served[r]
		if s.running = r.Workers <= free; s.running {
			free -= r.Workers
		}
	}
}

func (t *Tiresias) place(order, active []*Run) [][]int {
	free, nodes := roomOf(t.cluster), map[*Run][]int{}
	for _, r := range order {
		if t.served[r].running && len(r.Nodes) > 0 {
			nodes[r] = r.Nodes
			free.take(r.Nodes)
		}
	}
	for _, r := range order {
		if t.served[r].running && nodes[r] == nil {
			nodes[r] = free.place(r.Workers)
		}
	}
	out := make([][]int, len(active))
	for i, r := range active {
		out[i] = nodes[r]
	}
	return out
}
