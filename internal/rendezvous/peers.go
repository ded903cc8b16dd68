package rendezvous

import (
	"slices"

	"github.com/concertina-dev/concertina/internal/share"
)

// Those who have to get a snapshot give each other what has come of it: the few that hold it could not give it to many at once, as
// when one worker has brought it from the storage for all.

// maxPeers is how many of those who get a snapshot as well a worker is told of: the next ones by rank.
const maxPeers = 8

// receiversOf are the ranks of those who have to get some of a snapshot, and can give it to others.
func (m *Machine) receiversOf(ranks *rankTable, live map[string]bool, parts []Snapshot, holders []holding) []int32 {
	held := map[holder][]Snapshot{}
	for i := range holders {
		held[holders[i].holder] = holders[i].parts
	}
	var receivers []int32
	for rank, uid := range ranks.uids {
		mem := m.members[uid]
		if live[uid] || mem == nil || mem.serves.Port == 0 {
			continue
		}
		has, holds := held[mem.holder()]
		if parts == nil && holds || parts != nil && len(lackedBy(int32(rank), parts, has)) == 0 {
			continue
		}
		receivers = append(receivers, int32(rank))
	}
	return receivers
}

// peersFor are some of those who get a snapshot as well as the worker with a rank, with the parts that they are getting.
func (m *Machine) peersFor(rank int32, ranks *rankTable, receivers []int32, parts []Snapshot, holders []holding) []holding {
	var peers []holding
	after, _ := slices.BinarySearch(receivers, rank+1)
	for i := range receivers {
		next := receivers[(after+i)%len(receivers)]
		mem := m.members[ranks.uids[next]]
		if next == rank || mem == nil {
			continue
		}
		one := holding{holder: mem.holder()}
		if parts != nil {
			var has []Snapshot
			if at := slices.IndexFunc(holders, func(h holding) bool { return h.holder == one.holder }); at >= 0 {
				has = holders[at].parts
			}
			one.parts = lackedBy(next, parts, has)
		}
		if peers = append(peers, one); len(peers) == maxPeers {
			break
		}
	}
	return peers
}

// lackedBy are the parts that the worker of a rank needs, but for those that it has. Which shards it gets only its programs know.
func lackedBy(rank int32, parts, has []Snapshot) []Snapshot {
	return slices.DeleteFunc(neededBy(rank, parts), func(part Snapshot) bool { return slices.Contains(has, part) || share.IsShard(part.Part) })
}

// holder is where a member serves what it holds.
func (mem *member) holder() holder { return holder{mem.endpoint.Address, mem.serves} }
