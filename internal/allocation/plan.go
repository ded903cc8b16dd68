package allocation

import (
	"slices"
	"time"
)

// NewPlan decides about all jobs. It does not change the cluster, and the same cluster gives the same plan.
func NewPlan(c *Cluster) Plan { return new(Planner).Plan(c) }

// Planner makes plans as NewPlan does, one after the other. Each uses the memory of the one before again, and
// nothing that was in it makes a difference. The zero value is ready; it makes one plan at a time.
type Planner struct {
	planner planner
	// made is how many plans were made for the last one.
	made int
}

// Plan decides about all jobs.
func (r *Planner) Plan(c *Cluster) Plan {
	plan, _ := r.ahead(c)
	return plan
}

// memory keeps nothing of a planner but what it took, and the order to begin with.
func (p *planner) memory() planner {
	return planner{
		now: p.now.memory(), soon: p.soon.memory(), reach: p.reach.memory(), jobs: p.jobs[:0], leaving: p.leaving[:0],
		order: p.order, glance: p.glance, still: p.still[:0], beside: p.beside[:0],
		offers: p.offers[:0], pledges: p.pledges.memory(),
	}
}

// sized is a slice of that length with nothing in it, in the memory of another where that does.
func sized[T any](memory []T, n int) []T {
	memory = slices.Grow(memory[:0], n)[:n]
	clear(memory)
	return memory
}

// Plan is what should become of each job.
type Plan struct {
	// Decisions has one entry for each job of the Cluster, by JobID.
	Decisions []Decision
	// Next is when the plan may be another one although nothing has changed; zero for never.
	Next time.Time
	// Foresight is for the next plans.
	Foresight Foresight
}

// Foresight is what a plan has found out by looking ahead. For a while the next ones need not find it out again, as long as any gang
// is left of which it was found out (Decision.InVain).
type Foresight struct {
	// Wide is true where no whole job ends on nodes that gangs may use for which one would end in vain (Decision.InVain), All where
	// none ends at all.
	Wide, All bool
	// Since is when it was found out; zero for nothing.
	Since time.Time
}

// Decision is what should become of one job.
type Decision struct {
	// Count is how many workers it should have: what its target becomes. 0 for a job without a gang.
	Count int32
	// Start is true when the gang of a queued job may be made now.
	Start bool
	// Places are the nodes of the pods that are to be made now, those of the job's own class first; Own is
	// how many of them those are. For a shape that is not modelled the places are None.
	Places []NodeID
	Own    int32
	// Promised are the nodes on which a gang has its places, now or once all have left who are to, one for each pod.
	Promised []NodeID
	// InVain is true where whole jobs would end for its gang, and it would not start then: none ends for it for a while.
	InVain bool
	// Leave are the workers that are to leave, those that are marked already included; by index. A mark of
	// one that is not in it is lifted.
	Leave []Leave
	// Evict is true when the whole job must go, For is the job that needs its room.
	Evict bool
	For   JobID
	// ShortSince is since when a job would have less than half its share by devices, for what others make of them; zero where it would
	// not, or has no world. What is not looked at now stays as it was: Job.ShortSince.
	ShortSince time.Time
	// Again is the last time that it was tried again with more workers.
	Again Again
	// Work is what a job whose pace is known has left with its least number of workers, in device-seconds, as the power of two by which
	// it stands before others or behind them. What is not looked at now stays as it was: Job.Work. Another operator finds it out anew.
	Work float64
	// Wish is how many workers a job whose pace is known is to have at most by what they are worth, and Price by what part
	// of the time that is left each device has to be worth more, for those behind it. 0 for a job that has no pace, or
	// does not train.
	Wish  int32
	Price float64
	// Needs is the least number of workers with which a job meets its deadline, by what was measured; 0 where it has none,
	// or too little is known. Late is true where there is no such number; of a gang that waits, where it would be late by
	// more than paces are off with all that an empty cluster has room for.
	Needs int32
	Late  bool
	// Misses is true for a job that trains and will miss its deadline with the workers that it is to have: Why says so.
	Misses bool
	// Could is how many workers a job can have at most where these are too few to meet its deadline: it takes none for that then. It
	// is 0 otherwise.
	Could int32
	// NoSpares is true for a job that trains and is to have spares, and gets none, since it does not grow: it has all that it may have once
	// as many train as may, whatever Why says.
	NoSpares bool
	// Why says why it is so, and why it is not more.
	Why Why
	// Queue is the place of a queued job among those that wait, from 1; 0 for a job that does not wait.
	Queue int32
	// Expected is when it may start, as far as that is known; zero when it is not.
	Expected time.Time
}

// remember keeps what the plan before said of a job.
func (d *Decision) remember(of *Job) {
	d.ShortSince, d.Again, d.Work = of.ShortSince, of.Again, of.Work
}

// Leave is a worker that is to leave.
type Leave struct {
	// Worker is its index in Job.Workers.
	Worker int
	// For is the job that its room is for, None when it leaves because the job is to be smaller.
	For JobID
	// Rule is why.
	Rule Rule
}
