package console

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
	"github.com/concertina-dev/concertina/internal/fleet"
)

// Look is the cluster at one moment, and what the planner would do about it.
type Look struct {
	now     time.Time
	planner func(*allocation.Cluster) allocation.Plan
	cluster *allocation.Cluster
	// jobs are by JobID.
	jobs []job
	// partial is true when only jobs and pods were listed: there is no plan then, and nothing is known of
	// priority classes, quotas and what nodes offer.
	partial bool
}

// job is one job of a Look.
type job struct {
	id     allocation.JobID
	object *v1alpha1.TrainingJob
	// in is what the planner sees of it, decision what it would do; the latter is nil in a partial Look.
	in       *allocation.Job
	decision *allocation.Decision
	leave    map[types.UID]fleet.Leave
	// pods are those that have not ended, by name.
	pods []*corev1.Pod
}

// NewLook makes a plan for the cluster that was listed. Options are those that the operator has.
func NewLook(objects fleet.Objects, options fleet.Options) *Look {
	planner := options.Plan
	options.Plan = func(cluster *allocation.Cluster) allocation.Plan {
		markDurable(cluster, objects)
		return planner(cluster)
	}
	known := fleet.FromObjects(objects, options)
	known.PlanNow()
	cluster, plan := known.Last()
	l := newLook(cluster, objects)
	l.planner = planner
	for i := range l.jobs {
		one := &l.jobs[i]
		one.decision = &plan.Decisions[one.id]
		one.leave = known.Grant(one.object.UID).Leave
	}
	return l
}

// NewPartialLook takes in jobs and their pods only, for those who may not see more, or need not.
func NewPartialLook(objects fleet.Objects, options fleet.Options) *Look {
	cluster := fleet.FromObjects(objects, options).Snapshot()
	markDurable(cluster, objects)
	l := newLook(cluster, objects)
	l.partial = true
	return l
}

// markDurable says of which jobs nothing is lost when all of their workers go: their world can stop, and a checkpoint of
// theirs is in the storage. The operator also knows whether the storage has trouble, and how long uploads take.
func markDurable(cluster *allocation.Cluster, objects fleet.Objects) {
	durable := map[string]bool{}
	for _, object := range objects.Jobs {
		spec := &object.Spec
		durable[string(object.UID)] = spec.Checkpoint.Storage != nil && spec.Strategy() == v1alpha1.ResizeInPlace && value(object.Status.Checkpoint.Round) > 0
	}
	for i := range cluster.Jobs {
		cluster.Jobs[i].Durable = durable[cluster.Jobs[i].UID]
	}
}

func newLook(cluster *allocation.Cluster, objects fleet.Objects) *Look {
	l := &Look{now: cluster.Now, cluster: cluster}
	byUID := map[types.UID]*v1alpha1.TrainingJob{}
	for _, object := range objects.Jobs {
		byUID[object.UID] = object
	}
	pods := map[types.UID][]*corev1.Pod{}
	for _, pod := range objects.Pods {
		owner := metav1.GetControllerOfNoCopy(pod)
		if owner != nil && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			pods[owner.UID] = append(pods[owner.UID], pod)
		}
	}
	for id := range cluster.Jobs {
		in := &cluster.Jobs[id]
		one := job{id: allocation.JobID(id), object: byUID[types.UID(in.UID)], in: in, pods: pods[types.UID(in.UID)]}
		slices.SortFunc(one.pods, func(a, b *corev1.Pod) int {
			return cmp.Or(cmp.Compare(len(a.Name), len(b.Name)), strings.Compare(a.Name, b.Name))
		})
		l.jobs = append(l.jobs, one)
	}
	return l
}

// find is the job of a name; nil for none.
func (l *Look) find(name types.NamespacedName) *job {
	for i := range l.jobs {
		if object := l.jobs[i].object; object.Namespace == name.Namespace && object.Name == name.Name {
			return &l.jobs[i]
		}
	}
	return nil
}

// have is how many workers a job has that are not ending.
func (j *job) have() int32 {
	n := int32(0)
	for i := range j.in.Workers {
		if !j.in.Workers[i].Ending {
			n++
		}
	}
	return n
}

// planned is how many workers it should have: what the planner says, where it has a say.
func (j *job) planned() int32 {
	if j.decision == nil || j.in.Stage == allocation.Held {
		return j.have()
	}
	return j.decision.Count
}

// changes says whether the plan would do something about the job.
func (j *job) changes() bool {
	d := j.decision
	if d == nil || j.in.Stage == allocation.Held {
		return false
	}
	return d.Start || d.Evict || len(d.Places) > 0 || len(d.Leave) > 0 || d.Count != j.have()
}

// state is what the job is doing, in one word; empty when that is not known.
func (j *job) state() string {
	switch {
	case j.object.Status.State != "":
		return j.object.Status.State
	case j.in.Stage == allocation.Queued:
		return v1alpha1.ReasonQueued
	default:
		return "" // no operator has looked at it
	}
}

func (j *job) condition(kind string) *metav1.Condition {
	for i := range j.object.Status.Conditions {
		if c := &j.object.Status.Conditions[i]; c.Type == kind {
			return c
		}
	}
	return nil
}

// value reads a pointer, and takes nil for the zero value.
func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
