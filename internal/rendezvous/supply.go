package rendezvous

import (
	"slices"

	"github.com/concertina-dev/concertina/internal/share"
)

// A world that begins with a snapshot tells its members of that with each report that they make, as long as it lives. In
// how many parts that is, and who has which of them, may be hundreds and thousands, and the same for all: so it is sorted once
// for a world, and what one member is told costs as much as what it needs.

// supply is the snapshot that a world begins with, sorted. It does not change.
type supply struct {
	parts   []Snapshot
	holders []holding
	// own is the part of each rank that has one; first is the one that serves those who have none, -1 where nobody has.
	own   map[int32]int
	first int
	// shards says which of the parts are shards, sharded that one is.
	shards  []bool
	sharded bool
	// by are the holders of each part, of the parts of each holder, and at where each of them stands among the holders. All are
	// in order.
	by, of [][]int
	at     map[holder]int
	// whole is what a worker needs, ahead what of it before its programs have said which shards they want.
	whole, ahead *selection
}

// selection is which parts a worker needs, and where they stand among these: its own comes first.
type selection struct {
	// common are those that all need.
	common []int
	// needed is what a worker needs whose own part is that one.
	needed map[int][]Snapshot
	// has is what each holder has of it, when it has the worker's own part; without that it is all but the first.
	has [][]uint32
	// lacks is the same for who has nothing yet, and gets all but shards.
	lacks []uint32
}

// newSupply sorts the parts of a snapshot, and those who have them.
func newSupply(parts []Snapshot, holders []holding) *supply {
	s := &supply{
		parts: parts, holders: holders, first: -1, own: map[int32]int{}, shards: make([]bool, len(parts)),
		by: make([][]int, len(parts)), of: make([][]int, len(holders)), at: make(map[holder]int, len(holders)),
	}
	index := make(map[Snapshot]int, len(parts))
	var common []int
	for i, part := range parts {
		index[part] = i
		key, ok := share.Parse(part.Part)
		s.shards[i] = ok && key.Shard
		s.sharded = s.sharded || s.shards[i]
		if !key.Rank {
			common = append(common, i)
			continue
		}
		if s.first < 0 {
			s.first = i
		}
		s.own[int32(key.Index)] = i
	}
	for at := range holders {
		h := &holders[at]
		if _, known := s.at[h.holder]; !known {
			s.at[h.holder] = at
		}
		for _, part := range h.parts {
			if i, known := index[part]; known {
				s.of[at] = append(s.of[at], i)
			}
		}
		slices.Sort(s.of[at])
		s.of[at] = slices.Compact(s.of[at])
		for _, i := range s.of[at] {
			s.by[i] = append(s.by[i], at)
		}
	}
	s.whole = s.selectionOf(common)
	if s.ahead = s.whole; s.sharded {
		s.ahead = s.selectionOf(slices.DeleteFunc(slices.Clone(common), func(i int) bool { return s.shards[i] }))
	}
	return s
}

// selectionOf is what a worker needs to which these are common.
func (s *supply) selectionOf(common []int) *selection {
	sel := &selection{common: common, needed: map[int][]Snapshot{}, has: make([][]uint32, len(s.holders))}
	sel.lacks = s.listed(sel, func(i int) bool { return !s.shards[i] })
	for at, of := range s.of {
		if len(of) > 0 {
			sel.has[at] = s.listed(sel, held(of))
		}
	}
	return sel
}

// held says of one part after the other whether it is among these; both are in order.
func held(of []int) func(int) bool {
	return func(i int) bool {
		for len(of) > 0 && of[0] < i {
			of = of[1:]
		}
		return len(of) > 0 && of[0] == i
	}
}

// listed are the places of those of the common parts that are so, after the first place, which is that of the worker's own part.
func (s *supply) listed(sel *selection, so func(int) bool) []uint32 {
	list := make([]uint32, 1, len(sel.common)+1)
	for i, part := range sel.common {
		if so(part) {
			list = append(list, uint32(i+s.before()))
		}
	}
	return list
}

// before is how many parts a worker needs before the common ones.
func (s *supply) before() int {
	if s.first < 0 {
		return 0
	}
	return 1
}

// isOwn says whether a part is what differs by a rank.
func (s *supply) isOwn(part int) bool {
	_, common := slices.BinarySearch(s.whole.common, part)
	return !common
}

// ownOf is the part that a rank has as its own, or the one that serves it; -1 for none.
func (s *supply) ownOf(rank int32) int {
	if own, has := s.own[rank]; has {
		return own
	}
	return s.first
}

// neededBy are the parts that the worker of a rank loads; nil of a snapshot that is whole.
func (s *supply) neededBy(rank int32, sel *selection) []Snapshot {
	own := s.ownOf(rank)
	needed, known := sel.needed[own]
	if !known {
		if own >= 0 {
			needed = append(needed, s.parts[own])
		}
		for _, i := range sel.common {
			needed = append(needed, s.parts[i])
		}
		sel.needed[own] = needed
	}
	return slices.Clip(needed)
}

// source is an agent that a worker gets a snapshot from, and which of the parts that it needs, counted from 0; nil of one that is whole.
type source struct {
	holder
	parts []uint32
}

// listedFor are the places of a list for a worker: with the first when its own part counts.
func listedFor(list []uint32, own bool) []uint32 {
	if !own && len(list) > 0 {
		list = list[1:]
	}
	if len(list) == 0 {
		return nil
	}
	return slices.Clip(list)
}

// holdersFor are those that the worker with a rank asks, in this order: of a whole snapshot the next ones, of one in parts the next
// ones of each part that it needs. So workers ask different ones.
func (s *supply) holdersFor(rank int32, sel *selection) []source {
	n := len(s.holders)
	if n == 0 {
		return nil
	}
	start, own := int(max(rank, 0))%n, s.ownOf(rank)
	var next []int // how far on from the start
	if own < 0 && len(sel.common) == 0 {
		for i := range min(maxHolders, n) {
			next = append(next, i)
		}
	}
	ask := func(part int) {
		by := s.by[part]
		after, _ := slices.BinarySearch(by, start)
		for i := range min(maxHoldersOfPart, len(by)) {
			next = append(next, (by[(after+i)%len(by)]-start+n)%n)
		}
	}
	if own >= 0 {
		ask(own)
	}
	for _, part := range sel.common {
		ask(part)
	}
	slices.Sort(next)
	next = slices.Compact(next)
	sources := make([]source, 0, len(next))
	for _, i := range next {
		at := (start + i) % n
		hasOwn := false
		if own >= 0 {
			_, hasOwn = slices.BinarySearch(s.of[at], own)
		}
		sources = append(sources, source{s.holders[at].holder, listedFor(sel.has[at], hasOwn)})
	}
	return sources
}

// isLackedBy says whether the worker of a rank, who may be one of the holders, has to get some of it.
func (s *supply) isLackedBy(rank int32, by holder) bool {
	at, holds := s.at[by]
	if len(s.parts) == 0 {
		return !holds
	}
	var of []int
	if holds {
		of = s.of[at]
	}
	if own := s.ownOf(rank); own >= 0 && !held(of)(own) {
		return true
	}
	has := held(of)
	return slices.ContainsFunc(s.whole.common, func(i int) bool { return !has(i) && !s.shards[i] })
}

// peerOf is what another worker that gets it as well gives to the one with a rank: what both need, and the other does not have.
func (s *supply) peerOf(rank int32, sel *selection, other int32, by holder) source {
	if len(s.parts) == 0 {
		return source{holder: by}
	}
	var of []int
	list := sel.lacks
	if at, holds := s.at[by]; holds && len(s.of[at]) > 0 {
		of = s.of[at]
		has := held(of)
		list = s.listed(sel, func(i int) bool { return !s.shards[i] && !has(i) })
	}
	own := s.ownOf(rank)
	return source{by, listedFor(list, own >= 0 && own == s.ownOf(other) && !held(of)(own))}
}
