package storage

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/internal/checkpoint"
)

// Whatever is sent and however often the rate changes: what goes is never more than one piece ahead of what the rates of
// the time allow, and what has waited for as long as that takes goes.
func TestPace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const largest = 8 << 20
		now := time.Unix(1e9, 0)
		p := newPace(func() time.Time { return now })
		rates := rapid.OneOf(rapid.Just(uint64(0)), rapid.Uint64Range(1, 64<<20), rapid.Just(uint64(1<<63)))
		rate := uint64(0)
		ahead := 0.0 // bytes sent that time has not paid for
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				if rate = rates.Draw(t, "rate"); rate == 0 {
					ahead = 0
				}
				p.set(rate)
			case 1:
				passed := time.Duration(rapid.Int64Range(0, int64(10*time.Second)).Draw(t, "time"))
				now = now.Add(passed)
				ahead = max(0, ahead-passed.Seconds()*float64(rate))
			default:
				bytes := rapid.IntRange(0, largest).Draw(t, "bytes")
				left, _ := p.take(bytes)
				if left > 0 {
					if owed := ahead / float64(rate); left.Seconds() > owed*1.001+1e-6 {
						t.Fatalf("%.0f bytes are owed at %d a second, and it waits for %s", ahead, rate, left)
					}
					continue
				}
				if ahead > 2 {
					t.Fatalf("it goes with %.0f bytes not paid for, at %d a second", ahead, rate)
				}
				if rate > 0 {
					ahead += float64(bytes)
				}
			}
		}
	})
}

// paced is a bucket that notes when pieces come.
type paced struct {
	mu      sync.Mutex
	objects map[string][]byte
	began   time.Time
	pieces  []time.Duration
	fails   int
}

func (b *paced) create(_ context.Context, key string, data []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(data) == pieceBytes {
		b.pieces = append(b.pieces, time.Since(b.began))
		if b.fails > 0 {
			b.fails--
			return errors.New("not now")
		}
	}
	b.objects[key] = data
	return nil
}

func (b *paced) open(_ context.Context, key string) (io.ReadCloser, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	data, ok := b.objects[key]
	if !ok {
		return nil, ErrNotFound
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

func (b *paced) list(_ context.Context, _ string, yield func(object) error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, data := range b.objects {
		if err := yield(object{key, int64(len(data)), b.began}); err != nil {
			return err
		}
	}
	return nil
}

func (b *paced) remove(context.Context, string) error { return nil }
func (b *paced) close() error                         { return nil }

// state is one file of so many pieces that differ.
func state(pieces int) []File {
	data := make([]byte, pieces*pieceBytes)
	for i := range pieces {
		data[i*pieceBytes] = byte(i + 1)
	}
	hash := checkpoint.NewHasher()
	_, _ = hash.Write(data)
	return []File{{"state", bytes.NewReader(data), checkpoint.Snapshot{Bytes: uint64(len(data)), Hash: hash.Sum()}}}
}

func inBubble(t *testing.T, test func(*testing.T, *Storage, *paced, func() error)) {
	t.Helper()
	files := state(5)
	synctest.Test(t, func(t *testing.T) {
		b := &paced{objects: map[string][]byte{}, began: time.Now()}
		s := &Storage{b, patience, newPace(time.Now)}
		test(t, s, b, func() error {
			return s.Save(t.Context(), Place{Job: Job{"team", "llama", "uid"}, Attempt: 1, ID: checkpoint.ID{Round: 1, Step: 1}}, files)
		})
	})
}

func TestASaveIsHeldBack(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Storage, b *paced, save func() error) {
		s.Limit(pieceBytes / 10)
		if err := save(); err != nil {
			t.Fatal(err)
		}
		for i, at := range b.pieces {
			if want := time.Duration(i) * 10 * time.Second; (at - want).Abs() > time.Millisecond {
				t.Errorf("piece %d goes after %s, and is due after %s", i, at, want)
			}
		}
		if len(b.pieces) != 5 {
			t.Errorf("%d pieces", len(b.pieces))
		}
	})
}

// The rate changes while a save runs whose next piece was to wait for a year.
func TestARateThatChangesInARunningSave(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Storage, b *paced, save func() error) {
		s.Limit(1)
		var err error
		go func() { err = save() }()
		synctest.Wait()
		if len(b.pieces) != 1 {
			t.Fatalf("%d pieces at once", len(b.pieces))
		}
		s.Limit(pieceBytes)
		synctest.Wait()
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		if len(b.pieces) != 2 || (b.pieces[1]-time.Second).Abs() > time.Millisecond {
			t.Fatalf("what was owed is owed at the new rate, and pieces go after %v", b.pieces)
		}
		s.Limit(0)
		synctest.Wait()
		if len(b.pieces) != 5 || time.Since(b.began) != 1500*time.Millisecond {
			t.Errorf("without a rate pieces go after %v", b.pieces)
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// A piece that is sent again costs as much again, and a save that is ended waits no longer.
func TestWhatIsSentAgainCounts(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Storage, b *paced, save func() error) {
		s.Limit(pieceBytes / 100)
		b.fails = 1
		if err := save(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(b.began); len(b.pieces) != 6 || (took-500*time.Second).Abs() > time.Millisecond {
			t.Errorf("%d pieces in %s", len(b.pieces), took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if err := s.pace.wait(ctx, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("who is ended gets %v", err)
		}
	})
}
