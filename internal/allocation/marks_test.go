package allocation

import (
	"slices"
	"testing"
	"time"
)

// carriedOutBy is the plan when one lender alone has its marks.
func (c *Cluster) carriedOutBy(id JobID, plan Plan) Plan { return NewPlan(c.carriedOut(id, plan)) }

// carriedOut is the cluster when one lender alone has its marks.
func (c *Cluster) carriedOut(id JobID, plan Plan) *Cluster {
	partly := *c
	partly.Jobs, partly.Foresight = slices.Clone(c.Jobs), plan.Foresight
	partly.Jobs[id].Workers = slices.Clone(c.Jobs[id].Workers)
	for other := range partly.Jobs {
		partly.Jobs[other].Promised, partly.Jobs[other].InVain = plan.Decisions[other].Promised, plan.Decisions[other].InVain
	}
	simulate(&partly).mark(id, &plan.Decisions[id])
	partly.Jobs[id].Target = plan.of(id).Count
	return &partly
}

// TestWhoLeavesForOneGangIsNotTakenForAnother: whichever of two lenders has its marks first.
func TestWhoLeavesForOneGangIsNotTakenForAnother(t *testing.T) {
	c := newCluster().withNodes(1, 5)
	lenders := []JobID{c.training("a", 1, 2, []NodeID{0, 0}), c.training("b", 1, 3, []NodeID{0, 0, 0})}
	c.queued("first", 1, 1, priority(20))
	c.queued("second", 2, 2, priority(10))
	plan := NewPlan(c)
	for _, id := range lenders {
		if want, got := plan.of(id).Leave, c.carriedOutBy(id, plan).of(id).Leave; len(want) == 0 || !slices.Equal(got, want) {
			t.Errorf("%s gives %v, and when it has its marks %v", c.Jobs[id].Name, want, got)
		}
	}
}

// TestWorkersMoveThoughAnotherLenderShrinks: what leaves for another gang is not cheaper than the moves for that.
func TestWorkersMoveThoughAnotherLenderShrinks(t *testing.T) {
	c := newCluster().withNodes(1, 1).withNodes(1, 4).withNodes(1, 3)
	c.training("fixed", 1, 1, []NodeID{0})
	moves := c.training("moves", 1, 1, []NodeID{2})
	lender := c.training("lender", 1, 3, []NodeID{1, 1, 1}, sizes(1, 3))
	c.queued("whole node", 1, 1, c.devices(3), priority(10))
	second := c.queued("second", 1, 1, priority(5))
	plan := NewPlan(c)
	if len(plan.of(moves).Places) != 1 || plan.leavesFor(lender, second) != 2 {
		t.Fatalf("%+v", plan.Decisions)
	}
	if next := c.carriedOutBy(lender, plan); len(next.of(moves).Places) != 1 || next.leavesFor(lender, second) != 2 {
		t.Errorf("when the lender has its marks: %+v, and %v leave", next.of(moves), next.of(lender).Leave)
	}
}

// marksKept fails when one lender has its marks, the others have yet to be given theirs, and the next plan takes a mark of the first
// one back, or has it leave for another gang: lenders carry a plan out one after the other.
func (s *simulation) marksKept(t failer, plan Plan) {
	if slices.ContainsFunc(plan.Decisions, func(d Decision) bool { return d.Evict }) {
		return // a whole job that has yet to end may turn out to be dearer than moves
	}
	if slices.ContainsFunc(s.Jobs, func(j Job) bool { return len(j.Sizes) > 0 }) {
		return // those who leave so that a number is a legal one may do for any gang
	}
	for id := range s.Jobs {
		d := &plan.Decisions[id]
		if !slices.ContainsFunc(d.Leave, func(l Leave) bool { return l.Rule == RuleGangsFirst && !s.Jobs[id].Workers[l.Worker].Marked }) {
			continue
		}
		next := s.carriedOutBy(JobID(id), plan)
		for _, l := range d.Leave {
			if !slices.Contains(next.Decisions[id].Leave, l) && l.Rule == RuleGangsFirst && !next.Decisions[id].Evict {
				t.Fatalf("worker %d of %s leaves for %s, and when it has its mark: %+v", l.Worker, s.Jobs[id].Name, s.Jobs[l.For].Name, next.Decisions[id].Leave)
			}
		}
	}
}

// TestMarksForALesserGangAreTakenBeforeYoungWorkers: those could leave only once they have run for long enough.
func TestMarksForALesserGangAreTakenBeforeYoungWorkers(t *testing.T) {
	c := newCluster().withNodes(1, 4)
	marked := c.training("marked", 1, 2, []NodeID{0, 0})
	young := c.training("young", 1, 2, []NodeID{0, 0}, func(j *Job) { j.GrewAt = noon })
	c.Settings.MinRuntime = time.Hour
	lesser := c.queued("lesser", 1, 1, priority(5))
	c = c.carriedOut(marked, NewPlan(c))
	if plan := NewPlan(c); plan.leavesFor(marked, lesser) != 1 {
		t.Fatalf("%+v", plan.Decisions)
	}
	greater := c.queued("greater", 1, 1, priority(10))
	if plan := NewPlan(c); plan.leavesFor(marked, greater) != 1 || plan.leavesFor(young, greater) != 0 {
		t.Errorf("%+v", plan.Decisions)
	}
}

// Who leaves by a plan does so by the next one: that marked workers are more than their job's target makes none of them the replacement
// of another. A whole job that is to end beside them ends, and nobody moves in its stead.
func TestMarksOfALenderAreNoReplacements(t *testing.T) {
	c := newCluster().withNodes(1, 2).withNodes(1, 3).withNodes(1, 1)
	lender := c.training("lender", 1, 4, []NodeID{0, 0, 1, 1}, func(j *Job) { j.NoGrowth = true })
	whole := c.training("whole", 1, 1, []NodeID{1}, policy(Evict), func(j *Job) { j.NoGrowth = true })
	gang := c.queued("gang", 1, 1, c.devices(3), priority(10))
	plan := NewPlan(c)
	if !plan.of(whole).Evict || plan.leavesFor(lender, gang) != 2 {
		t.Fatalf("%+v", plan.Decisions)
	}
	if next := c.carriedOutBy(lender, plan); !next.of(whole).Evict || !slices.Equal(next.of(lender).Leave, plan.of(lender).Leave) {
		t.Errorf("when the lender has its marks %v leave, and all of the other ends: %v", next.of(lender).Leave, next.of(whole).Evict)
	}
}
