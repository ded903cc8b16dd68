package allocation

import (
	"testing"
	"time"
)

// opaque has only the scheduler know where growth of a job fits.
func (c *Cluster) opaque(id JobID) JobID {
	c.Shapes[c.Jobs[id].Growth].Unmodelled = "it has a port"
	return id
}

// TestReasonsAsUsersReadThem: a condition says these words of a job. Each rule has a sentence.
func TestReasonsAsUsersReadThem(t *testing.T) {
	ending := func(c *Cluster) { c.Namespaces[0].Ending = true }
	told := map[Rule]bool{}
	for name, row := range map[string]struct {
		build func(*Cluster) JobID
		want  Why
	}{
		"a loss in the gang": {func(c *Cluster) JobID {
			id := c.withNodes(1, 4).training("job", 3, 6, []NodeID{0, 0, 0})
			c.put(c.Jobs[id].Workers[0])
			c.Jobs[id].Workers = c.Jobs[id].Workers[1:]
			return id
		}, Why{RuleGangClass, "Replacing", "workers of its gang were lost and are replaced"}},
		"a world that cannot change": {func(c *Cluster) JobID {
			id := c.withNodes(1, 4).training("job", 2, 4, []NodeID{0, 0})
			c.Jobs[id].Stage = Fixed
			return id
		}, Why{RuleKeepsRunning, "Fixed", "its world cannot change: it keeps its workers"}},
		"a job at its end": {func(c *Cluster) JobID {
			return c.withNodes(1, 4).training("job", 2, 4, []NodeID{0, 0}, func(j *Job) { j.Finishing = true })
		}, Why{RuleKeepsRunning, "Finishing", "it is about to end"}},
		"a namespace that is being deleted, before the start": {func(c *Cluster) JobID {
			ending(c)
			return c.withNodes(1, 4).queued("job", 2, 4)
		}, Why{RuleKeepsRunning, "NamespaceEnding", "its namespace is being deleted"}},
		"a namespace that is being deleted, in training": {func(c *Cluster) JobID {
			ending(c)
			return c.withNodes(1, 4).training("job", 2, 4, []NodeID{0, 0})
		}, Why{RuleKeepsRunning, "NamespaceEnding", "its namespace is being deleted"}},
		"a whole job that goes": {func(c *Cluster) JobID {
			id := c.withNodes(1, 4).training("job", 4, 4, []NodeID{0, 0, 0, 0}, policy(Evict))
			c.queued("high", 4, 4, priority(100))
			return id
		}, Why{RuleWholeJobs, "Preempted", "all of it makes room for ns/high, which has a higher priority and would not start otherwise"}},
		"room that comes by itself": {func(c *Cluster) JobID {
			c.withNodes(1, 4).training("generous", 2, 4, []NodeID{0, 0, 0, 0}, policy(Never))
			return c.queued("gang", 2, 2)
		}, Why{RuleLeavingRoom, "RoomIsEnding", "waits for 2 places of 1 example.com/gpu: 0 are free, and pods are ending"}},
		"workers that move": {func(c *Cluster) JobID {
			id := c.withNodes(3, 4).training("spread", 2, 2, []NodeID{0, 1})
			c.training("fixed", 2, 2, []NodeID{2, 2})
			c.queued("whole", 1, 1, c.devices(4))
			return id
		}, Why{RuleConsolidation, "Moving", "workers of it move to other nodes, so that another gang has whole ones"}},
		"a gang that only the scheduler can place": {func(c *Cluster) JobID {
			id := c.withNodes(1, 4).queued("job", 2, 4)
			c.Shapes[c.Jobs[id].Gang].Unmodelled = "it has a port"
			return id
		}, Why{RuleGangsFirst, "Attempted", "an attempt is made, of all pods of its gang at once; it has a port"}},
		"another one waits for its turn": {func(c *Cluster) JobID {
			c.withNodes(1, 4).queued("first", 2, 4)
			id := c.queued("job", 2, 4)
			c.Shapes[c.Jobs[0].Gang].Unmodelled, c.Shapes[c.Jobs[id].Gang].Unmodelled = "it has a port", "it has a port"
			return id
		}, Why{RuleReservation, "WaitingForAttempt", "waits until another gang has been tried that only the scheduler can place; it has a port"}},
		"growth that only the scheduler can place": {func(c *Cluster) JobID {
			return c.opaque(c.withNodes(1, 4).training("job", 2, 4, []NodeID{0, 0}))
		}, Why{RuleGrowth, "Growing", "there may be room for one more worker; it has a port: more workers are tried one at a time"}},
		"and that it has yet to place": {func(c *Cluster) JobID {
			id := c.opaque(c.withNodes(1, 5).training("job", 2, 5, []NodeID{0, 0, None}))
			c.Jobs[id].Workers[2].Bound, c.Jobs[id].Workers[2].World, c.Jobs[id].Workers[2].Rank = false, false, -1
			return id
		}, Why{RuleGrowth, "Growing", "the worker that was added last has no node yet; it has a port: more workers are tried one at a time"}},
		"and that has failed": {func(c *Cluster) JobID {
			id := c.opaque(c.withNodes(1, 4).training("job", 2, 4, []NodeID{0, 0}))
			c.Jobs[id].GrowAfter = c.Now.Add(time.Minute)
			return id
		}, Why{RuleGrowth, "GrowthBackingOff", "growth failed and is tried again later; it has a port: more workers are tried one at a time"}},
		"and that there is no room for": {func(c *Cluster) JobID {
			return c.opaque(c.withNodes(1, 2).training("job", 2, 4, []NodeID{0, 0}))
		}, Why{RuleGrowth, "NoRoom", "there is no room for more workers; it has a port: more workers are tried one at a time"}},
		"a gang that takes what was lent": {func(c *Cluster) JobID {
			id := c.withNodes(1, 4).training("lender", 2, 4, []NodeID{0, 0, 0, 0})
			c.queued("gang", 2, 2)
			return id
		}, Why{RuleGangsFirst, "Lending", "gives 2 workers to ns/gang, which had been lent to it"}},
		"a job that does not borrow": {func(c *Cluster) JobID {
			return c.withNodes(1, 4).training("job", 2, 4, []NodeID{0, 0}, policy(Never))
		}, Why{RuleLendsAndBorrows, "DoesNotBorrow", "it lends nothing (preemption policy Never), so it borrows nothing"}},
		"a barrier that is armed, for a gang": {func(c *Cluster) JobID {
			id := c.withNodes(1, 4).training("lender", 2, 4, []NodeID{0, 0, 0, 0})
			gang := c.queued("gang", 2, 2)
			c.arm(id, gang, 2, 3)
			return id
		}, Why{RuleNoHostage, "Lending", "gives 2 workers to ns/gang, in a change that is under way: that is finished, or cut short if it takes too long"}},
		"a barrier that is armed, for a gang that is gone": {func(c *Cluster) JobID {
			id := c.withNodes(1, 4).training("lender", 2, 4, []NodeID{0, 0, 0, 0})
			c.arm(id, None, 3)
			return id
		}, Why{RuleNoHostage, "Lending", "gives 1 worker to nobody any more, in a change that is under way: that is finished, or cut short if it takes too long"}},
		"room that is kept for another": {func(c *Cluster) JobID {
			c.withNodes(1, 4).training("job", 2, 2, []NodeID{0, 0})
			c.queued("first", 4, 4)
			return c.at(time.Hour).queued("second", 2, 2, func(j *Job) { j.Submitted = c.Now })
		}, Why{RuleReservation, "BehindReservation", "waits for 2 places of 1 example.com/gpu: 0 are free, and room is kept for ns/first"}},
		"nothing more is free": {func(c *Cluster) JobID {
			return c.withNodes(1, 4).training("job", 2, 8, []NodeID{0, 0, 0, 0})
		}, Why{RuleGrowth, "NoRoom", "there is no room for more workers"}},
		"a quota that is used up": {func(c *Cluster) JobID {
			c.Quotas = []Quota{{Name: "devices", Hard: Amounts{6}, Free: Amounts{3}}}
			return c.withNodes(2, 4).queued("job", 4, 4)
		}, Why{RuleQuota, "QuotaUsedUp", "quota devices is used up: it admits 3 more of its 4 workers (requests.example.com/gpu)"}},
	} {
		told[row.want.Rule] = true
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			id := row.build(c)
			if got := NewPlan(c).of(id).Why; got != row.want {
				t.Errorf("got  %+v\nwant %+v", got, row.want)
			}
		})
	}
	for rule := RuleGangClass; rule <= RuleConsolidation; rule++ {
		if !told[rule] {
			t.Errorf("rule %d has no sentence here", rule)
		}
	}
}

// arm has some workers of a job leave for another one, in a change that is under way.
func (c *Cluster) arm(id, whom JobID, workers ...int) {
	j := &c.Jobs[id]
	for _, w := range workers {
		j.Workers[w].Marked, j.Workers[w].For = true, whom
	}
	j.Armed, j.Target = true, int32(len(j.Workers)-len(workers))
}

// TestNothingStartsOrGrowsInANamespaceThatIsBeingDeleted: the API server would refuse the pods, and others use the room.
func TestNothingStartsOrGrowsInANamespaceThatIsBeingDeleted(t *testing.T) {
	c := newCluster().withNodes(2, 5)
	c.Namespaces[0].Ending = true
	c.Namespaces = append(c.Namespaces, Namespace{Name: "alive", Weight: 1})
	trains := c.training("trains", 2, 4, []NodeID{0, 0})
	lost := c.training("lost", 2, 2, []NodeID{0})
	waits := c.queued("waits", 2, 2)
	other := c.queued("other", 5, 5, in(1))
	plan := NewPlan(c)
	for _, id := range []JobID{trains, lost, waits} {
		if got := plan.of(id); got.Start || len(got.Places) > 0 {
			t.Errorf("%s starts: %v, and gets the places %v", c.Jobs[id].Name, got.Start, got.Places)
		}
	}
	if !plan.of(other).Start {
		t.Errorf("a gang of another namespace does not start: %s", plan.of(other).Why.Text)
	}
}

// What binds may be another resource than devices: who is told of devices alone buys the wrong thing.
func TestWhatIsShortIsNamedInUnitsThatPeopleUse(t *testing.T) {
	const gi = int64(1) << 30
	cluster := func(devices int64) *Cluster {
		c := newCluster()
		c.Resources, c.Devices = append(c.Resources, "memory"), append(c.Devices, false)
		c.withNodes(1, devices)
		for i := range c.Nodes {
			c.Nodes[i].Capacity, c.Nodes[i].Free = append(c.Nodes[i].Capacity, 64*gi), append(c.Nodes[i].Free, 64*gi)
		}
		return c
	}
	asks := func(c *Cluster, cpus, memory int64) func(*Job) {
		return func(j *Job) {
			j.Gang = c.shape(1, j.Namespace)
			c.Shapes[j.Gang].Request = Amounts{cpus, 1, 1, memory}
		}
	}
	for name, row := range map[string]struct {
		build func(*Cluster) JobID
		want  string
	}{
		"CPUs of a node": {func(c *Cluster) JobID { return c.queued("job", 1, 1, asks(c, 96_500, gi)) },
			"no node is large enough for one of its workers: 96.5 cpu are wanted and the largest has 64"},
		"memory of a node": {func(c *Cluster) JobID {
			c.Nodes[0].Capacity[3] = 64*gi - 1<<20
			return c.queued("job", 1, 1, asks(c, 1000, 100*gi))
		}, "no node is large enough for one of its workers: 100Gi memory are wanted and the largest has 63.99Gi"},
		"memory that is free": {func(c *Cluster) JobID {
			c.training("other", 1, 1, []NodeID{0}, asks(c, 1000, 40*gi))
			return c.queued("job", 1, 1, asks(c, 500, 40*gi))
		}, "waits for 1 place of 1 example.com/gpu, 0.5 cpu and 40Gi memory: 0 are free, for lack of memory, and what others have cannot be taken"},
		"devices that are free": {func(c *Cluster) JobID {
			c.training("other", 8, 8, []NodeID{0, 0, 0, 0, 0, 0, 0, 0}, asks(c, 1000, gi))
			return c.queued("job", 1, 1, asks(c, 500, 40*gi))
		}, "waits for 1 place of 1 example.com/gpu: 0 are free, and what others have cannot be taken"},
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster(8)
			id := row.build(c)
			if got := NewPlan(c).of(id).Why.Text; got != row.want {
				t.Errorf("got  %s\nwant %s", got, row.want)
			}
		})
	}
}
