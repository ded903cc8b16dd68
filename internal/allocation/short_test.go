package allocation

import (
	"testing"
	"time"
)

// squeezed is a cluster in which a deadline leaves a job nothing but its min: half of its share are two of six.
func squeezed() (c *Cluster, due, other JobID) {
	c = newCluster().withNodes(2, 4)
	due = c.training("due", 1, 8, []NodeID{0, 0, 0, 0, 1, 1, 1}, withPace(linear.pace(1e5, exactly)), deadline(1e5/8*time.Second))
	other = c.training("other", 1, 8, []NodeID{1}, withPace(linear.pace(1e6, exactly)))
	return c, due, other
}

// What keeps a job from growing for a while, or from being looked at, leaves the time for which it was short as it is; only that it
// is short no longer ends it.
func TestWhatPassesLeavesTheTimeForWhichAJobWasShort(t *testing.T) {
	since := noon.Add(-9 * time.Minute)
	for name, change := range map[string]func(*Cluster, *Job){
		"nothing":                    func(*Cluster, *Job) {},
		"room was taken from it":     func(_ *Cluster, j *Job) { j.ReclaimedAt, j.Reclaims = noon, 1 },
		"its growth backs off":       func(_ *Cluster, j *Job) { j.GrowAfter = noon.Add(time.Minute) },
		"it regroups":                func(_ *Cluster, j *Job) { j.Regrouping, j.Workers[0].Ending = true, true },
		"its world cannot change":    func(_ *Cluster, j *Job) { j.Stage = Fixed },
		"its pace is not known now":  func(_ *Cluster, j *Job) { j.Pace = nil },
		"nobody's pace is known now": func(c *Cluster, _ *Job) { c.Jobs[0].Pace, c.Jobs[1].Pace = nil, nil },
	} {
		c, _, other := squeezed()
		c.Jobs[other].ShortSince = since
		change(c, &c.Jobs[other])
		if got := NewPlan(c).of(other).ShortSince; !got.Equal(since) {
			t.Errorf("%s: short since %s, want %s", name, got, since)
		}
	}
	for name, test := range map[string]struct {
		change func(*Job)
		want   time.Time
	}{
		"it is short now":                {func(j *Job) { j.ShortSince = time.Time{} }, noon},
		"others make less of it":         {func(j *Job) { j.Pace = linear.pace(10, exactly) }, time.Time{}},
		"it is not to have more":         {func(j *Job) { j.NoGrowth = true }, time.Time{}},
		"it has all that it may have":    {func(j *Job) { j.Max = 1 }, time.Time{}},
		"it has made its last step":      {func(j *Job) { j.Finishing = true }, time.Time{}},
		"it neither lends nor borrows":   {func(j *Job) { j.Policy = Never }, time.Time{}},
		"its growth class is impossible": {func(j *Job) { j.Fault = "too high" }, time.Time{}},
	} {
		c, due, other := squeezed()
		c.Jobs[due].Deadline = time.Time{}
		if name == "it is short now" {
			c.Jobs[due].Deadline = noon.Add(1e5 / 8 * time.Second)
		}
		c.Jobs[other].ShortSince = since
		test.change(&c.Jobs[other])
		plan := simulate(c).run(8).plan
		if got := plan.of(other).ShortSince; !got.Equal(test.want) {
			t.Errorf("%s: short since %s, want %s", name, got, test.want)
		}
	}
}

// Who has no world is not short: a day for which it was suspended or waited is none for which it had too little.
func TestWithoutAWorldNobodyIsShort(t *testing.T) {
	for name, change := range map[string]func(*Job){
		"its gang starts anew": func(j *Job) { j.Stage = Starting },
		"it waits":             func(j *Job) { j.Stage, j.Queued = Queued, noon },
		"it is suspended":      func(j *Job) { j.Stage = Held },
	} {
		c, _, other := squeezed()
		c.Jobs[other].ShortSince = noon.Add(-24 * time.Hour)
		change(&c.Jobs[other])
		if got := NewPlan(c).of(other).ShortSince; !got.IsZero() {
			t.Errorf("%s: short since %s", name, got)
		}
	}
}

// Who is short of what it could never be given, since there are no processors for its workers anywhere, is owed none of it.
func TestNobodyIsOwedWhatThereIsNoRoomFor(t *testing.T) {
	for nearly, want := range map[int64]int32{62: 1, 1: 2} {
		c := newCluster().withNodes(2, 4)
		thick := c.training("thick", 1, 8, []NodeID{0}, c.asking(nearly, 1), withPace(flat.pace(1e6, exactly)))
		c.training("thin", 1, 8, []NodeID{1}, c.asking(4, 1), withPace(linear.pace(1e6, exactly)))
		c.Jobs[thick].ShortSince = noon.Add(-c.Settings.Backfill)
		if got := NewPlan(c).of(thick).Wish; got != want {
			t.Errorf("with %d processors for each worker it wishes for %d, want %d", nearly, got, want)
		}
	}
}

// Who was short for as long as backfill when room was taken from it has half of its share as soon as it may grow.
func TestWhoIsShortIsOwedHalfAfterAReclaim(t *testing.T) {
	c, _, other := squeezed()
	j := &c.Jobs[other]
	j.ShortSince, j.ReclaimedAt, j.Reclaims = noon.Add(-c.Settings.Backfill), noon.Add(-5*time.Second), 1
	s := simulate(c)
	s.run(20)
	if got := s.counts()[other]; got < 2 {
		t.Errorf("it has %d workers: %v", got, s.log)
	}
}

// What a namespace would have if its jobs might grow is what half of their share is of: nobody else has it for good meanwhile.
func TestAJobAloneInItsNamespaceStaysShort(t *testing.T) {
	c := newCluster().withNodes(2, 4)
	c.Namespaces = append(c.Namespaces, Namespace{Name: "other", Weight: 1})
	alone := c.training("alone", 1, 8, span(0, 1), withPace(linear.pace(1e6, exactly)))
	c.training("theirs", 1, 8, []NodeID{0, 0, 0, 1, 1, 1, 1}, in(1), withPace(linear.pace(1e6, exactly)))
	since := noon.Add(-9 * time.Minute)
	c.Jobs[alone].ShortSince, c.Jobs[alone].GrowAfter = since, noon.Add(time.Minute)
	if got := NewPlan(c).of(alone).ShortSince; !got.Equal(since) {
		t.Errorf("short since %s, want %s", got, since)
	}
}
