package allocation

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// asking is a job whose workers ask for so many processors and devices.
func (c *Cluster) asking(cpus, devices int64) func(*Job) {
	return func(j *Job) {
		j.Gang = c.shape(devices, j.Namespace)
		c.Shapes[j.Gang].Request = Amounts{cpus * 1000, 1, devices}
	}
}

// free is how many devices nobody holds.
func (c *Cluster) free() (sum int64) {
	for i := range c.Nodes {
		sum += c.Nodes[i].Free[gpu]
	}
	return sum
}

// Jobs that can have the same nodes share by value whatever their workers ask for beside devices, and however many of these.
func TestJobsShareWhateverTheirWorkersAskFor(t *testing.T) {
	for _, test := range []struct {
		name          string
		cpus, devices int64
		want          int
	}{{"as much", 1, 1, 7}, {"more processors", 4, 1, 7}, {"two devices each", 1, 2, 3}} {
		c := newCluster().withNodes(2, 4)
		flat := c.training("flat", 1, 8, []NodeID{0, 0, 0, 0, 1, 1}, withPace(flat.pace(1e6, exactly)))
		other := c.training("linear", 1, 8, []NodeID{1}, c.asking(test.cpus, test.devices), withPace(linear.pace(1e6, exactly)))
		s := simulate(c).run(100)
		if got := s.counts(); got[flat] > 2 || got[other] != test.want {
			t.Errorf("%s: they have %v, %d devices are free", test.name, got, s.free())
		}
	}
}

// What one wishes for and cannot have, since there are no processors for its workers, others have, and nobody trades for it.
func TestDevicesDoNotStayIdleForWhomTheyAreOfNoUse(t *testing.T) {
	for _, nearly := range []int64{40, 62} {
		c := newCluster().withNodes(2, 4)
		thick := c.training("thick", 1, 8, []NodeID{0}, c.asking(nearly, 1), withPace(linear.pace(1e3, exactly)))
		thin := c.training("thin", 1, 8, []NodeID{1}, withPace(linear.pace(1e6, exactly)))
		s := simulate(c).run(30)
		got := s.counts()
		if got[thick] != 2 || got[thin] != 6-int(s.free()) || s.free() != map[int64]int64{40: 0, 62: 2}[nearly] {
			t.Errorf("%d processors: they have %v, %d devices are free", nearly, got, s.free())
		}
		before := len(s.log)
		if s.run(200); len(s.log) > before {
			t.Errorf("%d processors: it does not rest: %v", nearly, s.log[before:])
		}
	}
}

// Also to jobs of another namespace, past one that makes nothing of them, and to those of which no pace is known.
func TestDevicesThatOneCannotUseGoToOthers(t *testing.T) {
	for _, test := range []struct {
		name      string
		namespace NamespaceID
		paced     bool
	}{{"of another namespace", 1, true}, {"that tells nothing, of another namespace", 1, false}, {"that tells nothing", 0, false}} {
		c := newCluster().withNodes(2, 4)
		c.Namespaces = append(c.Namespaces, Namespace{Name: "other", Weight: 1}, Namespace{Name: "third", Weight: 8})
		thick := c.training("thick", 1, 8, []NodeID{0}, c.asking(40, 1), withPace(linear.pace(1e3, exactly)))
		idle := c.training("idle", 1, 8, []NodeID{0}, in(2), withPace(flat.pace(1e6, exactly)))
		theirs := c.training("theirs", 1, 8, []NodeID{1}, in(test.namespace))
		if test.paced {
			c.Jobs[theirs].Pace = linear.pace(1e6, exactly)
		}
		if got := simulate(c).run(30).counts(); got[thick] != 2 || got[idle] != 1 || got[theirs] != 5 {
			t.Errorf("one %s: they have %v", test.name, got)
		}
	}
}

// Jobs on other nodes, or without devices, are in another market: what there is for them is nothing for others.
func TestJobsOnOtherNodesShareSomethingElse(t *testing.T) {
	for name, other := range map[string]func(*Cluster) func(*Job){
		"on other nodes": func(c *Cluster) func(*Job) {
			return func(j *Job) {
				j.Gang = c.shape(1, 0)
				c.Shapes[j.Gang].Nodes = Bits{1<<2 | 1<<3}
			}
		},
		"without devices": func(c *Cluster) func(*Job) {
			return func(j *Job) {
				j.Gang = c.shape(0, 0)
				c.Shapes[j.Gang].Nodes = Bits{1<<0 | 1<<1}
			}
		},
	} {
		c := newCluster().withNodes(4, 4)
		ours := c.shape(1, 0)
		c.Shapes[ours].Nodes = Bits{1<<0 | 1<<1}
		set := func(j *Job) { j.Gang, j.Pace = ours, linear.pace(1e6, exactly) }
		c.training("a", 1, 8, []NodeID{0}, set)
		c.training("b", 1, 8, []NodeID{1}, set)
		on := []NodeID{2}
		if name == "without devices" {
			on = []NodeID{1}
		}
		c.training("other", 1, 16, on, other(c), withPace(linear.pace(1e6, exactly)))
		plan := NewPlan(c)
		if got := plan.of(0).Wish + plan.of(1).Wish; got != 8 {
			t.Errorf("beside one %s they wish for %d devices of 8", name, got)
		}
	}
}

// What jobs of lower priority could give counts where it is of use: on the same nodes, and of the same kind.
func TestWhatOthersCouldGiveIsOfUse(t *testing.T) {
	for _, test := range []struct {
		name    string
		on      []NodeID
		devices int64
		takes   bool
		want    int32
	}{
		{"nobody", nil, 0, true, 8},
		{"on the same nodes", []NodeID{0, 0, 1}, 1, true, 7},
		{"for those that take nothing", []NodeID{0, 0, 1}, 1, false, 5},
		{"on other nodes", []NodeID{2, 2, 2}, 1, true, 8},
		{"no devices", []NodeID{0, 0, 1}, 0, true, 8},
	} {
		c := newCluster().withNodes(4, 4)
		ours := c.shape(1, 0)
		c.Shapes[ours].Nodes = Bits{1<<0 | 1<<1}
		set := func(j *Job) { j.Gang, j.Pace, j.Preempts = ours, linear.pace(1e6, exactly), test.takes }
		c.training("a", 1, 8, []NodeID{0}, set)
		c.training("b", 1, 8, []NodeID{1}, set)
		if test.on != nil {
			c.training("low", 1, 8, test.on, c.asking(1, test.devices), priority(-1))
		}
		plan := NewPlan(c)
		if got := plan.of(0).Wish + plan.of(1).Wish; got != test.want {
			t.Errorf("%s: they wish for %d devices, want %d", test.name, got, test.want)
		}
	}
}

// Who takes nothing from others has no part in what those of lower priority could give, and keeps it from nobody who takes: whoever of
// them is older.
func TestOnlyWhoTakesSharesWhatOthersCouldGive(t *testing.T) {
	for _, patient := range []JobID{0, 1} {
		c := newCluster().withNodes(2, 4)
		for id := range JobID(2) {
			left := 1e6
			if id == patient {
				left = 1e3 // it has least to do, and would take most
			}
			c.training("job", 1, 8, []NodeID{NodeID(id)}, withPace(linear.pace(left, exactly)), func(j *Job) { j.Preempts = id != patient })
		}
		c.training("low", 1, 8, []NodeID{0, 0, 1, 1}, priority(-1))
		plan := NewPlan(c)
		if got, other := plan.of(patient).Wish, plan.of(1-patient).Wish; got > 3 || got+other != 7 {
			t.Errorf("job %d takes nothing, and two devices are free: it wishes for %d, the other one for %d", patient, got, other)
		}
		if got := simulate(c).run(20).counts(); got[2] != 1 || got[0]+got[1] != 7 {
			t.Errorf("job %d takes nothing, and nobody has what the other one could take: they have %v", patient, got)
		}
	}
}

// Who leaves for a gang leaves for nobody else: that is free soon, and is not counted once more.
func TestWhatLeavesAlreadyIsCountedOnce(t *testing.T) {
	c := newCluster().withNodes(4, 4)
	ours := c.shape(1, 0)
	c.Shapes[ours].Nodes = Bits{1<<0 | 1<<1}
	set := func(j *Job) { j.Gang, j.Pace = ours, linear.pace(1e6, exactly) }
	c.training("a", 1, 8, []NodeID{0}, set)
	c.training("b", 1, 8, []NodeID{1}, set)
	c.training("low", 1, 8, []NodeID{2, 0, 0, 0, 1, 2, 2, 2}, priority(-1))
	c.training("other", 4, 4, []NodeID{3, 3, 3, 3})
	c.queued("gang", 2, 2, func(j *Job) { j.Gang = c.shape(1, 0); c.Shapes[j.Gang].Nodes = Bits{1 << 0} })
	plan := NewPlan(c)
	// Of eight devices they have two, and the gang two.
	if got := plan.of(0).Wish + plan.of(1).Wish; got != 6 {
		t.Errorf("they wish for %d devices, want 6", got)
	}
}

// Whatever workers ask for: what is planned fits, and all comes to rest.
func TestRandomClustersWithPacesAndProcessors(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := simulate(drawCluster(t))
		s.check = func(plan Plan) { s.sound(t, plan) }
		for range rapid.IntRange(1, 7).Draw(t, "jobs") {
			id := s.arrive(t)
			shape := &s.Shapes[s.Jobs[id].Gang]
			shape.Request = Amounts{int64(rapid.SampledFrom([]int{1, 10, 20, 40}).Draw(t, "cpus")) * 1000, 1, shape.Request[gpu]}
			p := truth{rapid.Float64Range(0, 2).Draw(t, "serial"), rapid.Float64Range(0.01, 2).Draw(t, "parallel")}
			s.Jobs[id].Pace = p.pace(rapid.SampledFrom([]float64{0, 1, 1e3, 1e9}).Draw(t, "left"), exactly)
			if rapid.Bool().Draw(t, "finite") {
				s.left[id] = rapid.IntRange(1, 20).Draw(t, "work")
			}
			s.run(rapid.IntRange(0, 8).Draw(t, "pause"))
		}
		s.tick = 15 * time.Second
		s.run(130)
		if !s.settles(60) {
			t.Fatalf("it does not come to rest: %v", s.log[max(0, len(s.log)-20):])
		}
	})
}

// Who is of lower priority shares what those of higher priority leave: nobody wishes for what they take.
func TestLowerPrioritiesShareWhatIsLeft(t *testing.T) {
	c := newCluster().withNodes(1, 12)
	above := c.training("above", 1, 6, []NodeID{0}, priority(1), withPace(linear.pace(1e6, exactly)))
	scales := c.training("scales", 1, 12, []NodeID{0}, withPace(linear.pace(1e6, exactly)))
	other := c.training("other", 1, 12, []NodeID{0}, withPace(linear.pace(4e6, exactly)))
	plan := NewPlan(c)
	if got := plan.of(above).Count; got != 6 {
		t.Fatalf("the one above has %d workers, want 6", got)
	}
	if sum := plan.of(scales).Wish + plan.of(other).Wish; sum != 6 {
		t.Errorf("the others wish for %d and %d, 6 devices are left", plan.of(scales).Wish, plan.of(other).Wish)
	}
}

// Two that take nothing from lower priority share by value what nobody needs to be taken from, also beside a third one that does take.
func TestThoseWhoTakeNothingShareByValueBesideOneThatTakes(t *testing.T) {
	for _, taker := range []int32{0, 1, 4} { // its max, 0 without one
		c := newCluster().withNodes(5, 4)
		first := c.training("linear", 1, 12, []NodeID{0}, withPace(linear.pace(1e6, exactly)))
		second := c.training("flat", 1, 12, []NodeID{0, 0, 0, 1, 1, 1, 1}, withPace(flat.pace(1e6, exactly)))
		c.Jobs[first].Preempts, c.Jobs[second].Preempts = false, false
		if taker > 0 {
			c.training("taker", 1, taker, []NodeID{4}, withPace(linear.pace(1e6, exactly)))
		}
		c.training("low", 1, 9, []NodeID{2, 2, 2, 2, 3, 3, 3, 3}, func(j *Job) { j.Priority = -10 })
		s := simulate(c)
		s.tell(t)
		got := s.run(40).counts()
		if got[second] != 1 || got[first] < 8 {
			t.Errorf("the third one may have %d: they have %v", taker, got)
		}
	}
}
