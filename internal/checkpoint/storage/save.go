package storage

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/concertina-dev/concertina/internal/checkpoint"
)

// ErrDropped says that a checkpoint was deleted, or is being deleted: an older one than others that are there.
var ErrDropped = errors.New("it is not kept any more")

// File is a part that is to be saved.
type File struct {
	Key  string
	Data io.ReaderAt
	checkpoint.Snapshot
}

// Save writes a checkpoint. What is there of it already is not written again, so that one who was interrupted is
// gone on with; to save what was saved before changes nothing. When Save returns nil the checkpoint is durable. Errors:
// ErrDropped; ErrRefused; a file that is not what its hash says; another state under this name; ctx has ended.
func (s *Storage) Save(ctx context.Context, place Place, files []File) error {
	if err := s.save(ctx, place, files); err != nil {
		return fmt.Errorf("save checkpoint %s: %w", place.Path(), err)
	}
	return nil
}

func (s *Storage) save(ctx context.Context, place Place, files []File) error {
	if err := place.Job.check(); err != nil {
		return err
	}
	there, err := s.wanted(ctx, place)
	if err != nil {
		return err
	}
	m := &Manifest{Version: wholeVersion, Job: place.Job, Attempt: place.Attempt, Round: place.Round, Step: place.Step}
	for i := range files {
		part, err := s.savePart(ctx, place, there, &files[i])
		if err != nil {
			return fmt.Errorf("part %.64q: %w", files[i].Key, err)
		}
		m.Parts = append(m.Parts, part)
	}
	return s.complete(ctx, place, m)
}

// complete writes the manifest of a checkpoint whose parts are all there, unless it has one: from then on it is one.
func (s *Storage) complete(ctx context.Context, place Place, m *Manifest) error {
	if err := m.check(); err != nil {
		return err
	}
	m.Written = time.Now().UTC().Truncate(time.Second)
	text, err := m.encode()
	if err != nil {
		return err
	}
	if err := s.create(ctx, place.manifest(), text); err != nil {
		return err
	}
	return s.confirm(ctx, place, m)
}

// wanted says what is there of a checkpoint. It is an error when a newer one is complete: this one may be deleted at
// any moment.
func (s *Storage) wanted(ctx context.Context, place Place) (*contents, error) {
	all, err := s.look(ctx, place.Job.path())
	if err != nil {
		return nil, err
	}
	for _, c := range all {
		switch {
		case c.place == place && len(c.doomed) > 0:
			return nil, ErrDropped
		case c.place == place:
			return c, nil
		case c.readable() && checkpoint.CompareIDs(c.place.ID, place.ID) > 0:
			return nil, fmt.Errorf("%w: that of round %d, step %d is complete", ErrDropped, c.place.Round, c.place.Step)
		}
	}
	return &contents{place: place}, nil
}

// confirm looks again, after the manifest was made: whoever collects has seen it by now, or is seen here.
func (s *Storage) confirm(ctx context.Context, place Place, m *Manifest) error {
	for range looks {
		stands, err := s.manifest(ctx, place)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if err := m.same(stands); err != nil {
			return err
		}
		there, err := s.one(ctx, place)
		if err != nil {
			return err
		}
		if len(there.doomed) > 0 {
			break
		}
		if there.manifest && there.lacks(stands) == "" {
			return nil
		}
	}
	return errors.Join(ErrDropped, s.remove(ctx, place.manifest()))
}

// looks is how often it is looked whether all pieces are there: several that put the same at once may hide it for a moment, on
// servers that put an object in the place of its like.
const looks = 5

func (s *Storage) one(ctx context.Context, place Place) (*contents, error) {
	found, err := s.look(ctx, place.Path())
	if err != nil || len(found) == 0 {
		return &contents{place: place}, err
	}
	return found[0], nil
}

// savePart writes the pieces of a part that are not there.
func (s *Storage) savePart(ctx context.Context, place Place, there *contents, file *File) (Part, error) {
	pieces := make([]Piece, (file.Bytes+pieceBytes-1)/pieceBytes)
	whole := checkpoint.NewHasher()
	group, inGroup := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i := range pieces {
		data := make([]byte, min(pieceBytes, int64(file.Bytes)-int64(i)*pieceBytes))
		if n, err := file.Data.ReadAt(data, int64(i)*pieceBytes); n < len(data) {
			return Part{}, errors.Join(fmt.Errorf("read it: %w", err), group.Wait())
		}
		_, _ = whole.Write(data)
		pieces[i] = Piece{int64(len(data)), nameOf(data)}
		if there.data[pieces[i].SHA256] == pieces[i].Bytes {
			continue
		}
		group.Go(func() error {
			if err := s.send(inGroup, place.data(pieces[i].SHA256), data); err != nil {
				return fmt.Errorf("write piece %d of %d: %w", i+1, len(pieces), err)
			}
			return nil
		})
		if inGroup.Err() != nil {
			break
		}
	}
	if err := group.Wait(); err != nil {
		return Part{}, err
	}
	if hash := whole.Sum(); hash != file.Hash {
		return Part{}, fmt.Errorf("the file has the hash %x, and %x was named", hash, file.Hash)
	}
	return Part{Key: file.Key, Bytes: file.Bytes, Hash: hex.EncodeToString(file.Hash[:]), Pieces: pieces}, nil
}
