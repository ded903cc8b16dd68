package checkpoint

import (
	"errors"
	"os"
	"syscall"
)

// open makes the file of an arrival when its first piece comes.
func (g *gathering) open(a *arrival) (*os.File, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if a.file != nil {
		return a.file, nil
	}
	var err error
	if !g.beside {
		err = g.claimRoom()
	}
	switch {
	case err != nil:
	case a.only != nil:
		a.file, err = g.openExcerpt(a)
	default:
		a.file, err = g.store.create(g.store.dir)
	}
	if err != nil {
		return nil, a.unwritable(g.store, err)
	}
	return a.file, nil
}

// claimRoom has nothing left to programs until the gathering is over; the lock is held.
func (g *gathering) claimRoom() error {
	if g.claimed {
		return nil
	}
	err := g.store.Claim()
	g.claimed = err == nil
	return err
}

// write writes a block. What is left to programs makes way where there is no room beside it.
func (g *gathering) write(file *os.File, block []byte, i uint64) error {
	_, err := file.WriteAt(block, int64(i*blockBytes))
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	g.mu.Lock()
	claimed := g.claimRoom()
	g.mu.Unlock()
	if claimed == nil {
		_, err = file.WriteAt(block, int64(i*blockBytes))
	}
	return err
}
