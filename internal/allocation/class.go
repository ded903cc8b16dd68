package allocation

import (
	"math"
	"slices"
)

// classID is an index of classes.
type classID int32

// class is what shapes have in common that fit the same nodes equally often.
type class struct {
	request Amounts
	// nodes are those that it may use now.
	nodes Bits
	// empty is how often it would fit the nodes if nobody were there, negative until somebody asks.
	empty int64
}

// times is how often one fits into what is free.
func (k *class) times(free []int64) int32 {
	times := int64(math.MaxInt16)
	for i, amount := range k.request {
		if amount > 0 {
			if free[i] < amount {
				return 0
			}
			times = min(times, free[i]/amount)
		}
	}
	return int32(times)
}

// scope narrows the nodes of a shape down.
type scope struct {
	// growth leaves out nodes that only an autoscaler would have removed.
	growth bool
	// typed keeps to nodes with this type of device.
	typed bool
	kind  string
}

// classes finds the class of a shape.
type classes struct {
	c     *Cluster
	all   []class
	known map[classKey]classID
	equal map[uint64][]classID
	// masks are the open nodes of a scope.
	masks map[scope]Bits
	// types is true when the devices of the cluster are not all of one type.
	types bool
}

type classKey struct {
	shape ShapeID
	scope scope
}

func newClasses(c *Cluster) *classes {
	k := &classes{c: c, known: map[classKey]classID{}, equal: map[uint64][]classID{}, masks: map[scope]Bits{}}
	for i := range c.Nodes {
		if c.Nodes[i].Name != "" && c.Nodes[i].DeviceType != c.Nodes[0].DeviceType {
			k.types = true
			break
		}
	}
	return k
}

// of is the class of a shape within a scope.
func (k *classes) of(s ShapeID, within scope) classID {
	if !k.types {
		within.typed, within.kind = false, ""
	}
	key := classKey{s, within}
	if id, ok := k.known[key]; ok {
		return id
	}
	made := class{request: k.c.Shapes[s].Request, nodes: k.open(k.c.Shapes[s].Nodes, within), empty: -1}
	sum := k.hash(&made)
	for _, id := range k.equal[sum] {
		if slices.Equal(k.all[id].request, made.request) && slices.Equal(k.all[id].nodes, made.nodes) {
			k.known[key] = id
			return id
		}
	}
	id := classID(len(k.all))
	k.all = append(k.all, made)
	k.known[key], k.equal[sum] = id, append(k.equal[sum], id)
	return id
}

// open are those of the nodes that may be used now.
func (k *classes) open(nodes Bits, within scope) Bits {
	mask, ok := k.masks[within]
	if !ok {
		mask = make(Bits, (len(k.c.Nodes)+63)/64)
		for i := range k.c.Nodes {
			n := &k.c.Nodes[i]
			if n.Name != "" && n.Closed == "" && (!within.growth || !n.Autoscaled) && (!within.typed || n.DeviceType == within.kind) {
				mask.Set(i)
			}
		}
		k.masks[within] = mask
	}
	open := make(Bits, min(len(mask), len(nodes)))
	for i := range open {
		open[i] = nodes[i] & mask[i]
	}
	return open
}

func (k *classes) hash(c *class) uint64 {
	var sum uint64 = 14695981039346656037
	for _, amount := range c.request {
		sum = (sum ^ uint64(amount)) * 1099511628211
	}
	for _, word := range c.nodes {
		sum = (sum ^ word) * 1099511628211
		sum ^= sum >> 29
	}
	return sum
}

// empty is how often a class would fit its nodes if they were empty.
func (k *classes) empty(id classID) int64 {
	c := &k.all[id]
	if c.empty < 0 {
		c.empty = 0
		for i := range k.c.Nodes {
			if c.nodes.Has(i) && len(k.c.Nodes[i].Capacity) == len(k.c.Resources) {
				c.empty += int64(c.times(k.c.Nodes[i].Capacity))
			}
		}
	}
	return c.empty
}
