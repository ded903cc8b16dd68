package fleet

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

const (
	// assumedFor is how long a pod is believed in that was made and that no event has told of, madeWithin how long it is one that is
	// yet to be made at most: a gang of thousands takes its time where the API server is slow.
	assumedFor, madeWithin = 30 * time.Second, 10 * time.Minute
	// overdueAfter is how long after its grace period a pod may still stand in the API before quotas
	// let go of it, as the cluster's quota controller does.
	overdueAfter = 10 * time.Second
	// kindTrainingJob is the kind of the owner of workers.
	kindTrainingJob = "TrainingJob"
)

type podKey = types.NamespacedName

// pod is one pod that holds room, or waits for it.
type pod struct {
	object *corev1.Pod
	// owner is the job that controls it; empty for a pod of somebody else.
	owner types.UID
	// node is where it is charged; nil for nowhere yet.
	node    *node
	request shares
	// demand is what it counts against quotas, by the names that were known when there were so many.
	demand shares
	counts int
	// fixture is true when it belongs to its node.
	fixture bool
	// assumed is when it was made, for a pod that no event has told of; making is true while it may be in the making.
	assumed time.Time
	making  bool
	// reach is where it may go while it waits, fits since when there has been a place for it, and refused when the scheduler has
	// refused it beyond room; zero where it has not.
	reach   *reach
	fits    time.Time
	refused time.Time
	// shape is what it asks for as a worker of a job with such a template.
	shape    *shape
	template *corev1.Pod
}

// SetPod takes in a pod as it is now.
func (c *Cluster) SetPod(object *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ended(object) {
		c.removePod(keyOf(object))
		return
	}
	old := c.pods[keyOf(object)]
	if old != nil && old.assumed.IsZero() && c.samePod(old, object) {
		old.refused = refusedAt(old, object, c.options.Now())
		old.object = object
		return
	}
	if old != nil && old.object.UID == object.UID && old.object.Spec.NodeName == "" && object.Spec.NodeName != "" && ownerOf(object) != "" {
		c.bound[object.Spec.SchedulerName] = c.options.Now()
	}
	c.putPod(object, time.Time{})
}

// samePod says whether a pod still holds, wants and says the same. Most of what happens to pods is
// nobody's concern here.
func (c *Cluster) samePod(old *pod, object *corev1.Pod) bool {
	was := old.object
	return was.UID == object.UID && was.DeletionTimestamp.Equal(object.DeletionTimestamp) && sameOwner(was, object) &&
		was.Status.NominatedNodeName == object.Status.NominatedNodeName &&
		c.saysTheSame(old, object) &&
		maps.Equal(was.Labels, object.Labels) && maps.Equal(was.Annotations, object.Annotations) && sameMark(was, object) &&
		equality.Semantic.DeepEqual(was.Spec, object.Spec) &&
		slices.Equal(sortedShares(old.request), sortedShares(c.resources.shares(requests(object))))
}

// sameMark says whether a pod is to leave for the same reason.
func sameMark(a, b *corev1.Pod) bool {
	x, marked := MarkOf(a)
	y, also := MarkOf(b)
	return marked == also && x == y
}

// sameOwner says whether a pod still belongs to the same job: owners may be edited.
func sameOwner(a, b *corev1.Pod) bool {
	x, y := metav1.GetControllerOfNoCopy(a), metav1.GetControllerOfNoCopy(b)
	return (x == nil) == (y == nil) && (x == nil || x.UID == y.UID)
}

// DeletePod takes in that a pod is gone.
func (c *Cluster) DeletePod(object *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.pods[keyOf(object)]; known != nil && known.assumed.IsZero() && known.object.UID != object.UID && object.UID != "" {
		return // another one has its name
	}
	c.removePod(keyOf(object))
}

// Take implements Fleet. It waits for a plan that is being made, so what is granted here is granted to nobody
// else: by the next plan these pods are there.
func (c *Cluster) Take(uid types.UID, objects []*corev1.Pod) bool {
	c.planning.Lock()
	defer c.planning.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	j := c.jobs[uid]
	if j == nil || j.granted != j.revision || !j.grant.has(objects) {
		if j != nil {
			j.awaited = true
			c.changed()
		}
		return false
	}
	for _, object := range objects {
		if there := c.pods[keyOf(object)]; there != nil && there.assumed.IsZero() {
			continue // seen already, or somebody else's, whose room is not ours: the API server will tell
		}
		slim, _ := SlimPod(object.DeepCopy())
		c.putPod(slim.(*corev1.Pod), c.options.Now())
		c.pods[keyOf(object)].making = true
	}
	j.revision++ // what was granted has been taken
	return true
}

// has says whether there is a place for each of some pods.
func (g *Grant) has(objects []*corev1.Pod) bool {
	left := map[Place]int{}
	for _, place := range g.Places {
		left[place]++
	}
	for _, object := range objects {
		place := Place{Node: Pinned(object), Own: !isGrowth(object)}
		if left[place] == 0 {
			place.Node = "" // the scheduler chooses, within what the template says
		}
		if left[place]--; left[place] < 0 {
			return false
		}
	}
	return true
}

// Made implements Fleet.
func (c *Cluster) Made(objects []*corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, object := range objects {
		if known := c.pods[keyOf(object)]; known != nil && known.making {
			known.making, known.assumed = false, c.options.Now()
		}
	}
	c.changed() // they may be gone before an event tells of them
}

// Drop implements Fleet.
func (c *Cluster) Drop(objects []*corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, object := range objects {
		if known := c.pods[keyOf(object)]; known != nil && !known.assumed.IsZero() {
			c.removePod(keyOf(object))
		}
	}
}

func keyOf(object metav1.Object) podKey {
	return podKey{Namespace: object.GetNamespace(), Name: object.GetName()}
}

// ownerOf is the job that controls a pod.
func ownerOf(object *corev1.Pod) types.UID {
	if object.Labels[v1alpha1.LabelJob] == "" {
		return ""
	}
	owner := metav1.GetControllerOfNoCopy(object)
	if owner == nil || owner.Kind != kindTrainingJob || !strings.HasPrefix(owner.APIVersion, v1alpha1.GroupVersion.Group+"/") {
		return ""
	}
	return owner.UID
}

func (c *Cluster) putPod(object *corev1.Pod, assumed time.Time) {
	key := keyOf(object)
	old := c.pods[key]
	one := &pod{object: object, owner: ownerOf(object), request: c.resources.shares(requests(object)), assumed: assumed}
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil && staysOnNode(owner.Kind) {
		one.fixture = true
	}
	if old != nil {
		if old.object.UID == object.UID {
			one.fits = old.fits
		} else {
			c.gone(old)
		}
		c.uncharge(key, old)
	}
	one.refused = refusedAt(old, object, c.options.Now())
	c.pods[key] = one
	c.charge(key, one)
	c.changed()
}

func (c *Cluster) removePod(key podKey) {
	if one := c.pods[key]; one != nil {
		c.gone(one)
		c.uncharge(key, one)
		delete(c.pods, key)
		c.changed()
	}
}

// gone has its job take note of a pod that is there no more. It may have been deleted since the job was built, or at once: one
// without a node never ends.
func (c *Cluster) gone(one *pod) {
	if j := c.jobs[one.owner]; j != nil {
		mark, _ := MarkOf(one.object)
		j.gives(mark, true)
	}
}

// charge enters a pod wherever it counts.
func (c *Cluster) charge(key podKey, one *pod) {
	if where := chargedTo(one.object, one.owner != ""); where != "" {
		one.node = c.nodes.of(where)
		one.node.used = one.request.addTo(one.node.used, 1)
		if one.fixture {
			one.node.fixtures = one.request.addTo(one.node.fixtures, 1)
		}
		one.node.pods[key] = one
	} else if one.object.DeletionTimestamp == nil && len(one.object.Spec.SchedulingGates) == 0 {
		c.waiting[key] = one
	}
	if one.object.DeletionTimestamp != nil {
		c.ending[key] = one
	}
	if one.owner != "" {
		if c.workers[one.owner] == nil {
			c.workers[one.owner] = map[podKey]*pod{}
		}
		c.workers[one.owner][key] = one
		c.dirty(one.owner)
	}
	if !one.assumed.IsZero() {
		c.assumed[key] = one
	}
	c.chargeQuotas(key.Namespace, one, 1)
}

// uncharge is the opposite of charge.
func (c *Cluster) uncharge(key podKey, one *pod) {
	c.chargeQuotas(key.Namespace, one, -1)
	if n := one.node; n != nil {
		n.used = one.request.addTo(n.used, -1)
		if one.fixture {
			n.fixtures = one.request.addTo(n.fixtures, -1)
		}
		delete(n.pods, key)
		one.node = nil
		c.nodes.drop(n)
	}
	delete(c.waiting, key)
	delete(c.ending, key)
	delete(c.assumed, key)
	if one.owner != "" {
		delete(c.workers[one.owner], key)
		if len(c.workers[one.owner]) == 0 {
			delete(c.workers, one.owner)
		}
		c.dirty(one.owner)
	}
}

// chargedTo is the node that a pod holds a share of: where it is, where the scheduler has announced it,
// or, for a pod of ours, where it is planned. The scheduler charges a node until the pod has ended or is
// gone from the API, however long that takes, so nothing is promised there before.
func chargedTo(object *corev1.Pod, ours bool) string {
	if object.Spec.NodeName != "" {
		return object.Spec.NodeName
	}
	if object.DeletionTimestamp != nil {
		return "" // without a node it ends at once
	}
	if ours {
		if planned := Pinned(object); planned != "" {
			return planned
		}
	}
	return object.Status.NominatedNodeName
}

// overdue says whether a pod that was deleted stands in the API long after its grace period.
func (p *pod) overdue(now time.Time) bool {
	return p.object.DeletionTimestamp != nil && now.Sub(p.object.DeletionTimestamp.Time) > p.extraGrace()
}

// due is when a pod that was deleted is overdue, if it stands in the API then.
func (p *pod) due() time.Time {
	return p.object.DeletionTimestamp.Add(p.extraGrace() + time.Second)
}

func (p *pod) extraGrace() time.Duration {
	if grace := p.object.DeletionGracePeriodSeconds; grace != nil && time.Duration(*grace)*time.Second > overdueAfter {
		return time.Duration(*grace) * time.Second
	}
	return overdueAfter
}

// forgetAssumed drops pods that were assumed for too long, and says when the next one is due; zero for none.
func (c *Cluster) forgetAssumed(now time.Time) time.Time {
	var next time.Time
	for key, one := range c.assumed {
		if now.Before(one.assumed) {
			one.assumed = now // the clock was set back
		}
		due := one.assumed.Add(assumedFor)
		if one.making {
			due = one.assumed.Add(madeWithin)
		}
		if !now.Before(due) {
			c.removePod(key)
		} else if next.IsZero() || due.Before(next) {
			next = due
		}
	}
	return next
}

// ordinal is the number at the end of a pod's name, -1 for none.
func ordinal(name string) int32 {
	number, err := strconv.ParseInt(name[strings.LastIndexByte(name, '-')+1:], 10, 32)
	if err != nil {
		return -1
	}
	return int32(number)
}

func isGrowth(object *corev1.Pod) bool {
	return object.Labels[v1alpha1.LabelRole] == v1alpha1.RoleGrowth
}
