package elastic

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/concertina-dev/concertina/internal/agent/wire"
)

// A snapshot is due in steps whose number is a multiple of the smallest power of two for which so many
// steps take longer than the interval.
func TestWhenASnapshotIsDue(t *testing.T) {
	for name, row := range map[string]struct {
		interval, held time.Duration
		// pace is how long a step takes.
		pace     func(step uint64) time.Duration
		from, to uint64
		want     []uint64
	}{
		"128 steps of 10 ms are longer than 1 s": {
			time.Second, 0, func(uint64) time.Duration { return 10 * time.Millisecond }, 0, 400, []uint64{128, 256, 384},
		},
		"as long is not longer": {
			640 * time.Millisecond, 0, func(uint64) time.Duration { return 10 * time.Millisecond }, 100, 300, []uint64{128, 256},
		},
		"steps longer than the interval": {
			time.Second, 0, func(uint64) time.Duration { return time.Minute }, 5, 9, []uint64{6, 7, 8, 9},
		},
		"auto is a hundred times what the last one took": {
			0, 20 * time.Millisecond, func(uint64) time.Duration { return 600 * time.Millisecond }, 0, 13, []uint64{4, 8, 12},
		},
		"auto before the first one": {
			0, 0, func(uint64) time.Duration { return 20 * time.Millisecond }, 0, 3, []uint64{1, 2, 3},
		},
		"auto is not more often than every second": {
			0, time.Microsecond, func(uint64) time.Duration { return 20 * time.Millisecond }, 0, 200, []uint64{64, 128, 192},
		},
		"a few quick steps, and then slow ones": {
			time.Second, 0, func(step uint64) time.Duration {
				if step <= 10 {
					return time.Microsecond
				}
				return 300 * time.Millisecond
			}, 0, 30, []uint64{16, 24, 28},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshots{interval: row.interval, held: row.held}
			now := time.Unix(1000, 0)
			s.start(row.from, now)
			var got []uint64
			for step := row.from + 1; step <= row.to; step++ {
				now = now.Add(row.pace(step))
				if step&(s.every-1) == 0 && s.due(step, now) {
					got = append(got, step)
				}
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
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
	s.copied.Write(make([]byte, 5*pieceBytes))
	s.ended.Store(true)
	if result := s.write("1.1.0.part", 1, s.writeCopied); !strings.Contains(result.Error, errWriteEnded.Error()) {
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
	s.later("4.1.0.part", h, Gob(state), func(m wire.Snapshot) { told <- m })
	state.Bias = 2
	s.flush()
	message := <-told
	file, err := os.Open(filepath.Join(s.folder, message.File))
	if err != nil {
		t.Fatal(errors.Join(err, errors.New(message.Error)))
	}
	defer func() { _ = file.Close() }()
	if info, _ := file.Stat(); uint64(info.Size()) != message.Bytes {
		t.Errorf("%d bytes were announced, %d are there", message.Bytes, info.Size())
	}
	var got weights
	if err := readSnapshot(file, h, Gob(&got)); err != nil || got.Bias != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}
