package allocation

import (
	"fmt"
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
