package fleet

import (
	"crypto/sha256"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
	"github.com/concertina-dev/concertina/internal/speed"
)

// job is one TrainingJob, and what was reported of it.
type job struct {
	// object is its newest version, whoever brought it.
	object   *v1alpha1.TrainingJob
	facts    Facts
	reported bool
	// gang and growth are pods as the controller would make them of the object's generation, and of a state of that size, as far
	// as that decides where they fit; unmodelled says why only the scheduler knows that.
	gang, growth *corev1.Pod
	unmodelled   string
	generation   int64
	size         v1alpha1.StateSize
	misshapen    bool
	// pods tells pods of its gang from others, and podsSince is from which generation on they are these.
	pods      [sha256.Size]byte
	podsSince int64
	// next are the shapes of further pods of each.
	next [2]next
	// kept are the last pods of each kind that were made of gang and growth, asked what the API server has said of one.
	kept  [2]keptSample
	asked sample
	// fitter keeps how fast it is; shortSince is since when it is short, again when it was tried again with more workers, work by how
	// much of it it stands among others, by the last plan of this process.
	fitter     speed.Fitter
	shortSince time.Time
	again      allocation.Again
	work       float64
	// promised are the nodes that the last plan promised its gang, by this process.
	promised []*node
	// inVain is what the last plan said of it.
	inVain bool
	// gaveAt is when a worker was last marked that has left for an equal, as far as this process has seen it leave. A new leader
	// knows it of those alone that changed a world, which the job's status tells.
	gaveAt time.Time
	// built is what the planner sees of it, but for what only a snapshot knows: ids of jobs and of the
	// namespace, and times that pass. It is made anew when it is dirty.
	built built
	dirty bool
	// revision counts what has changed of it that matters, and reports that may matter; granted is the revision that
	// grant is for.
	revision, granted uint64
	grant             Grant
	// awaited is true when somebody was told that the grant is not known.
	awaited bool
}

func (j *job) key() types.NamespacedName {
	return types.NamespacedName{Namespace: j.object.Namespace, Name: j.object.Name}
}

// SetJob takes in a job as it is now.
func (c *Cluster) SetJob(object *v1alpha1.TrainingJob) {
	c.mu.Lock()
	defer c.mu.Unlock()
	j := c.putJob(object)
	switch {
	case j == nil:
	case j.dirty:
		c.changed()
	default:
		// How far it has come is no news here.
		if c.rebuild(j) {
			c.changed()
		}
	}
}

// DeleteJob takes in that a job is gone. Its pods are somebody's until they are gone too.
func (c *Cluster) DeleteJob(object *v1alpha1.TrainingJob) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeJob(object.UID)
}

// Report implements Fleet.
func (c *Cluster) Report(object *v1alpha1.TrainingJob, facts Facts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	j := c.jobs[object.UID]
	if j == nil || !notNewer(object, j.object) || object.ResourceVersion == j.object.ResourceVersion {
		// What the reconciler is about to write counts before it is written. It may go on writing to its own.
		c.reportJob(object.DeepCopy())
	} else if !j.dirty && j.reported && sameFacts(j.facts, facts) {
		return
	}
	if j = c.jobs[object.UID]; j == nil {
		return // another job has its name by now
	}
	known := j.reported && !j.dirty
	j.facts, j.reported = cloned(facts), true
	if !c.rebuild(j) {
		if known {
			return
		}
		j.revision++
	}
	c.changed()
}

// rebuild looks at a job anew, and says whether the planner sees a difference. That counts whoever had it looked at, an
// event, a plan or a report: what is known by the time that it is reported would not count otherwise.
func (c *Cluster) rebuild(j *job) bool {
	before := j.built
	c.build(j)
	if before.same(&j.built) {
		return false
	}
	j.revision++
	return true
}

// Forget implements Fleet.
func (c *Cluster) Forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeJob(uid)
}

// putJob keeps the newer one of two versions of a job, and returns it if that is new.
func (c *Cluster) putJob(object *v1alpha1.TrainingJob) *job {
	key := keyOf(object)
	if other := c.jobsByName[key]; other != nil && other.object.UID != object.UID {
		if object.CreationTimestamp.Before(&other.object.CreationTimestamp) {
			return nil
		}
		c.removeJob(other.object.UID)
	}
	j := c.jobs[object.UID]
	if j == nil {
		j = &job{object: object, dirty: true, revision: 1}
		c.jobs[object.UID], c.jobsByName[key], c.ordered = j, j, nil
		c.changed()
		return j
	}
	if notNewer(object, j.object) {
		return nil
	}
	j.object = object
	return j
}

// reportJob keeps the reconciler's version of a job, even if it is of the same age as what is there.
func (c *Cluster) reportJob(object *v1alpha1.TrainingJob) {
	if j := c.jobs[object.UID]; j != nil && object.ResourceVersion == j.object.ResourceVersion {
		j.object = object
		return
	}
	c.putJob(object)
}

// notNewer says whether one version of an object comes before another, or is the same.
func notNewer(one, than *v1alpha1.TrainingJob) bool {
	if one.ResourceVersion == than.ResourceVersion && one.ResourceVersion != "" {
		return true
	}
	if order, err := resourceversion.CompareResourceVersion(one.ResourceVersion, than.ResourceVersion); err == nil {
		return order < 0
	}
	return one.Generation < than.Generation
}

func (c *Cluster) removeJob(uid types.UID) {
	if j := c.jobs[uid]; j != nil {
		delete(c.jobs, uid)
		c.ordered = nil
		delete(c.jobsByName, j.key())
		c.changed()
	}
}

// dirty has a job looked at anew.
func (c *Cluster) dirty(uid types.UID) {
	if j := c.jobs[uid]; j != nil {
		j.dirty = true
		c.changed()
	}
}

func (c *Cluster) allDirty() {
	for _, j := range c.jobs {
		j.dirty = true
	}
	c.changed()
}

// avoidersChanged has jobs looked at anew that avoid a node which came or went.
func (c *Cluster) avoidersChanged(node string) {
	for _, j := range c.jobs {
		if slices.ContainsFunc(j.object.Status.AvoidedNodes, func(n v1alpha1.AvoidedNode) bool { return n.Name == node }) {
			j.dirty = true
		}
	}
}

func cloned(facts Facts) Facts {
	facts.Ranks, facts.Lost = maps.Clone(facts.Ranks), maps.Clone(facts.Lost)
	return facts
}

func sameFacts(a, b Facts) bool {
	return a.Held == b.Held && a.Elastic == b.Elastic && a.Unheard == b.Unheard && a.Finishing == b.Finishing && a.Regrouping == b.Regrouping && a.Armed == b.Armed &&
		maps.Equal(a.Ranks, b.Ranks) && maps.Equal(a.Lost, b.Lost) && a.GrowAfter.Equal(b.GrowAfter) &&
		a.Pause == b.Pause && a.Durable == b.Durable && a.Asked == b.Asked && a.Sample == b.Sample
}

// built is a job as the planner sees it.
type built struct {
	job allocation.Job
	// namespace and beneficiaries become ids in a snapshot; beneficiaries are by worker, and nil when no
	// worker leaves for anybody.
	namespace     string
	beneficiaries []types.NamespacedName
	uids          []types.UID
	// ending are the pods of workers that are being deleted, by worker.
	ending map[int]*pod
	// fitted is how fast it is by what was seen of it; nil for not known.
	fitted *speed.Fitted
	// avoided are the nodes on which it is not to be placed for a while.
	avoided []avoidedNode
	// retry is until when it is held, zero for not; lostSince from when on its work would be lost.
	retry, lostSince time.Time
}

// avoidedNode is a node on which a job is not to be placed until a time. Its number may be that of another one once it is gone.
type avoidedNode struct {
	node  *node
	until time.Time
}

// avoidedUntilItTrains says whether a node that a job may use again is to be its last choice all the same. The pauses of a gang that does not
// start grow longer than nodes are avoided: those on which it failed would come up in turn, and one that would take it never. Each
// second attempt goes to nodes on which nothing has failed yet, where there is room on these; the others, where there is none, to the
// node that has been out for longest.
func avoidedUntilItTrains(all []avoidedNode, at int, job *allocation.Job) bool {
	if job.Stage == allocation.Training || job.Starts == 0 {
		return false
	}
	if job.Starts%2 == 0 {
		return true
	}
	return slices.ContainsFunc(all, func(other avoidedNode) bool { return other.until.Before(all[at].until) })
}

func (n avoidedNode) equal(other avoidedNode) bool {
	return n.node == other.node && n.until.Equal(other.until)
}

// same says whether the planner would see no difference.
func (b *built) same(other *built) bool {
	x, y := b.job, other.job
	times := func(j *allocation.Job) [9]time.Time {
		return [9]time.Time{j.Submitted, j.Queued, j.Began, j.GrewAt, j.EvenedAt, j.ReclaimedAt, j.GrowAfter, j.Deadline, j.Ends}
	}
	xs, ys := times(&x), times(&y)
	for i := range xs {
		if !xs[i].Equal(ys[i]) {
			return false
		}
	}
	return b.retry.Equal(other.retry) && b.lostSince.Equal(other.lostSince) && slices.Equal(b.uids, other.uids) &&
		slices.Equal(b.beneficiaries, other.beneficiaries) && slices.Equal(x.Workers, y.Workers) && slices.Equal(x.Sizes, y.Sizes) && slices.Equal(x.Trains, y.Trains) &&
		slices.EqualFunc(b.avoided, other.avoided, avoidedNode.equal) && sameScalars(&x, &y) && samePace(b, other)
}

// sameScalars compares all that is neither a time nor a list.
func sameScalars(x, y *allocation.Job) bool {
	return x.Stage == y.Stage && x.Priority == y.Priority && [2]bool{x.Preempts, x.Unasked} == [2]bool{y.Preempts, y.Unasked} && [4]int32{x.Min, x.Max, x.Spares, x.Members} == [4]int32{y.Min, y.Max, y.Spares, y.Members} &&
		x.Gang == y.Gang && x.Growth == y.Growth && x.Policy == y.Policy && x.NoGrowth == y.NoGrowth && x.Fault == y.Fault && x.SizedBy == y.SizedBy &&
		x.Target == y.Target && x.Finishing == y.Finishing && x.Regrouping == y.Regrouping && x.Armed == y.Armed &&
		x.Durable == y.Durable && x.Restarts == y.Restarts && x.Starts == y.Starts && x.Reclaims == y.Reclaims && x.Pause == y.Pause
}
