package snapshots

import "github.com/concertina-dev/concertina/internal/share"

// announced is the slot of what a checkpoint says of itself.
const announced = -1

// Announced notes how large a state is that is about to be brought. It counts until a process has measured what it has of it.
func (k *Keeper) Announced(size share.Size) { k.Measured(announced, 0, size) }

// Measured notes how large the state is that the process of a slot had in a round, as it says along with what has become of a snapshot.
// What it has written counts as long as that is the world.
func (k *Keeper) Measured(slot int, round uint64, size share.Size) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if slot != announced {
		delete(k.sizes, announced)
	}
	if size.Written == 0 || !k.history.endsIn(round) {
		size.Written = k.sizes[slot].Written
	}
	k.sizes[slot] = size.Bounded()
}

// wroteNothing is called with the lock held when another world begins: nothing was asked for or written in it yet.
func (k *Keeper) wroteNothing() {
	k.asked, k.failure = 0, ""
	for slot, size := range k.sizes {
		size.Written = 0
		k.sizes[slot] = size
	}
}

// Size is how large the state was when it was last measured, and what the processes of the worker have written of it in the current
// world; zero for not known. Each writes a part of what the worker holds.
func (k *Keeper) Size() share.Size {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all share.Size
	for _, size := range k.sizes {
		written := all.Written + size.Written
		all = all.Most(size)
		all.Written = written
	}
	return all.Bounded()
}
