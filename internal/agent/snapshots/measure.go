package snapshots

import "github.com/concertina-dev/concertina/internal/share"

// Measured notes how large the state is that a program had in a round, as it says along with what has become of a snapshot. What
// it has written counts as long as that is the world.
func (k *Keeper) Measured(round uint64, size share.Size) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if size.Written == 0 || !k.history.endsIn(round) {
		size.Written = k.size.Written
	}
	k.size = size.Bounded()
}

// Size is how large the state was when it was last measured, and what was written of it in the current world; zero for not known.
func (k *Keeper) Size() share.Size {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.size
}
