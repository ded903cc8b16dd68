package storage

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/release"
)

// version is the newest that is known: a manifest of version 1 has one part, which is the whole state, one of version 2
// shares, and one of version 3 shards.
const (
	version        = release.Manifest
	wholeVersion   = 1
	partedVersion  = 2
	shardedVersion = 3
)

const (
	// pieceBytes is the size of all pieces of a part but the last. One request makes one, so that nothing is left half
	// there: larger ones come in several, which nobody sees when they are not all made.
	pieceBytes = 8 << 20
	// maxManifest is the size of the largest manifest that is read: that of more than 100 TiB.
	maxManifest = 1 << 30
	// maxParts is the largest number of parts of a checkpoint.
	maxParts = 1 << 16
)

// ErrNewer says that a manifest was written by a newer version of this program, which alone can read it.
var ErrNewer = errors.New("was written by a newer version")

// Job says whose checkpoints: the uid is that of the TrainingJob.
type Job struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// Manifest says what a checkpoint is made of.
type Manifest struct {
	Version int    `json:"version"`
	Job     Job    `json:"job"`
	Attempt int32  `json:"attempt"`
	Round   uint64 `json:"round"`
	Step    uint64 `json:"step"`
	// Written is when it was, by the clock of who wrote it: for people, no decision depends on it.
	Written time.Time `json:"written"`
	Parts   []Part    `json:"parts"`
}

// Part is one file of a checkpoint.
type Part struct {
	// Key names it within the checkpoint.
	Key   string `json:"key"`
	Bytes uint64 `json:"bytes"`
	// Hash is that of the snapshot, in hex.
	Hash string `json:"hash"`
	// Pieces are what it is cut into, in their order.
	Pieces []Piece `json:"pieces"`
}

// Piece is an object with some of a part's bytes.
type Piece struct {
	Bytes int64 `json:"bytes"`
	// SHA256 is that of its bytes, in hex; it is also its name.
	SHA256 string `json:"sha256"`
}

// ID is the snapshot that was saved.
func (m *Manifest) ID() checkpoint.ID { return checkpoint.ID{Round: m.Round, Step: m.Step} }

var (
	partKey = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)
	sum     = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// encode writes a manifest.
func (m *Manifest) encode() ([]byte, error) { return json.MarshalIndent(m, "", " ") }

// decode reads a manifest. Errors: ErrNewer, or why it is none.
func decode(text []byte) (*Manifest, error) {
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return nil, fmt.Errorf("it is no manifest: %w", err)
	}
	if head.Version > version {
		return nil, fmt.Errorf("it %w: it is of version %d, and %d is known", ErrNewer, head.Version, version)
	}
	m := &Manifest{}
	if err := json.Unmarshal(text, m); err != nil {
		return nil, fmt.Errorf("it is no manifest: %w", err)
	}
	return m, m.check()
}

func (m *Manifest) check() error {
	if m.Version < 1 || len(m.Parts) == 0 || len(m.Parts) > maxParts {
		return fmt.Errorf("it is no manifest: version %d with %d parts", m.Version, len(m.Parts))
	}
	seen := map[string]bool{}
	for i := range m.Parts {
		part := &m.Parts[i]
		if seen[part.Key] {
			return fmt.Errorf("part %.64q is there twice", part.Key)
		}
		seen[part.Key] = true
		if err := part.check(); err != nil {
			return fmt.Errorf("part %.64q: %w", part.Key, err)
		}
	}
	return nil
}

func (p *Part) check() error {
	if !partKey.MatchString(p.Key) {
		return errors.New("a part is named by small letters, digits, dots and hyphens")
	}
	if !sum.MatchString(p.Hash) || p.Bytes > checkpoint.MaxBytes {
		return fmt.Errorf("%d bytes with the hash %.70q", p.Bytes, p.Hash)
	}
	left := p.Bytes
	for i, piece := range p.Pieces {
		if want := int64(min(left, pieceBytes)); piece.Bytes != want || want == 0 || !sum.MatchString(piece.SHA256) {
			return fmt.Errorf("piece %d has %d bytes and the name %.70q, where %d bytes are left", i, piece.Bytes, piece.SHA256, left)
		}
		left -= uint64(piece.Bytes)
	}
	if left > 0 {
		return fmt.Errorf("%d of %d bytes are in no piece", left, p.Bytes)
	}
	return nil
}

// nameOf is the name of a piece.
func nameOf(data []byte) string {
	hash := sha256.Sum256(data)
	return hex.EncodeToString(hash[:])
}
