package allocation

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Sizes that a job asks for, and for which there is no room: it stays at the largest that there is room for, and says why.
func TestSizesThatCannotBeMet(t *testing.T) {
	for name, row := range map[string]struct {
		sizes   []int32
		workers []NodeID
		count   int32
		reason  string
	}{
		"the next one has no room":         {sizes: []int32{2, 8}, workers: []NodeID{0, 0}, count: 2, reason: "NoRoomForNextSize"},
		"one of several has room":          {sizes: []int32{2, 3, 8}, workers: []NodeID{0, 0}, count: 3, reason: "Growing"},
		"it has a number that is none now": {sizes: []int32{2, 8}, workers: []NodeID{0, 0, 0}, count: 2, reason: "NoRoomForNextSize"},
		"none but its min is within max":   {sizes: []int32{2}, workers: []NodeID{0, 0}, count: 2, reason: "AtMax"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster().withNodes(1, 4)
			id := c.training("job", 2, 8, row.workers, sizes(row.sizes...))
			got := NewPlan(c).of(id)
			if got.Count != row.count || got.Why.Reason != row.reason || got.Why.Text == "" {
				t.Errorf("it is to have %d, %+v; want %d, %s", got.Count, got.Why, row.count, row.reason)
			}
		})
	}
	t.Run("the least one is larger than the cluster", func(t *testing.T) {
		c := newCluster().withNodes(1, 4)
		id := c.queued("job", 6, 12, sizes(6, 12))
		got := NewPlan(c).of(id)
		if want := "the job is larger than the cluster: 6 workers are wanted and 4 would fit an empty cluster"; got.Start || got.Why.Text != want {
			t.Errorf("starts %v, got %q, want %q", got.Start, got.Why.Text, want)
		}
	})
}

// TestAClockThatJumps: whatever time it is said to be, forward or back, plans keep what is promised, wait for no time that is over,
// and come to rest; what fits starts in the end.
func TestAClockThatJumps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := simulate(drawCluster(t))
		s.Settings.Backfill = 30 * time.Second
		s.check = func(plan Plan) {
			s.sound(t, plan)
			s.needed(t, plan)
			s.inOrder(t, plan)
			if !plan.Next.IsZero() && !plan.Next.After(s.Now) {
				t.Fatalf("there is to be another plan at %s, and it is %s", plan.Next, s.Now)
			}
		}
		for range rapid.IntRange(1, 7).Draw(t, "jobs") {
			s.left[s.arrive(t)] = rapid.IntRange(1, 10).Draw(t, "work")
			for range rapid.IntRange(0, 4).Draw(t, "pause") {
				s.step()
				hours := rapid.SampledFrom([]int{0, 0, 0, -1, 1, -24 * 365, 24 * 365}).Draw(t, "the clock jumps by hours")
				s.Now = s.Now.Add(time.Duration(hours) * time.Hour)
			}
		}
		s.run(300)
		for id := range s.Jobs {
			if j := &s.Jobs[id]; s.left[JobID(id)] >= 0 && s.empty(JobID(id)) >= j.Min {
				t.Fatalf("%s never ended: %s", j.Name, s.plan.of(JobID(id)).Why.Text)
			}
		}
		if !s.settles(10) {
			t.Fatal("it does not come to rest")
		}
	})
}
