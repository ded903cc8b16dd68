package allocation

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// spares gives a job so many, beyond the most with which it trains.
func spares(n int32) func(*Job) {
	return func(j *Job) { j.Max, j.Spares = j.Max+n, n }
}

// ofTwoOrFour is a job that trains with two workers or with four, and has a spare.
func ofTwoOrFour(j *Job) { j.Sizes, j.Trains = []int32{2, 3, 4, 5}, []int32{2, 2, 4, 4} }

// asSpares has workers of a job be in no world.
func (c *Cluster) asSpares(id JobID, which ...int) {
	c.Jobs[id].Members -= int32(len(which))
	for _, w := range which {
		c.Jobs[id].Workers[w].World, c.Jobs[id].Workers[w].Rank = false, -1
	}
	c.Jobs[id].Tally = nil
}

// A gang starts with its min; then it has as many workers as it may train with, and its spares.
func TestAJobHasItsSparesBesideAllWorkersThatItMayTrainWith(t *testing.T) {
	for _, test := range []struct {
		name  string
		nodes int
		set   []func(*Job)
		want  []int
	}{
		{"room for all", 2, nil, []int{5}},
		{"two spares", 2, []func(*Job){spares(1)}, []int{6}},
		{"room for some", 1, nil, []int{4}},
		{"sizes", 2, []func(*Job){ofTwoOrFour}, []int{5}},
		{"sizes, and room for some", 1, []func(*Job){ofTwoOrFour}, []int{4}},
		{"no growth", 2, []func(*Job){func(j *Job) { j.NoGrowth = true }}, []int{2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCluster().withNodes(test.nodes, 4)
			id := c.queued("a", 2, 4, append([]func(*Job){spares(1)}, test.set...)...)
			s := simulate(c)
			s.tell(t)
			s.step()
			if d := s.plan.of(id); !d.Start || d.Count != 2 {
				t.Errorf("it starts with %d: %v", d.Count, d.Start)
			}
			if diff := cmp.Diff(test.want, s.run(8).counts()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Who needs room is given the spares of others first, at once, and also where nothing else may be taken from them yet.
func TestSparesLeaveFirst(t *testing.T) {
	for _, grew := range []time.Time{{}, noon} {
		c := newCluster().withNodes(2, 4)
		id := c.training("a", 2, 6, []NodeID{0, 0, 0, 0, 1, 1, 1, 1}, spares(2), func(j *Job) { j.GrewAt = grew })
		c.Settings.MinRuntime = time.Hour
		c.asSpares(id, 3, 6)
		gang := c.queued("gang", 2, 2)
		plan := NewPlan(c)
		var left []int
		for _, l := range plan.of(id).Leave {
			left = append(left, l.Worker)
		}
		slices.Sort(left)
		if diff := cmp.Diff([]int{3, 6}, left); diff != "" || plan.of(id).Count != 6 || plan.leavesFor(id, gang) != 2 {
			t.Errorf("%v leave, and it is to have %d", left, plan.of(id).Count)
		}
	}
}

// What was measured of a job counts for the workers that train: it wishes for the size that is worth it, and its spares beside.
func TestSpeedsAreThoseOfTheWorld(t *testing.T) {
	for _, test := range []struct {
		name    string
		program truth
		other   truth
		tried   int32
		want    int32
	}{
		{"all are of use", linear, flat, 8, 9},
		{"it was measured alone, and may have four times as many", linear, flat, 1, 5},
		{"none is of use, and nobody wants what is left", flat, flat, 8, 2},
		{"none is of use, and others want all of it", flat, linear, 8, 1},
	} {
		c := newCluster().withNodes(2, 8)
		other := c.training("other", 1, 15, []NodeID{0}, withPace(test.other.pace(1e9, exactly)))
		c.Jobs[other].Pace.Tried = 15
		id := c.training("a", 1, 8, []NodeID{1}, spares(1), withPace(test.program.pace(1e6, exactly)))
		c.Jobs[id].Pace.Tried = test.tried
		if got := NewPlan(c).of(id).Wish; got != test.want {
			t.Errorf("%s: it wishes for %d workers, want %d", test.name, got, test.want)
		}
	}
}

// A job that has to be fast enough for its deadline with so many workers needs its spares beside them.
func TestADeadlineIsMetByThoseWhoTrain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := time.Duration(rapid.IntRange(200, 12000).Draw(t, "seconds")) * time.Second
		n := rapid.Int32Range(1, 4).Draw(t, "spares")
		needs := func(set ...func(*Job)) int32 {
			c := newCluster().withNodes(4, 4)
			id := c.training("a", 1, 12, []NodeID{0}, append(set, withPace(between.pace(6000, exactly)), deadline(in))...)
			return NewPlan(c).of(id).Needs
		}
		want := needs()
		if got := needs(spares(n)); want > 1 && got != want+n || want <= 1 && got != want {
			t.Errorf("it needs %d workers, and %d with %d spares", want, got, n)
		}
	})
}

// Who trains is no spare, whatever has become of the spares: a job whose spares are gone, or are not there yet, keeps what it makes use of.
func TestASpareThatIsNotThereCostsNobodyItsPlace(t *testing.T) {
	for name, program := range map[string]truth{"linear": linear, "between": between} {
		for n := range int32(4) {
			c := newCluster().withNodes(2, 4)
			id := c.training("a", 1, 4, []NodeID{0, 0, 0, 0}, spares(n), withPace(program.pace(1e5, exactly)))
			other := c.training("other", 1, 8, []NodeID{1, 1, 1, 1}, withPace(linear.pace(1e6, exactly)))
			c.Jobs[id].Pace.Tried, c.Jobs[other].Pace.Tried = 4, 8
			plan := NewPlan(c)
			if d := plan.of(id); d.Wish < 4 || len(d.Leave) > 0 || plan.leaves(other) > 0 {
				t.Errorf("%s: %d spares are to come, all four train: it wishes for %d, %d leave, and %d of others", name, n, d.Wish, len(d.Leave), plan.leaves(other))
			}
		}
	}
}

// Its deadline is met by those who train as well.
func TestADeadlineCountsAllWhoTrain(t *testing.T) {
	for n := range int32(4) {
		c := newCluster().withNodes(1, 4)
		id := c.training("a", 1, 4, []NodeID{0, 0, 0, 0}, spares(n), withPace(linear.pace(6000, exactly)), deadline(4000*time.Second))
		c.Jobs[id].Pace.Tried = 4
		if d := NewPlan(c).of(id); d.Late || d.Needs == 0 || d.Needs > 4 {
			t.Errorf("%d spares are to come: four that train are in time, it needs %d, late %v", n, d.Needs, d.Late)
		}
	}
}

// A job that is tried again with more workers in vain goes back to as many as trained before: nobody who trains becomes a spare.
func TestAJobWithSparesGoesBackToThoseWhoTrained(t *testing.T) {
	for _, trained := range []int32{0, 1} { // 0 is what another operator knows
		c, id := again(time.Hour, spares(2))
		c.Jobs[id].Again = Again{From: 3, Trained: trained, At: noon.Add(-time.Hour)}
		if d := NewPlan(c).of(id); d.Count != 1 || !d.Again.Back {
			t.Errorf("it trained with 1 of 3 and has 4 in vain: it is to have %d workers, and says %+v", d.Count, d.Again)
		}
	}
}

// How many trained then is known later.
func TestItIsKnownHowManyTrainedBeforeItWasTriedAgain(t *testing.T) {
	c, id := again(time.Hour, spares(1))
	c.withNodes(1, 4)
	spare := c.Jobs[id].Workers[3]
	spare.Node, spare.Own, spare.World, spare.Rank, spare.Ordinal = 1, false, false, -1, 4
	c.take(spare)
	c.Jobs[id].Workers = append(c.Jobs[id].Workers, spare)
	if d := NewPlan(c).of(id); d.Count != 9 || d.Again.From != 5 || d.Again.Trained != 4 {
		t.Errorf("it is to have %d workers, and says %+v", d.Count, d.Again)
	}
}

// What follows on a plan is reckoned with those who train then.
func TestWhoTrainsOnceAPlanIsCarriedOut(t *testing.T) {
	c := newCluster().withNodes(1, 4)
	id := c.training("a", 1, 4, []NodeID{0, 0, 0, 0}, spares(3))
	c.queued("gang", 2, 2)
	plan := NewPlan(c)
	after := &carriedOut(c, &plan).Jobs[id]
	if after.Members != 2 || after.World(4) != 2 || c.Jobs[id].Members != 4 {
		t.Errorf("two of four leave for a gang: %d train then", after.Members)
	}
}

// A job has its spares before it trains with more than its min, and one that has too few for that trains with all of them.
func TestWorldOf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := Job{Min: rapid.Int32Range(1, 50).Draw(t, "min"), Spares: rapid.Int32Range(0, 10).Draw(t, "spares")}
		n := rapid.Int32Range(0, 200).Draw(t, "workers")
		j.Max = j.Spares + rapid.Int32Range(j.Min, 200).Draw(t, "max")
		world := j.World(n)
		j.Members = rapid.Int32Range(0, 200).Draw(t, "members")
		if got, want := j.World(n), max(world, min(n, j.Members, j.Max-j.Spares)); j.Spares > 0 && got != want || j.Spares == 0 && got != n {
			t.Fatalf("%+v: %d of %d train, want %d", j, got, n, want)
		}
		if world >= j.Min && j.World(j.withSpares(world)) != world || j.Spares > 0 && world >= j.Min && j.World(j.withSpares(world)+1) == world {
			t.Fatalf("%+v: %d workers at most train with %d", j, j.withSpares(world), world)
		}
		j.Members = 0
		switch {
		case n <= j.Min && world != n,
			n >= j.Min && world < j.Min,
			n >= j.Min+j.Spares && world != n-j.Spares,
			n < 200 && j.World(n+1) < world:
			t.Fatalf("%+v: %d of %d train", j, world, n)
		}
	})
}

// A job that gets no spares has all that it may have once as many train as may, and is known as such whatever else is said of it.
func TestWhoGetsNoSparesLacksNone(t *testing.T) {
	never := func(j *Job) { j.Policy = Never }
	off := func(j *Job) { j.NoGrowth = true }
	kueue := func(j *Job) { j.SizedBy = "Kueue" }
	late := func(j *Job) {
		withPace(linear.pace(1e6, exactly))(j)
		deadline(time.Minute)(j)
	}
	for _, test := range []struct {
		name  string
		nodes []NodeID
		set   []func(*Job)
		want  string
		none  bool
	}{
		{"no growth", []NodeID{0, 0}, []func(*Job){off}, "AtMax", true},
		{"it lends nothing", []NodeID{0, 0}, []func(*Job){never}, "AtMax", true},
		{"others decide its size", []NodeID{0, 0}, []func(*Job){kueue}, "AtMax", true},
		{"it is about to end", []NodeID{0, 0}, []func(*Job){off, func(j *Job) { j.Finishing = true }}, "Finishing", true},
		{"it will be late", []NodeID{0, 0}, []func(*Job){off, late}, "Late", true},
		{"it will be late, and grows", []NodeID{0, 0}, []func(*Job){late}, "Late", false},
		{"some may train that do not", []NodeID{0, 0}, []func(*Job){off, func(j *Job) { j.Max = 6 }}, "GrowthOff", true},
		{"no room", []NodeID{0, 0}, nil, "NoRoom", false},
		{"all spares are there", []NodeID{0, 0, 1}, nil, "AtMax", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCluster().withNodes(2, 2)
			id := c.training("a", 2, 2, test.nodes, append([]func(*Job){spares(1)}, test.set...)...)
			if len(test.nodes) == 3 {
				c.asSpares(id, 2)
			}
			rest := int32(4 - len(test.nodes))
			c.training("other", rest, rest, []NodeID{1, 1}[:rest])
			if d := NewPlan(c).of(id); d.Why.Reason != test.want || d.NoSpares != test.none {
				t.Errorf("it has its size because of %s, want %s; it gets no spares: %v, want %v", d.Why.Reason, test.want, d.NoSpares, test.none)
			}
		})
	}
}
