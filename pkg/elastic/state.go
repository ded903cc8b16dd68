package elastic

import (
	"bufio"
	"bytes"
	"encoding"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"

	"github.com/concertina-dev/concertina/pkg/elastic/samples"
)

// State is everything that a step changes and that the next one needs: the model, the optimizer,
// generators of random numbers. The same on every rank. Both methods are called by the goroutine
// that trains, between two steps.
type State interface {
	// Save writes the state. What it holds must not change with later steps once Save has returned.
	Save(io.Writer) error
	// Load replaces the state by one that Save has written.
	Load(io.Reader) error
}

// Gob is a State of what the pointers point to, encoded by encoding/gob. Load assigns to them as a
// whole: parts that gob does not encode, such as unexported fields, become zero, unless the type
// implements gob.GobDecoder or encoding.BinaryUnmarshaler.
func Gob(pointers ...any) State { return gobState(pointers) }

type gobState []any

func (s gobState) check() error {
	for _, pointer := range s {
		if v := reflect.ValueOf(pointer); v.Kind() != reflect.Pointer || v.IsNil() {
			return fmt.Errorf("elastic.Gob wants pointers to the state, not %T", pointer)
		}
	}
	return nil
}

func (s gobState) Save(w io.Writer) error {
	if err := s.check(); err != nil {
		return err
	}
	encoder := gob.NewEncoder(w)
	for _, pointer := range s {
		if err := encoder.Encode(pointer); err != nil {
			return err
		}
	}
	return nil
}

func (s gobState) Load(r io.Reader) error {
	if err := s.check(); err != nil {
		return err
	}
	decoder := gob.NewDecoder(r)
	for _, pointer := range s {
		switch pointer.(type) {
		case gob.GobDecoder, encoding.BinaryUnmarshaler:
			if err := decoder.Decode(pointer); err != nil {
				return err
			}
			continue
		}
		// Into a fresh value: gob leaves alone what was zero when it was encoded.
		target := reflect.ValueOf(pointer).Elem()
		fresh := reflect.New(target.Type())
		if err := decoder.DecodeValue(fresh); err != nil {
			return err
		}
		target.Set(fresh.Elem())
	}
	return nil
}

// header is the first line of a snapshot.
type header struct {
	Format string `json:"format"`
	// Step is the last that the state has seen.
	Step uint64 `json:"step"`
	// The rest says which steps those were.
	Samples     uint64 `json:"samples"`
	GlobalBatch int    `json:"globalBatch"`
	Seed        uint64 `json:"seed"`
}

const (
	snapshotFormat = "concertina.dev/go/1"
	// shardedFormat is of the part of a rank of a state in shards: how that was cut follows on the next line.
	shardedFormat = "concertina.dev/go/1/shards"
	// maxHeader is the longest header in bytes.
	maxHeader = 4096
)

func headerOf(shape samples.Shape, step uint64) header {
	return header{
		Format: snapshotFormat, Step: step,
		Samples: shape.Samples, GlobalBatch: shape.GlobalBatch, Seed: shape.Seed,
	}
}

var errNoState = errors.New("the program has no state to give: Options.State is not set")

// writeSnapshot writes the state after a step.
func writeSnapshot(w io.Writer, h header, state State) error {
	if state == nil {
		return errNoState
	}
	if err := json.NewEncoder(w).Encode(h); err != nil {
		return err
	}
	return state.Save(w)
}

// readSnapshot loads a state that must be the one that want describes.
func readSnapshot(r io.Reader, want header, state State) error {
	if state == nil {
		return errNoState
	}
	buffered := bufio.NewReaderSize(r, maxHeader)
	if err := readHeader(buffered, want); err != nil {
		return err
	}
	return state.Load(buffered)
}

func readHeader(r *bufio.Reader, want header) error {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return fmt.Errorf("its first line: %w", err)
	}
	var got header
	if err := json.Unmarshal(bytes.TrimSpace(line), &got); err != nil {
		return fmt.Errorf("its first line: %w", err)
	}
	if got != want {
		return fmt.Errorf("it is of another training or step: it says %+v, and %+v is wanted", got, want)
	}
	return nil
}
