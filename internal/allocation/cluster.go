package allocation

import "time"

// Things of one Cluster are named by their index. A slot that is free has an empty Name (a shape: a nil
// Request); None stands for "no such thing".
type (
	// NodeID is an index of Cluster.Nodes.
	NodeID int32
	// ShapeID is an index of Cluster.Shapes.
	ShapeID int32
	// NamespaceID is an index of Cluster.Namespaces.
	NamespaceID int32
	// QuotaID is an index of Cluster.Quotas.
	QuotaID int32
	// JobID is an index of Cluster.Jobs.
	JobID int32
)

// None is the id of nothing.
const None = -1

// Amounts are quantities, by resource: thousandths of a CPU, whole units of all else. All vectors of a
// Cluster are as long as its Resources. The number of pods is one of the resources.
type Amounts []int64

// Cluster is all that a plan may look at. Plan does not change it.
type Cluster struct {
	// Now is when the plan is made.
	Now      time.Time
	Settings Settings
	// NoEviction is true while a new leader does not yet know of all worlds: a job whose world it has not
	// heard of is Fixed or looks cheap to end. No whole job goes, and no worker of a job in stage Fixed is
	// chosen that is not marked already.
	NoEviction bool
	// Resources are the names of what nodes offer, Devices which of them are devices (extended
	// resources such as nvidia.com/gpu).
	Resources []string
	Devices   []bool
	// Counts are the names of what quotas bound, such as requests.cpu.
	Counts     []string
	Nodes      []Node
	Shapes     []Shape
	Namespaces []Namespace
	Quotas     []Quota
	Jobs       []Job
	// Foresight is that of the last plan.
	Foresight Foresight
}

// Settings are the operator's, for all jobs. The zero value of a duration switches its rule off, that of
// Backfill the exception from its rule.
type Settings struct {
	// MinRuntime is how long a job keeps what it grew by before it is taken back.
	MinRuntime time.Duration
	// ReclaimTimeout bounds how long a lender may take to its barrier; the reconciler enforces it.
	ReclaimTimeout time.Duration
	// Backfill is how long after it was queued a gang that does not fit lets others start on what it
	// waits for; room is kept for it from then on.
	Backfill time.Duration
	// CoolDown is how long equal jobs are left alone after they were evened out; by value, how long a job takes nothing from equals
	// after it gave.
	CoolDown time.Duration
	// FirstRegrow to LastRegrow is how long room that was reclaimed is not grown back into: it doubles
	// with every reclaim, and halves in quiet time (RegrowDelay, Lately).
	FirstRegrow, LastRegrow time.Duration
	// Autoscaled is true where a gang that does not fit makes the cluster grow: one attempt of it is
	// made all the same.
	Autoscaled bool
	// ByValue is true where jobs of equal priority in one namespace share by what each makes of more workers, as far as
	// their pace is known; in equal parts otherwise. Pricing says how.
	ByValue bool
	Pricing Pricing
}

// Node is one node.
type Node struct {
	Name string
	// Capacity is what it offers to pods, Free what of that nobody holds: pods that are ending hold their
	// share until they have ended, pods that are planned for the node or were just created hold theirs.
	Capacity, Free Amounts
	// Coming is what comes free beyond that, soon and in any case: pods of nobody here that are ending hold it.
	// nil for nothing.
	Coming Amounts
	// Claims are what more would be free if pods of others that wait for the scheduler and fit there counted for nothing.
	Claims []Claim
	// Closed says why no pod may be placed there now (cordoned, not ready, about to go); empty when it may.
	Closed string
	// DeviceType tells devices apart that share a resource name; empty where nothing does.
	DeviceType string
	// Autoscaled is true for a node that an autoscaler would have removed, were it not for growth.
	Autoscaled bool
}

// Claim is what one pod of somebody else would have, which the scheduler places before all that is less important.
type Claim struct {
	Priority int32
	Request  Amounts
}

// Shape is what equal pods ask for.
type Shape struct {
	// Request is what one of them takes on a node.
	Request Amounts
	// Nodes says which nodes its selectors, affinity and tolerations allow, one bit a node, whether or not
	// the node is closed or full.
	Nodes Bits
	// Demand is what one of them counts against quotas, by Counts; Quotas which of them it counts
	// against.
	Demand Amounts
	Quotas []QuotaID
	// Unmodelled says why only the scheduler knows where such a pod fits; empty when it is modelled.
	Unmodelled string
}

// Bits is a set of small numbers.
type Bits []uint64

// Has says whether n is in the set.
func (b Bits) Has(n int) bool { return n>>6 < len(b) && b[n>>6]&(1<<(n&63)) != 0 }

// Set puts n into the set, which must be large enough.
func (b Bits) Set(n int) { b[n>>6] |= 1 << (n & 63) }

// Clear takes n out of the set.
func (b Bits) Clear(n int) {
	if n>>6 < len(b) {
		b[n>>6] &^= 1 << (n & 63)
	}
}

// Namespace is a tenant.
type Namespace struct {
	Name string
	// Weight is its share of what is left over, relative to others; at least 1.
	Weight int64
	// HeadRoom is the part of its quotas, in thousandths, that growth leaves to others.
	HeadRoom int64
	// NeverAllowed and EvictAllowed bound what jobs may ask for in spec.preemption.policy; a job that asks
	// for more is treated as Shrink.
	NeverAllowed, EvictAllowed bool
	// Ending is true while the namespace is being deleted: nothing starts or grows in it.
	Ending bool
}

// InForce is the policy of a job that asks for one: Shrink for what its namespace does not allow.
func (n *Namespace) InForce(asked Policy) Policy {
	if asked == Never && !n.NeverAllowed || asked == Evict && !n.EvictAllowed {
		return Shrink
	}
	return asked
}

// Quota is one ResourceQuota.
type Quota struct {
	Name      string
	Namespace NamespaceID
	// Hard is what it allows, Free what of that is not used, by Counts; Unbounded where it says nothing.
	Hard, Free Amounts
}

// Unbounded is an amount that nothing exhausts.
const Unbounded = int64(1) << 62

// Policy is what may be taken from a job for another one of higher priority.
type Policy uint8

const (
	// Shrink gives up what is beyond min.
	Shrink Policy = iota
	// Evict gives up all of it, if that must be. A job with Shrink does so too when it is Durable.
	Evict
	// Never gives up nothing, and borrows nothing.
	Never
)

// Stage is where a job is in its life, as far as the plan is concerned.
type Stage uint8

const (
	// Held has no gang and wants none now: suspended, finished, refused, backing off, or sized by
	// somebody else. What pods it has hold their room.
	Held Stage = iota
	// Queued wants its gang to start.
	Queued
	// Starting has been granted its gang, which has no world yet.
	Starting
	// Training has a world that can change.
	Training
	// Fixed runs, and its world cannot change, or not now: nothing is added, nothing leaves by choice.
	Fixed
)

// Job is one job that holds room, or wants some.
type Job struct {
	// Name is namespace/name; UID breaks ties.
	Name, UID string
	Namespace NamespaceID
	Stage     Stage
	Priority  int32
	// Preempts is false when the job's PriorityClass says preemptionPolicy Never: it takes nothing.
	Preempts bool
	// Unasked is true where it takes nothing only because the API server was not asked about its pods so far: pods of others that are
	// less important have no claim to what is free before it.
	Unasked bool
	// Submitted orders jobs of one priority; it is kept through eviction and resumption. Queued is when it
	// began to wait for its gang to start, zero if it does not.
	Submitted, Queued time.Time
	// Min, Max and Sizes bound how many workers it may have, spares among them: Sizes ascending, contains Min; nil for all.
	Min, Max int32
	Sizes    []int32
	// Spares is how many of its workers do not train, but are ready to take the place of others, and Trains with how many of each of
	// Sizes it trains: see World.
	Spares int32
	Trains []int32
	// Members is how many workers its world was made with, 0 while it has none: nobody who trains becomes a spare.
	Members int32
	// Gang is the shape of a pod of its own class, Growth of one beyond min.
	Gang, Growth ShapeID
	Policy       Policy
	// NoGrowth is true for growth.policy Off, Fault says why growth is refused (such as a growth class above
	// the job's own); empty for nothing.
	NoGrowth bool
	Fault    string
	// SizedBy says who else decides how many workers it has, whatever its policy: it has its min then, lends none and
	// borrows none. Empty for nobody.
	SizedBy string
	// Target is the plan in force, durable: how many workers the job should have now; 0 while it has no gang.
	Target  int32
	Workers []Worker
	// Promised are the nodes that the last plan promised to its gang (Decision.Promised).
	Promised []NodeID
	// InVain is what the last plan said (Decision.InVain).
	InVain bool
	// Tally is that of the Workers; a plan makes its own where it is nil.
	Tally *Tally
	// Finishing is true when the last step was made, or nearly: nobody who comes now would be of use.
	Finishing bool
	// Regrouping is true while fewer than Min are left and wait for others.
	Regrouping bool
	// Starts is how often in a row its gang was given room, and came to nothing: it counts from 0 again once the
	// job has trained for a while.
	Starts int32
	// Armed is true while a planned change is under way that would be finished in any case.
	Armed bool
	// Restarts is true for a job whose programs are started anew in every world: each change costs it what
	// its program loses.
	Restarts bool
	// Began is when its world began, while that is the first one of its gang; zero once it had another one.
	Began time.Time
	// GrewAt is when it grew last, EvenedAt when it last gave to an equal, ReclaimedAt when room
	// was last taken from it, and Reclaims how often lately; zero for never.
	GrewAt, EvenedAt, ReclaimedAt time.Time
	Reclaims                      int32
	// GrowAfter is when growth may be tried again after it failed. Avoid are nodes to blame for workers of it that failed or
	// were lost: it does not grow there, and its gang is placed there last.
	GrowAfter time.Time
	Avoid     []NodeID
	// Pause is how long a change of its world stops it, as measured; zero when it is not known.
	Pause time.Duration
	// Pace is what was measured of it; nil where nothing was.
	Pace *Pace
	// ShortSince is what the plan before said (Decision.ShortSince).
	ShortSince time.Time
	// Again is what the plan before said (Decision.Again).
	Again Again
	// Work is what the plan before said (Decision.Work), 0 where there was none.
	Work float64
	// Lost is how much work is lost if all of its workers go. Durable is true when nothing is: it stops first, and what it
	// has done is kept where it outlives them.
	Lost    time.Duration
	Durable bool
	// Deadline is when it is to be complete, zero for at any time.
	Deadline time.Time
	// Ends is when the job ends at the latest (activeDeadline); zero when nothing is known.
	Ends time.Time
}

// Worker is one pod of a job that holds room, or waits for it. Workers that have ended are left out.
type Worker struct {
	// Node is where it is, or is to be; None while that is the scheduler's choice.
	Node  NodeID
	Shape ShapeID
	// Own is true when it carries the job's own priority class; it is surplus otherwise.
	Own bool
	// Bound is true once the scheduler has given it its node.
	Bound bool
	// World is true when it is a member of the world.
	World bool
	// Ending is true when its pod is being deleted: its room comes free when it has ended. Overdue is true when it
	// should have ended long ago: nobody knows when, so nobody waits for it.
	Ending, Overdue bool
	// Leaving is true when it is to leave for another reason than the plan (drain, eviction, loss).
	Leaving bool
	// Marked is true when the plan in force has it leave, For is the job that its room is for; None when
	// it leaves for nobody in particular, or for a job that is gone.
	Marked bool
	For    JobID
	// Moves is true for one that is marked because it has a replacement: its job is to be as large as before.
	Moves bool
	// Rank is its worker rank in the world, -1 for none: where there is a choice rank 0 stays.
	Rank int32
	// Ordinal is the number in its name, which breaks ties.
	Ordinal int32
}
