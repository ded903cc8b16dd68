package planner

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/concertina-dev/concertina/internal/allocation"
)

func TestTheLargeClusterIsAsLargeAsItSays(t *testing.T) {
	c := Cluster(Large)
	pods, waiting, free := 0, 0, int64(0)
	for i := range c.Jobs {
		pods += len(c.Jobs[i].Workers)
		if c.Jobs[i].Stage == allocation.Queued {
			waiting++
		}
	}
	for i := range c.Nodes {
		free += c.Nodes[i].Free[devices]
		for _, amount := range c.Nodes[i].Free {
			if amount < 0 {
				t.Fatalf("%s is overfull", c.Nodes[i].Name)
			}
		}
	}
	t.Logf("%d nodes, %d jobs (%d waiting), %d pods, %d devices free, %d shapes", len(c.Nodes), len(c.Jobs), waiting, pods, free, len(c.Shapes))
	if pods < Large.Pods*8/10 || len(c.Jobs) != Large.Jobs {
		t.Errorf("%d pods and %d jobs", pods, len(c.Jobs))
	}
	if diff := cmp.Diff(allocation.NewPlan(c), allocation.NewPlan(Cluster(Large))); diff != "" {
		t.Error("the same cluster has two plans")
	}
}

func BenchmarkPlanFull(b *testing.B) {
	for name, c := range map[string]func() *allocation.Cluster{
		"mixed":             func() *allocation.Cluster { return Cluster(Large) },
		"kinds":             func() *allocation.Cluster { return Cluster(kinds) },
		"crowd of kinds":    func() *allocation.Cluster { return Crowd(kinds, Waiting{Gangs: 2000, Evicts: 200}) },
		"crowd":             func() *allocation.Cluster { return Crowd(Large, Waiting{Gangs: 2000}) },
		"crowd and evict":   func() *allocation.Cluster { return Crowd(Large, Waiting{Gangs: 2000, Evicts: 200}) },
		"crowd and 1 evict": func() *allocation.Cluster { return Crowd(Large, Waiting{Gangs: 2000, Evicts: 1}) },
		"crowd of equals":   func() *allocation.Cluster { return Crowd(Large, Waiting{Gangs: 1000, Evicts: 200, Equal: true}) },
		"equals that run":   func() *allocation.Cluster { return Equals(equals) },
		"equals at rest":    func() *allocation.Cluster { return settled(Equals(equals)) },
		"crowd at rest":     func() *allocation.Cluster { return settled(Crowd(Large, Waiting{Gangs: 2000, Evicts: 200})) },
	} {
		b.Run(name, func(b *testing.B) {
			c := c()
			b.ReportAllocs()
			for b.Loop() {
				allocation.NewPlan(c)
			}
		})
	}
}

var equals = Size{Nodes: 5000, Devices: 8, Jobs: 1000, Pods: 50_000, Namespaces: 1, Seed: 1}

func settled(c *allocation.Cluster) *allocation.Cluster {
	Settle(new(allocation.Planner), c, 30)
	return c
}

func BenchmarkPlanEvent(b *testing.B) {
	for name, size := range map[string]Size{"mixed": Large, "kinds": kinds} {
		b.Run(name, func(b *testing.B) {
			c := Cluster(size)
			var p allocation.Planner
			for turn := 0; b.Loop(); turn++ {
				b.StopTimer()
				if !Settle(&p, c, 30) {
					b.Fatal("the cluster does not come to rest")
				}
				Event(c, turn)
				b.StartTimer()
				tally(c)
				p.Plan(c)
			}
		})
	}
}

// kinds is as large, with as many kinds of pods as jobs.
var kinds = Size{Nodes: 5000, Devices: 8, Jobs: 2000, Pods: 50_000, Namespaces: 40, Seed: 1, Kinds: true}

func TestAsManyKindsAsJobs(t *testing.T) {
	size := Size{Nodes: 100, Devices: 8, Jobs: 40, Pods: 600, Namespaces: 4, Seed: 1, Kinds: true}
	seen := map[string]bool{}
	for _, s := range Crowd(size, Waiting{Gangs: 40}).Shapes {
		seen[fmt.Sprint(s.Request)] = true
	}
	if len(seen) != 80 {
		t.Errorf("80 jobs ask for %d different amounts", len(seen))
	}
}
