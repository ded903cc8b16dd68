package allocation

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestRandomClustersThatChangeSlowly: workers that leave do so at a barrier, which takes its time, and owners ask for
// fewer. Plans that are made meanwhile keep what is in force, and come to rest.
func TestRandomClustersThatChangeSlowly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := simulate(drawCluster(t))
		s.check = func(plan Plan) { s.sound(t, plan) }
		s.ends = func() int { return rapid.IntRange(0, 2).Draw(t, "ends") }
		s.pauses = func() int { return rapid.IntRange(1, 3).Draw(t, "barrier") }
		defer func() {
			if t.Failed() {
				for _, line := range s.log {
					t.Log(line)
				}
			}
		}()
		for range rapid.IntRange(1, 7).Draw(t, "jobs") {
			id := s.arrive(t)
			s.Jobs[id].Restarts = rapid.IntRange(0, 4).Draw(t, "restarts") == 0
			if rapid.Bool().Draw(t, "finite") {
				s.left[id] = rapid.IntRange(1, 20).Draw(t, "work")
			}
			s.run(rapid.IntRange(0, 8).Draw(t, "pause"))
			s.lower(t)
		}
		s.tick = 15 * time.Second
		s.run(130)
		if !s.settles(60) {
			t.Fatalf("it does not come to rest: %s", cmp.Diff(Plan{}, s.plan))
		}
	})
}

// lower has the owner of a job ask for fewer workers now and then. Who lends nothing gives back what it has too many,
// which is another rule.
func (s *simulation) lower(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "lowers") > 0 {
		return
	}
	j := &s.Jobs[rapid.IntRange(0, len(s.Jobs)-1).Draw(t, "whose")]
	if j.policy(s) == Never {
		return
	}
	j.Min, j.Sizes = int32(rapid.IntRange(1, int(j.Min)).Draw(t, "lower min")), nil
	s.say("%s is to have %d at least", j.Name, j.Min)
}

// Workers that leave for one job are not replacements of those that would have to move for another.
func TestNobodyMovesWhileOthersLeave(t *testing.T) {
	c := newCluster().withNodes(2, 4).withNodes(1, 8)
	lender := c.training("lender", 5, 10, []NodeID{2, 2, 2, 2, 2, 2, 2, 2, 0, 0}, sizes(5, 10))
	c.training("fixed", 2, 2, []NodeID{0, 0}, func(j *Job) { j.Restarts = true })
	gang := c.queued("gang", 5, 5)
	j := &c.Jobs[lender]
	j.Target = 5
	for w := range j.Workers[5:] {
		j.Workers[5+w].Marked, j.Workers[5+w].For = true, gang
	}
	c.queued("whole", 2, 2, c.devices(4), priority(10))
	if d := NewPlan(c).of(lender); !j.legal(d.Count) {
		t.Errorf("it has %d: %s", d.Count, d.Why.Text)
	}
}

// Those that leave for a gang are no replacements of others that would have to move for it: what
// they leave is kept, by then, for a gang that has waited longer.
func TestNobodyMovesForWhomOthersLeave(t *testing.T) {
	c := newCluster().withNodes(2, 8)
	lender := c.training("lender", 2, 4, []NodeID{0, 0, 1, 1}, sizes(2, 4), c.devices(4))
	c.queued("patient", 3, 3, c.devices(4))
	gang := c.queued("gang", 1, 1)
	c.Settings.Backfill = 30 * time.Second
	c.Now = noon.Add(40 * time.Second)
	j := &c.Jobs[lender]
	j.Target = 2
	for w := range j.Workers[2:] {
		j.Workers[2+w].Marked, j.Workers[2+w].For = true, gang
	}
	if d := NewPlan(c).of(lender); !j.legal(d.Count) {
		t.Errorf("it has %d: %s", d.Count, d.Why.Text)
	}
}
