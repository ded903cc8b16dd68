package allocation

import "testing"

// A replay that asks what it costs to keep half of their share for jobs has it kept for nobody.
func TestNothingIsKeptWhereTheReplayAsksForThat(t *testing.T) {
	for _, none := range []bool{false, true} {
		c, _, other := squeezed()
		c.Jobs[other].ShortSince = noon.Add(-c.Settings.Backfill)
		c.Settings.Pricing = DefaultPricing
		c.Settings.Pricing.NoHalves = none
		s := simulate(c)
		s.run(20)
		if got := s.counts()[other]; (got >= 2) == none {
			t.Errorf("kept for nobody: %t, it has %d workers: %v", none, got, s.log)
		}
	}
}

// What a job could give itself makes no room for more of its own workers: it is owed no more than it could have.
func TestNobodyIsOwedWhatOnlyItsOwnWorkersLeaveRoomFor(t *testing.T) {
	c := newCluster().withNodes(2, 8)
	thick := c.training("thick", 1, 8, []NodeID{0, 1}, c.asking(60, 1), withPace(flat.pace(1e6, exactly)))
	c.training("thin", 1, 14, []NodeID{1}, c.asking(1, 1), withPace(linear.pace(1e6, exactly)))
	c.Jobs[thick].ShortSince = noon.Add(-c.Settings.Backfill)
	if got := NewPlan(c).of(thick).Wish; got != 2 {
		t.Errorf("it wishes for %d, there is room for 2", got)
	}
}
