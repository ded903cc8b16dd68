package planner

import (
	"fmt"
	"time"

	"github.com/concertina-dev/concertina/internal/allocation"
)

// Waiting is what queues behind a cluster.
type Waiting struct {
	Gangs int
	// Evicts is how many of the running jobs may be ended for others.
	Evicts int
	// Equal is true when the gangs are all alike, and of one priority with all that runs.
	Equal bool
}

// Crowd is a cluster of about that size in which those that run hold nearly everything, and very many gangs of
// various shapes, sizes and priorities wait: most of them can be given nothing.
func Crowd(size Size, w Waiting) *allocation.Cluster {
	b := &builder{Cluster: Cluster(size), size: size, shapes: map[[4]int]allocation.ShapeID{}}
	b.random = newRandom(size.Seed + 1)
	left := w.Evicts
	for i := range b.Jobs {
		j := &b.Jobs[i]
		j.Policy = allocation.Shrink
		if left > 0 && j.Stage == allocation.Training {
			j.Policy, j.Priority = allocation.Evict, 0
			left--
		}
		if w.Equal {
			j.Priority = 0
		}
	}
	for i := range w.Gangs {
		b.waits(i, w.Equal)
	}
	return b.Cluster
}

// waits adds a gang to the queue.
func (b *builder) waits(i int, equal bool) {
	ns, pool, count, least := b.random.IntN(b.size.Namespaces), b.random.IntN(pools+1), 1, int32(1+b.random.IntN(400))
	switch i % 8 {
	case 0:
		count, least = b.size.Devices, 1+least/8
	case 1:
		count = b.size.Devices / 2
	case 2:
		least *= 10
	}
	priority := int32(b.random.IntN(5) * 100)
	if equal {
		ns, pool, count, least, priority = 0, 0, 1, 16, 0
	}
	at := start.Add(-time.Duration(b.random.IntN(1000)) * time.Minute)
	shape := b.shape(count, pool, ns)
	b.Jobs = append(b.Jobs, allocation.Job{
		Name: fmt.Sprintf("team-%d/waits-%d", ns, i), UID: fmt.Sprintf("uid-waits-%d", i), Namespace: allocation.NamespaceID(ns),
		Stage: allocation.Queued, Priority: priority, Preempts: true, Submitted: at, Queued: at,
		Min: least, Max: 2 * least, Gang: shape, Growth: shape,
	})
}

// Equals is a cluster of about that size that is full of running jobs which are all alike, but for how much
// beyond their min they have.
func Equals(size Size) *allocation.Cluster {
	b := newBuilder(size)
	b.nodes()
	b.namespaces()
	shape := b.shape(1, anyPool, 0)
	share := size.Nodes * size.Devices / size.Jobs
	for i := range size.Jobs {
		j := allocation.Job{
			Name: fmt.Sprintf("team-0/equal-%d", i), UID: fmt.Sprintf("uid-%d", i), Stage: allocation.Training, Preempts: true,
			Submitted: start.Add(-time.Duration(i) * time.Minute), Min: 4, Max: int32(4 * share), Gang: shape, Growth: shape,
			Pause: time.Duration(200+b.random.IntN(800)) * time.Millisecond,
		}
		b.fill(&j, int(j.Min)+b.random.IntN(2*share-int(j.Min)), anyPool)
		j.Target = int32(len(j.Workers))
		b.Jobs = append(b.Jobs, j)
	}
	b.Quotas[0].Hard[0], b.Quotas[0].Free[0] = allocation.Unbounded, allocation.Unbounded
	return b.Cluster
}
