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
