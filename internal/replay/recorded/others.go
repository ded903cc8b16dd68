package recorded

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/speed"
)

// endless are the kinds whose pods serve, and do not train: they never end.
var endless = []string{"ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController"}

// group are the pods of one job of a kind that is not known here.
type group struct {
	name string
	pods []held
}

// held is for how long a pod has held devices; to is zero while it runs.
type held struct {
	submitted, from, to time.Time
	node                string
	devices             int
}

// readOthers enters what else holds devices: the pods of one controller are one job, and a pod without one is one.
func (r *reading) readOthers(pods []*corev1.Pod) {
	groups := map[types.UID]*group{}
	var order []types.UID
	for _, pod := range pods {
		devices := r.devices(&pod.Spec)
		if _, ours := pod.Labels[v1alpha1.LabelJob]; ours || devices == 0 {
			continue
		}
		uid, name := pod.UID, pod.Name
		if owner := metav1.GetControllerOf(pod); owner != nil {
			if slices.Contains(endless, owner.Kind) {
				r.leaveOut("their pods never end")
				continue
			}
			uid, name = owner.UID, owner.Name
		}
		if groups[uid] == nil {
			groups[uid] = &group{name: pod.Namespace + "/" + name}
			order = append(order, uid)
		}
		groups[uid].pods = append(groups[uid].pods, heldBy(pod, devices))
	}
	for _, uid := range order {
		r.readGroup(groups[uid])
	}
}

func heldBy(pod *corev1.Pod, devices int) held {
	h := held{submitted: pod.CreationTimestamp.Time, node: pod.Spec.NodeName, devices: devices}
	if pod.Status.StartTime != nil {
		h.from = pod.Status.StartTime.Time
	}
	if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
		return h
	}
	h.to = h.from
	for _, c := range pod.Status.ContainerStatuses {
		if over := c.State.Terminated; over != nil && over.FinishedAt.After(h.to) {
			h.to = over.FinishedAt.Time
		}
	}
	return h
}

// readGroup enters one job: as many devices as it has held at the same time, for as long as it has held any; of one that
// runs for as long again. A second of it is a step, since nothing is known of those.
func (r *reading) readGroup(g *group) {
	g.pods = slices.DeleteFunc(g.pods, func(h held) bool { return h.from.IsZero() })
	if len(g.pods) == 0 {
		r.leaveOut("their pods have not started")
		return
	}
	from, to, running := g.pods[0].from, g.pods[0].to, false
	submitted := g.pods[0].submitted
	for _, h := range g.pods {
		from, submitted = earlier(from, h.from), earlier(submitted, h.submitted)
		running = running || h.to.IsZero()
		if h.to.After(to) {
			to = h.to
		}
	}
	if running {
		to = r.Now
	}
	seconds := int64(to.Sub(from) / time.Second)
	if seconds < 1 {
		r.leaveOut("they have trained for less than a second")
		return
	}
	devices, nodes := g.most(to)
	usual := speed.Observation{Workers: devices, Nodes: nodes, StepsPerSecond: 1, Steps: seconds}
	model := speed.Fit([]speed.Observation{usual}, 1)
	program := scaling(&model, usual, 1)
	program.Steps, program.Most = min(seconds, MostSteps), devices*max(1, r.Widen)
	if running {
		program.Steps = min(2*seconds, MostSteps)
		r.guessed++
	}
	r.formless++
	r.add(&found{name: g.name, submitted: submitted, workers: devices, program: program})
}

// most is how many devices a group has held at the same time at most, and on how many nodes; end is when it was over. Whoever
// ends when another one starts has made room for it.
func (g *group) most(end time.Time) (devices, nodes int) {
	type change struct {
		at      time.Time
		node    string
		devices int // below 0 for those that are given back
	}
	var changes []change
	for _, h := range g.pods {
		to := h.to
		if to.IsZero() {
			to = end
		}
		changes = append(changes, change{h.from, h.node, h.devices}, change{to, h.node, -h.devices})
	}
	slices.SortStableFunc(changes, func(a, b change) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.devices, b.devices)) })
	held, on := 0, map[string]int{}
	for _, c := range changes {
		held += c.devices
		if on[c.node] += c.devices; on[c.node] == 0 {
			delete(on, c.node)
		}
		if held > devices {
			devices, nodes = held, len(on)
		}
	}
	return devices, nodes
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
