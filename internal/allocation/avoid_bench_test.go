package allocation

import (
	"fmt"
	"testing"
)

// BenchmarkPlanAvoiding is BenchmarkPlan's cluster where so many jobs avoid one of their nodes, each another one: with room for all to
// grow, and where every other job has all that was free, as an equal of those that would grow or of a lower priority.
func BenchmarkPlanAvoiding(b *testing.B) {
	for _, room := range []string{"free", "equals", "lower"} {
		for _, avoiding := range []int{0, 500, 1000} {
			c := thousands(8)
			if room != "free" {
				c = thousands(4).fillUp()
			}
			for i := range avoiding {
				j := &c.Jobs[2*i]
				j.Avoid = []NodeID{j.Workers[0].Node}
			}
			for i := 0; room == "lower" && i < len(c.Jobs); i += 2 {
				c.Jobs[i].Priority = 100
			}
			var p Planner
			b.Run(fmt.Sprintf("room=%s/avoiding=%d", room, avoiding), func(b *testing.B) {
				for b.Loop() {
					p.Plan(c)
				}
			})
		}
	}
}

// fillUp gives what is free to every other job, until they have all that they may.
func (c *Cluster) fillUp() *Cluster {
	n := 0
	for i := 1; i < len(c.Jobs); i += 2 {
		j := &c.Jobs[i]
		for len(j.Workers) < int(j.Max) && n < len(c.Nodes) {
			if c.Nodes[n].Free[gpu] <= 0 {
				n++
				continue
			}
			w := j.Workers[0]
			w.Node, w.Own, w.Rank, w.Ordinal = NodeID(n), false, int32(len(j.Workers)), int32(len(j.Workers))
			c.take(w)
			j.Workers = append(j.Workers, w)
		}
		j.Target = int32(len(j.Workers))
	}
	return c
}
