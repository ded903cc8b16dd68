package fleet

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"

	"github.com/concertina-dev/concertina/internal/allocation"
)

// waitingFor is how long room is kept for a pod that fits and that the scheduler does not place: it
// knows a reason that is not known here, such as a volume. Where it says that it is for the nodes themselves, none is kept.
const waitingFor = 30 * time.Second

// fitsAnew is for how long a pod for which room was kept in vain is kept none again: where it hangs on something else, what comes free
// would be kept for it each time.
const fitsAnew = 5 * time.Minute

// freeRoom is what is free on all nodes, in one piece of memory.
type freeRoom struct {
	amounts allocation.Amounts
	width   int
}

func (f freeRoom) of(node int) allocation.Amounts {
	return f.amounts[node*f.width : (node+1)*f.width : (node+1)*f.width]
}

func (f freeRoom) holds(node int, request shares) bool {
	free := f.of(node)
	for _, one := range request {
		if free[one.name] < one.amount {
			return false
		}
	}
	return true
}

// chargeWaiting is what is free once pods that wait for the scheduler have what they fit on: those of
// ours, and those of others that are not less important than all who could take it here. The scheduler
// is about to place them, sooner than it would see a pod that is made now.
func (c *Cluster) chargeWaiting(v *view) freeRoom {
	free := freeRoom{width: len(c.resources.list)}
	free.amounts = make(allocation.Amounts, free.width*len(c.nodes.slots))
	for id, one := range c.nodes.slots {
		if one == nil {
			continue
		}
		vector := free.of(id)
		one.capacity.addTo(vector, 1)
		for i, held := range one.used {
			vector[i] -= held
		}
	}
	queues := map[*reach]map[string]*queue{}
	for _, one := range c.competitors(v) {
		if one.reach == nil || one.reach.dropped {
			one.reach = c.reachOf(one.object)
		}
		one.reach.used = c.pass
		if queues[one.reach] == nil {
			queues[one.reach] = map[string]*queue{}
		}
		key := one.request.key()
		if queues[one.reach][key] == nil {
			queues[one.reach][key] = &queue{}
		}
		c.place(v, one, queues[one.reach][key], free)
	}
	return free
}

// queue is how far pods that ask for the same have come through the nodes: room only becomes less
// while they are placed.
type queue struct{ next int }

func (c *Cluster) place(v *view, one *pod, q *queue, free freeRoom) {
	nodes := c.nodes.byName()
	if c.refusedByAll(one) {
		nodes = nil // else each that is refused would look at all of them
	}
	for at := q.next; at < len(nodes); at++ {
		n := nodes[at]
		if !one.reach.nodes.Has(int(n.id)) || !free.holds(int(n.id), one.request) || n.described.Closed != "" {
			if at == q.next {
				q.next++
			}
			continue
		}
		if one.refused.After(n.changed) {
			continue // the scheduler knows a reason that is not known here
		}
		if one.fits.IsZero() || one.fits.After(v.cluster.Now) {
			one.fits = v.cluster.Now
		}
		if due := one.fits.Add(waitingFor); v.cluster.Now.Before(due) {
			one.request.addTo(free.of(int(n.id)), -1)
			v.claim(c, one, n.id)
			v.sooner(due)
		}
		return
	}
	if kept := v.cluster.Now.Sub(one.fits); kept < waitingFor || kept > fitsAnew {
		one.fits = time.Time{}
	}
}

// claim notes what a pod of somebody else has. That of a worker that joins its job counts for everybody.
func (v *view) claim(c *Cluster, one *pod, node allocation.NodeID) {
	if one.owner != "" {
		return
	}
	if v.claims == nil {
		v.claims = map[allocation.NodeID][]allocation.Claim{}
	}
	v.claims[node] = append(v.claims[node], allocation.Claim{
		Priority: schedulinghelper.PodPriority(one.object), Request: one.request.vector(len(c.resources.list)),
	})
}

// key tells requests apart.
func (s shares) key() string {
	var text strings.Builder
	for _, one := range sortedShares(s) {
		for _, number := range [2]int64{int64(one.name), one.amount} {
			for shift := 0; shift < 64; shift += 8 {
				text.WriteByte(byte(number >> shift))
			}
		}
	}
	return text.String()
}

// joins says whether a worker waits that a job which trains has more or again. Until the scheduler has placed it
// nobody else is charged for it, and its room would be granted once more in every plan.
func (c *Cluster) joins(one *pod) bool {
	j := c.jobs[one.owner]
	return j != nil && j.built.job.Stage == allocation.Training
}

// competitors are the pods without a node that stand before or beside somebody here, the most important
// first.
func (c *Cluster) competitors(v *view) []*pod {
	if len(c.waiting) == 0 {
		return nil
	}
	least := int32(math.MaxInt32)
	for i := range v.cluster.Jobs {
		if one := &v.cluster.Jobs[i]; one.Stage != allocation.Held {
			least = min(least, one.Priority)
			if class := c.classOf(v.jobs[i].object.Spec.Growth.PriorityClassName); class != nil && !one.NoGrowth {
				least = min(least, class.Value)
			}
		}
	}
	var some []*pod
	for _, one := range c.waiting {
		if one.owner != "" && !c.joins(one) {
			continue // the planner keeps room for the workers of a gang that starts
		}
		if one.object.Spec.Priority == nil || *one.object.Spec.Priority >= least {
			some = append(some, one)
		}
	}
	slices.SortFunc(some, func(a, b *pod) int {
		return cmp.Or(cmp.Compare(schedulinghelper.PodPriority(b.object), schedulinghelper.PodPriority(a.object)),
			a.object.CreationTimestamp.Compare(b.object.CreationTimestamp.Time),
			strings.Compare(a.object.Namespace, b.object.Namespace), strings.Compare(a.object.Name, b.object.Name))
	})
	return some
}
