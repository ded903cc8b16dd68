package rendezvous

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
)

// assignRanks returns the uids of the members of the next world in rank order: index i holds worker
// rank i. previous holds the uids of the world before in rank order, with "" where the member is not
// known; it is nil for a first world.
//
// A member keeps its rank if the next world has that rank at all. Rank 0 is the exception: if its
// member has left, the one that stays with the lowest rank takes it, because rank 0 speaks for the
// state of the world, which a newcomer does not have. No other member that could stay is moved.
//
// The places that are left are filled so that members of one node are neighbours, because most of a
// ring's traffic then stays inside nodes: in a first world nodes follow each other by name, members of
// a node by ordinal. The result does not depend on the order of members.
func assignRanks(previous []string, members []Member) []string {
	seats := make([]*Member, len(members))
	plan := gapPlan{seats: seats, waiting: keepRanks(seats, previous, members)}
	plan.gaps = freeGaps(seats)
	plan.extendNeighbours()
	plan.fitWholeNodes()
	plan.fillInOrder()
	uids := make([]string, len(seats))
	for rank, member := range seats {
		uids[rank] = member.UID
	}
	return uids
}

// keepRanks seats the members that stay where they were, and returns the others by node: those that
// stay before newcomers, these by ordinal.
func keepRanks(seats []*Member, previous []string, members []Member) map[string][]*Member {
	before := make(map[string]int, len(previous))
	for rank, uid := range slices.Backward(previous) {
		if uid != "" {
			before[uid] = rank
		}
	}
	newcomer := len(previous)
	rankBefore := func(m *Member) int {
		if rank, ok := before[m.UID]; ok {
			return rank
		}
		return newcomer
	}
	ordered := make([]*Member, len(members))
	for i := range members {
		ordered[i] = &members[i]
	}
	slices.SortFunc(ordered, func(a, b *Member) int {
		return cmp.Or(
			cmp.Compare(rankBefore(a), rankBefore(b)),
			cmp.Compare(a.Ordinal, b.Ordinal),
			strings.Compare(a.UID, b.UID),
		)
	})
	moving := make(map[string][]*Member)
	for i, member := range ordered {
		rank := rankBefore(member)
		stays := rank < newcomer
		if i == 0 {
			rank = 0 // the lowest of those that stay
		}
		if stays && rank < len(seats) && seats[rank] == nil {
			seats[rank] = member
			continue
		}
		moving[member.Node] = append(moving[member.Node], member)
	}
	return moving
}

// gap is a run of free ranks, from start up to and without end.
type gap struct{ start, end int }

func (g gap) size() int { return g.end - g.start }

// freeGaps returns the runs of ranks without a member, in ascending order.
func freeGaps(seats []*Member) []gap {
	var gaps []gap
	for rank, member := range seats {
		switch {
		case member != nil:
		case rank > 0 && seats[rank-1] == nil:
			gaps[len(gaps)-1].end++
		default:
			gaps = append(gaps, gap{start: rank, end: rank + 1})
		}
	}
	return gaps
}

// gapPlan fills the gaps with the members that wait for a rank. There are as many of the ones as of the
// others.
type gapPlan struct {
	seats   []*Member
	waiting map[string][]*Member // by node
	gaps    []gap
}

// take seats the next member of a node. It returns false if none waits.
func (p *gapPlan) take(node string, rank int) bool {
	members := p.waiting[node]
	if len(members) == 0 {
		return false
	}
	p.seats[rank], p.waiting[node] = members[0], members[1:]
	return true
}

// extendNeighbours seats members beside the ones of their node that have kept their ranks.
func (p *gapPlan) extendNeighbours() {
	for i := range p.gaps {
		g := &p.gaps[i]
		if g.start > 0 {
			node := p.seats[g.start-1].Node
			for g.size() > 0 && p.take(node, g.start) {
				g.start++
			}
		}
		if g.end < len(p.seats) {
			node := p.seats[g.end].Node
			for g.size() > 0 && p.take(node, g.end-1) {
				g.end--
			}
		}
	}
}

// fitWholeNodes puts the members of a node into a gap of just their number: a node that replaces
// another is then not cut in two.
func (p *gapPlan) fitWholeNodes() {
	bySize := make(map[int][]string)
	for _, node := range slices.Sorted(maps.Keys(p.waiting)) {
		size := len(p.waiting[node])
		bySize[size] = append(bySize[size], node)
	}
	for i := range p.gaps {
		g := &p.gaps[i]
		nodes := bySize[g.size()]
		if g.size() == 0 || len(nodes) == 0 {
			continue
		}
		bySize[g.size()] = nodes[1:]
		for g.size() > 0 && p.take(nodes[0], g.start) {
			g.start++
		}
	}
}

// fillInOrder seats the rest, node by node.
func (p *gapPlan) fillInOrder() {
	nodes := slices.Sorted(maps.Keys(p.waiting))
	for _, g := range p.gaps {
		for g.size() > 0 {
			if !p.take(nodes[0], g.start) {
				nodes = nodes[1:]
				continue
			}
			g.start++
		}
	}
}

// MembersDigest identifies a world by its ordered members: the SHA-256, as 64 lower-case hex digits,
// over the pod uids in rank order, each followed by a line feed.
func MembersDigest(uids []string) string {
	sum := sha256.New()
	for _, uid := range uids {
		sum.Write([]byte(uid))
		sum.Write([]byte{'\n'})
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// rankTable is who has which worker rank in a world. The table of a world that was adopted starts
// empty and fills with what the members report.
type rankTable struct {
	uids   []string // by worker rank; empty for unknown
	ranks  map[string]int32
	digest string
}

// newRankTable returns the table of a world whose members are known.
func newRankTable(uids []string) *rankTable {
	t := &rankTable{uids: uids, ranks: make(map[string]int32, len(uids)), digest: MembersDigest(uids)}
	for rank, uid := range uids {
		t.ranks[uid] = int32(rank)
	}
	return t
}

// emptyRankTable returns the table of a world of which only the durable record is known.
func emptyRankTable(workers int32, digest string) *rankTable {
	return &rankTable{uids: make([]string, workers), ranks: make(map[string]int32, workers), digest: digest}
}

// rank returns the worker rank of a member, -1 if it has none.
func (t *rankTable) rank(uid string) int32 {
	if rank, ok := t.ranks[uid]; ok {
		return rank
	}
	return -1
}

// place notes that a member says it has this rank. It returns false, and changes nothing, when that
// cannot be: the rank lies outside the world, one of the two is taken already, or the table is full
// now and its digest is another one.
func (t *rankTable) place(uid string, rank uint32) bool {
	if known, ok := t.ranks[uid]; ok {
		return known == int32(rank)
	}
	if int64(rank) >= int64(len(t.uids)) || t.uids[rank] != "" {
		return false
	}
	t.uids[rank] = uid
	if len(t.ranks)+1 == len(t.uids) && MembersDigest(t.uids) != t.digest {
		t.uids[rank] = ""
		return false
	}
	t.ranks[uid] = int32(rank)
	return true
}

// mostTried is how many ways are tried to fill the ranks that nobody has reported: a digest of a large world takes a while.
const mostTried = 200

// complete finds who of these has the ranks that nobody has reported, as the digest says, and returns all members; nil where
// none of the first ways to fill them fits.
func (t *rankTable) complete(candidates []string) []string {
	uids, tries := slices.Clone(t.uids), mostTried
	if len(t.uids)-len(t.ranks) > len(candidates) {
		return nil
	}
	var fill func(from int) bool
	fill = func(from int) bool {
		empty := slices.Index(uids[from:], "")
		if empty < 0 {
			tries--
			return MembersDigest(uids) == t.digest
		}
		at := from + empty
		for i, uid := range candidates {
			if uid == "" {
				continue // it has another one of them
			}
			uids[at], candidates[i] = uid, ""
			found := fill(at + 1)
			candidates[i] = uid
			if found || tries == 0 {
				return found
			}
		}
		uids[at] = ""
		return false
	}
	if !fill(0) {
		return nil
	}
	return uids
}
