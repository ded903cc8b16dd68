package console

import (
	"fmt"
	"slices"
	"sort"

	"github.com/concertina-dev/concertina/internal/allocation"
)

// remedy is what would let a job start, or grow to its next size.
type remedy struct {
	// places is for how many more workers there would have to be room; 0 for none.
	places int32
	// size is how many workers the job would have then.
	size int32
	// quotas is true when its quotas stand in the way too.
	quotas bool
}

// remedy asks the planner again and again, with more and more room that only this job can use: what it does
// then is what the operator would do. It returns false when no room would help.
func (l *Look) remedy(j *job) (remedy, bool) {
	most := j.in.Min
	if j.in.Stage == allocation.Training {
		most = max(j.in.Max-j.have(), 0)
	}
	if l.partial || most == 0 || j.in.Gang < 0 || j.in.Growth < 0 {
		return remedy{}, false
	}
	for _, quotas := range []bool{false, true} {
		if l.helped(j, most, quotas) == 0 {
			continue
		}
		places := int32(sort.Search(int(most), func(k int) bool { return l.helped(j, int32(k), quotas) > 0 }))
		size := l.helped(j, places, quotas)
		if j.in.Stage == allocation.Training {
			size = j.nextSize() // without quotas there may be room for more than one step
		}
		return remedy{places: places, size: size, quotas: quotas}, true
	}
	return remedy{}, false
}

// nextSize is the smallest legal number of workers above that which a job is to have.
func (j *job) nextSize() int32 {
	for _, size := range j.in.Sizes {
		if size > j.decision.Count {
			return size
		}
	}
	return j.decision.Count + 1
}

// helped is how many workers a job would have with so much more room, if that is more than it would have
// without; otherwise 0.
func (l *Look) helped(j *job, places int32, withoutQuotas bool) int32 {
	decision := l.planner(l.withRoom(j, places, withoutQuotas)).Decisions[j.id]
	switch {
	case j.in.Stage == allocation.Queued && decision.Start:
		return decision.Count
	case j.in.Stage == allocation.Training && decision.Count > j.decision.Count:
		return decision.Count
	default:
		return 0
	}
}

// withRoom is the cluster with one more node, on which nobody but a job fits, so many of its workers, and if
// wanted without its quotas.
func (l *Look) withRoom(j *job, places int32, withoutQuotas bool) *allocation.Cluster {
	more := *l.cluster
	node := allocation.NodeID(len(more.Nodes))
	gang, growth := allocation.ShapeID(len(more.Shapes)), allocation.ShapeID(len(more.Shapes)+1)
	room := make(allocation.Amounts, len(more.Resources))
	more.Shapes = slices.Clone(more.Shapes)
	for _, from := range []allocation.ShapeID{j.in.Gang, j.in.Growth} {
		own := more.Shapes[from]
		own.Nodes = append(slices.Clone(own.Nodes), make(allocation.Bits, max(0, int(node)>>6+1-len(own.Nodes)))...)
		own.Nodes.Set(int(node))
		if withoutQuotas {
			own.Quotas = nil
		}
		more.Shapes = append(more.Shapes, own)
		for i, amount := range own.Request {
			room[i] = max(room[i], amount*int64(places))
		}
	}
	more.Nodes = append(slices.Clone(more.Nodes), allocation.Node{
		Name: "more room", Capacity: room, Free: slices.Clone(room), DeviceType: l.deviceType(j),
	})
	more.Jobs = slices.Clone(more.Jobs)
	more.Jobs[j.id].Gang, more.Jobs[j.id].Growth = gang, growth
	return &more
}

// thousandths is that part of an amount, as the planner has it.
func thousandths(amount, part int64) int64 { return amount/1000*part + amount%1000*part/1000 }

// deviceType is the type of the devices that a job has, or of the first ones there are.
func (l *Look) deviceType(j *job) string {
	for i := range j.in.Workers {
		if at := j.in.Workers[i].Node; at >= 0 && j.in.Workers[i].Bound {
			return l.cluster.Nodes[at].DeviceType
		}
	}
	if len(l.cluster.Nodes) > 0 {
		return l.cluster.Nodes[0].DeviceType
	}
	return ""
}

// advice is a remedy in a sentence.
func (l *Look) advice(j *job) string {
	r, helps := l.remedy(j)
	if !helps {
		return ""
	}
	shape, verb := j.in.Gang, "start"
	if j.in.Stage == allocation.Training {
		shape, verb = j.in.Growth, fmt.Sprintf("grow to %d workers", r.size)
	}
	var conditions []string
	if r.places > 0 {
		conditions = append(conditions, l.wanted(j, shape, r.places))
	}
	if r.quotas {
		conditions = append(conditions, l.wantedQuotas(j, shape, r.size-j.have())...)
	}
	if len(conditions) == 0 {
		return ""
	}
	return fmt.Sprintf("It would %s if %s.", verb, list(conditions))
}

// wanted says how much room is missing: devices, or all that a worker takes where it has none, or where more than devices is short.
func (l *Look) wanted(j *job, id allocation.ShapeID, places int32) string {
	shape := &l.cluster.Shapes[id]
	var devices []string
	each := int64(0)
	for i, amount := range shape.Request {
		if amount > 0 && l.device(i) {
			devices = append(devices, fmt.Sprintf("%d more %s", amount*int64(places), l.cluster.Resources[i]))
			each += amount
		}
	}
	free, offered := "were free for it", func(n allocation.NodeID) allocation.Amounts { return l.cluster.Nodes[n].Free }
	if reason := j.decision.Why.Reason; reason == "LargerThanCluster" || reason == "NoNode" {
		free, offered = "were in the cluster, on nodes that it may use", func(n allocation.NodeID) allocation.Amounts { return l.cluster.Nodes[n].Capacity }
	}
	short := l.cluster.Scarce(id, offered)
	if len(devices) == 0 || len(short) > 0 {
		text := fmt.Sprintf("room for %s (%s each) %s", count(places, "more worker"), l.share(id), free)
		if len(devices) > 0 {
			text += fmt.Sprintf(": %s %s short, where devices are left", list(short), are(len(short)))
		}
		return text
	}
	text := fmt.Sprintf("%s %s", list(devices), free)
	if each > 1 {
		text += fmt.Sprintf(" (for %s of %s, each on one node)", count(places, "worker"), l.share(id))
	}
	return text
}

// wantedQuotas says what quotas lack for so many more workers. A gang may use all of a quota, growth leaves the
// head-room of its namespace to others.
func (l *Look) wantedQuotas(j *job, id allocation.ShapeID, workers int32) []string {
	shape, headRoom := &l.cluster.Shapes[id], int64(0)
	if j.in.Stage == allocation.Training {
		headRoom = l.cluster.Namespaces[j.in.Namespace].HeadRoom
	}
	var all []string
	for _, q := range shape.Quotas {
		quota := &l.cluster.Quotas[q]
		for i, amount := range shape.Demand {
			if amount <= 0 || quota.Hard[i] >= allocation.Unbounded {
				continue
			}
			kept := thousandths(quota.Hard[i], headRoom)
			lacks := amount*int64(workers) + kept - quota.Free[i]
			if lacks <= 0 {
				continue
			}
			name := l.cluster.Counts[i]
			text := fmt.Sprintf("quota %s had %s more %s free", quota.Name, quantity(name, lacks), name)
			if kept > 0 {
				text += fmt.Sprintf(" (growth leaves %s of its %s to others: headRoom %d%%)", quantity(name, kept), quantity(name, quota.Hard[i]), headRoom/10)
			}
			all = append(all, text)
		}
	}
	if len(all) == 0 {
		return []string{"the quotas of its namespace allowed it"}
	}
	return all
}
