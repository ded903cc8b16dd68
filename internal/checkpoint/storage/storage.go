package storage

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// parallel is how many pieces are under way at a time: more than one, since a request waits most of its time.
const parallel = 4

// Storage keeps checkpoints below one URL. Its methods may be called from any goroutine.
type Storage struct {
	bucket bucket
	// patience is how long a request is repeated.
	patience time.Duration
	// pace holds back the pieces that are written.
	pace *pace
}

// Open opens what a URL names: s3://bucket/prefix, gs://, azblob://, or file:///folder on a mounted volume. It asks for
// nothing yet; see Check. Errors: the URL is none, or the credentials in the environment are unreadable.
func Open(ctx context.Context, url string) (*Storage, error) {
	opened, err := openBucket(ctx, url)
	if err != nil {
		return nil, err
	}
	return &Storage{opened, patience, newPace(time.Now)}, nil
}

// WithPatience is the same storage, with requests that are repeated for another time than the two minutes of Open.
func (s *Storage) WithPatience(patience time.Duration) *Storage {
	return &Storage{s.bucket, patience, s.pace}
}

// Limit has pieces written at so many bytes a second from now on, also those of a save that is under way; 0 for no limit.
func (s *Storage) Limit(rate uint64) { s.pace.set(rate) }

// Close lets go of connections.
func (s *Storage) Close() error { return s.bucket.close() }

// Check makes an object in the folder of a job, reads it and deletes it. Errors say what is not possible.
func (s *Storage) Check(ctx context.Context, job Job) error {
	if err := job.check(); err != nil {
		return err
	}
	content := random()
	key := job.path() + "/probe-" + content
	if err := s.create(ctx, key, []byte(content)); err != nil {
		return fmt.Errorf("write to the storage: %w", err)
	}
	got, err := s.read(ctx, key, int64(len(content)))
	if err == nil && string(got) != content {
		err = errors.New("it gives something else than was written")
	}
	if err != nil {
		err = fmt.Errorf("read from the storage what was just written: %w", err)
	}
	if gone := s.remove(ctx, key); gone != nil {
		err = errors.Join(err, fmt.Errorf("delete from the storage: %w", gone))
	}
	return err
}

// random is a name that nobody else has.
func random() string {
	name := make([]byte, 16)
	_, _ = rand.Read(name)
	return hex.EncodeToString(name)
}

// contents is what a listing tells of one checkpoint.
type contents struct {
	place    Place
	manifest bool
	// changed is when the manifest was made, by the storage's clock.
	changed time.Time
	// data has the sizes of the pieces by name; holds and doomed the times of the holds and of the marks.
	data          map[string]int64
	holds, doomed map[string]time.Time
	// records are the names of those of parts that were put, scores those of its scores.
	records, scores map[string]bool
}

// look lists what is below a path: all checkpoints there, newest first.
func (s *Storage) look(ctx context.Context, path string) ([]*contents, error) {
	found, err := again(ctx, s.patience, func() (map[Place]*contents, error) {
		found := map[Place]*contents{}
		err := s.bucket.list(ctx, path+"/", func(o object) error {
			if place, rest, ok := parsePlace(o.Key); ok {
				if found[place] == nil {
					found[place] = &contents{
						place: place, data: map[string]int64{}, records: map[string]bool{}, scores: map[string]bool{},
						holds: map[string]time.Time{}, doomed: map[string]time.Time{},
					}
				}
				found[place].add(rest, o)
			}
			return nil
		})
		return found, err
	})
	if err != nil {
		return nil, fmt.Errorf("list the checkpoints below %s: %w", path, err)
	}
	all := make([]*contents, 0, len(found))
	for _, c := range found {
		all = append(all, c)
	}
	newestFirst(all)
	return all, nil
}

func (c *contents) add(name string, o object) {
	switch {
	case name == manifestName:
		c.manifest, c.changed = true, o.Changed
	case strings.HasPrefix(name, doomedName+"/"):
		c.doomed[strings.TrimPrefix(name, doomedName+"/")] = o.Changed
	case strings.HasPrefix(name, dataName+"/"):
		c.data[strings.TrimPrefix(name, dataName+"/")] = o.Bytes
	case strings.HasPrefix(name, partsName+"/"):
		c.records[strings.TrimPrefix(name, partsName+"/")] = true
	case strings.HasPrefix(name, scoresName+"/"):
		c.scores[strings.TrimPrefix(name, scoresName+"/")] = true
	case strings.HasPrefix(name, holdsName+"/"):
		c.holds[strings.TrimPrefix(name, holdsName+"/")] = o.Changed
	}
}

// readable says whether it was saved to the end, and nobody deletes it, as far as can be seen without the manifest.
func (c *contents) readable() bool { return c.manifest && len(c.doomed) == 0 }

// lacks says which piece of a manifest is not there; nothing when all are.
func (c *contents) lacks(m *Manifest) (piece string) {
	for i := range m.Parts {
		for _, p := range m.Parts[i].Pieces {
			if bytes, ok := c.data[p.SHA256]; !ok || bytes != p.Bytes {
				return p.SHA256
			}
		}
	}
	return ""
}

// create makes an object. That one of this key is there is no error: keys are such that it is the same, or that the
// caller looks.
func (s *Storage) create(ctx context.Context, key string, data []byte) error {
	_, err := again(ctx, s.patience, func() (struct{}, error) { return struct{}{}, s.bucket.create(ctx, key, data) })
	if errors.Is(err, ErrExists) {
		return nil
	}
	return err
}

// send makes the object of a piece, at the storage's pace. Repetitions wait for nothing: the pieces after them do.
func (s *Storage) send(ctx context.Context, key string, data []byte) error {
	if err := s.pace.wait(ctx, len(data)); err != nil {
		return err
	}
	tries := 0
	_, err := again(ctx, s.patience, func() (struct{}, error) {
		if tries++; tries > 1 {
			s.pace.spend(len(data))
		}
		return struct{}{}, s.bucket.create(ctx, key, data)
	})
	if errors.Is(err, ErrExists) {
		return nil
	}
	return err
}

func (s *Storage) remove(ctx context.Context, key string) error {
	_, err := again(ctx, s.patience, func() (struct{}, error) { return struct{}{}, s.bucket.remove(ctx, key) })
	return err
}

// read reads an object of at most so many bytes.
func (s *Storage) read(ctx context.Context, key string, most int64) ([]byte, error) {
	return again(ctx, s.patience, func() ([]byte, error) {
		reader, err := s.bucket.open(ctx, key)
		if err != nil {
			return nil, err
		}
		data, err := readMost(reader, most+1)
		if err = errors.Join(err, reader.Close()); err != nil {
			return nil, err
		}
		if int64(len(data)) > most {
			return nil, fmt.Errorf("%w: %s has more than %d bytes", ErrDamaged, key, most)
		}
		return data, nil
	})
}

// readMost reads to the end, but no more than so many bytes. A piece is read to where all of it has room: memory that grows with it
// would be copied several times.
func readMost(reader io.Reader, most int64) ([]byte, error) {
	if most > pieceBytes+1 {
		return io.ReadAll(io.LimitReader(reader, most))
	}
	data, n := make([]byte, most), 0
	for n < len(data) {
		got, err := reader.Read(data[n:])
		n += got
		switch {
		case err == io.EOF:
			return data[:n], nil
		case err != nil:
			return nil, err
		}
	}
	return data, nil
}

func (s *Storage) manifest(ctx context.Context, place Place) (*Manifest, error) {
	text, err := s.read(ctx, place.manifest(), maxManifest)
	if err != nil {
		return nil, fmt.Errorf("read the manifest of checkpoint %s: %w", place.Path(), err)
	}
	m, err := decode(text)
	if err == nil && (m.Job != place.Job || m.Attempt != place.Attempt || m.ID() != place.ID) {
		err = fmt.Errorf("it speaks of %s", Place{m.Job, m.Attempt, m.ID()}.Path())
	}
	if err != nil {
		return nil, fmt.Errorf("the manifest of checkpoint %s cannot be used (%w): %w", place.Path(), ErrDamaged, err)
	}
	return m, nil
}
