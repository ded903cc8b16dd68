package allocation

import (
	"encoding/binary"
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
	// empty is how often it would fit the nodes if nobody were there, negative until somebody asks; perNode how often
	// it would fit one of them at most, 0 until then.
	empty   int64
	perNode int32
	// fits are those of its nodes that one would fit if nobody were there, nil until somebody asks; rival is the first class that
	// has the same, and asks for the same kinds of devices.
	fits  Bits
	rival classID
	// wide is what stands for it and others like it, from 1; 0 until somebody asks (classes.wideOf).
	wide int32
	// among numbers the nodes that it may use, from 1; 0 until somebody asks (classes.nodesOf).
	among int32
}

// times is how often one fits into what is free.
func (k *class) times(free []int64) int32 {
	for i, amount := range k.request {
		if amount > 0 && free[i] < amount {
			return 0 // most nodes of a cluster are full, and a division takes long
		}
	}
	times := int64(math.MaxInt16)
	for i, amount := range k.request {
		switch {
		case amount == 1:
			times = min(times, free[i])
		case amount > 0:
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
	equal map[uint64][]classID
	// scopes are those that were asked for; there are few.
	scopes []scoped
	// nodes is memory for those of a shape.
	nodes Bits
	// types is true when the devices of the cluster are not all of one type.
	types bool
	wides wides
	// sets has the numbers of those sets of nodes that somebody has asked for.
	sets map[string]int32
}

// scoped is what is known of one scope.
type scoped struct {
	scope
	// open are the nodes in it that may be used now.
	open Bits
	// known are the classes of shapes, None where nobody has asked.
	known []classID
}

func newClasses(c *Cluster) *classes {
	k := &classes{c: c, equal: map[uint64][]classID{}}
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
	in := k.within(within)
	if in.known[s] == None {
		in.known[s] = k.intern(s, in)
	}
	return in.known[s]
}

// intern finds the class that is equal, or makes one.
func (k *classes) intern(s ShapeID, in *scoped) classID {
	shape := &k.c.Shapes[s]
	k.nodes = slices.Grow(k.nodes[:0], len(in.open))[:min(len(in.open), len(shape.Nodes))]
	for i := range k.nodes {
		k.nodes[i] = shape.Nodes[i] & in.open[i]
	}
	made := class{request: shape.Request, nodes: k.nodes, empty: -1}
	sum := k.hash(&made)
	for _, id := range k.equal[sum] {
		if slices.Equal(k.all[id].request, made.request) && slices.Equal(k.all[id].nodes, made.nodes) {
			return id
		}
	}
	id := classID(len(k.all))
	made.nodes = slices.Clone(made.nodes)
	k.all, k.equal[sum] = append(k.all, made), append(k.equal[sum], id)
	return id
}

// within is what is known of a scope.
func (k *classes) within(s scope) *scoped {
	for i := range k.scopes {
		if k.scopes[i].scope == s {
			return &k.scopes[i]
		}
	}
	in := scoped{scope: s, open: make(Bits, (len(k.c.Nodes)+63)/64), known: slices.Repeat([]classID{None}, len(k.c.Shapes))}
	for i := range k.c.Nodes {
		n := &k.c.Nodes[i]
		if n.Name != "" && n.Closed == "" && (!s.growth || !n.Autoscaled) && (!s.typed || n.DeviceType == s.kind) {
			in.open.Set(i)
		}
	}
	k.scopes = append(k.scopes, in)
	return &k.scopes[len(k.scopes)-1]
}

// nodesOf numbers the nodes that a class may use: those that may use the same ones have the same number.
func (k *classes) nodesOf(id classID) int32 {
	c := &k.all[id]
	if c.among == 0 {
		if k.sets == nil {
			k.sets = map[string]int32{}
		}
		key := make([]byte, 0, len(c.nodes)*8)
		for _, word := range c.nodes {
			key = binary.LittleEndian.AppendUint64(key, word)
		}
		if k.sets[string(key)] == 0 {
			k.sets[string(key)] = int32(len(k.sets) + 1)
		}
		c.among = k.sets[string(key)]
	}
	return c.among
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

// perNode is how many pods of a class one of its nodes holds at most, at least 1.
func (k *classes) perNode(id classID) int32 {
	c := &k.all[id]
	if c.perNode == 0 {
		c.perNode = 1
		for i := range k.c.Nodes {
			if c.nodes.Has(i) && len(k.c.Nodes[i].Capacity) == len(k.c.Resources) {
				c.perNode = max(c.perNode, c.times(k.c.Nodes[i].Capacity))
			}
		}
	}
	return c.perNode
}

// rival stands for all classes of pods that take devices from each other: they fit the same nodes if nobody is there, however often,
// and ask for devices of the same kinds.
func (k *classes) rival(id classID) classID {
	c := &k.all[id]
	if c.fits != nil {
		return c.rival
	}
	c.fits, c.rival = make(Bits, (len(k.c.Nodes)+63)/64), id
	for i := range k.c.Nodes {
		if c.nodes.Has(i) && len(k.c.Nodes[i].Capacity) == len(k.c.Resources) && c.times(k.c.Nodes[i].Capacity) > 0 {
			c.fits.Set(i)
		}
	}
	for other := range k.all {
		o := &k.all[other]
		if classID(other) != id && o.fits != nil && o.rival == classID(other) && k.alike(o.request, c.request) && slices.Equal(o.fits, c.fits) {
			c.rival = classID(other)
			break
		}
	}
	return c.rival
}

// alike says whether two requests are for the same kinds of devices.
func (k *classes) alike(a, b Amounts) bool {
	for i, device := range k.c.Devices {
		if device && (i < len(a) && a[i] > 0) != (i < len(b) && b[i] > 0) {
			return false
		}
	}
	return true
}
