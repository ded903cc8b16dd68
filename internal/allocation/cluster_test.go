package allocation

import (
	"fmt"
	"time"
)

// The resources of clusters in tests: CPUs, pods, devices. Quotas bound devices.
const (
	cpu = iota
	pods
	gpu
)

const gpuName = "example.com/gpu"

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// newCluster is a cluster with one namespace, ns, and the settings of an operator as it is installed, but that jobs whose
// pace is known share by it.
func newCluster() *Cluster {
	return &Cluster{
		Now:       noon,
		Resources: []string{"cpu", "pods", gpuName},
		Devices:   []bool{false, false, true},
		Counts:    []string{"requests." + gpuName},
		Settings: Settings{
			MinRuntime: 0, ReclaimTimeout: time.Minute, Backfill: 10 * time.Minute,
			CoolDown: 5 * time.Minute, FirstRegrow: 30 * time.Second, LastRegrow: 10 * time.Minute, ByValue: true,
		},
		Namespaces: []Namespace{{Name: "ns", Weight: 1, NeverAllowed: true, EvictAllowed: true}},
	}
}

// withNodes adds nodes with so many devices each.
func (c *Cluster) withNodes(n int, devices int64) *Cluster {
	for range n {
		offers := Amounts{64_000, 110, devices}
		c.Nodes = append(c.Nodes, Node{
			Name: fmt.Sprintf("n%d", len(c.Nodes)), Capacity: offers, Free: append(Amounts{}, offers...),
		})
	}
	for i := range c.Shapes {
		c.Shapes[i].Nodes = c.everyNode()
	}
	return c
}

func (c *Cluster) everyNode() Bits {
	all := make(Bits, (len(c.Nodes)+63)/64)
	for i := range c.Nodes {
		all.Set(i)
	}
	return all
}

// shape is one that asks for so many devices, in a namespace, on all nodes.
func (c *Cluster) shape(devices int64, ns NamespaceID) ShapeID {
	var quotas []QuotaID
	for q := range c.Quotas {
		if c.Quotas[q].Namespace == ns {
			quotas = append(quotas, QuotaID(q))
		}
	}
	c.Shapes = append(c.Shapes, Shape{Request: Amounts{1000, 1, devices}, Nodes: c.everyNode(), Demand: Amounts{devices}, Quotas: quotas})
	return ShapeID(len(c.Shapes) - 1)
}

// queued adds a job that waits, of workers with one device each.
func (c *Cluster) queued(name string, least, most int32, set ...func(*Job)) JobID {
	j := Job{
		Name: "ns/" + name, UID: name, Stage: Queued, Preempts: true, Min: least, Max: most, Gang: None,
		Submitted: noon.Add(time.Duration(len(c.Jobs)) * time.Second), Queued: c.Now,
	}
	for _, f := range set {
		f(&j)
	}
	if j.Gang == None {
		j.Gang = c.shape(1, j.Namespace)
	}
	if j.Growth == 0 {
		j.Growth = j.Gang
	}
	c.Jobs = append(c.Jobs, j)
	return JobID(len(c.Jobs) - 1)
}

// training adds a job whose world has a worker on each of the nodes, those beyond min as growth.
func (c *Cluster) training(name string, least, most int32, on []NodeID, set ...func(*Job)) JobID {
	id := c.queued(name, least, most, set...)
	j := &c.Jobs[id]
	j.Stage, j.Target, j.Members, j.Queued = Training, int32(len(on)), int32(len(on)), time.Time{}
	for i, n := range on {
		w := Worker{Node: n, Shape: j.Gang, Own: int32(i) < least, Bound: true, World: true, For: None, Rank: int32(i), Ordinal: int32(i)}
		c.take(w)
		j.Workers = append(j.Workers, w)
	}
	return id
}

// take and put change what a pod holds.
func (c *Cluster) take(w Worker) { c.hold(w, 1) }
func (c *Cluster) put(w Worker)  { c.hold(w, -1) }

func (c *Cluster) hold(w Worker, times int64) {
	s := &c.Shapes[w.Shape]
	if w.Node >= 0 {
		for i, amount := range s.Request {
			c.Nodes[w.Node].Free[i] -= amount * times
		}
	}
	for _, q := range s.Quotas {
		for i, amount := range s.Demand {
			c.Quotas[q].Free[i] -= amount * times
		}
	}
}

// span are the nodes from a to b-1.
func span(a, b int) []NodeID {
	var all []NodeID
	for ; a < b; a++ {
		all = append(all, NodeID(a))
	}
	return all
}

func priority(p int32) func(*Job)  { return func(j *Job) { j.Priority = p } }
func policy(p Policy) func(*Job)   { return func(j *Job) { j.Policy = p } }
func sizes(s ...int32) func(*Job)  { return func(j *Job) { j.Sizes = s } }
func in(ns NamespaceID) func(*Job) { return func(j *Job) { j.Namespace = ns } }
func (c *Cluster) devices(n int64) func(*Job) {
	return func(j *Job) { j.Gang = c.shape(n, j.Namespace) }
}
func (c *Cluster) at(d time.Duration) *Cluster { c.Now = noon.Add(d); return c }
func (p Plan) of(id JobID) Decision            { return p.Decisions[id] }
func (p Plan) leaves(id JobID) int             { return len(p.Decisions[id].Leave) }
func (p Plan) leavesFor(id, whom JobID) (count int) {
	for _, l := range p.Decisions[id].Leave {
		if l.For == whom {
			count++
		}
	}
	return count
}
