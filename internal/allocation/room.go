package allocation

import (
	"math"
	"math/bits"
	"slices"
)

// room is a working copy of what is free on nodes and in quotas. What is taken and given is written down,
// so that an attempt can be undone.
type room struct {
	c *Cluster
	// free and quota are matrices, one row a node or quota.
	free, quota []int64
	// index has the places of one class of pods, nil until somebody asks for them.
	index []*places
	// wide has those of classes that stand for others.
	wide    []*places
	classes *classes
	log     []change
	// spare is memory for places.
	spare   []*places
	touched touched
}

// spared is of how many classes the memory is kept.
const spared = 512

// memory keeps nothing of a room but what it took.
func (r *room) memory() room {
	for _, all := range [][]*places{r.index, r.wide} {
		for i, p := range all {
			if all[i] = nil; p != nil && len(r.spare) < spared {
				p.class = nil
				r.spare = append(r.spare, p)
			}
		}
	}
	return room{free: r.free, quota: r.quota, log: r.log[:0], index: r.index[:0], wide: r.wide[:0], spare: r.spare, touched: touched{nodes: r.touched.nodes}}
}

// change is what was given to (or, negative, taken from) a node and the quotas of a shape.
type change struct {
	node  NodeID
	shape ShapeID
	times int32
}

// reset makes the copy anew.
func (r *room) reset(c *Cluster, cl *classes) {
	r.c, r.classes = c, cl
	width, counts := len(c.Resources), len(c.Counts)
	r.free = sized(r.free, len(c.Nodes)*width)
	for n := range c.Nodes {
		copy(r.free[n*width:(n+1)*width], c.Nodes[n].Free)
	}
	r.touched.reset(len(c.Nodes))
	r.quota = sized(r.quota, len(c.Quotas)*counts)
	for q := range c.Quotas {
		row := r.quota[q*counts : (q+1)*counts]
		for i := copy(row, c.Quotas[q].Free); i < counts; i++ {
			row[i] = Unbounded
		}
	}
}

// come gives what pods hold that end and belong to nobody here.
func (r *room) come() {
	width := len(r.c.Resources)
	for n := range r.c.Nodes {
		for i, amount := range r.c.Nodes[n].Coming {
			r.free[n*width+i] += amount
		}
	}
}

// copyOf makes the same of another that nobody has used so far.
func (r *room) copyOf(other *room) {
	r.c, r.classes = other.c, other.classes
	r.free, r.quota = append(r.free[:0], other.free...), append(r.quota[:0], other.quota...)
	r.touched.reset(len(r.c.Nodes))
}

// add gives back what some pods of a shape hold on a node and in their quotas, or takes it when times is
// negative. The node may be None.
func (r *room) add(n NodeID, s ShapeID, times int32) {
	r.log = append(r.log, change{n, s, times})
	r.apply(n, s, times)
}

func (r *room) apply(n NodeID, s ShapeID, times int32) {
	shape := &r.c.Shapes[s]
	if n >= 0 {
		r.give(n, shape.Request, int64(times))
	}
	for _, q := range shape.Quotas {
		r.grant(q, shape.Demand, int64(times))
	}
}

// grant adds amounts to what is free of a quota, so many times. It is not written down.
func (r *room) grant(q QuotaID, amounts Amounts, times int64) {
	row := r.quota[int(q)*len(r.c.Counts):]
	for i, amount := range amounts {
		if row[i] < Unbounded/2 {
			row[i] += amount * times
		}
	}
}

// give adds amounts to what is free on a node, so many times. It is not written down.
func (r *room) give(n NodeID, amounts Amounts, times int64) {
	width := len(r.c.Resources)
	row := r.free[int(n)*width : (int(n)+1)*width]
	for i, amount := range amounts {
		row[i] += amount * times
	}
	r.touched.note(n)
}

// mark is a point to which undo goes back.
func (r *room) mark() int { return len(r.log) }

func (r *room) undo(mark int) {
	for i := len(r.log) - 1; i >= mark; i-- {
		r.apply(r.log[i].node, r.log[i].shape, -r.log[i].times)
	}
	r.log = r.log[:mark]
}

// commit forgets how to undo what was done so far: no mark may be in use.
func (r *room) commit() { r.log = r.log[:0] }

// of are the places for one class. They hold until room is taken or given on some node: whoever wants to know what is left after that
// asks anew.
func (r *room) of(k classID) *places {
	if int(k) < len(r.index) {
		if p := r.index[k]; p != nil && p.seen == r.touched.times {
			return p
		}
	}
	var among Bits
	if w := r.unasked(k); w != 0 {
		among = r.ofWide(w).some
	}
	return r.placesOf(&r.index, int(k), &r.classes.all[k], among)
}

// placesOf are the places for a class, which are in a list; nowhere but among some nodes, where that is known.
func (r *room) placesOf(list *[]*places, at int, k *class, among Bits) *places {
	for len(*list) <= at {
		*list = append(*list, nil)
	}
	p := (*list)[at]
	switch {
	case p == nil:
		if last := len(r.spare) - 1; last >= 0 {
			p, r.spare = r.spare[last], r.spare[:last]
		} else {
			p = &places{}
		}
		(*list)[at] = p
		p.find(k, among, r.free, len(r.c.Resources), len(r.c.Nodes))
		p.seen = r.touched.times
	case p.seen != r.touched.times:
		r.catchUp(p)
	}
	return p
}

// catchUp looks again at the nodes that have changed since somebody asked for these places.
func (r *room) catchUp(p *places) {
	width := len(r.c.Resources)
	for n := r.touched.newest; r.touched.since(n, p.seen); n = r.touched.nodes[n].before {
		p.update(n, r.free[int(n)*width:(int(n)+1)*width])
	}
	p.seen = r.touched.times
}

// bounds is how many more pods of a shape the quotas admit when the given part of them, in thousandths, is
// left to others.
func (r *room) bounds(s ShapeID, headRoom int64) int32 {
	shape, least := &r.c.Shapes[s], int64(math.MaxInt32)
	for _, q := range shape.Quotas {
		row := r.quota[int(q)*len(r.c.Counts):]
		for i, amount := range shape.Demand {
			if amount <= 0 || row[i] >= Unbounded/2 {
				continue
			}
			left := row[i]
			if headRoom > 0 && i < len(r.c.Quotas[q].Hard) {
				left -= share(r.c.Quotas[q].Hard[i], headRoom)
			}
			least = min(least, max(left, 0)/amount)
		}
	}
	return int32(least)
}

// share is that many thousandths of an amount, and does not overflow.
func share(amount, thousandths int64) int64 {
	return amount/1000*thousandths + amount%1000*thousandths/1000
}

// brim is the last bucket: nodes with that many places or more.
const brim = 64

// places are how many pods of one class each node has room for.
type places struct {
	class *class
	// seen is up to which change of a node they are true.
	seen  int64
	at    []int32
	total int64
	// some has the nodes that have any.
	some Bits
	// buckets has the nodes by how many places they have, one at least; nil for a number that none had so far.
	buckets [brim + 1]Bits
	// sizes is how many nodes each bucket has, first below which word of it there are none.
	sizes, first [brim + 1]int32
}

// find makes it anew. There are none but among some nodes, nil for all.
func (p *places) find(k *class, among Bits, free []int64, width, nodes int) {
	p.empty(nodes)
	p.class = k
	for w, word := range k.nodes {
		if among != nil {
			word &= among[w]
		}
		for ; word != 0; word &= word - 1 {
			n := w*64 + bits.TrailingZeros64(word)
			if n >= nodes {
				break
			}
			if times := k.times(free[n*width : (n+1)*width]); times > 0 {
				p.at[n] = times
				p.total += int64(times)
				p.some.Set(n)
				p.enter(n, min(times, brim))
			}
		}
	}
}

// empty has no place on any of so many nodes. Mostly few had any before, and there may be thousands of nodes.
func (p *places) empty(nodes int) {
	words := (nodes + 63) / 64
	if p.total = 0; len(p.at) != nodes {
		p.at, p.some = sized(p.at, nodes), sized(p.some, words)
	}
	for w, word := range p.some {
		for ; word != 0; word &= word - 1 {
			p.at[w*64+bits.TrailingZeros64(word)] = 0
		}
	}
	clear(p.some)
	for b := range p.buckets {
		switch {
		case p.buckets[b] != nil && len(p.buckets[b]) != words:
			p.buckets[b] = sized(p.buckets[b], words)
		case p.sizes[b] > 0:
			clear(p.buckets[b])
		}
		p.sizes[b], p.first[b] = 0, 0
	}
}

func (p *places) update(n NodeID, row []int64) {
	if !p.class.nodes.Has(int(n)) {
		return
	}
	was, is := p.at[n], p.class.times(row)
	if was == is {
		return
	}
	p.at[n] = is
	p.total += int64(is - was)
	if was, is := min(was, brim), min(is, brim); was != is {
		if was > 0 {
			p.buckets[was].Clear(int(n))
			p.sizes[was]--
		} else {
			p.some.Set(int(n))
		}
		if is == 0 {
			p.some.Clear(int(n))
		} else {
			p.enter(int(n), is)
			p.first[is] = min(p.first[is], int32(n)>>6)
		}
	}
}

// enter puts a node into a bucket.
func (p *places) enter(n int, bucket int32) {
	if p.buckets[bucket] == nil {
		p.buckets[bucket] = make(Bits, (len(p.at)+63)/64)
	}
	p.buckets[bucket].Set(n)
	p.sizes[bucket]++
}

// beside is how many places there are on other nodes than these.
func (p *places) beside(avoid []NodeID) int64 {
	left := p.total
	for i, n := range avoid {
		if n >= 0 && int(n) < len(p.at) && !slices.Contains(avoid[:i], n) {
			left -= int64(p.at[n])
		}
	}
	return left
}

// together is the node for a gang of which so many are left to place: the tightest that holds them all,
// else the one with the most places; None when there is none.
func (p *places) together(rest int32, avoid []NodeID) NodeID {
	for b := int(min(rest, brim)); b <= brim; b++ {
		if best := p.least(b, rest, avoid); best != None {
			return best
		}
	}
	for b := int(min(rest, brim)); b > 0; b-- {
		if best := p.most(b, avoid); best != None {
			return best
		}
	}
	return None
}

// fullest is the node with the fewest places, but one at least.
func (p *places) fullest(avoid []NodeID) NodeID {
	for b := 1; b <= brim; b++ {
		if n := p.least(b, 1, avoid); n != None {
			return n
		}
	}
	return None
}

// least is the node of a bucket with the fewest places that are at least so many.
func (p *places) least(bucket int, atLeast int32, avoid []NodeID) NodeID {
	best := NodeID(None)
	for w := p.skip(bucket); w < len(p.buckets[bucket]); w++ {
		for word := p.buckets[bucket][w]; word != 0; word &= word - 1 {
			n := NodeID(w*64 + bits.TrailingZeros64(word))
			if p.at[n] < atLeast || slices.Contains(avoid, n) {
				continue
			}
			if bucket < brim {
				return n
			}
			if best == None || p.at[n] < p.at[best] {
				best = n
			}
		}
	}
	return best
}

// most is the node of a bucket with the most places.
func (p *places) most(bucket int, avoid []NodeID) NodeID {
	best := NodeID(None)
	for w := p.skip(bucket); w < len(p.buckets[bucket]); w++ {
		for word := p.buckets[bucket][w]; word != 0; word &= word - 1 {
			n := NodeID(w*64 + bits.TrailingZeros64(word))
			if slices.Contains(avoid, n) {
				continue
			}
			if bucket < brim {
				return n
			}
			if best == None || p.at[n] > p.at[best] {
				best = n
			}
		}
	}
	return best
}

// skip is the first word of a bucket that has a node.
func (p *places) skip(bucket int) int {
	words := p.buckets[bucket]
	if p.sizes[bucket] == 0 {
		return len(words)
	}
	w := p.first[bucket]
	for words[w] == 0 {
		w++
	}
	p.first[bucket] = w
	return int(w)
}
