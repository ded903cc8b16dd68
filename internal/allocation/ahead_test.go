package allocation

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// A whole job does not end for a gang when one that waits before it could have workers move into what comes free, and would have it.
func TestNobodyEndsWhereOneBeforeWouldHaveTheRoom(t *testing.T) {
	c := newCluster().withNodes(2, 3).withNodes(1, 1)
	lender := c.training("lender", 1, 2, []NodeID{0, 1}, c.devices(2), policy(Evict))
	c.training("moves", 1, 1, []NodeID{1}, func(j *Job) { j.NoGrowth = true })
	gang := c.queued("gang", 1, 1, c.devices(3), priority(10))
	if plan := NewPlan(c); !plan.of(lender).Evict || plan.of(lender).For != gang {
		t.Fatalf("without another gang it is to end: %+v", plan.of(lender))
	}
	before := c.queued("before", 2, 2, c.devices(3), priority(20))
	plan := NewPlan(c)
	if plan.of(lender).Evict {
		t.Errorf("it ends for %d; the next plan: %+v", plan.of(lender).For, NewPlan(simulate(c).carriedOut(plan)).of(gang))
	}
	if plan.of(gang).Start || plan.of(before).Start || plan.of(gang).Why.Text == "" {
		t.Errorf("%+v", plan.Decisions)
	}
}

// However many gangs whole jobs would end for in vain, one that may use none of their nodes has one end for it.
func TestWhoHasNodesOfItsOwnIsNotBarred(t *testing.T) {
	for gangs := range 8 {
		c := newCluster().withNodes(2, 3).withNodes(1, 1).withNodes(1, 3)
		on := func(j *Job) { j.Gang = c.shape(3, 0); c.Shapes[j.Gang].Nodes = Bits{0b1000} }
		beside := func(devices int64) func(*Job) {
			return func(j *Job) { j.Gang = c.shape(devices, 0); c.Shapes[j.Gang].Nodes = Bits{0b0111} }
		}
		lender := c.training("lender", 1, 2, []NodeID{0, 1}, beside(2), policy(Evict))
		c.training("moves", 1, 1, []NodeID{1}, beside(1), func(j *Job) { j.NoGrowth = true })
		other := c.training("other", 1, 1, []NodeID{3}, on, policy(Evict))
		before := c.queued("before", 2, 2, beside(3), priority(50))
		for i := range gangs {
			c.queued(fmt.Sprintf("gang%d", i), 1, 1, beside(3), priority(int32(40-i)))
		}
		fine := c.queued("fine", 1, 1, on, priority(1))
		plan := NewPlan(c)
		if plan.of(lender).Evict && plan.of(lender).For != before {
			t.Errorf("%d gangs: all of the lender ends, for %d", gangs, plan.of(lender).For)
		}
		if !plan.of(other).Evict || plan.of(other).For != fine {
			t.Errorf("%d gangs: the one that is alone on its node waits: %s", gangs, plan.of(fine).Why.Text)
		}
	}
}

// A plan that was foreseen leaves the cluster as it is.
func TestLookingAheadChangesNothing(t *testing.T) {
	c := newCluster().withNodes(1, 2)
	c.training("whole", 1, 1, []NodeID{0}, policy(Evict))
	c.training("lender", 1, 1, []NodeID{0})
	c.queued("gang", 1, 1, priority(10))
	free, workers := slices.Clone(c.Nodes[0].Free), slices.Clone(c.Jobs[0].Workers)
	if plan := NewPlan(c); !plan.of(0).Evict {
		t.Fatalf("%+v", plan.Decisions)
	}
	if !slices.Equal(free, c.Nodes[0].Free) || !slices.Equal(workers, c.Jobs[0].Workers) {
		t.Error("the cluster was changed")
	}
}

// Whoever stays by a plan is not to leave any more in what is foreseen: a mark that is taken back would have it leave for another gang.
func TestWhoStaysHasNoMarkInWhatIsForeseen(t *testing.T) {
	c := newCluster().withNodes(1, 3)
	id := c.training("lender", 1, 3, []NodeID{0, 0, 0})
	gang := c.queued("gang", 1, 1)
	c.Jobs[id].Workers[1].Marked, c.Jobs[id].Workers[1].For, c.Jobs[id].Workers[1].Moves = true, gang, true
	for name, d := range map[string]Decision{
		"nobody leaves":      {Count: 3},
		"another one leaves": {Count: 2, Leave: []Leave{{Worker: 2, For: gang, Rule: RuleGangsFirst}}},
	} {
		for _, w := range carriedOut(c, &Plan{Decisions: []Decision{d, {}}}).Jobs[id].Workers {
			if w.Marked || w.Moves || w.For != None {
				t.Errorf("%s: %+v", name, w)
			}
		}
	}
	if !c.Jobs[id].Workers[1].Marked {
		t.Error("the cluster was changed")
	}
}

// What is wrong in a cluster is no reason to stop: a node says less than there is, a quota too.
func TestLookingAheadOverWhatIsMissing(t *testing.T) {
	c := newCluster().withNodes(2, 2)
	c.training("whole", 1, 1, []NodeID{0}, policy(Evict))
	c.training("lender", 1, 1, []NodeID{0})
	c.queued("gang", 2, 2, priority(10), c.devices(2))
	c.Nodes = append(c.Nodes, Node{})
	c.Nodes[1].Free, c.Nodes[1].Capacity = nil, nil
	NewPlan(c)
}

// What is foreseen is the same where the jobs come with what their workers come to.
func TestLookingAheadWithTallies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawTakers(t)
		want := NewPlan(c)
		for id := range c.Jobs {
			c.Jobs[id].Tally = TallyOf(c.Jobs[id].Workers)
		}
		if diff := cmp.Diff(want, NewPlan(c)); diff != "" {
			t.Fatal(diff)
		}
	})
}

// inVainFor is a cluster in which whole jobs would end in vain for many gangs, each of which would be the next one.
func inVainFor(gangs int) *Cluster {
	c := newCluster().withNodes(2, 3).withNodes(1, 1)
	c.training("lender", 1, 2, []NodeID{0, 1}, c.devices(2), policy(Evict))
	c.training("moves", 1, 1, []NodeID{1}, func(j *Job) { j.NoGrowth = true })
	c.queued("before", 2, 2, c.devices(3), priority(50))
	for i := range gangs {
		c.queued(fmt.Sprintf("gang%d", i), 1, 1, c.devices(3), priority(int32(40-i)))
	}
	return c
}

// told is the cluster as the next plan finds it, some time later, when nothing was to be done.
func (c *Cluster) told(plan Plan, later time.Duration) *Cluster {
	next := *c
	next.Now, next.Foresight, next.Jobs = c.Now.Add(later), plan.Foresight, slices.Clone(c.Jobs)
	for id := range next.Jobs {
		next.Jobs[id].Promised, next.Jobs[id].InVain = plan.Decisions[id].Promised, plan.Decisions[id].InVain
	}
	return &next
}

// What was found out by looking ahead the next plans need not find out again: that costs up to ten more each time.
func TestWhatWasForeseenIsNotLookedForAgain(t *testing.T) {
	for gangs := 1; gangs < 8; gangs++ {
		c, planner := inVainFor(gangs), new(Planner)
		plan := planner.Plan(c)
		if !plan.quiet() || planner.made < 3 {
			t.Fatalf("%d gangs: %d plans were made; something is to be done: %v", gangs, planner.made, !plan.quiet())
		}
		for later := 4 * time.Second; later < lookAnew; later += 4 * time.Second {
			c = c.told(plan, 4*time.Second)
			if plan = planner.Plan(c); !plan.quiet() || planner.made > 1 {
				t.Errorf("%d gangs, after %s: %d plans were made; something is to be done: %v", gangs, later, planner.made, !plan.quiet())
			}
			if want := noon.Add(lookAnew); plan.Next.After(want) || plan.Next.IsZero() {
				t.Errorf("%d gangs, after %s: the next plan comes at %s, want %s", gangs, later, plan.Next, want)
			}
		}
	}
}

// What was found out counts for a while only: then all is looked at again, whoever has left the queue meanwhile.
func TestWhatWasForeseenIsForgotten(t *testing.T) {
	for _, gangs := range []int{1, 7} {
		c := inVainFor(gangs)
		plan := NewPlan(c)
		c = c.told(plan, time.Second)
		for id := range c.Jobs {
			if c.Jobs[id].Name == "ns/before" {
				c.Jobs[id] = Job{}
			}
		}
		plan = NewPlan(c)
		if c = c.told(plan, plan.Next.Sub(c.Now)); c.Now.After(noon.Add(lookAnew)) {
			t.Fatalf("%d gangs: the next plan comes at %s", gangs, c.Now)
		}
		if plan = NewPlan(c); !plan.of(0).Evict || c.Jobs[plan.of(0).For].Name != "ns/gang0" {
			t.Errorf("%d gangs: nobody ends for the first one, which would start now: %+v", gangs, plan.of(0))
		}
	}
}

// Where nothing changes, what was looked at need not be looked at again, whatever was taken for granted once.
func TestWhatWasForeseenWakesNobodyForEver(t *testing.T) {
	for gangs := range 8 {
		c, planner := inVainFor(gangs), new(Planner)
		c = c.told(planner.Plan(c), 4*time.Second)
		plan := planner.Plan(c)
		for range 4 {
			if plan.Next.IsZero() {
				break
			}
			c = c.told(plan, plan.Next.Sub(c.Now))
			plan = planner.Plan(c)
		}
		if !plan.Next.IsZero() {
			t.Errorf("%d gangs: at %s the next plan comes after %s still", gangs, c.Now, plan.Next.Sub(c.Now))
		}
	}
}

// What was found out for gangs that are gone or wait no longer says nothing of others.
func TestWhatWasForeseenGoesWithTheGangs(t *testing.T) {
	for what, leave := range map[string]func(*Job){
		"gone":      func(j *Job) { *j = Job{} },
		"suspended": func(j *Job) { j.Stage = Held },
	} {
		c := inVainFor(7).withNodes(1, 1)
		whole := c.training("whole", 1, 1, []NodeID{3}, policy(Evict))
		plan := NewPlan(c)
		if plan.Foresight.Since.IsZero() {
			t.Fatal("nothing was foreseen")
		}
		plan.Foresight.Wide, plan.Foresight.All = true, true // as where others would end in vain on other nodes
		c = c.told(plan, time.Second)
		for id := range c.Jobs {
			if c.Jobs[id].InVain {
				leave(&c.Jobs[id])
			}
		}
		other := c.queued("other", 1, 1, func(j *Job) { j.Gang = c.shape(1, 0); c.Shapes[j.Gang].Nodes = Bits{0b1000} }, priority(5))
		if plan = NewPlan(c); !plan.of(whole).Evict || plan.of(whole).For != other {
			t.Errorf("%s: nobody ends for another gang: %s", what, plan.of(other).Why.Text)
		}
		if plan.Foresight.All {
			t.Errorf("%s: none ends at all still", what)
		}
	}
}
