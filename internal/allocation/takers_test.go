package allocation

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestSeveralGangsTakeAtOnce: on tiny clusters that are full several gangs take what they need from lenders and whole jobs, some of
// them within a quota. Each that leaves is needed, what is promised is there then, and nobody is held up by lower priorities.
func TestSeveralGangsTakeAtOnce(t *testing.T) {
	takers := map[int]int{}
	rapid.Check(t, func(t *rapid.T) {
		s := simulate(drawTakers(t))
		c := s.Cluster
		plan := NewPlan(c)
		takers[len(s.takes(plan))]++
		s.sound(t, plan)
		s.needed(t, plan)
		if !plan.moves() {
			s.helps(t, plan) // a gang for which workers move may have another way to its room once others have left, and choose that
		}
		s.inOrder(t, plan)
		s.eachNeeded(t, plan)
		s.promisesHold(t, plan)
		s.notHeldUp(t, plan)
		s.startsBeside(t, plan)
		s.notPutOff(t, plan)
		s.marksKept(t, plan)
	})
	t.Logf("plans by how many gangs took: %v", takers)
}

// drawTakers is a tiny cluster that is full, with several gangs that take what they need.
func drawTakers(t *rapid.T) *Cluster {
	c, _ := drawFull(t)
	c.Namespaces = append(c.Namespaces, Namespace{Name: "other", Weight: 1, EvictAllowed: true})
	if rapid.Bool().Draw(t, "quota") {
		c.bound(t)
	}
	for range rapid.IntRange(1, 3).Draw(t, "gangs") {
		wants := int32(rapid.IntRange(1, 4).Draw(t, "wants too"))
		ns := NamespaceID(rapid.IntRange(0, 1).Draw(t, "namespace"))
		c.queued(fmt.Sprintf("gang%d", len(c.Jobs)), wants, wants, in(ns), c.inNamespace(ns, int64(rapid.IntRange(1, 3).Draw(t, "devices each"))),
			priority(int32(rapid.SampledFrom([]int{5, 10, 20}).Draw(t, "priority"))))
	}
	for id := range c.Jobs {
		c.Jobs[id].Policy = Policy(rapid.SampledFrom([]int{int(Shrink), int(Shrink), int(Evict)}).Draw(t, "policy"))
		c.Jobs[id].NoGrowth = rapid.Bool().Draw(t, "growth")
		if rapid.IntRange(0, 3).Draw(t, "grew") == 0 {
			c.Jobs[id].GrewAt = noon
		}
	}
	c.Settings.MinRuntime = 10 * time.Minute
	return c.at(time.Duration(rapid.SampledFrom([]int{0, 11}).Draw(t, "minutes")) * time.Minute)
}

// moves says whether workers of any job are to be elsewhere.
func (p Plan) moves() bool {
	return slices.ContainsFunc(p.Decisions, func(d Decision) bool { return d.Why.Reason == "Moving" })
}

// inNamespace is a gang of workers that count against the quotas of a namespace.
func (c *Cluster) inNamespace(ns NamespaceID, devices int64) func(*Job) {
	return func(j *Job) { j.Gang = c.shape(devices, ns) }
}

// bound moves some jobs into the second namespace, and gives that a quota that they use up but for a little.
func (c *Cluster) bound(t *rapid.T) {
	used := int64(0)
	for id := range c.Jobs {
		j := &c.Jobs[id]
		if rapid.Bool().Draw(t, "other namespace") {
			j.Namespace = 1
			c.Shapes[j.Gang].Quotas = []QuotaID{0}
			used += int64(len(j.Workers)) * c.Shapes[j.Gang].Request[gpu]
		}
	}
	left := int64(rapid.IntRange(0, 4).Draw(t, "left"))
	c.Quotas = []Quota{{Name: "q", Namespace: 1, Hard: Amounts{used + left}, Free: Amounts{left}}}
}
