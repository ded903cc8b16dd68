package allocation

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// There may be as many classes of pods as jobs, and thousands of nodes: to look for each class at each node takes too long. Most of them
// differ by little, and find nothing. So what all are asked is asked first of one that stands for many: it asks for no more than any of
// them, and may use all nodes that any of them may. Where it has no place none of them has, and only where it has some these are
// looked at.

// wide is a class that stands for others.
type wide struct {
	class
	// kinds is for how many amounts it stands that pods of jobs ask for.
	kinds int
}

// wides are all of them, once the kinds were counted.
type wides struct {
	all     []wide
	known   map[string]int32
	counted bool
}

// many is for how many kinds of pods another class stands at least before it is asked in their stead: that takes longer where they are
// few.
const many = 8

// wideOf is the one that stands for a class, from 1; 0 where there are too few like it.
func (k *classes) wideOf(id classID) int32 {
	if !k.wides.counted {
		k.countKinds()
	}
	c := &k.all[id]
	if c.wide == 0 {
		c.wide = k.widen(c.request)
	}
	if k.wides.all[c.wide-1].kinds < many {
		return 0
	}
	return c.wide
}

// countKinds finds out for how many amounts each stands.
func (k *classes) countKinds() {
	k.wides.counted = true
	var key []byte
	looked, seen := make(Bits, (len(k.c.Shapes)+63)/64), map[string]bool{}
	for id := range k.c.Jobs {
		for _, of := range [2]ShapeID{k.c.Jobs[id].Gang, k.c.Jobs[id].Growth} {
			if of < 0 || int(of) >= len(k.c.Shapes) || looked.Has(int(of)) {
				continue
			}
			looked.Set(int(of))
			request := k.c.Shapes[of].Request
			key = key[:0]
			for _, amount := range request {
				key = binary.AppendVarint(key, amount)
			}
			if !seen[string(key)] {
				seen[string(key)] = true
				k.wides.all[k.widen(request)-1].kinds++
			}
		}
	}
}

// widen finds the one that asks for no more: for as many devices, and of all else for what the largest power of two in it is.
func (k *classes) widen(request Amounts) int32 {
	least := slices.Clone(request)
	var key []byte
	for i, amount := range least {
		if device := i < len(k.c.Devices) && k.c.Devices[i]; amount > 0 && !device {
			least[i] = 1 << (bits.Len64(uint64(amount)) - 1)
		}
		key = binary.AppendVarint(key, least[i])
	}
	if at := k.wides.known[string(key)]; at != 0 {
		return at
	}
	if k.wides.known == nil {
		k.wides.known = map[string]int32{}
	}
	k.wides.all = append(k.wides.all, wide{class: class{request: least, nodes: k.within(scope{}).open, empty: -1}})
	k.wides.known[string(key)] = int32(len(k.wides.all))
	return int32(len(k.wides.all))
}

// ofWide are the places for one that stands for others.
func (r *room) ofWide(w int32) *places {
	return r.placesOf(&r.wide, int(w-1), &r.classes.wides.all[w-1].class, nil)
}

// upTo is how many places there are for a class beside some nodes; where they are so many or more it may stop to count.
func (r *room) upTo(k classID, avoid []NodeID, limit int64) int64 {
	w := r.unasked(k)
	if w == 0 {
		return r.of(k).beside(avoid)
	}
	like := r.ofWide(w)
	if like.beside(avoid) == 0 {
		return 0
	}
	class, width, sum := &r.classes.all[k], len(r.c.Resources), int64(0)
	for i, word := range like.some {
		if i >= len(class.nodes) {
			break
		}
		for word &= class.nodes[i]; word != 0; word &= word - 1 {
			n := i*64 + bits.TrailingZeros64(word)
			if slices.Contains(avoid, NodeID(n)) {
				continue
			}
			if sum += int64(class.times(r.free[n*width : (n+1)*width])); sum >= limit {
				return sum
			}
		}
	}
	return sum
}

// holds says whether there are so many places for a class beside some nodes.
func (r *room) holds(k classID, avoid []NodeID, places int64) bool {
	if w := r.unasked(k); w != 0 && r.ofWide(w).beside(avoid) < places {
		return false
	}
	return r.upTo(k, avoid, places) >= places
}

// at is how many places a node has for a class.
func (r *room) at(k classID, n NodeID) int32 {
	if r.unasked(k) == 0 {
		return r.of(k).at[n]
	}
	width := len(r.c.Resources)
	if class := &r.classes.all[k]; class.nodes.Has(int(n)) {
		return class.times(r.free[int(n)*width : (int(n)+1)*width])
	}
	return 0
}

// unasked is what stands for a class whose places nobody has asked for so far, 0 where they are known or are as well found out.
func (r *room) unasked(k classID) int32 {
	if int(k) < len(r.index) && r.index[k] != nil {
		return 0
	}
	return r.classes.wideOf(k)
}

// anyAt says whether any of some nodes has a place for a class.
func (r *room) anyAt(k classID, nodes []NodeID) bool {
	return slices.ContainsFunc(nodes, func(n NodeID) bool { return n >= 0 && int(n) < len(r.c.Nodes) && r.at(k, n) > 0 })
}
