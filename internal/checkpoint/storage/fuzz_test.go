package storage

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/concertina-dev/concertina/internal/checkpoint"
)

// FuzzManifest reads what may stand in a storage that others can write. What is taken for a manifest has parts with plain
// names, whose pieces are all of them, and comes back when it is written again.
func FuzzManifest(f *testing.F) {
	hash := strings.Repeat("0a", 32)
	whole := Manifest{Version: version, Job: Job{"team", "digits", "uid"}, Attempt: 1, Round: 3, Step: 17, Parts: []Part{
		{Key: "state", Bytes: pieceBytes + 1, Hash: hash, Pieces: []Piece{{pieceBytes, hash}, {1, hash}}},
		{Key: "rank.0", Hash: hash},
	}}
	text, err := whole.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	for from, to := range map[string]string{
		`"version": 1`: `"version": 2`, `"key": "state"`: `"key": "../state"`, `"key": "rank.0"`: `"key": "state"`,
		`"bytes": 1`: `"bytes": -1`, `"bytes": 8388609`: `"bytes": 18446744073709551615`, hash: "..",
	} {
		f.Add([]byte(strings.Replace(string(text), from, to, 1)))
	}
	f.Add([]byte(`{"version":1,"parts":null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := decode(text)
		if err != nil {
			if len(err.Error()) > 4<<10 {
				t.Errorf("an error of %d bytes: %.200v", len(err.Error()), err)
			}
			return
		}
		for i := range m.Parts {
			part := &m.Parts[i]
			var bytes uint64
			for _, piece := range part.Pieces {
				bytes += uint64(piece.Bytes)
				if strings.ContainsAny(piece.SHA256, "/.") {
					t.Errorf("a piece is named %q", piece.SHA256)
				}
			}
			if bytes != part.Bytes || bytes > checkpoint.MaxBytes || strings.ContainsAny(part.Key, "/\\") || strings.HasPrefix(part.Key, ".") {
				t.Errorf("part %q of %d bytes has pieces of %d", part.Key, part.Bytes, bytes)
			}
		}
		again, err := m.encode()
		if err != nil {
			t.Skip("a time that cannot be written") // JSON reads more years than it writes
		}
		if read, err := decode(again); err != nil || !reflect.DeepEqual(read, m) {
			t.Errorf("%s comes back as %+v, %v", again, read, err)
		}
		if !json.Valid(again) {
			t.Errorf("%q is no JSON", again)
		}
	})
}
