package share

const (
	// kept is of how many states a worker holds what it has written of them, while it writes another.
	kept = 2
	// mostBrought is how much a worker holds of a state in shards that is brought back, in multiples of what it writes of one.
	mostBrought = 4
	// block is what shares are cut along.
	block = 1 << 20
	// headRoom is what part of the room is added for a state that grows a little.
	headRoom = 16
	// step is what sizes of volumes are multiples of: a state that changes by a few bytes changes nobody's pods.
	step = 16 << 20
	// mostBytes is the largest number of bytes that is reckoned with: programs may say anything.
	mostBytes = 1 << 50
)

// Size is how large a state is, in bytes, as programs have measured it. State is all of it. Own is what every worker writes for
// itself: all of it where it comes in no shares. Shards is what of it the ranks have between them, each its own shard; 0 where all
// ranks have the same. Written is the most that a worker has written of one snapshot; 0 for not known.
type Size struct{ State, Own, Shards, Written uint64 }

// Bounded is the same, as far as it can be true.
func (s Size) Bounded() Size {
	s.State = min(s.State, mostBytes)
	return Size{State: s.State, Own: min(s.Own, s.State), Shards: min(s.Shards, s.State), Written: min(s.Written, mostBytes)}
}

// Most is the larger of each.
func (s Size) Most(other Size) Size {
	return Size{
		State: max(s.State, other.State), Own: max(s.Own, other.Own),
		Shards: max(s.Shards, other.Shards), Written: max(s.Written, other.Written),
	}
}

// writes is how much a worker writes of a snapshot in a world of so many, whose nodes have as many each.
func (s Size) writes(workers, copies int) uint64 {
	if s.Shards > 0 {
		of := uint64(max(1, workers))
		return s.Own + (s.Shards+of-1)/of
	}
	if workers < 2 || s.Own >= s.State {
		return s.State
	}
	of, copies := min(workers, Most), max(1, min(copies, workers))
	each := (of*copies + workers - 1) / workers
	blocks := (s.State - s.Own + block - 1) / block
	share := (blocks + uint64(of) - 1) / uint64(of) * block
	return min(s.State, s.Own+uint64(each)*share)
}

// Room is how much memory a worker needs for its snapshots, when it writes so much of each, in a world whose shares are on so many
// nodes: two are kept while a third is written. Who begins with a state, as a newcomer does, and whoever goes back to one, loads all shares of
// it, whoever wrote them, and keeps its own of another beside it. With a storage one more is there as long as it is uploaded, and one
// that is brought back from it is whole.
//
// Of a state in shards two more are kept, the last one whose shards have all their copies and the one of which copies are made,
// and these have the copies as well. What is brought back is relied on until another has its copies: each worker brings its portion, and
// loads those shards of which its ranks have some, whole, which is up to mostBrought times what it writes where the world that wrote
// them had not far fewer ranks.
//
// Where the best states are uploaded as well, one of them stays beside all others until it is its turn.
func (s Size) Room(copies int, stored, best bool) uint64 {
	if s = s.Bounded(); stored && best {
		return s.Room(copies, stored, false) + s.Written
	}
	if s.Shards == 0 {
		if !stored {
			return max((kept+1)*s.Written, s.State+s.Written)
		}
		return kept*s.Written + max(kept*s.Written, s.State)
	}
	copied := s.Written + uint64(max(1, copies)-1)*(s.Written-min(s.Own, s.Written))
	room := (kept+1)*s.Written + copied
	if !stored {
		return room + copied
	}
	return room + max(copied+s.Written, min(s.State, mostBrought*s.Written))
}

// Volume is how large the volumes of workers should be, in bytes, for a world that may have so few of them and puts each share on
// so many nodes. Where a world was seen whose nodes had unlike numbers of workers, it is by what was written there.
func (s Size) Volume(workers, copies int, stored, best bool) uint64 {
	s = s.Bounded()
	s.Written = max(s.writes(workers, copies), s.Written)
	room := s.Room(max(1, min(copies, workers)), stored, best)
	room += room / headRoom
	return (room + step - 1) / step * step
}
