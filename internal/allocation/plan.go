package allocation

import "time"

// Plan is what should become of each job.
type Plan struct {
	// Decisions has one entry for each job of the Cluster, by JobID.
	Decisions []Decision
	// Next is when the plan may be another one although nothing has changed; zero for never.
	Next time.Time
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
	// Leave are the workers that are to leave, those that are marked already included; by index. A mark of
	// one that is not in it is lifted.
	Leave []Leave
	// Evict is true when the whole job must go, For is the job that needs its room.
	Evict bool
	For   JobID
	// Why says why it is so, and why it is not more.
	Why Why
	// Queue is the place of a queued job among those that wait, from 1; 0 for a job that does not wait.
	Queue int32
	// Expected is when it may start, as far as that is known; zero when it is not.
	Expected time.Time
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
