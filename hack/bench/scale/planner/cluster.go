// Package planner measures how long one plan for a large cluster takes.
//
//	cluster.go  a cluster of any size, nearly full, as the planner sees it
//	settle.go   brings it to rest
//	planner.go  the figures
package planner

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/concertina-dev/concertina/internal/allocation"
)

// Size is how large a cluster is made.
type Size struct {
	Nodes, Devices, Jobs, Pods int
	Namespaces                 int
	Seed                       uint64
	// Paced is true where it is known how fast each job is.
	Paced bool
	// Kinds is true where no two jobs ask for the same amounts: their pods are of as many kinds as there are jobs.
	Kinds bool
}

// Large is the size that the planner is measured at.
var Large = Size{Nodes: 5000, Devices: 8, Jobs: 2000, Pods: 50_000, Namespaces: 40, Seed: 1}

// The resources of the cluster, in this order.
const (
	cpu = iota
	memory
	pods
	devices
	resources
)

// start is the time in all such clusters; it has no meaning.
var start = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// builder fills a cluster with jobs.
type builder struct {
	*allocation.Cluster
	random *rand.Rand
	size   Size
	// cursor is the node that is filled next, by pool.
	cursor [pools]int
	shapes map[[4]int]allocation.ShapeID
	pods   int
}

// Nodes are in two pools with devices of their own type; pods without devices go anywhere.
const (
	pools   = 2
	anyPool = pools
)

// Cluster makes a cluster of about that size: nearly full, a tenth of the jobs waiting, a fifth of them
// small, with growth, priorities, quotas, and sizes. The same size makes the same cluster.
func Cluster(size Size) *allocation.Cluster {
	b := newBuilder(size)
	b.nodes()
	b.namespaces()
	for i := range size.Jobs {
		b.job(i)
	}
	return b.Cluster
}

func newRandom(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

func newBuilder(size Size) *builder {
	return &builder{
		size: size, random: newRandom(size.Seed), shapes: map[[4]int]allocation.ShapeID{},
		Cluster: &allocation.Cluster{
			Now:       start,
			Resources: []string{"cpu", "memory", "pods", "nvidia.com/gpu"},
			Devices:   []bool{false, false, false, true},
			Counts:    []string{"requests.nvidia.com/gpu", "pods"},
			Settings: allocation.Settings{
				MinRuntime: 5 * time.Minute, ReclaimTimeout: time.Minute, Backfill: 10 * time.Minute,
				CoolDown: 5 * time.Minute, FirstRegrow: 30 * time.Second, LastRegrow: 10 * time.Minute, ByValue: true,
			},
		},
	}
}

func (b *builder) nodes() {
	for i := range b.size.Nodes {
		offers := allocation.Amounts{192_000, 2 << 40, 110, int64(b.size.Devices)}
		b.Nodes = append(b.Nodes, allocation.Node{
			Name: fmt.Sprintf("node-%d", i), Capacity: offers, Free: append(allocation.Amounts{}, offers...),
			DeviceType: fmt.Sprintf("type-%d", b.pool(i)),
		})
	}
}

// pool is where a node is: two thirds are in the first.
func (b *builder) pool(node int) int {
	if 3*node < 2*b.size.Nodes {
		return 0
	}
	return 1
}

func (b *builder) namespaces() {
	all := int64(b.size.Nodes * b.size.Devices)
	for i := range b.size.Namespaces {
		b.Namespaces = append(b.Namespaces, allocation.Namespace{
			Name: fmt.Sprintf("team-%d", i), Weight: int64(1 + i%3), EvictAllowed: true, NeverAllowed: true,
		})
		hard := allocation.Amounts{2 * all / int64(b.size.Namespaces), int64(b.size.Pods)}
		b.Quotas = append(b.Quotas, allocation.Quota{
			Name: "devices", Namespace: allocation.NamespaceID(i), Hard: hard, Free: append(allocation.Amounts{}, hard...),
		})
	}
}

// shape is interned: pods with so many devices, in a pool and a namespace. With many kinds each job has its own.
func (b *builder) shape(count, pool, ns int) allocation.ShapeID {
	key := [4]int{count, pool, ns}
	if b.size.Kinds {
		key[3] = len(b.Jobs)
	}
	if id, ok := b.shapes[key]; ok {
		return id
	}
	request := make(allocation.Amounts, resources)
	request[cpu], request[memory], request[pods], request[devices] = 4000, 16<<30, 1, int64(count)
	if b.size.Kinds {
		request[cpu] += int64(b.random.IntN(4000) - 2000)
		request[memory] += int64(b.random.IntN(16)-8)<<30 + int64(len(b.Jobs))<<20
	}
	nodes := make(allocation.Bits, (b.size.Nodes+63)/64)
	for n := range b.size.Nodes {
		if pool == anyPool || b.pool(n) == pool {
			nodes.Set(n)
		}
	}
	id := allocation.ShapeID(len(b.Shapes))
	b.Shapes = append(b.Shapes, allocation.Shape{
		Request: request, Nodes: nodes, Demand: allocation.Amounts{int64(count), 1}, Quotas: []allocation.QuotaID{allocation.QuotaID(ns)},
	})
	b.shapes[key] = id
	return id
}

// job adds the i-th job: every tenth waits, every fourth of the others uses no devices.
func (b *builder) job(i int) {
	ns := i % b.size.Namespaces
	pool, count := b.random.IntN(3)/2, 1
	switch {
	case i%4 == 3:
		pool, count = anyPool, 0
	case i%5 == 2:
		count = b.size.Devices
	}
	shape := b.shape(count, pool, ns)
	least := int32(4 + b.random.IntN(12))
	most := 4 * least
	if count == b.size.Devices {
		least, most = 1+least/8, 2+least/2
	}
	j := allocation.Job{
		Name: fmt.Sprintf("team-%d/job-%d", ns, i), UID: fmt.Sprintf("uid-%d", i), Namespace: allocation.NamespaceID(ns),
		Stage: allocation.Training, Priority: int32(b.random.IntN(4) * 100), Preempts: true,
		Submitted: start.Add(-time.Duration(b.size.Jobs-i) * time.Minute), Min: least, Max: most, Gang: shape, Growth: shape,
		GrewAt: start.Add(-time.Duration(b.random.IntN(60)) * time.Minute), Pause: time.Duration(200+b.random.IntN(800)) * time.Millisecond,
	}
	if i%9 == 5 && count < b.size.Devices {
		j.Sizes = []int32{least, 2 * least, 4 * least}
	}
	if i%11 == 3 {
		j.Policy = allocation.Evict
	}
	if i%10 == 9 {
		j.Stage, j.Queued = allocation.Queued, j.Submitted
		b.Jobs = append(b.Jobs, j)
		return
	}
	b.run(&j, pool)
	b.Jobs = append(b.Jobs, j)
}

// run gives a job its workers, about as many as bring the cluster to its number of pods.
func (b *builder) run(j *allocation.Job, pool int) {
	share := int32(float64(b.size.Pods-b.pods) / float64(max(b.size.Jobs*9/10-len(b.Jobs)*9/10, 1)))
	wanted := min(max(share+int32(b.random.IntN(9))-4, j.Min), j.Max)
	if len(j.Sizes) > 0 {
		for wanted > j.Min && wanted != j.Sizes[0] && wanted != j.Sizes[1] && wanted != j.Sizes[2] {
			wanted--
		}
	}
	b.fill(j, int(wanted), pool)
	if len(j.Workers) < int(j.Min) {
		for _, w := range j.Workers {
			b.give(w.Node, w.Shape)
		}
		j.Workers, j.Stage, j.Queued = nil, allocation.Queued, j.Submitted
	}
	j.Target = int32(len(j.Workers))
	b.pods += len(j.Workers)
}

// fill gives a job workers as long as there is room.
func (b *builder) fill(j *allocation.Job, wanted, pool int) {
	for len(j.Workers) < wanted {
		n := b.find(j.Gang, pool)
		if n == allocation.None {
			break
		}
		ordinal := int32(len(j.Workers))
		j.Workers = append(j.Workers, allocation.Worker{
			Node: n, Shape: j.Gang, Own: ordinal < j.Min, Bound: true, World: true, For: allocation.None, Rank: ordinal, Ordinal: ordinal,
		})
		b.take(n, j.Gang)
	}
}

// find is the next node of a pool with room, None when it is full.
func (b *builder) find(s allocation.ShapeID, pool int) allocation.NodeID {
	at := &b.cursor[pool%pools]
	for range b.size.Nodes {
		n := *at % b.size.Nodes
		if b.Shapes[s].Nodes.Has(n) && b.fits(n, s) {
			return allocation.NodeID(n)
		}
		*at++
	}
	return allocation.None
}

func (b *builder) fits(n int, s allocation.ShapeID) bool {
	for i, amount := range b.Shapes[s].Request {
		if b.Nodes[n].Free[i] < amount {
			return false
		}
	}
	return true
}

func (b *builder) take(n allocation.NodeID, s allocation.ShapeID) { b.hold(n, s, 1) }
func (b *builder) give(n allocation.NodeID, s allocation.ShapeID) { b.hold(n, s, -1) }

func (b *builder) hold(n allocation.NodeID, s allocation.ShapeID, times int64) {
	shape := &b.Shapes[s]
	for i, amount := range shape.Request {
		b.Nodes[n].Free[i] -= amount * times
	}
	for _, q := range shape.Quotas {
		for i, amount := range shape.Demand {
			b.Quotas[q].Free[i] -= amount * times
		}
	}
}
