package fleet

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/internal/allocation"
)

// Grant implements Fleet.
func (c *Cluster) Grant(uid types.UID) Grant {
	c.mu.Lock()
	defer c.mu.Unlock()
	j := c.jobs[uid]
	if j == nil {
		return Grant{}
	}
	grant := j.grant
	grant.Known = j.granted == j.revision
	grant.Bound = c.bound[j.object.Spec.Gang.SchedulerName]
	j.awaited = j.awaited || !grant.Known
	return grant
}

// publish gives each job its grant, and has those looked at whose grant has changed or was asked for.
func (c *Cluster) publish(v *view, plan allocation.Plan) {
	c.lastSeen, c.lastPlan = v.cluster, plan
	for id, j := range v.jobs {
		if id >= len(plan.Decisions) || c.jobs[j.object.UID] != j {
			continue
		}
		j.shortSince, j.again, j.work = plan.Decisions[id].ShortSince, plan.Decisions[id].Again, plan.Decisions[id].Work
		j.promised, j.inVain = c.nodesOf(v, plan.Decisions[id].Promised), plan.Decisions[id].InVain
		grant := c.grantOf(v, id, &plan.Decisions[id])
		asked := j.awaited && v.revisions[id] == j.revision
		changed := j.granted == 0 || !j.grant.same(&grant)
		j.grant, j.granted = grant, v.revisions[id]
		if asked || changed {
			c.changes.add(j.key())
		}
		if asked {
			j.awaited = false
		}
	}
}

// shortSinceAt is since when a job is short: as the last plan said, or as the operator before wrote, until there is one. A clock
// that was ahead says nothing of it.
func (j *job) shortSinceAt(now time.Time) time.Time {
	since := j.shortSince
	if j.granted == 0 {
		since = timeOf(j.object.Status.Speed.ShortSince)
	}
	if since.After(now) {
		return now
	}
	return since
}

// triedAgain is when a job was tried again with more workers: as the last plan said, or as the operator before wrote.
func (j *job) triedAgain() allocation.Again {
	wrote := j.object.Status.Speed.TriedAgain
	if j.granted != 0 || wrote == nil {
		return j.again
	}
	return allocation.Again{From: max(0, value(wrote.From)), At: timeOf(wrote.At), Vain: max(0, value(wrote.Vain))}
}

// nodesOf are the nodes of a snapshot that are still there.
func (c *Cluster) nodesOf(v *view, ids []allocation.NodeID) (all []*node) {
	for _, id := range ids {
		if id < 0 || int(id) >= len(v.cluster.Nodes) {
			continue
		}
		if one := c.nodes.index[v.cluster.Nodes[id].Name]; one != nil {
			all = append(all, one)
		}
	}
	return all
}

// grantOf puts a decision into names.
func (c *Cluster) grantOf(v *view, id int, d *allocation.Decision) Grant {
	grant := Grant{
		Count: d.Count, Start: d.Start, Reason: d.Why.Reason, Why: d.Why.Text,
		Queue: Queue{Position: d.Queue, Start: d.Expected}, ShortSince: d.ShortSince, Again: d.Again,
	}
	in := &v.cluster.Jobs[id]
	grant.NoSpares = d.NoSpares
	grant.Late = d.Misses || in.Stage == allocation.Queued && !d.Start && d.Late
	grant.NotAllowed = v.cluster.Namespaces[in.Namespace].InForce(in.Policy) != in.Policy
	for i, at := range d.Places {
		place := Place{Own: int32(i) < d.Own}
		// A pod that is to stay on one node makes no node appear.
		if at >= 0 && int(at) < len(v.cluster.Nodes) && !v.cluster.Settings.Autoscaled {
			place.Node = v.cluster.Nodes[at].Name
		}
		grant.Places = append(grant.Places, place)
	}
	for _, leave := range d.Leave {
		if leave.Worker < 0 || leave.Worker >= len(v.uids[id]) {
			continue
		}
		if grant.Leave == nil {
			grant.Leave = map[types.UID]Leave{}
		}
		grant.Leave[v.uids[id][leave.Worker]] = v.leave(leave)
	}
	if d.Evict {
		if grant.Evict = v.nameOf(d.For); grant.Evict == "" {
			grant.Evict = v.cluster.Jobs[id].Name
		}
	}
	return grant
}

func (v *view) leave(leave allocation.Leave) Leave {
	whom := v.nameOf(leave.For)
	switch {
	case leave.Rule == allocation.RuleConsolidation && whom != "":
		return Leave{Reason: Moved, For: whom, Why: fmt.Sprintf("%s needs room in one piece; another worker takes its place first", whom)}
	case leave.Rule == allocation.RuleGrowth && whom != "":
		return Leave{Reason: Evened, For: whom, Why: fmt.Sprintf("%s has a larger claim to its room", whom)}
	case whom != "":
		return Leave{Reason: Reclaimed, For: whom, Why: fmt.Sprintf("%s needs its room", whom)}
	case leave.Rule == allocation.RuleQuota:
		return Leave{Why: "the quota of the namespace is needed by others"}
	case leave.Rule == allocation.RuleGrowth:
		return Leave{Why: "others have a larger claim to its room"}
	default:
		return Leave{Why: "the job is to have fewer workers"}
	}
}

// nameOf is the name of a job; empty for none.
func (v *view) nameOf(id allocation.JobID) string {
	if id < 0 || int(id) >= len(v.cluster.Jobs) {
		return ""
	}
	return v.cluster.Jobs[id].Name
}

// NearTheFront is up to which place in the queue a job hears of every change of it.
const NearTheFront = 20

// same says whether two grants allow the same, for the same reason. When a job may start is only a guess,
// and a change of it wakes nobody; nor does since when it is short, which is written with the progress, nor do words and places far back in the queue, which change for all with
// every job that starts.
func (g *Grant) same(other *Grant) bool {
	if least := min(g.Queue.Position, other.Queue.Position); least > NearTheFront && g.Count == 0 && !g.Start && !other.Start {
		return g.Reason == other.Reason && g.Evict == other.Evict && g.Late == other.Late
	}
	return g.Count == other.Count && g.Start == other.Start && slices.Equal(g.Places, other.Places) && maps.Equal(g.Leave, other.Leave) &&
		g.Evict == other.Evict && g.NotAllowed == other.NotAllowed && g.Late == other.Late && g.NoSpares == other.NoSpares &&
		g.Reason == other.Reason && g.Why == other.Why && g.Queue.Position == other.Queue.Position
}
