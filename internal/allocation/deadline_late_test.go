package allocation

import (
	"strings"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/speed"
)

// Who will miss its deadline by a little with any size takes as many workers as make it faster, and none beyond these: from six
// workers on this program gains nothing.
func TestWhoIsALittleLateTakesNothingThatIsOfNoUse(t *testing.T) {
	var seen []speed.Observation
	for n := 1; n <= 16; n++ {
		seen = append(seen, speed.Observation{Workers: n, Nodes: (n + 3) / 4, StepsPerSecond: 1 / (1/float64(n) + 0.03*float64(n)), Steps: 1000})
	}
	for _, in := range []int{335, 340, 345, 350, 355, 360, 365} { // with six workers it takes 350 seconds
		c := newCluster().withNodes(4, 4)
		c.training("other", 1, 16, span(0, 1), withPace(linear.pace(1e5, exactly)))
		due := c.training("due", 1, 16, span(1, 2), withPace(&Pace{Speed: speed.Fit(seen, 1), Tried: 16, Done: 10, Left: 1000}),
			deadline(time.Duration(in)*time.Second))
		s := simulate(c)
		s.tell(t)
		for range 40 {
			if got := s.run(1).counts(); got[due] > 6 {
				t.Errorf("deadline in %d s: they have %v", in, got)
				break
			}
		}
	}
}

// Who cannot meet its deadline, and gave to another one lately, takes that back no sooner than if it had no deadline.
func TestADeadlineThatCannotBeMetDoesNotCutTheCoolDownShort(t *testing.T) {
	for _, ago := range []time.Duration{time.Second, 65 * time.Second, 110 * time.Second} {
		c := newCluster().withNodes(4, 4)
		other := c.training("other", 1, 16, []NodeID{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3}, withPace(truth{1, 1}.pace(1e6, exactly)))
		due := c.training("due", 1, 1000, []NodeID{3, 3}, withPace(linear.pace(1e5, exactly)))
		c.Jobs[due].EvenedAt = c.Now.Add(-ago)
		without := NewPlan(c)
		deadline(1000 * time.Second)(&c.Jobs[due])
		with := NewPlan(c)
		if d := with.of(due); d.Could == 0 || d.Needs <= d.Could {
			t.Fatalf("it could be in time: %+v", d)
		}
		if got, want := with.leaves(other), without.leaves(other); got != want {
			t.Errorf("it gave %s ago: the other one gives %d, and %d without a deadline", ago, got, want)
		}
	}
}

// What another one keeps for a moment only, since it is about to end or regroups, makes no deadline one that cannot be met: nobody gives
// up what it has because of that.
func TestADeadlineIsNotGivenUpForWhatIsFreeInAMoment(t *testing.T) {
	for name, change := range map[string]func(*Job){
		"about to end": func(j *Job) { j.Finishing = true },
		"regroups":     func(j *Job) { j.Regrouping = true },
	} {
		c := newCluster().withNodes(4, 4)
		other := c.training("other", 1, 16, []NodeID{0, 0, 0, 0, 1, 1, 1}, withPace(linear.pace(10, exactly)))
		due := c.training("due", 1, 16, []NodeID{2, 2, 2, 2, 1, 3}, withPace(linear.pace(12000, exactly)), deadline(1300*time.Second))
		c.training("third", 1, 16, []NodeID{3, 3, 3}, withPace(linear.pace(1000, exactly)))
		change(&c.Jobs[other])
		plan := NewPlan(c)
		if d := plan.of(due); d.Needs != 11 || d.Could != 0 || plan.leaves(due) > 0 {
			t.Errorf("another one %s: it needs %d, could have %d, gives %d", name, d.Needs, d.Could, plan.leaves(due))
		}
	}
}

// Who will miss its deadline is told so whatever else it is told: while it grows, gives to a gang, or has a worker moved. Who will be in
// time is told nothing of it.
func TestWhoWillBeLateIsToldSoInAnyCase(t *testing.T) {
	for name, test := range map[string]struct {
		reason string
		make   func() (*Cluster, JobID)
	}{
		"it grows": {"Growing", func() (*Cluster, JobID) {
			c := newCluster().withNodes(1, 4)
			return c, c.training("due", 1, 8, span(0, 1), withPace(linear.pace(1e4, exactly)))
		}},
		"it gives to a gang": {"Lending", func() (*Cluster, JobID) {
			c := newCluster().withNodes(1, 4)
			id := c.training("due", 1, 4, []NodeID{0, 0, 0, 0}, withPace(linear.pace(1e4, exactly)))
			c.queued("gang", 2, 2)
			return c, id
		}},
		"nothing": {"AtMax", func() (*Cluster, JobID) {
			c := newCluster().withNodes(1, 4)
			return c, c.training("due", 1, 4, []NodeID{0, 0, 0, 0}, withPace(linear.pace(1e4, exactly)))
		}},
	} {
		for _, late := range []bool{true, false} {
			c, id := test.make()
			c.Jobs[id].Pace.Tried = 1 // it grows to four workers at most
			c.Jobs[id].Deadline = c.Now.Add(24 * time.Hour)
			want := test.reason
			if late {
				c.Jobs[id].Deadline = c.Now.Add(2000 * time.Second)
				if want == "AtMax" {
					want = "Late"
				}
			}
			d := NewPlan(c).of(id)
			if said := strings.Contains(d.Why.Text, "it will miss its deadline"); said != late || d.Misses != late || d.Why.Reason != want {
				t.Errorf("%s, late %v: misses %v, %s: %s", name, late, d.Misses, d.Why.Reason, d.Why.Text)
			}
		}
	}
}

// Who grows towards what it needs, as fast as it is measured, will be in time: it is not told that it will be late on its way.
func TestWhoGrowsToBeInTimeIsNotTold(t *testing.T) {
	for _, test := range []struct {
		has, joined int
		want        int32
	}{{1, 1, 4}, {4, 1, 4}, {4, 4, 4}} { // it has up to four until it was measured with more than one
		c := newCluster().withNodes(2, 4)
		id := c.training("due", 1, 8, make([]NodeID, test.has), withPace(linear.pace(1e4, exactly)), deadline(2000*time.Second))
		c.Jobs[id].Pace.Tried = 1
		for w := test.joined; w < test.has; w++ {
			c.Jobs[id].Workers[w].World = false
		}
		if d := NewPlan(c).of(id); d.Count != test.want || d.Needs != 6 || d.Misses || d.Why.Reason == "Late" || strings.Contains(d.Why.Text, "miss its deadline") {
			t.Errorf("with %d workers: it is to have %d and needs %d, misses %v, %s: %s", test.has, d.Count, d.Needs, d.Misses, d.Why.Reason, d.Why.Text)
		}
		if c.Jobs[id].Pace.Tried = int32(test.has); test.has == 4 {
			if d := NewPlan(c).of(id); d.Count < 6 || d.Misses {
				t.Errorf("measured with %d workers it is to have %d", test.has, d.Count)
			}
		}
	}
}
