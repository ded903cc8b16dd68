package elastic

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/concertina-dev/concertina/internal/agent/wire"
)

// cadenceVector is one of testdata/cadence.json, which was not written by this code. Times are in nanoseconds.
type cadenceVector struct {
	Name           string
	Interval, Held time.Duration
	// The steps after First, to Last, are made.
	First, Last uint64
	// Pace is pairs: up to which step, and how long each of them takes.
	Pace [][2]int64
	// Looks are the steps after which the clock is read, Due those of them in which a snapshot is due.
	Looks, Due []uint64
}

func (v cadenceVector) took(step uint64) time.Duration {
	for _, part := range v.Pace {
		if step <= uint64(part[0]) {
			return time.Duration(part[1])
		}
	}
	return 0
}

// A snapshot is due in steps whose number is a multiple of the smallest power of two for which so many
// steps take longer than the interval.
func TestWhenASnapshotIsDue(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "testdata", "cadence.json"))
	if err != nil {
		t.Fatal(err)
	}
	var vectors []cadenceVector
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			s := snapshots{interval: v.Interval, held: v.Held}
			now := time.Unix(1000, 0)
			s.start(v.First, now)
			var looks, due []uint64
			for step := v.First + 1; step <= v.Last; step++ {
				now = now.Add(v.took(step))
				if step&(s.every-1) != 0 {
					continue
				}
				looks = append(looks, step)
				if s.due(step, now) {
					due = append(due, step)
				}
			}
			if diff := cmp.Diff(v.Looks, looks); diff != "" {
				t.Errorf("the clock is read, -want +got:\n%s", diff)
			}
			if diff := cmp.Diff(v.Due, due, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("due, -want +got:\n%s", diff)
			}
		})
	}
}

func TestIntervals(t *testing.T) {
	for text, want := range map[string]time.Duration{"auto": 0, "": 0, "30": 30 * time.Second, "0.25": 250 * time.Millisecond} {
		if got, err := parseInterval(text); err != nil || got != want {
			t.Errorf("%q is %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"0", "-1", "often", "NaN", "Inf", "1e300", "1s"} {
		if got, err := parseInterval(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

// weights is a model whose zeros gob leaves out.
type weights struct {
	W    []float64
	Bias float64
}

func TestGobReplacesTheState(t *testing.T) {
	saved, step := weights{W: []float64{1, 2}}, 7
	var file bytes.Buffer
	if err := Gob(&saved, &step).Save(&file); err != nil {
		t.Fatal(err)
	}
	image := file.Bytes()
	got, number := weights{W: []float64{9, 9, 9}, Bias: 5}, 1
	if err := Gob(&got, &number).Load(bytes.NewReader(image)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(saved, got); diff != "" || number != 7 {
		t.Errorf("-want +got:\n%s number %d", diff, number)
	}
	before := got
	if err := Gob(&got, &number).Load(bytes.NewReader(image[:len(image)/3])); err == nil {
		t.Error("half a state was loaded")
	}
	if diff := cmp.Diff(before, got); diff != "" {
		t.Errorf("a load that failed left (-want +got):\n%s", diff)
	}
	// A type that decodes itself keeps what it has beside.
	clock := time.Unix(5, 0).UTC()
	file.Reset()
	if err := Gob(&clock).Save(&file); err != nil {
		t.Fatal(err)
	}
	var later time.Time
	if err := Gob(&later).Load(&file); err != nil || !later.Equal(clock) {
		t.Errorf("%v, %v", later, err)
	}
	for _, wrong := range []any{weights{}, nil, (*weights)(nil), 3} {
		if err := Gob(wrong).Load(&file); err == nil || !strings.Contains(err.Error(), "wants pointers") {
			t.Errorf("%T: %v", wrong, err)
		}
	}
}

func TestAWriteThatIsEnded(t *testing.T) {
	s := snapshots{folder: t.TempDir()}
	all := make([]byte, 5*pieceBytes)
	s.ended.Store(true)
	if result := s.write("1.1.0.part", 1, func(w io.Writer) error { return s.writeCopied(w, all) }); !strings.Contains(result.Error, errWriteEnded.Error()) {
		t.Errorf("got %+v", result)
	}
	if left, _ := os.ReadDir(s.folder); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// The copy is of its step, whatever the state becomes while it is written.
func TestTheCopyIsOfItsStep(t *testing.T) {
	s := snapshots{folder: t.TempDir()}
	state := &weights{Bias: 1}
	told := make(chan wire.Snapshot, 1)
	h := header{Format: snapshotFormat, Step: 4}
	pieces := []piece{{name: "4.1.0.part", fill: func(w io.Writer) error { return writeSnapshot(w, h, Gob(state)) }}}
	s.later(4, pieces, func(m wire.Snapshot) { told <- m })
	state.Bias = 2
	s.flush()
	message := <-told
	file, err := os.Open(filepath.Join(s.folder, message.File))
	if err != nil {
		t.Fatal(errors.Join(err, errors.New(message.Error)))
	}
	defer func() { _ = file.Close() }()
	info, _ := file.Stat()
	if uint64(info.Size()) != message.Bytes {
		t.Errorf("%d bytes were announced, %d are there", message.Bytes, info.Size())
	}
	whole := message.Bytes
	if size := message.Size; size == nil || *size != (wire.Size{State: whole, Own: whole, Written: whole}) {
		t.Errorf("a state of %d bytes is told as %+v", whole, message.Size)
	}
	again := []piece{{name: "4.2.0.part", fill: pieces[0].fill}}
	if message := s.now(4, again); message.Size == nil || message.Size.State == 0 || message.Size.Written > 0 {
		t.Errorf("at a barrier it is told as %+v", message.Size)
	}
	s.folder = filepath.Join(s.folder, "none")
	s.later(5, pieces, func(m wire.Snapshot) { told <- m })
	s.flush()
	if message := <-told; message.Error == "" || message.Size == nil || message.Size.State < whole/2 {
		t.Errorf("of one that cannot be written is told %+v, of %+v", message, message.Size)
	}
	var got weights
	if err := readSnapshot(file, h, Gob(&got)); err != nil || got.Bias != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// Of a state in shards each process tells what all of them have together, and what each has beside its shard.
func TestTheSizeOfAStateInShards(t *testing.T) {
	s := snapshots{folder: t.TempDir()}
	of := func(bytes int) func(io.Writer) error {
		return func(w io.Writer) error {
			_, err := w.Write(make([]byte, bytes))
			return err
		}
	}
	pieces := []piece{
		{key: "r1.4.0123456789abcdef", name: "own", fill: of(10)},
		{key: "d1.4.0123456789abcdef", name: "shard", fill: of(1000)},
	}
	want := wire.Size{State: 4010, Own: 10, Shards: 4000, Written: 1010}
	if message := s.now(1, pieces); message.Size == nil || *message.Size != want {
		t.Errorf("%+v, told as %+v", message, message.Size)
	}
	told := make(chan wire.Snapshot, 1)
	s.folder = filepath.Join(s.folder, "none")
	s.later(2, pieces, func(m wire.Snapshot) { told <- m })
	s.flush()
	if message := <-told; message.Error == "" || message.Size == nil || *message.Size != want {
		t.Errorf("of one that cannot be written is told %+v, of %+v", message, message.Size)
	}
}
