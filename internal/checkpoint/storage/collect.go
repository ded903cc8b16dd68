package storage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/concertina-dev/concertina/internal/score"
)

// holdLasts is how long a hold counts: a reader that was killed leaves it behind. Both times that it is compared with
// are the storage's.
const holdLasts = 24 * time.Hour

// Collect deletes checkpoints of a job: complete ones beyond the newest keep (at least 1) that are not among the best, and older
// ones than the newest complete one that are not complete. It touches neither what is newer than that nor what is being read.
// It returns how many it deleted. Errors leave what is left to the next call.
func (s *Storage) Collect(ctx context.Context, job Job, keep int, best score.Best) (deleted int, err error) {
	if err := job.check(); err != nil {
		return 0, err
	}
	all, err := s.look(ctx, job.path())
	if err != nil {
		return 0, err
	}
	complete, stay := 0, map[Place]bool{}
	for _, one := range s.best(ctx, all, best) {
		stay[one.place] = true
	}
	for _, c := range all {
		if complete >= max(keep, 1) || complete > 0 && !c.readable() {
			if stay[c.place] {
				continue
			}
			gone, failed := s.drop(ctx, c.place)
			if gone {
				deleted++
			}
			err = errors.Join(err, failed)
			continue
		}
		if s.whole(ctx, c) {
			complete++
		}
	}
	return deleted, err
}

// whole says whether a checkpoint can be read. One of which that is not certain does not count, so that more are
// kept.
func (s *Storage) whole(ctx context.Context, c *contents) bool {
	if !c.readable() {
		return false
	}
	m, err := s.manifest(ctx, c.place)
	return err == nil && c.lacks(m) == ""
}

// drop dooms a checkpoint, and deletes it unless somebody is seen then who reads it.
func (s *Storage) drop(ctx context.Context, place Place) (bool, error) {
	mark := random()
	if err := s.create(ctx, place.doomed(mark), nil); err != nil {
		return false, fmt.Errorf("doom checkpoint %s: %w", place.Path(), err)
	}
	there, err := s.one(ctx, place)
	if err != nil {
		return false, err
	}
	if there.heldAt(there.doomed[mark]) {
		return false, s.remove(ctx, place.doomed(mark))
	}
	if err := s.delete(ctx, there); err != nil {
		return false, fmt.Errorf("delete checkpoint %s: %w", place.Path(), err)
	}
	return true, nil
}

// heldAt says whether somebody reads it at a time.
func (c *contents) heldAt(now time.Time) bool {
	for _, since := range c.holds {
		if now.Sub(since) < holdLasts {
			return true
		}
	}
	return false
}

// delete removes what was seen of a doomed checkpoint: the manifest first, the marks last.
func (s *Storage) delete(ctx context.Context, c *contents) error {
	if err := s.remove(ctx, c.place.manifest()); err != nil {
		return err
	}
	for record := range c.records { // before the pieces that they name
		if err := s.remove(ctx, c.place.Path()+"/"+partsName+"/"+record); err != nil {
			return err
		}
	}
	for name := range c.data {
		if err := s.remove(ctx, c.place.data(name)); err != nil {
			return err
		}
	}
	for score := range c.scores {
		if err := s.remove(ctx, c.place.score(score)); err != nil {
			return err
		}
	}
	for reader := range c.holds {
		if err := s.remove(ctx, c.place.hold(reader)); err != nil {
			return err
		}
	}
	for mark := range c.doomed {
		if err := s.remove(ctx, c.place.doomed(mark)); err != nil {
			return err
		}
	}
	return nil
}
