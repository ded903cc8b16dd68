package fleet

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/internal/allocation"
)

// sweepEvery is after how many snapshots shapes and reaches that nobody needs are dropped.
const sweepEvery = 64

// view is what the planner sees at one moment, and what is needed to tell its answer.
type view struct {
	cluster *allocation.Cluster
	// jobs, by JobID, with the revision that was looked at and the pods that workers stand for.
	jobs      []*job
	revisions []uint64
	uids      [][]types.UID
	// next is when time alone makes a difference; zero for never.
	next time.Time
	// claims are what pods of others have that wait for the scheduler, by node.
	claims map[allocation.NodeID][]allocation.Claim
}

// snapshot copies what a plan reads. Nothing in it changes afterwards.
func (c *Cluster) snapshot() *view {
	now := c.options.Now()
	c.pass++
	v := &view{next: c.forgetAssumed(now)}
	v.cluster = &allocation.Cluster{Now: now, Settings: c.options.Settings.Planning(), Foresight: c.lastPlan.Foresight}
	if heard := c.began.Add(hearsFor); !c.began.IsZero() && now.Before(heard) {
		v.cluster.NoEviction = true
		v.sooner(heard)
	}
	namespaces := c.snapshotJobs(v)
	quotas := c.snapshotQuotas(v, namespaces)
	c.snapshotShapes(v, quotas)
	c.snapshotNodes(v)
	if c.pass%c.sweepEvery == 0 {
		c.shapes.sweep(c.pass)
		for key, r := range c.reaches {
			if r.used != c.pass {
				delete(c.reaches, key)
				r.dropped = true
			}
		}
	}
	return v
}

// sooner keeps the earlier one of two times that lie ahead.
func (v *view) sooner(at time.Time) {
	if at.After(v.cluster.Now) && (v.next.IsZero() || at.Before(v.next)) {
		v.next = at
	}
}

// namespaceIDs are those of one snapshot.
type namespaceIDs map[string]allocation.NamespaceID

// snapshotJobs enters the jobs, by name, and the namespaces.
func (c *Cluster) snapshotJobs(v *view) namespaceIDs {
	names := map[string]bool{}
	for _, j := range c.jobs {
		if j.dirty {
			c.rebuild(j)
		}
		names[j.object.Namespace] = true
	}
	namespaces := namespaceIDs{}
	for _, name := range sortedKeys(names) {
		described := c.options.Settings.namespace(name)
		if t := c.tenants[name]; t != nil {
			described.Ending = t.ending
		}
		namespaces[name] = allocation.NamespaceID(len(v.cluster.Namespaces))
		v.cluster.Namespaces = append(v.cluster.Namespaces, described)
	}
	v.jobs = c.jobsInOrder()
	v.cluster.Jobs = make([]allocation.Job, 0, len(v.jobs))
	v.revisions, v.uids = make([]uint64, 0, len(v.jobs)), make([][]types.UID, 0, len(v.jobs))
	ids := make(map[types.NamespacedName]allocation.JobID, len(v.jobs))
	for id, j := range v.jobs {
		ids[j.key()] = allocation.JobID(id)
	}
	for _, j := range v.jobs {
		v.cluster.Jobs = append(v.cluster.Jobs, c.snapshotJob(v, j, namespaces, ids))
		last := &v.cluster.Jobs[len(v.cluster.Jobs)-1]
		last.Promised, last.InVain = c.stillThere(j.promised), j.inVain
		v.revisions = append(v.revisions, j.revision)
		v.uids = append(v.uids, j.built.uids)
	}
	return namespaces
}

// jobsInOrder are all jobs by name; the list stays as it is.
func (c *Cluster) jobsInOrder() []*job {
	if c.ordered == nil {
		c.ordered = slices.SortedFunc(maps.Values(c.jobs), func(a, b *job) int {
			return cmp.Or(strings.Compare(a.built.job.Name, b.built.job.Name), strings.Compare(a.built.job.UID, b.built.job.UID))
		})
	}
	return c.ordered
}

// snapshotJob gives a job the ids of this snapshot, and what the time makes of it.
func (c *Cluster) snapshotJob(v *view, j *job, namespaces namespaceIDs, ids map[types.NamespacedName]allocation.JobID) allocation.Job {
	b, one := &j.built, j.built.job
	one.Namespace = namespaces[b.namespace]
	one.ShortSince, one.Again, one.Work = j.shortSinceAt(v.cluster.Now), j.triedAgain(), j.work
	if b.beneficiaries != nil {
		one.Workers = slices.Clone(one.Workers)
		for i, name := range b.beneficiaries {
			if id, there := ids[name]; there && name.Name != "" {
				one.Workers[i].For = id
			}
		}
	}
	now := v.cluster.Now
	for i, pod := range b.ending {
		if !pod.overdue(now) {
			v.sooner(pod.due())
			continue
		}
		if !one.Workers[i].Overdue {
			one.Workers = slices.Clone(one.Workers)
			one.Workers[i].Overdue = true
		}
	}
	for i, avoided := range b.avoided {
		if !c.isThere(avoided.node) {
			continue
		}
		if avoided.until.After(now) {
			v.sooner(avoided.until)
		} else if !avoidedUntilItTrains(b.avoided, i, &one) {
			continue
		}
		one.Avoid = append(one.Avoid, avoided.node.id)
	}
	if one.Stage == allocation.Queued && b.retry.After(now) {
		one.Stage, one.Queued = allocation.Held, time.Time{}
		v.sooner(b.retry)
	}
	if deadline := j.object.Spec.ActiveDeadline; deadline != nil && one.Ends.IsZero() && one.Stage == allocation.Queued {
		one.Ends = now.Add(deadline.Duration) // it begins to run when the job starts
	}
	if !b.lostSince.IsZero() && len(one.Workers) > 0 {
		one.Lost = max(0, now.Sub(b.lostSince))
	}
	return one
}

// stillThere are the nodes among some that have not gone since.
func (c *Cluster) stillThere(some []*node) (ids []allocation.NodeID) {
	for _, one := range some {
		if c.isThere(one) {
			ids = append(ids, one.id)
		}
	}
	return ids
}

// isThere says whether a node has not gone since: its number is that of no other one.
func (c *Cluster) isThere(one *node) bool { return c.nodes.slots[one.id] == one }

// quotaIDs are those of one snapshot, by namespace.
type quotaIDs map[string][]allocation.QuotaID

func (c *Cluster) snapshotQuotas(v *view, namespaces namespaceIDs) quotaIDs {
	v.cluster.Counts = slices.Clone(c.counts.list)
	ids := quotaIDs{}
	ending, assumed := inNamespaces(c.ending, namespaces), inNamespaces(c.assumed, namespaces)
	for _, namespace := range sortedKeys(namespaces) {
		t := c.tenants[namespace]
		if t == nil {
			continue
		}
		for _, name := range sortedKeys(t.quotas) {
			hard, free := c.free(t.quotas[name], ending[namespace], assumed[namespace], v.cluster.Now)
			ids[namespace] = append(ids[namespace], allocation.QuotaID(len(v.cluster.Quotas)))
			v.cluster.Quotas = append(v.cluster.Quotas, allocation.Quota{Name: name, Namespace: namespaces[namespace], Hard: hard, Free: free})
		}
	}
	for namespace := range ids {
		for _, one := range ending[namespace] {
			v.sooner(one.due())
		}
	}
	return ids
}

// inNamespaces are those of some pods that are in namespaces with a job, by namespace: quotas are many, and each asks
// for its own.
func inNamespaces(pods map[podKey]*pod, namespaces namespaceIDs) map[string][]*pod {
	by := map[string][]*pod{}
	for key, one := range pods {
		if _, looked := namespaces[key.Namespace]; looked {
			by[key.Namespace] = append(by[key.Namespace], one)
		}
	}
	return by
}

// snapshotShapes enters the shapes that the jobs have, each at its own place.
func (c *Cluster) snapshotShapes(v *view, quotas quotaIDs) {
	for i := range v.cluster.Jobs {
		one := &v.cluster.Jobs[i]
		c.need(one.Gang)
		c.need(one.Growth)
		for w := range one.Workers {
			c.need(one.Workers[w].Shape)
		}
	}
	v.cluster.Shapes = make([]allocation.Shape, len(c.shapes.slots))
	bits := map[*reach]allocation.Bits{}
	for id, one := range c.shapes.slots {
		if one == nil || one.used != c.pass {
			continue
		}
		if bits[one.reach] == nil {
			bits[one.reach] = slices.Clone(one.reach.nodes)
		}
		if one.counts != len(c.counts.list) || one.demand == nil {
			one.demand, one.counts = c.counts.shares(c.counts.known(Demand(one.pod))), len(c.counts.list)
		}
		described := allocation.Shape{
			Request: one.request.vector(len(c.resources.list)), Nodes: bits[one.reach],
			Demand: one.demand.vector(len(c.counts.list)), Unmodelled: one.unmodelled,
		}
		for _, q := range quotas[one.namespace] {
			if counted(c.tenants[one.namespace].quotas[v.cluster.Quotas[q].Name].object, one.pod) {
				described.Quotas = append(described.Quotas, q)
			}
		}
		v.cluster.Shapes[id] = described
	}
}

func (c *Cluster) need(id allocation.ShapeID) {
	one := c.shapes.slots[id]
	one.used, one.reach.used = c.pass, c.pass
}

// snapshotNodes enters the nodes, each at its own place, with what is free on them.
func (c *Cluster) snapshotNodes(v *view) {
	cluster := v.cluster
	cluster.Nodes = make([]allocation.Node, len(c.nodes.slots))
	v.charge(c, c.chargeWaiting(v))
	cluster.Resources = slices.Clone(c.resources.list)
	cluster.Devices = make([]bool, len(cluster.Resources))
	for i, name := range cluster.Resources {
		cluster.Devices[i] = IsDevice(name)
	}
}

// charge fills in capacity and what is free, in one piece of memory.
func (v *view) charge(c *Cluster, free freeRoom) {
	width := len(c.resources.list)
	capacities := make(allocation.Amounts, width*len(c.nodes.slots))
	for id, one := range c.nodes.slots {
		if one == nil {
			continue
		}
		described := one.described
		described.Capacity = capacities[id*width : (id+1)*width : (id+1)*width]
		one.capacity.addTo(described.Capacity, 1)
		for i, held := range one.fixtures {
			described.Capacity[i] -= held
		}
		described.Free, described.Claims = free.of(id), v.claims[allocation.NodeID(id)]
		if one.object == nil {
			clear(described.Free)
		}
		v.cluster.Nodes[id] = described
	}
	v.comeFree(c)
}

// comeFree notes what pods hold that end and are no worker of any job here: those of a job that is gone, and other
// people's. A pod that should have ended long ago is not waited for.
func (v *view) comeFree(c *Cluster) {
	for _, one := range c.ending {
		if one.node == nil || one.fixture || c.jobs[one.owner] != nil {
			continue
		}
		if one.overdue(v.cluster.Now) {
			continue
		}
		v.sooner(one.due())
		n := &v.cluster.Nodes[one.node.id]
		n.Coming = one.request.addTo(n.Coming, 1)
	}
}
