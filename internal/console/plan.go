package console

import (
	"cmp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/internal/allocation"
)

// Plan is what the planner would do now.
type Plan struct {
	// Jobs are first those that would change, by name, then those that wait, in the order of the queue,
	// then those at rest.
	Jobs    []PlannedJob `json:"jobs"`
	Summary Summary      `json:"summary"`
}

// PlannedJob is one job of a Plan.
type PlannedJob struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Priority  int32  `json:"priority"`
	State     string `json:"state"`
	// Now is how many workers it has, Planned how many it should have.
	Now     int32 `json:"now"`
	Planned int32 `json:"planned"`
	// Changes is true when something would be done about the job, Waits when it waits to start.
	Changes bool `json:"changes"`
	Waits   bool `json:"waits"`
	// Start is true when its gang would start.
	Start bool `json:"start"`
	// EvictedFor is the job for which all of its workers would go.
	EvictedFor string `json:"evictedFor,omitempty"`
	// New are the nodes of workers that would be made.
	New []NewWorkers `json:"new,omitempty"`
	// Leaving are the workers that would leave, those that are leaving already included.
	Leaving []Leaver `json:"leaving,omitempty"`
	// Position is its place in the queue, from 1; 0 for a job that is not in it.
	Position int32 `json:"position,omitempty"`
	// EstimatedStart is when it starts at the latest, as far as deadlines tell; left out where they tell nothing.
	EstimatedStart *metav1.Time `json:"estimatedStart,omitempty"`
	// Reason is one word, Why a sentence.
	Reason string `json:"reason,omitempty"`
	Why    string `json:"why,omitempty"`
}

// NewWorkers are workers that would be made on one node.
type NewWorkers struct {
	// Node is empty where the scheduler chooses.
	Node  string `json:"node,omitempty"`
	Count int    `json:"count"`
}

// Leaver is a worker that would leave.
type Leaver struct {
	Pod string `json:"pod"`
	// For is the job that its room is for, as namespace/name; empty for none in particular.
	For string `json:"for,omitempty"`
	Why string `json:"why"`
}

// Summary counts.
type Summary struct {
	Jobs     int `json:"jobs"`
	Changing int `json:"changing"`
	Waiting  int `json:"waiting"`
	// Devices are those of all nodes. Where no node has any, CPUs stand in.
	Devices []Devices `json:"devices"`
}

// Devices are those of one name.
type Devices struct {
	Name string `json:"name"`
	// Free are those that nobody holds, on nodes that may take pods, in thousandths for cpu.
	Free     int64 `json:"free"`
	Capacity int64 `json:"capacity"`
}

// Plan is what would become of the jobs of a namespace, or of all with an empty one. The plan is always made
// for the whole cluster.
func (l *Look) Plan(namespace string) Plan {
	p := Plan{Jobs: []PlannedJob{}}
	for i := range l.jobs {
		if one := &l.jobs[i]; namespace == "" || one.object.Namespace == namespace {
			p.Jobs = append(p.Jobs, l.plannedJob(one))
		}
	}
	slices.SortStableFunc(p.Jobs, func(a, b PlannedJob) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.Position, b.Position),
			strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	p.Summary = Summary{Jobs: len(p.Jobs), Devices: l.devices()}
	for i := range p.Jobs {
		if p.Jobs[i].Changes {
			p.Summary.Changing++
		}
		if p.Jobs[i].Waits {
			p.Summary.Waiting++
		}
	}
	return p
}

// rank orders jobs: those that change, those in the queue, those that will queue, those at rest.
func (p *PlannedJob) rank() int {
	switch {
	case p.Changes:
		return 0
	case p.Position > 0:
		return 1
	case p.Waits:
		return 2
	default:
		return 3
	}
}

func (l *Look) plannedJob(j *job) PlannedJob {
	p := PlannedJob{
		Namespace: j.object.Namespace, Name: j.object.Name, Priority: j.in.Priority, State: j.state(),
		Now: j.have(), Planned: j.planned(), Changes: j.changes(), Waits: j.waits(l), Leaving: j.leavers(),
	}
	if r, resting := j.rest(l); resting {
		p.Reason, p.Why, p.Leaving = r.reason, r.text, nil
		return p
	}
	d := j.decision
	p.Start, p.Reason, p.Why = d.Start, d.Why.Reason, d.Why.Text
	p.New, p.EvictedFor = l.newWorkers(d), l.evictedFor(j)
	p.Position = d.Queue
	if !d.Expected.IsZero() {
		p.EstimatedStart = ptr.To(metav1.NewTime(d.Expected))
	}
	return p
}

// evictedFor is the job for which all of another goes; empty for none.
func (l *Look) evictedFor(j *job) string {
	if d := j.decision; d.Evict && d.For >= 0 && int(d.For) < len(l.jobs) {
		return l.jobs[d.For].in.Name
	}
	return ""
}

// newWorkers counts places by node.
func (l *Look) newWorkers(d *allocation.Decision) []NewWorkers {
	counts := map[string]int{}
	for _, at := range d.Places {
		if at >= 0 && int(at) < len(l.cluster.Nodes) {
			counts[l.cluster.Nodes[at].Name]++
		} else {
			counts[""]++
		}
	}
	var all []NewWorkers
	for node, n := range counts {
		all = append(all, NewWorkers{Node: node, Count: n})
	}
	slices.SortFunc(all, func(a, b NewWorkers) int { return strings.Compare(a.Node, b.Node) })
	return all
}

// leavers are the workers that would leave, by name.
func (j *job) leavers() []Leaver {
	var all []Leaver
	for _, pod := range j.pods {
		if leave, leaves := j.leave[pod.UID]; leaves {
			all = append(all, Leaver{Pod: pod.Name, For: leave.For, Why: leave.Why})
		}
	}
	return all
}

// devices are those of the cluster.
func (l *Look) devices() []Devices {
	all := l.sum(l.device)
	if len(all) == 0 {
		all = l.sum(func(i int) bool { return l.cluster.Resources[i] == "cpu" })
	}
	return all
}

// sum adds up some resources over all nodes.
func (l *Look) sum(of func(int) bool) []Devices {
	all := []Devices{}
	for i, name := range l.cluster.Resources {
		one := Devices{Name: name}
		for n := range l.cluster.Nodes {
			node := &l.cluster.Nodes[n]
			if node.Name == "" || i >= len(node.Capacity) {
				continue
			}
			one.Capacity += node.Capacity[i]
			if node.Closed == "" {
				one.Free += max(node.Free[i], 0)
			}
		}
		if of(i) && one.Capacity > 0 {
			all = append(all, one)
		}
	}
	slices.SortFunc(all, func(a, b Devices) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// since is how long ago something was; 0 for a time that is not known.
func (l *Look) since(t *metav1.Time) time.Duration {
	if t == nil {
		return 0
	}
	return max(0, l.now.Sub(t.Time))
}
