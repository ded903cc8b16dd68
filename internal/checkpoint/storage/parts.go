package storage

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/share"
)

// maxRecord is the size of the largest record of a part that is read.
const maxRecord = 256 << 20

// recordName is that of the object that says that a part was put: its key, and the hash of the file.
func recordName(key, hash string) string { return key + "_" + hash }

func (p Place) record(key, hash string) string {
	return p.Path() + "/" + partsName + "/" + recordName(key, hash)
}

// Put writes a part of a checkpoint whose manifest is still to come: first its pieces, then a record of them. What is there
// of it is not written again. Whoever puts which part does not matter, nor does it when several put the same. Errors:
// ErrDropped; ErrRefused; a file that is not what its hash says; ctx has ended.
func (s *Storage) Put(ctx context.Context, place Place, file File) error {
	if err := s.put(ctx, place, &file); err != nil {
		return fmt.Errorf("put part %.64q of checkpoint %s: %w", file.Key, place.Path(), err)
	}
	return nil
}

func (s *Storage) put(ctx context.Context, place Place, file *File) error {
	if err := place.Job.check(); err != nil {
		return err
	}
	if !partKey.MatchString(file.Key) {
		return fmt.Errorf("%w: it is no name of a part", ErrRefused)
	}
	there, err := s.one(ctx, place)
	if err != nil {
		return err
	}
	if len(there.doomed) > 0 {
		return ErrDropped
	}
	hash := hex.EncodeToString(file.Hash[:])
	if there.records[recordName(file.Key, hash)] {
		return nil
	}
	part, err := s.savePart(ctx, place, there, file)
	if err != nil {
		return err
	}
	text, err := json.Marshal(part)
	if err != nil {
		return err
	}
	return s.create(ctx, place.record(file.Key, hash), text)
}

// Finish writes the manifest of a checkpoint whose parts, named by their keys, were all put. When it returns nil the
// checkpoint is durable. Whoever finishes does not matter. Errors: ErrDropped; ErrRefused; a part that was not put, ErrNotFound;
// another state under this name; ctx has ended.
func (s *Storage) Finish(ctx context.Context, place Place, parts []checkpoint.Snapshot) error {
	if err := s.finish(ctx, place, parts); err != nil {
		return fmt.Errorf("finish checkpoint %s: %w", place.Path(), err)
	}
	return nil
}

func (s *Storage) finish(ctx context.Context, place Place, parts []checkpoint.Snapshot) error {
	if err := place.Job.check(); err != nil {
		return err
	}
	if _, err := s.wanted(ctx, place); err != nil {
		return err
	}
	m := &Manifest{Version: partedVersion, Job: place.Job, Attempt: place.Attempt, Round: place.Round, Step: place.Step}
	for i := range parts {
		part, err := s.record(ctx, place, &parts[i])
		if err != nil {
			return err
		}
		m.Parts = append(m.Parts, *part)
		if share.IsShard(part.Key) {
			m.Version = shardedVersion
		}
	}
	return s.complete(ctx, place, m)
}

// record reads what was put as a part.
func (s *Storage) record(ctx context.Context, place Place, want *checkpoint.Snapshot) (*Part, error) {
	if !partKey.MatchString(want.Part) {
		return nil, fmt.Errorf("part %.64q: %w: it is no name of a part", want.Part, ErrRefused)
	}
	hash := hex.EncodeToString(want.Hash[:])
	text, err := s.read(ctx, place.record(want.Part, hash), maxRecord)
	if err != nil {
		return nil, fmt.Errorf("part %.64q was not put: %w", want.Part, err)
	}
	part := &Part{}
	if err := json.Unmarshal(text, part); err != nil {
		return nil, fmt.Errorf("the record of part %.64q (%w): %w", want.Part, ErrDamaged, err)
	}
	if part.Key != want.Part || part.Hash != hash || part.Bytes != want.Bytes {
		return nil, fmt.Errorf("the record of part %.64q (%w): it speaks of %.64q with %d bytes", want.Part, ErrDamaged, part.Key, part.Bytes)
	}
	return part, nil
}

// same says whether a manifest that stands is of the same state as another one. Who finishes again may know of more parts
// that differ by rank, or of fewer: all that both have is the same then.
func (m *Manifest) same(stands *Manifest) error {
	hashes := map[string]string{}
	for i := range stands.Parts {
		hashes[stands.Parts[i].Key] = stands.Parts[i].Hash
	}
	common := 0
	for i := range m.Parts {
		switch hash, ok := hashes[m.Parts[i].Key]; {
		case ok && hash != m.Parts[i].Hash:
			return errors.New("another state was saved under this name")
		case ok:
			common++
		}
	}
	if common == 0 {
		return errors.New("another state was saved under this name")
	}
	return nil
}

// Keys are the names of the parts, in their order.
func (m *Manifest) Keys() []string {
	keys := make([]string, len(m.Parts))
	for i := range m.Parts {
		keys[i] = m.Parts[i].Key
	}
	return keys
}
