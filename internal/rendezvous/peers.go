package rendezvous

import "slices"

// Those who have to get a snapshot give each other what has come of it: the few that hold it could not give it to many at once, as
// when one worker has brought it from the storage for all.

// maxPeers is how many of those who get a snapshot as well a worker is told of: the next ones by rank.
const maxPeers = 8

// receiversOf are the ranks of those who have to get some of a snapshot, and can give it to others.
func (m *Machine) receiversOf(ranks *rankTable, live map[string]bool, told *supply) []int32 {
	var receivers []int32
	for rank, uid := range ranks.uids {
		mem := m.members[uid]
		if !live[uid] && mem != nil && mem.serves.Port > 0 && told.isLackedBy(int32(rank), mem.holder()) {
			receivers = append(receivers, int32(rank))
		}
	}
	return receivers
}

// peersFor are some of those who get a snapshot as well as the worker with a rank, with the parts that they are getting. Which
// shards that is only their programs know.
func (m *Machine) peersFor(rank int32, ranks *rankTable, receivers []int32, told *supply, sel *selection) []source {
	var peers []source
	after, _ := slices.BinarySearch(receivers, rank+1)
	for i := range receivers {
		next := receivers[(after+i)%len(receivers)]
		mem := m.members[ranks.uids[next]]
		if next == rank || mem == nil {
			continue
		}
		if peers = append(peers, told.peerOf(rank, sel, next, mem.holder())); len(peers) == maxPeers {
			break
		}
	}
	return peers
}

// holder is where a member serves what it holds.
func (mem *member) holder() holder { return holder{mem.endpoint.Address, mem.serves} }
