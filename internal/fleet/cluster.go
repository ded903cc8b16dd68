package fleet

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
)

// Shapes makes a pod of a job's own class and one of its growth class as the controller would; nil when
// the job's template cannot train. It is called with the cluster locked, and must not wait.
type Shapes func(job *v1alpha1.TrainingJob) (gang, growth *corev1.Pod)

// Options are what a Cluster needs.
type Options struct {
	Settings Settings
	// DrainTaints are keys of taints whose nodes are about to go: nothing is placed there.
	DrainTaints []string
	// Shapes makes the pods that jobs without any would have.
	Shapes Shapes
	// AsksFirst is true where reconcilers ask the API server what it would make of a worker (Facts.Asked), before anybody leaves for
	// a job that has none.
	AsksFirst bool
	// Plan is the planner. It is asked for one plan at a time.
	Plan func(*allocation.Cluster) allocation.Plan
	// Now is the clock.
	Now func() time.Time
}

// Cluster is what the fleet knows. It is kept up by events, and its methods return at once.
type Cluster struct {
	options Options

	// planning is held while a plan is made, and by who takes what was granted: the plan has not seen that it is taken, and
	// would grant it to another one. It comes before mu.
	planning sync.Mutex
	// mu is held for moments: events, reports and questions do not wait for a plan.
	mu        sync.Mutex
	resources *names
	counts    *names
	nodes     nodes
	shapes    shapes
	reaches   map[string]*reach
	classes   map[string]*schedulingv1.PriorityClass
	tenants   map[string]*tenant
	pods      map[podKey]*pod
	// waiting, ending and assumed are the pods that have no node, that were deleted, and that no event
	// has told of; workers those of a job, and byNamespace those of a namespace.
	waiting, ending, assumed map[podKey]*pod
	workers                  map[types.UID]map[podKey]*pod
	byNamespace              map[string]map[*pod]bool
	jobs                     map[types.UID]*job
	jobsByName               map[types.NamespacedName]*job
	// bound is when a worker was last given a node, by its scheduler.
	bound map[string]time.Time
	// ordered are the jobs by name; nil when it has to be found out anew.
	ordered []*job
	// began is when this process began to plan.
	began time.Time
	// pass is the number of the last snapshot.
	pass, sweepEvery uint64
	lastSeen         *allocation.Cluster
	lastPlan         allocation.Plan

	// wake has the planner look again. changes are jobs to look at.
	wake    chan struct{}
	changes *changes
	metrics *planMetrics
	synced  chan struct{}
}

var _ Fleet = (*Cluster)(nil)

// New makes a cluster of which nothing is known yet.
func New(options Options) *Cluster {
	if options.Now == nil {
		options.Now = time.Now
	}
	c := &Cluster{
		options: options, resources: newNames(), counts: newNames(),
		nodes: nodes{index: map[string]*node{}}, shapes: shapes{index: map[string]*shape{}}, reaches: map[string]*reach{},
		classes: map[string]*schedulingv1.PriorityClass{}, tenants: map[string]*tenant{}, pods: map[podKey]*pod{},
		waiting: map[podKey]*pod{}, ending: map[podKey]*pod{}, assumed: map[podKey]*pod{},
		workers: map[types.UID]map[podKey]*pod{}, byNamespace: map[string]map[*pod]bool{},
		bound: map[string]time.Time{}, jobs: map[types.UID]*job{}, jobsByName: map[types.NamespacedName]*job{},
		wake: make(chan struct{}, 1), changes: newChanges(), synced: make(chan struct{}), sweepEvery: sweepEvery,
	}
	c.resources.of(string(corev1.ResourcePods))
	c.metrics = newPlanMetrics(c)
	return c
}

// Objects are what a Cluster can be made of without a watch.
type Objects struct {
	Nodes      []*corev1.Node
	Pods       []*corev1.Pod
	Jobs       []*v1alpha1.TrainingJob
	Classes    []*schedulingv1.PriorityClass
	Quotas     []*corev1.ResourceQuota
	Namespaces []*corev1.Namespace
}

// FromObjects makes a cluster of what was listed. Nobody reports to it: a job is taken for what its
// status says.
func FromObjects(objects Objects, options Options) *Cluster {
	c := New(options)
	each(objects.Classes, c.SetClass)
	each(objects.Namespaces, c.SetNamespace)
	each(objects.Quotas, c.SetQuota)
	each(objects.Nodes, c.SetNode)
	each(objects.Jobs, c.SetJob)
	each(objects.Pods, c.SetPod)
	return c
}

// each takes objects by name, so that what is interned does not depend on the order of a list.
func each[T metav1.Object](objects []T, take func(T)) {
	for _, one := range slices.SortedFunc(slices.Values(objects), func(a, b T) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	}) {
		take(one)
	}
}

// changed has the planner look again.
func (c *Cluster) changed() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Last returns what the last plan was made of, and the plan; nil before the first. Neither must be
// changed.
func (c *Cluster) Last() (*allocation.Cluster, allocation.Plan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastSeen, c.lastPlan
}

// Snapshot returns the cluster as a planner would see it now.
func (c *Cluster) Snapshot() *allocation.Cluster {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.snapshot().cluster
}

// value reads a pointer, and takes nil for the zero value.
func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

func timeOf(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}

func sortedKeys[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }
