package allocation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestWorkersMoveWhereverThatHelps: that workers cannot be moved in one part of a cluster says nothing of another, however many kinds
// of gangs wait.
func TestWorkersMoveWhereverThatHelps(t *testing.T) {
	for name, kinds := range map[string]int{"few kinds": 0, "many kinds": 2 * many} {
		t.Run(name, func(t *testing.T) {
			c := newCluster().withNodes(10, 4)
			c.Namespaces = append(c.Namespaces, Namespace{Name: "other", Weight: 1})
			c.Quotas = []Quota{{Name: "q", Namespace: 1, Hard: Amounts{5}, Free: Amounts{5}}}
			spread := c.training("spread", 4, 4, span(0, 4))
			c.training("fixed", 4, 4, []NodeID{4, 4, 5, 5}, policy(Never))
			stuck := c.training("stuck", 4, 4, span(6, 10), in(1)) // its quota has one replacement
			gang := func(name string, least int32, cpu int64, first, behind int) JobID {
				s := c.shape(4, 0)
				c.Shapes[s].Request[0] += cpu
				for n := range c.Nodes {
					if n < first || n >= behind {
						c.Shapes[s].Nodes.Clear(n)
					}
				}
				return c.queued(name, least, least, func(j *Job) { j.Gang = s })
			}
			for i := range kinds {
				gang(fmt.Sprint("large", i), 9, int64(10+i), 0, 6)
			}
			gang("there", 3, 1, 6, 10)
			here := gang("here", 3, 0, 0, 6)
			plan := NewPlan(c)
			if got := plan.of(spread); len(got.Places) != 3 {
				t.Errorf("%d workers are moved: %s", len(got.Places), plan.of(here).Why.Text)
			}
			if got := plan.of(stuck); len(got.Places) != 0 {
				t.Errorf("%d workers are moved that all would have to", len(got.Places))
			}
		})
	}
}

// TestManyKindsStandForEachOtherFromTheFirstOn: that there are many is known before the first of them is looked for on all nodes. Jobs
// that ask for the same are of one kind.
func TestManyKindsStandForEachOtherFromTheFirstOn(t *testing.T) {
	for _, kinds := range []int{1, many - 1, many, 3 * many} {
		c := newCluster().withNodes(2, 4)
		for i := range 4 * many {
			s := c.shape(1, 0)
			c.Shapes[s].Request[0] += int64(i % kinds)
			c.queued(fmt.Sprint("j", i), 1, 1, func(j *Job) { j.Gang = s })
		}
		k := newClasses(c)
		for id := range c.Jobs {
			if got := k.wideOf(k.of(c.Jobs[id].Gang, scope{})) != 0; got != (kinds >= many) {
				t.Fatalf("%d kinds: another class stands for that of job %d: %v", kinds, id, got)
			}
		}
	}
}

// TestPlacesThatWereUsedAreEmpty: what a class before has left in their memory is not there for the next one.
func TestPlacesThatWereUsedAreEmpty(t *testing.T) {
	var used places
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 2))
		nodes := 1 + random.IntN(200)
		if seed%2 == 1 {
			nodes = 130
		}
		free, k := make([]int64, nodes), &class{request: Amounts{1}, nodes: make(Bits, (nodes+63)/64)}
		for n := range nodes {
			if free[n] = int64(random.IntN(2 * brim)); random.IntN(3) > 0 {
				free[n] = 0
			}
			k.nodes.Set(n)
		}
		var anew places
		used.find(k, nil, free, 1, nodes)
		anew.find(k, nil, free, 1, nodes)
		for b := range anew.buckets {
			if (used.sizes[b] != anew.sizes[b]) || anew.sizes[b] > 0 && !slices.Equal(used.buckets[b], anew.buckets[b]) {
				t.Fatalf("seed %d: bucket %d has %d nodes, it should be %d", seed, b, used.sizes[b], anew.sizes[b])
			}
		}
		if used.total != anew.total || !slices.Equal(used.at, anew.at) || !slices.Equal(used.some, anew.some) {
			t.Fatalf("seed %d: %d places, it should be %d", seed, used.total, anew.total)
		}
		used.update(NodeID(random.IntN(nodes)), []int64{int64(random.IntN(9))}) // and what changed since counts too
	}
}
