package elastic

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/internal/share"
)

const (
	// autoFactor is how much longer than a snapshot holds the training up the interval is.
	autoFactor = 100
	// leastAuto is the shortest interval that is chosen here. What is told more often serves nobody: a
	// recovery costs seconds anyway.
	leastAuto = time.Second
	// flushTimeout bounds how long a write in the background may keep the process from leaving its
	// world: the agent's patience is five seconds.
	flushTimeout = 2 * time.Second
	// pieceBytes is written at a time: the write can be ended between two pieces.
	pieceBytes = 1 << 20
)

// snapshots writes the snapshots of one process. Its methods are for the goroutine that trains.
type snapshots struct {
	folder string
	// interval is the least time between two; 0 means auto.
	interval time.Duration
	// held is how long the last copy took; 0 before the first.
	held time.Duration
	// every is a power of two: at a step whose number it divides the clock is read, and never in
	// between. That is at least as often as a snapshot is taken.
	every uint64
	mark  struct {
		step uint64
		at   time.Time
	}

	// taken is the step of the last one of this world; noStep before the first.
	taken   uint64
	named   uint64 // how many snapshots have a name
	copied  []bytes.Buffer
	writing sync.WaitGroup
	busy    atomic.Bool
	ended   atomic.Bool
}

// parseInterval reads the interval of welcome.
func parseInterval(text string) (time.Duration, error) {
	if text == "auto" || text == "" {
		return 0, nil
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || !(seconds > 0 && seconds < 1e9) {
		return 0, fmt.Errorf("the agent wants snapshots every %.40q: a number of seconds or auto is wanted", text)
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

// start begins to count the time of a world that begins after a step.
func (s *snapshots) start(step uint64, now time.Time) {
	s.every, s.taken = 1, noStep
	s.mark.step, s.mark.at = step, now
}

// noStep is none that a training has.
const noStep = 1<<64 - 1

// due is asked after a step whose number every divides: is it time for a snapshot? It finds the
// smallest power of two for which so many steps take longer than the interval.
func (s *snapshots) due(step uint64, now time.Time) bool {
	steps, took := step-s.mark.step, now.Sub(s.mark.at)
	if steps == 0 {
		return false
	}
	s.mark.step, s.mark.at = step, now
	interval := s.interval
	if interval == 0 && s.held > 0 { // the first one is due at once
		interval = max(leastAuto, autoFactor*s.held)
	}
	mean := max(took/time.Duration(min(steps, 1<<32)), 1)
	wanted := uint64(1)
	for wanted < 1<<40 && mean <= interval/time.Duration(wanted) {
		wanted *= 2
	}
	// No faster than by doubling: a few quick steps must not put the next look off for ever.
	s.every = min(wanted, 2*s.every)
	return step%wanted == 0
}

// name is the file's while it is written, and until the agent has taken it. Processes of one worker share the folder, and two
// snapshots may be of the same step: one that was due, and the one of a barrier there.
func (s *snapshots) name(step, round uint64, localRank int) string {
	s.named++
	return fmt.Sprintf("%d.%d.%d-%d.part", step, round, localRank, s.named)
}

// piece is a file of a snapshot: all of it, or the part of a key.
type piece struct {
	key, name string
	fill      func(io.Writer) error
}

// now writes a snapshot while the caller waits. Of a state that comes in no shards that says nothing of what the process writes
// periodically, which may be nothing.
func (s *snapshots) now(step uint64, pieces []piece) wire.Snapshot {
	result := s.writeAll(step, pieces)
	if result.Size != nil && result.Parts == nil {
		result.Size.Written = 0
	}
	return result
}

// later copies the state and writes the copy in the background; tell gets what came of it, unless
// the write was ended. When the last write still goes on there is no new one.
func (s *snapshots) later(step uint64, pieces []piece, tell func(wire.Snapshot)) {
	if s.busy.Load() {
		return
	}
	s.writing.Wait()
	begun := time.Now()
	copies := slices.Clone(pieces)
	s.copied = append(s.copied, make([]bytes.Buffer, max(0, len(pieces)-len(s.copied)))...)
	var err error
	for i := range copies {
		copied := &s.copied[i]
		copied.Reset()
		err = errors.Join(err, copies[i].fill(copied))
		copies[i].fill = func(w io.Writer) error { return s.writeCopied(w, copied.Bytes()) }
	}
	s.held = time.Since(begun)
	if err != nil {
		tell(failed(step, err))
		return
	}
	s.taken = step
	s.busy.Store(true)
	s.ended.Store(false)
	s.writing.Go(func() {
		result := s.writeAll(step, copies)
		result.Size = sizeOfPieces(copies, func(i int) uint64 { return uint64(s.copied[i].Len()) }) // also of one for which there is no room
		s.busy.Store(false)
		if !s.ended.Load() {
			tell(result)
		}
	})
}

var errWriteEnded = errors.New("the process leaves its world")

func (s *snapshots) writeCopied(w io.Writer, all []byte) error {
	for len(all) > 0 {
		if s.ended.Load() {
			return errWriteEnded
		}
		n, err := w.Write(all[:min(len(all), pieceBytes)])
		if err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

// flush waits for the write in the background, and ends it when it takes too long.
func (s *snapshots) flush() {
	timeout := time.AfterFunc(flushTimeout, func() { s.ended.Store(true) })
	s.writing.Wait()
	timeout.Stop()
}

// end ends the write in the background.
func (s *snapshots) end() {
	s.ended.Store(true)
	s.writing.Wait()
}

func failed(step uint64, err error) wire.Snapshot {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		err = fmt.Errorf("no room for the snapshot: give the worker more memory for snapshots: %w", err)
	}
	return wire.Snapshot{
		Type: wire.TypeSnapshot, Step: step, Error: wire.HeadOf("snapshot of step "+strconv.FormatUint(step, 10)+": "+err.Error(), wire.MaxFault),
	}
}

// writeAll makes all files of a snapshot, or none.
func (s *snapshots) writeAll(step uint64, pieces []piece) wire.Snapshot {
	if len(pieces) == 1 && pieces[0].key == "" {
		return s.write(pieces[0].name, step, pieces[0].fill)
	}
	parts := []wire.Part{}
	for i := range pieces {
		written := s.write(pieces[i].name, step, pieces[i].fill)
		if written.Error != "" {
			for _, part := range parts {
				_ = os.Remove(filepath.Join(s.folder, part.File))
			}
			return written
		}
		parts = append(parts, wire.Part{Key: pieces[i].key, File: written.File, Bytes: written.Bytes})
	}
	size := sizeOfPieces(pieces, func(i int) uint64 { return parts[i].Bytes })
	return wire.Snapshot{Type: wire.TypeSnapshot, Step: step, Parts: &parts, Size: size}
}

// write makes a file of what fill writes, or none.
func (s *snapshots) write(name string, step uint64, fill func(io.Writer) error) wire.Snapshot {
	if s.folder == "" {
		return failed(step, errors.New("this worker has no folder for snapshots"))
	}
	path := filepath.Join(s.folder, name)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return failed(step, err)
	}
	buffered := bufio.NewWriterSize(file, pieceBytes)
	err = fill(buffered)
	if err == nil {
		err = buffered.Flush()
	}
	var size int64
	if info, statErr := file.Stat(); err == nil && statErr == nil {
		size = info.Size()
	} else {
		err = errors.Join(err, statErr)
	}
	if err := errors.Join(err, file.Close()); err != nil {
		_ = os.Remove(path)
		return failed(step, err)
	}
	return wire.Snapshot{Type: wire.TypeSnapshot, Step: step, File: name, Bytes: uint64(size), Size: sizeOf(uint64(size))}
}

// sizeOfPieces is the size of a state of which a snapshot has these files with so many bytes each. Other ranks have about as much in
// their shards.
func sizeOfPieces(pieces []piece, bytes func(i int) uint64) *wire.Size {
	size := &wire.Size{}
	for i, p := range pieces {
		size.Written += bytes(i)
		if key, ok := share.Parse(p.key); ok && key.Shard {
			size.Shards += bytes(i) * uint64(key.Of)
			size.State += bytes(i) * uint64(key.Of)
			continue
		}
		size.State += bytes(i)
		size.Own += bytes(i)
	}
	return size
}

// sizeOf is the size of a state with so many bytes: it comes in no shares.
func sizeOf(bytes uint64) *wire.Size { return &wire.Size{State: bytes, Own: bytes, Written: bytes} }
