package replay

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/concertina-dev/concertina/internal/allocation"
)

// operator keeps the cluster as the operator's planner sees it, and makes of its plans what the operator would: pods on
// nodes, and marks on those that are to leave. When pods join, and when they are gone, is up to its user.
type operator struct {
	cluster allocation.Cluster
	planner allocation.Planner
	// next is when the plan may be another one although nothing happens, zero for never.
	next time.Time
	// why is what it said when the size of a job changed last.
	why map[allocation.JobID]string
}

// beginning is when a replay begins.
var beginning = time.Unix(0, 0).UTC()

// newOperator has jobs share by value where it sees their speeds, and in equal parts otherwise.
func newOperator(c Cluster, settings allocation.Settings, sight Sight) *operator {
	settings.ByValue = sight.Speeds
	o := &operator{why: map[allocation.JobID]string{}, cluster: allocation.Cluster{
		Settings: settings, Resources: []string{"device"}, Devices: []bool{true},
		Namespaces: []allocation.Namespace{{Name: "replay", Weight: 1}},
	}}
	everywhere := make(allocation.Bits, c.Nodes/64+1)
	for n := range c.Nodes {
		everywhere.Set(n)
		devices := allocation.Amounts{int64(c.DevicesPerNode)}
		o.cluster.Nodes = append(o.cluster.Nodes, allocation.Node{Name: "node-" + strconv.Itoa(n), Capacity: devices, Free: slices.Clone(devices)})
	}
	o.cluster.Shapes = []allocation.Shape{{Request: allocation.Amounts{1}, Nodes: everywhere}}
	return o
}

// submit enters a job: it may have 1 to as many workers as its program can use. All are of one namespace and priority.
func (o *operator) submit(j *Job) allocation.JobID {
	at := beginning.Add(time.Duration(j.Submitted) * time.Second)
	o.cluster.Jobs = append(o.cluster.Jobs, allocation.Job{
		Name: "replay/" + j.Name, UID: j.Name, Stage: allocation.Queued, Preempts: true, Submitted: at, Queued: at,
		Min: 1, Max: int32(min(j.Program.Max(), math.MaxInt32)),
	})
	if j.Deadline > 0 {
		o.cluster.Jobs[len(o.cluster.Jobs)-1].Deadline = beginning.Add(time.Duration(j.Deadline) * time.Second)
	}
	return allocation.JobID(len(o.cluster.Jobs) - 1)
}

func (o *operator) job(id allocation.JobID) *allocation.Job { return &o.cluster.Jobs[id] }

// finish ends a job: its devices are free.
func (o *operator) finish(id allocation.JobID) {
	o.remove(id, func(*allocation.Worker) bool { return true })
	*o.job(id) = allocation.Job{}
}

// remove ends workers of a job, and says whether there were any.
func (o *operator) remove(id allocation.JobID, which func(*allocation.Worker) bool) bool {
	j := o.job(id)
	before := len(j.Workers)
	j.Workers = slices.DeleteFunc(j.Workers, func(w allocation.Worker) bool {
		gone := which(&w)
		if gone {
			o.cluster.Nodes[w.Node].Free[0]++
		}
		return gone
	})
	return len(j.Workers) < before
}

// plan makes a plan and carries it out. It says whether pods were made or marks set or lifted.
func (o *operator) plan(now time.Duration) bool {
	o.cluster.Now = beginning.Add(now)
	plan := o.planner.Plan(&o.cluster)
	o.next, o.cluster.Foresight = plan.Next, plan.Foresight
	changed := false
	for id := range plan.Decisions {
		if o.cluster.Jobs[id].Stage != allocation.Held {
			changed = o.carryOut(allocation.JobID(id), &plan.Decisions[id]) || changed
		}
	}
	return changed
}

func (o *operator) carryOut(id allocation.JobID, d *allocation.Decision) bool {
	j := o.job(id)
	j.Promised, j.InVain, j.ShortSince, j.Again, j.Work = d.Promised, d.InVain, d.ShortSince, d.Again, d.Work
	changed := o.mark(id, d) || len(d.Places) > 0
	if changed {
		o.why[id] = d.Why.Text
	}
	if d.Start {
		j.Stage, j.Queued = allocation.Starting, time.Time{}
	}
	ordinals := freeOrdinals(j)
	for i, node := range d.Places {
		own := int32(i) < d.Own
		if !own && d.Count > j.Target {
			j.GrewAt = o.cluster.Now
		}
		o.cluster.Nodes[node].Free[0]--
		j.Workers = append(j.Workers, allocation.Worker{
			Node: node, Own: own, Bound: true, For: allocation.None, Rank: -1, Ordinal: ordinals(),
		})
	}
	j.Target = d.Count
	return changed
}

// freeOrdinals returns the numbers that no worker has, the lowest first.
func freeOrdinals(j *allocation.Job) func() int32 {
	taken := make(map[int32]bool, len(j.Workers))
	for i := range j.Workers {
		taken[j.Workers[i].Ordinal] = true
	}
	next := int32(0)
	return func() int32 {
		for taken[next] {
			next++
		}
		next++
		return next - 1
	}
}

// mark makes the marks of a plan those of the workers, and says whether any has changed.
func (o *operator) mark(id allocation.JobID, d *allocation.Decision) bool {
	j := o.job(id)
	leaves := make(map[int]allocation.Leave, len(d.Leave))
	for _, leave := range d.Leave {
		leaves[leave.Worker] = leave
	}
	changed, reclaimed := false, false
	for w := range j.Workers {
		worker := &j.Workers[w]
		leave, leaving := leaves[w]
		changed = changed || worker.Marked != leaving
		if !leaving {
			worker.Marked, worker.For, worker.Moves = false, allocation.None, false
			continue
		}
		if !worker.Marked && leave.For != allocation.None && leave.For != id {
			switch leave.Rule {
			case allocation.RuleGrowth:
				j.EvenedAt = o.cluster.Now
			case allocation.RuleConsolidation: // moved: it has a replacement
			default:
				reclaimed = true
			}
		}
		worker.Moves = worker.Moves || !worker.Marked && leave.Rule == allocation.RuleConsolidation // a mark stays as it is
		worker.Marked, worker.For = true, leave.For
	}
	if reclaimed {
		j.Reclaims = o.cluster.Settings.Lately(j.Reclaims, o.cluster.Now.Sub(j.ReclaimedAt)) + 1
		j.ReclaimedAt = o.cluster.Now
	}
	return changed
}

// join makes workers members of the world.
func (o *operator) join(id allocation.JobID, which func(*allocation.Worker) bool) {
	j := o.job(id)
	j.Stage = allocation.Training
	for w := range j.Workers {
		if worker := &j.Workers[w]; which(worker) {
			worker.World, worker.Rank = true, worker.Ordinal
		}
	}
}

// members are the nodes of the world's workers, one entry for each: the nodes with most of them first.
func (o *operator) members(id allocation.JobID) []int {
	var nodes []int
	here := map[int]int{}
	for _, w := range o.job(id).Workers {
		if w.World {
			nodes = append(nodes, int(w.Node))
			here[int(w.Node)]++
		}
	}
	slices.SortFunc(nodes, func(a, b int) int { return cmp.Or(here[b]-here[a], a-b) })
	return nodes
}
