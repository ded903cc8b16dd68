package storage

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sync/errgroup"

	"github.com/concertina-dev/concertina/internal/checkpoint"
)

// ErrDamaged says that a checkpoint is there and cannot be used, whenever it is read.
var ErrDamaged = errors.New("it is damaged")

// Find lists the complete checkpoints below a path, newest first: all of a namespace, of the jobs of a name
// (NAMESPACE/NAME), of one job (with its UID), of an attempt, or one.
func (s *Storage) Find(ctx context.Context, path string) ([]Place, error) {
	all, err := s.look(ctx, path)
	if err != nil {
		return nil, err
	}
	var places []Place
	for _, c := range all {
		if c.readable() {
			places = append(places, c.place)
		}
	}
	return places, nil
}

// Reading is a checkpoint that is held: nobody deletes it before Close.
type Reading struct {
	*Manifest
	storage *Storage
	place   Place
	reader  string
}

// Read takes hold of a checkpoint, after it has found it complete. Errors: ErrDropped; ErrNotFound; ErrNewer; ErrRefused; ErrDamaged for
// a manifest that is none, or of which a piece is missing; the storage cannot be reached; ctx has ended.
func (s *Storage) Read(ctx context.Context, place Place) (*Reading, error) {
	r := &Reading{storage: s, place: place, reader: random()}
	if err := s.create(ctx, place.hold(r.reader), nil); err != nil {
		return nil, fmt.Errorf("take hold of checkpoint %s: %w", place.Path(), err)
	}
	err := r.open(ctx)
	if err != nil {
		return nil, errors.Join(err, r.Close(context.WithoutCancel(ctx)))
	}
	return r, nil
}

func (r *Reading) open(ctx context.Context) error {
	there, err := r.storage.one(ctx, r.place)
	if err != nil {
		return err
	}
	if len(there.doomed) > 0 {
		return fmt.Errorf("checkpoint %s: %w", r.place.Path(), ErrDropped)
	}
	if r.Manifest, err = r.storage.manifest(ctx, r.place); err != nil {
		return err
	}
	if piece := there.lacks(r.Manifest); piece != "" {
		return fmt.Errorf("checkpoint %s: %w: piece %s is not there, or has another size", r.place.Path(), ErrDamaged, piece)
	}
	return nil
}

// Path is where it is, below the prefix of the URL.
func (r *Reading) Path() string { return r.place.Path() }

// Close lets go of the checkpoint.
func (r *Reading) Close(ctx context.Context) error {
	return r.storage.remove(ctx, r.place.hold(r.reader))
}

// Load writes a part to a file. A piece that comes altered is read again, as long as a request is repeated. Errors:
// ErrDamaged when there is no such part, or a piece is not what was written; the storage cannot be reached; the file cannot
// be written; ctx has ended.
func (r *Reading) Load(ctx context.Context, key string, to io.WriterAt) error {
	for i := range r.Parts {
		if r.Parts[i].Key == key {
			if err := r.load(ctx, &r.Parts[i], to); err != nil {
				return fmt.Errorf("load part %s of checkpoint %s: %w", key, r.place.Path(), err)
			}
			return nil
		}
	}
	return r.lacks(key)
}

func (r *Reading) lacks(key string) error {
	return fmt.Errorf("checkpoint %s: %w: it has no part %.64q", r.place.Path(), ErrDamaged, key)
}

func (r *Reading) load(ctx context.Context, part *Part, to io.WriterAt) error {
	group, inGroup := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i, piece := range part.Pieces {
		group.Go(func() error {
			data, err := r.piece(inGroup, piece)
			if err != nil {
				return fmt.Errorf("piece %d of %d: %w", i+1, len(part.Pieces), err)
			}
			_, err = to.WriteAt(data, int64(i)*pieceBytes)
			return err
		})
	}
	return group.Wait()
}

// piece reads a piece until it is what it was.
func (r *Reading) piece(ctx context.Context, piece Piece) ([]byte, error) {
	return again(ctx, r.storage.patience, func() ([]byte, error) {
		data, err := r.storage.read(ctx, r.place.data(piece.SHA256), piece.Bytes)
		if err == nil && nameOf(data) != piece.SHA256 {
			err = fmt.Errorf("%w: its %d bytes are not those that were written", ErrDamaged, len(data))
		}
		return data, err
	})
}

// Snapshot is what a part becomes in the memory of a worker.
func (r *Reading) Snapshot(key string) (checkpoint.Snapshot, error) {
	for i := range r.Parts {
		if r.Parts[i].Key == key {
			snapshot := checkpoint.Snapshot{ID: r.ID(), Bytes: r.Parts[i].Bytes}
			hash, err := hex.DecodeString(r.Parts[i].Hash)
			if err != nil {
				return checkpoint.Snapshot{}, fmt.Errorf("checkpoint %s: %w: the hash of part %s: %w", r.place.Path(), ErrDamaged, key, err)
			}
			copy(snapshot.Hash[:], hash)
			return snapshot, nil
		}
	}
	return checkpoint.Snapshot{}, r.lacks(key)
}
