package snapshots

import (
	"cmp"
	"errors"

	"github.com/concertina-dev/concertina/internal/checkpoint"
)

// written is what a program has written of one state.
type written struct {
	id    checkpoint.ID
	files []File
	// reuse is true when it writes over what is left to it.
	reuse bool
}

// File is a file that a program has written into the folder: a whole snapshot, or a part of one.
type File struct {
	Part, Name string
	Bytes      uint64
}

// Take takes over the files that a program has written of the state after a step of a round. What an earlier step has
// left behind gives way when it still waits: a program that writes faster than its files are read fills no memory with
// them. What comes of an earlier step than that which waits, as from a process that is behind, gives way itself. With reuse it writes over
// files that are left to it, so what has to go for this one is.
func (k *Keeper) Take(round, step uint64, files []File, reuse bool) {
	if k.store == nil {
		k.Failed(step, errNoMemory.Error())
		return
	}
	next := &written{checkpoint.ID{Round: round, Step: step}, files, reuse}
	k.mu.Lock()
	before := k.written
	switch {
	case before != nil && cmp.Or(cmp.Compare(before.id.Round, round), cmp.Compare(before.id.Step, step)) > 0:
		before, next = next, before
	case before != nil && before.id == next.id:
		next.files, before.files = append(before.files, files...), nil
	}
	k.written = next
	k.mu.Unlock()
	if before != nil {
		k.discard(before.files)
		return // it comes when the other one would have
	}
	k.do(k.takeWritten)
}

// Began says that all processes of the worker have made a step of the world of a round: they have loaded what they need of shards by then, which
// nothing else says of them. What came of these goes, and nobody waits for more of it.
func (k *Keeper) Began(round uint64) {
	if k.store == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.history.endsIn(round) {
		return // it is over, and what is here is for the next one
	}
	k.endFetches(errors.New("all processes have made a step without it"), func(f *fetching) bool { return !f.ofShards() })
	if remove := k.store.DropExcerpts(checkpoint.ID{}); remove != nil {
		k.do(func() { k.removed(remove()) })
	}
}

// removed notes what went wrong with that.
func (k *Keeper) removed(err error) {
	if err != nil {
		k.note("%v", err)
	}
}

func (k *Keeper) takeWritten() {
	k.mu.Lock()
	w := k.written
	k.written = nil
	k.mu.Unlock()
	if !k.belongs(w.id) {
		// The world has changed since it was written: it must not push out one that counts.
		k.discard(w.files)
		return
	}
	defer k.trim(w.reuse) // also of what came before one that did not
	id := w.id
	for i, file := range w.files {
		id.Part = file.Part
		if _, err := k.store.Take(id, file.Name, file.Bytes); err != nil {
			k.discard(w.files[i:])
			k.Failed(id.Step, err.Error())
			return
		}
	}
	k.mu.Lock()
	k.noted = ""
	k.mu.Unlock()
	k.changed()
}
