package allocation

import (
	"fmt"
	"math/bits"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// drawFull is a tiny cluster with up to three jobs that lend, full but for what is left over, and one gang.
func drawFull(t *rapid.T) (*Cluster, JobID) {
	c := newCluster()
	for range rapid.IntRange(1, 3).Draw(t, "nodes") {
		c.withNodes(1, int64(rapid.IntRange(1, 4).Draw(t, "devices")))
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "lenders") {
		devices := int64(rapid.SampledFrom([]int{1, 1, 2}).Draw(t, "workerDevices"))
		wanted := rapid.IntRange(1, 6).Draw(t, "workers")
		var on []NodeID
		free := make([]int64, len(c.Nodes))
		for n := range free {
			free[n] = c.Nodes[n].Free[gpu]
		}
		first := rapid.IntRange(0, 2).Draw(t, "first")
		for n := 0; n < len(free) && len(on) < wanted; {
			at := (n + first) % len(free)
			if free[at] < devices {
				n++
				continue
			}
			free[at] -= devices
			on = append(on, NodeID(at))
		}
		if len(on) == 0 {
			continue
		}
		least := int32(rapid.IntRange(1, min(2, len(on))).Draw(t, "min"))
		c.training(fmt.Sprintf("lender%d", i), least, 12, on, c.devices(devices), func(j *Job) {
			if rapid.IntRange(0, 3).Draw(t, "sized") == 0 {
				for n := least; n <= int32(len(on)); n += 2 {
					j.Sizes = append(j.Sizes, n)
				}
				j.Sizes = append(j.Sizes, int32(len(on)))
			}
		})
	}
	wants := int32(rapid.IntRange(1, 4).Draw(t, "wants"))
	return c, c.queued("gang", wants, wants, c.devices(int64(rapid.SampledFrom([]int{1, 2, 2, 3, 4}).Draw(t, "gangDevices"))), priority(10))
}

// fewest is how many workers have to leave so that a gang fits, -1 when none that may would do: all sets of
// them are tried.
func (c *Cluster) fewest(gang JobID) int {
	type surplus struct {
		job    JobID
		worker *Worker
	}
	var all []surplus
	for id := range c.Jobs {
		for w := range c.Jobs[id].Workers {
			if !c.Jobs[id].Workers[w].Own {
				all = append(all, surplus{JobID(id), &c.Jobs[id].Workers[w]})
			}
		}
	}
	best, needs := -1, c.Shapes[c.Jobs[gang].Gang].Request[gpu]
	for set := range uint(1) << len(all) {
		if best >= 0 && bits.OnesCount(set) >= best {
			continue
		}
		free, gone := make([]int64, len(c.Nodes)), make([]int32, len(c.Jobs))
		for n := range free {
			free[n] = c.Nodes[n].Free[gpu]
		}
		for i, s := range all {
			if set&(1<<i) != 0 {
				free[s.worker.Node] += c.Shapes[s.worker.Shape].Request[gpu]
				gone[s.job]++
			}
		}
		fits, legal := int64(0), true
		for _, left := range free {
			fits += left / needs
		}
		for id := range c.Jobs {
			legal = legal && (gone[id] == 0 || c.Jobs[id].legal(int32(len(c.Jobs[id].Workers))-gone[id]))
		}
		if legal && fits >= int64(c.Jobs[gang].Min) {
			best = bits.OnesCount(set)
		}
	}
	return best
}

// TestAsFewAsPossibleLeave compares the search with all that could be done on tiny clusters. It is greedy: now
// and then one more leaves than would have to, and with sizes of jobs one legal step.
func TestAsFewAsPossibleLeave(t *testing.T) {
	takes, more := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		c, gang := drawFull(t)
		plan, leave, allowed := NewPlan(c), 0, 1
		for id := range c.Jobs {
			leave += plan.leavesFor(JobID(id), gang)
			if len(c.Jobs[id].Sizes) > 0 {
				allowed = 2
			}
			if len(plan.Decisions[id].Places) > 0 {
				return // It starts, or workers are moved for it.
			}
		}
		fewest := c.fewest(gang)
		if fewest > 0 {
			takes++
		}
		if leave > max(fewest, 0) {
			more++
		}
		if leave > max(fewest, 0)+allowed || leave < fewest || fewest < 0 && leave > 0 {
			t.Fatalf("%d leave, %d would do", leave, fewest)
		}
	})
	t.Logf("%d gangs took something, %d of them more than they had to", takes, more)
}

func TestOneLeavesWhereTwoWouldDo(t *testing.T) {
	t.Run("where a node lacks only one", func(t *testing.T) {
		c := newCluster().withNodes(1, 3).withNodes(2, 2)
		lender := c.training("lender", 1, 4, []NodeID{0, 0, 0, 1})
		gang := c.queued("gang", 2, 2, c.devices(2))
		if plan := NewPlan(c); plan.leavesFor(lender, gang) != 1 {
			t.Errorf("%d leave", plan.leavesFor(lender, gang))
		}
	})
	t.Run("where another job has it", func(t *testing.T) {
		c := newCluster().withNodes(1, 3).withNodes(1, 2).withNodes(1, 3)
		several := c.training("several", 1, 4, []NodeID{2, 0, 0, 0})
		one := c.training("one", 2, 3, []NodeID{2, 2, 1})
		gang := c.queued("gang", 1, 1, c.devices(2))
		if plan := NewPlan(c); plan.leavesFor(one, gang) != 1 || plan.leavesFor(several, gang) != 0 {
			t.Errorf("%d and %d leave", plan.leavesFor(one, gang), plan.leavesFor(several, gang))
		}
	})
	t.Run("unless that loses more", func(t *testing.T) {
		c := newCluster().withNodes(1, 3).withNodes(1, 2).withNodes(1, 3)
		several := c.training("several", 1, 4, []NodeID{2, 0, 0, 0})
		one := c.training("one", 2, 3, []NodeID{2, 2, 1}, func(j *Job) { j.Pause = time.Minute })
		gang := c.queued("gang", 1, 1, c.devices(2))
		if plan := NewPlan(c); plan.leavesFor(one, gang) != 0 || plan.leavesFor(several, gang) != 2 {
			t.Errorf("%d and %d leave", plan.leavesFor(one, gang), plan.leavesFor(several, gang))
		}
	})
	t.Run("with two devices", func(t *testing.T) {
		c := newCluster().withNodes(1, 3).withNodes(1, 4)
		large := c.training("large", 1, 2, []NodeID{0, 1}, c.devices(2))
		small := c.training("small", 1, 3, []NodeID{0, 1, 1})
		gang := c.queued("gang", 2, 2, priority(10))
		if plan := NewPlan(c); plan.leavesFor(large, gang) != 1 || plan.leavesFor(small, gang) != 0 {
			t.Errorf("%d and %d leave", plan.leavesFor(large, gang), plan.leavesFor(small, gang))
		}
	})
}
