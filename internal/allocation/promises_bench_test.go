package allocation

import (
	"fmt"
	"testing"
)

// BenchmarkPlanPromised is a plan in which so many gangs start beside as many that were promised two places on a node each, of which
// one is free and the other one is that of a pod that ends.
func BenchmarkPlanPromised(b *testing.B) {
	for _, more := range []int32{0, 10} {
		for _, gangs := range []int{100, 600, 1000} {
			c := promising(gangs, more)
			var p Planner
			b.Run(fmt.Sprintf("more=%d/gangs=%d", more, gangs), func(b *testing.B) {
				for b.Loop() {
					p.Plan(c)
				}
			})
		}
	}
}

// promising is that cluster. The nodes of those that start are empty, and their priority is higher by so much.
func promising(gangs int, more int32) *Cluster {
	c := newCluster().withNodes(5000, 8)
	for n := range gangs {
		c.training(fmt.Sprintf("full%d", n), 7, 7, []NodeID{NodeID(n), NodeID(n), NodeID(n), NodeID(n), NodeID(n), NodeID(n), NodeID(n)})
		c.Jobs[n].Workers[6].Ending = true
	}
	for n := range gangs {
		c.queued(fmt.Sprintf("starts%d", n), 8, 8, priority(more))
	}
	for n := range gangs {
		c.queued(fmt.Sprintf("waits%d", n), 2, 2, func(j *Job) { j.Promised = []NodeID{NodeID(n), NodeID(n)} })
	}
	return c
}
