package allocation

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkPlan is one plan of 5,000 nodes with eight devices and 2,000 jobs that train in 50 namespaces, which hold a
// quarter of them, without and with paces.
func BenchmarkPlan(b *testing.B) {
	for _, paced := range []bool{false, true} {
		c := thousands(8)
		known := truth{0.1, 1}.pace(1e6, exactly)
		for i := range c.Jobs {
			if paced {
				c.Jobs[i].Pace = known
			}
		}
		var p Planner
		b.Run(fmt.Sprintf("paced=%v", paced), func(b *testing.B) {
			for b.Loop() {
				p.Plan(c)
			}
		})
	}
}

// thousands are 5,000 nodes with so many devices each, and 2,000 jobs that train in 50 namespaces and have 10,000 of them; each
// may have 16.
func thousands(devices int64) *Cluster {
	c := newCluster().withNodes(5000, devices)
	for i := range 49 {
		c.Namespaces = append(c.Namespaces, Namespace{Name: fmt.Sprint(i), Weight: 1})
	}
	shapes := make([]ShapeID, len(c.Namespaces))
	for ns := range shapes {
		shapes[ns] = c.shape(1, NamespaceID(ns))
	}
	for i := range 2000 {
		ns := i % len(shapes)
		c.training(fmt.Sprint(i), 1, 16, []NodeID{NodeID(2 * i), NodeID(2 * i), NodeID(2 * i), NodeID(2*i + 1), NodeID(2*i + 1)},
			in(NamespaceID(ns)), func(j *Job) { j.Gang, j.Submitted = shapes[ns], noon.Add(time.Duration(i)*time.Second) })
	}
	return c
}
