// Package recorded makes a workload of what a cluster shows now: its nodes, its TrainingJobs with the speeds that were
// measured, and whatever else holds devices, by its pods. It is pure; internal/console/listing lists the objects.
//
//	recorded.go   the whole, and the nodes
//	jobs.go       TrainingJobs
//	others.go     pods of anything else
//
// docs/replay.md says what is assumed of what.
package recorded

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/replay"
)

// Objects are what a workload is made of: finished pods and jobs as well.
type Objects struct {
	Nodes []*corev1.Node
	Pods  []*corev1.Pod
	Jobs  []*v1alpha1.TrainingJob
}

// Options say how it is read.
type Options struct {
	// Device is the resource that jobs share; empty for the one device that nodes have.
	Device string
	// Widen is how many times as many devices as it has a job can use of which nothing is known but its pods, at least 1.
	Widen int
	// Nodes and DevicesPerNode are a cluster of another size than the one that there is; 0 for as it is.
	Nodes, DevicesPerNode int
	Now                   time.Time
}

// Workload is jobs and a cluster for internal/replay.
type Workload struct {
	Device  string
	Cluster replay.Cluster
	Jobs    []replay.Job
	// Notes are what was left out, and what was assumed.
	Notes []string
}

// MostSteps is the most steps that a job is taken to make.
const MostSteps = 1_000_000_000

// New reads a cluster. Errors say what it lacks.
func New(o *Objects, options Options) (*Workload, error) {
	w := &reading{Options: options, out: &Workload{Device: options.Device}, left: map[string]int{}}
	if err := w.readNodes(o.Nodes); err != nil {
		return nil, err
	}
	for _, job := range o.Jobs {
		w.readJob(job)
	}
	w.readOthers(o.Pods)
	if len(w.found) == 0 {
		return nil, errors.Join(fmt.Errorf("the cluster shows no job that has trained with %s", w.out.Device), errors.New(strings.Join(w.notes(), "; ")))
	}
	w.finish()
	return w.out, nil
}

// reading is a workload in the making.
type reading struct {
	Options
	out   *Workload
	found []found
	// left is how many jobs were left out, by why.
	left map[string]int
	// guessed is how many jobs run of which it is not known how long they will, formless of how many only pods are known.
	guessed, formless int
}

// found is a job, before it is known when the first one was submitted.
type found struct {
	name      string
	submitted time.Time
	deadline  time.Duration // from submission, 0 for none
	workers   int
	program   *replay.Scaling
}

func (r *reading) leaveOut(why string) { r.left[why]++ }

// readNodes finds the device, and equal nodes that have as many of it as those that there are.
func (r *reading) readNodes(nodes []*corev1.Node) error {
	if r.out.Device == "" {
		device, err := onlyDevice(nodes)
		if err != nil {
			return err
		}
		r.out.Device = device
	}
	counts, all := map[int]int{}, 0
	for _, node := range nodes {
		quantity := node.Status.Allocatable[corev1.ResourceName(r.out.Device)]
		if n := int(min(quantity.Value(), math.MaxInt32)); n > 0 {
			counts[n]++
			all += n
		}
	}
	if all == 0 {
		return fmt.Errorf("no node has %s: say with --device what jobs share", r.out.Device)
	}
	usual := slices.MaxFunc(slices.Sorted(maps.Keys(counts)), func(a, b int) int { return cmp.Or(counts[a]-counts[b], a-b) })
	r.out.Cluster = replay.Cluster{Nodes: max(1, all/usual), DevicesPerNode: usual}
	if r.DevicesPerNode > 0 {
		r.out.Cluster.DevicesPerNode = r.DevicesPerNode
	}
	if r.Nodes > 0 {
		r.out.Cluster.Nodes = r.Nodes
	}
	if len(counts) > 1 && r.Nodes == 0 {
		r.out.Notes = append(r.out.Notes, fmt.Sprintf("nodes have different numbers of %s, %d in all: they are taken for %d nodes with %d each",
			r.out.Device, all, r.out.Cluster.Nodes, r.out.Cluster.DevicesPerNode))
	}
	return nil
}

func onlyDevice(nodes []*corev1.Node) (string, error) {
	known := map[string]bool{}
	for _, node := range nodes {
		for name, quantity := range node.Status.Allocatable {
			if fleet.IsDevice(string(name)) && quantity.Value() > 0 {
				known[string(name)] = true
			}
		}
	}
	switch names := slices.Sorted(maps.Keys(known)); len(names) {
	case 0:
		return "", errors.New("no node has a device, such as nvidia.com/gpu: say with --device what jobs share, such as cpu")
	case 1:
		return names[0], nil
	default:
		return "", fmt.Errorf("nodes have %s: say with --device which of them jobs share", strings.Join(names, ", "))
	}
}

// devices is how many a pod asks for.
func (r *reading) devices(spec *corev1.PodSpec) int {
	quantity := resourcehelper.PodRequests(&corev1.Pod{Spec: *spec}, resourcehelper.PodResourcesOptions{})[corev1.ResourceName(r.out.Device)]
	return int(min(quantity.Value(), math.MaxInt32))
}

// finish puts jobs in the order in which they were submitted, and tells what was assumed.
func (r *reading) finish() {
	slices.SortFunc(r.found, func(a, b found) int { return cmp.Or(a.submitted.Compare(b.submitted), cmp.Compare(a.name, b.name)) })
	first := r.found[0].submitted
	for i := range r.found {
		one := &r.found[i]
		job := replay.Job{Name: one.name, Submitted: int64(one.submitted.Sub(first) / time.Second), Workers: one.workers, Program: one.program}
		if one.deadline > 0 {
			job.Deadline = job.Submitted + max(1, int64(one.deadline/time.Second))
		}
		r.out.Jobs = append(r.out.Jobs, job)
	}
	r.out.Notes = append(r.out.Notes, r.notes()...)
}

// notes are what was left out and assumed of jobs.
func (r *reading) notes() []string {
	var notes []string
	for _, why := range slices.Sorted(maps.Keys(r.left)) {
		notes = append(notes, fmt.Sprintf("left out because %s: %d", why, r.left[why]))
	}
	if r.guessed > 0 {
		notes = append(notes, fmt.Sprintf("running with an end that is not known, taken to have half of it behind them: %d", r.guessed))
	}
	if r.formless > 0 {
		notes = append(notes, fmt.Sprintf("known by their pods alone, taken to scale like most programs, to %d times their devices at most (--widen): %d",
			r.Widen, r.formless))
	}
	return notes
}

// add enters a job that has room in the cluster.
func (r *reading) add(one *found) {
	devices := r.out.Cluster.Devices()
	if one.workers > devices {
		r.leaveOut(fmt.Sprintf("they ask for more than the %d devices that there are", devices))
		return
	}
	one.program.Most = max(one.workers, min(one.program.Most, devices))
	r.found = append(r.found, *one)
}
