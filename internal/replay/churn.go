package replay

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/concertina-dev/concertina/internal/allocation"
)

// NodeChange is a node that comes or goes.
type NodeChange struct {
	At time.Duration
	// Node is its number, from 0. One that goes may come again.
	Node int
	Gone bool
}

// Churn is how the nodes of a cluster come and go, and what that costs.
type Churn struct {
	// Changes are in the order of time. No node is there before the first of them.
	Changes []NodeChange
	// Until is when the replay ends.
	Until time.Duration
	// Notice is how long before it goes a node is known to go; 0 for not at all.
	Notice time.Duration
	// Recovery is how long a world stands still that has lost workers without notice, Saved how often each job saves what
	// it goes on from when it has lost all of them.
	Recovery, Saved time.Duration
}

// Nodes is how many different nodes there are.
func (c *Churn) Nodes() int {
	n := 0
	for _, change := range c.Changes {
		n = max(n, change.Node+1)
	}
	return n
}

// check says what is wrong with it.
func (c *Churn) check() error {
	there := map[int]bool{}
	for i, change := range c.Changes {
		switch {
		case change.At < 0 || i > 0 && change.At < c.Changes[i-1].At:
			return fmt.Errorf("node %d changes at %s, out of order", change.Node, change.At)
		case change.Node < 0 || there[change.Node] != change.Gone:
			return fmt.Errorf("node %d cannot come twice, nor go without having come (at %s)", change.Node, change.At)
		}
		there[change.Node] = !change.Gone
	}
	if c.Until <= 0 || c.Notice < 0 || c.Recovery < 0 || c.Saved <= 0 {
		return fmt.Errorf("a replay of churn needs an end, an interval in which jobs save, and no time below 0")
	}
	return nil
}

// news are the changes as an operator learns of them: that a node will go comes before it goes.
func (c *Churn) news() []nodeNews {
	var all []nodeNews
	for _, change := range c.Changes {
		all = append(all, nodeNews{NodeChange: change})
		if change.Gone && c.Notice > 0 {
			told := change
			told.At = max(0, change.At-c.Notice)
			all = append(all, nodeNews{NodeChange: told, told: true})
		}
	}
	slices.SortStableFunc(all, func(a, b nodeNews) int { return cmp.Compare(a.At, b.At) })
	return all
}

// nodeNews is a change, or that it was told beforehand.
type nodeNews struct {
	NodeChange
	told bool
}

// Churned is what jobs made of nodes that came and went.
type Churned struct {
	// Steps are those that were made and not lost again, Resizes how often a world changed: of all jobs.
	Steps   float64
	Resizes int
}

// Churn runs jobs, none of which need come to its end, on nodes that come and go.
func (e Events) Churn(jobs []Job, perNode int, churn Churn) (*Churned, error) {
	c := Cluster{Nodes: churn.Nodes(), DevicesPerNode: perNode}
	if err := churn.check(); err != nil {
		return nil, err
	}
	if err := check(jobs, c); err != nil {
		return nil, err
	}
	h := e.begins(jobs, c)
	h.churn, h.news = churn, churn.news()
	for n := range h.operator.cluster.Nodes {
		h.operator.close(n)
	}
	for at := h.next(); at < churn.Until; at = h.next() {
		h.pass(at)
		if h.happen() {
			if err := h.plan(); err != nil {
				return nil, err
			}
		}
	}
	h.pass(churn.Until)
	out := &Churned{}
	for i := range jobs {
		result := h.results[jobs[i].Name]
		out.Resizes += result.Resizes
		if result.Completed > 0 {
			out.Steps += jobs[i].Program.Total()
		}
	}
	for _, l := range h.lives {
		out.Steps += l.steps - l.lost
	}
	return out, nil
}

// close takes a node out of the cluster; whoever is on it was removed.
func (o *operator) close(n int) {
	node := &o.cluster.Nodes[n]
	node.Capacity[0], node.Free[0], node.Closed = 0, 0, "gone"
}

// open puts a node into the cluster, empty.
func (o *operator) open(n, devices int) {
	node := &o.cluster.Nodes[n]
	node.Capacity[0], node.Free[0], node.Closed = int64(devices), int64(devices), ""
}

// nodesChange lets nodes come and go that do so now, and says whether any did.
func (h *history) nodesChange() bool {
	changed := false
	for len(h.news) > 0 && h.news[0].At <= h.now {
		news := h.news[0]
		h.news, changed = h.news[1:], true
		switch {
		case news.told:
			h.operator.cluster.Nodes[news.Node].Closed = "about to go"
			for _, l := range h.lives {
				h.leave(l, news.Node)
			}
		case news.Gone:
			for _, l := range h.lives {
				h.lose(l, news.Node)
			}
			h.operator.close(news.Node)
		default:
			h.operator.open(news.Node, h.perNode)
		}
	}
	return changed
}

// leave has the workers of a job leave a node that will go, those at once that have yet to join.
func (h *history) leave(l *life, node int) {
	h.operator.remove(l.id, func(w *allocation.Worker) bool {
		gone := !w.World && int(w.Node) == node
		if gone {
			delete(l.ready, w.Ordinal)
		}
		return gone
	})
	j := h.operator.job(l.id)
	for i := range j.Workers {
		if w := &j.Workers[i]; int(w.Node) == node {
			w.Leaving = true
		}
	}
}

// lose takes the workers of a job that were on a node. Those that are left of its world go on after a while with what they
// had but for a step; where none is left the gang queues again, with what was saved.
func (h *history) lose(l *life, node int) {
	members, world := 0, false
	lost := h.operator.remove(l.id, func(w *allocation.Worker) bool {
		here := int(w.Node) == node
		world = world || here && w.World
		if w.World && !here {
			members++
		}
		if here {
			delete(l.ready, w.Ordinal)
			delete(l.leavers, w.Ordinal)
		}
		return here
	})
	switch {
	case !lost || !world:
	case members > 0:
		if l.ends != never {
			h.takeBack(l, 1)
		}
		l.changes, l.ends = h.now+h.churn.Recovery, never
	default:
		h.regroup(l)
	}
}

// regroup has a job that has no member left queue again, with what it saved.
func (h *history) regroup(l *life) {
	h.takeBack(l, l.unsaved(h.churn))
	h.operator.remove(l.id, func(*allocation.Worker) bool { return true })
	j := h.operator.job(l.id)
	j.Stage, j.Target, j.Queued, j.Armed = allocation.Queued, 0, beginning.Add(h.now), false
	l.world, l.changes, l.ends, l.look = nil, never, never, never
	l.result.has(h.now.Seconds(), 0, "all of its workers were lost")
	clear(l.ready)
	clear(l.leavers)
}

// unsaved are the steps that were made since the job saved last: every so often in the time that it trains, and before a
// node goes of which it was told.
func (l *life) unsaved(c Churn) float64 {
	if c.Notice > 0 || l.seconds == 0 {
		return 0
	}
	since := math.Mod(l.seconds, c.Saved.Seconds())
	return since * l.steps / l.seconds
}

// takeBack has steps made in vain. The progress of a job in this replay is counted in steps.
func (h *history) takeBack(l *life, steps float64) {
	steps = min(max(steps, 0), l.progress)
	l.lost += steps
	l.progress -= steps
}
