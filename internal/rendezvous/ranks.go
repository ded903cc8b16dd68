package rendezvous

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// assignRanks returns the uids of the members in rank order: index i holds worker rank i. Members of
// one node are neighbours, so that most of a ring's traffic stays inside nodes; nodes follow each
// other by name, members of a node by ordinal. The order depends on nothing else.
func assignRanks(members []Member) []string {
	ordered := slices.Clone(members)
	slices.SortFunc(ordered, func(a, b Member) int {
		return cmp.Or(
			strings.Compare(a.Node, b.Node),
			cmp.Compare(a.Ordinal, b.Ordinal),
			strings.Compare(a.UID, b.UID),
		)
	})
	uids := make([]string, len(ordered))
	for rank, member := range ordered {
		uids[rank] = member.UID
	}
	return uids
}

// membersDigest identifies a world by its ordered members: the SHA-256, as 64 lower-case hex digits,
// over the pod uids in rank order, each followed by a line feed.
func membersDigest(uids []string) string {
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
	t := &rankTable{uids: uids, ranks: make(map[string]int32, len(uids)), digest: membersDigest(uids)}
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
	if len(t.ranks)+1 == len(t.uids) && membersDigest(t.uids) != t.digest {
		t.uids[rank] = ""
		return false
	}
	t.ranks[uid] = int32(rank)
	return true
}
