package snapshots

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/share"
	"github.com/concertina-dev/concertina/internal/ticket"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type fixture struct {
	*Keeper
	t       *testing.T
	changed chan struct{}

	mu    sync.Mutex
	notes []string
}

func open(t *testing.T, folder string) *fixture {
	t.Helper()
	f := &fixture{t: t, changed: make(chan struct{}, 100)}
	var err error
	f.Keeper, err = Open(folder, "127.0.0.1", func(format string, arguments ...any) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.notes = append(f.notes, fmt.Sprintf(format, arguments...))
	}, func() { f.changed <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// take has a program write a snapshot and waits until it is taken over, or refused.
func (f *fixture) take(round, step uint64) {
	f.t.Helper()
	name := fmt.Sprintf("%d-%d.part", round, step)
	if err := os.WriteFile(filepath.Join(f.Folder(), name), []byte(name), 0o600); err != nil {
		f.t.Fatal(err)
	}
	f.Take(round, step, []File{{Name: name, Bytes: uint64(len(name))}}, false)
	f.settled()
}

// settled waits until all that was asked for is done.
func (f *fixture) settled() {
	f.t.Helper()
	done := make(chan struct{})
	f.do(func() { close(done) })
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		f.t.Fatal("the keeper is stuck")
	}
}

func (f *fixture) holds(want ...checkpoint.ID) {
	f.t.Helper()
	var got []checkpoint.ID
	for _, snapshot := range f.List() {
		got = append(got, snapshot.ID)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		f.t.Errorf("held (-want +got):\n%s", diff)
	}
	entries, err := os.ReadDir(f.Folder())
	if err != nil || len(entries) != len(want) {
		f.t.Errorf("the folder has %v, %v; want %v", entries, err, want)
	}
}

func id(round, step uint64) checkpoint.ID { return checkpoint.ID{Round: round, Step: step} }

func TestWhatBelongsToTheHistoryStays(t *testing.T) {
	f := open(t, t.TempDir())
	f.Enter(1, 0, false, nil)
	f.take(1, 4)
	f.take(1, 8)
	f.holds(id(1, 8), id(1, 4))

	// Back to step 4: what came after it has never been.
	f.Enter(2, 4, true, &checkpoint.ID{Round: 1, Step: 4})
	f.settled()
	f.holds(id(1, 4))
	f.take(2, 8)
	f.holds(id(2, 8), id(1, 4))

	// A file that was written in a world that is over is not taken, and pushes nothing out.
	f.Enter(3, 9, true, nil)
	f.take(2, 12)
	f.holds(id(2, 8), id(1, 4))

	// Another history: only what it begins with counts.
	f.Enter(7, 8, false, &checkpoint.ID{Round: 2, Step: 8})
	f.settled()
	f.holds(id(2, 8))

	// But what a process has from before may count as well.
	f.Keep(3, 7)
	f.take(3, 8)
	f.take(3, 7)
	f.take(2, 7)
	f.holds(id(3, 7), id(2, 8))
}

// A program that writes faster than its files are read leaves the newest to be taken over, and nothing else.
func TestAProgramThatWritesFast(t *testing.T) {
	f := open(t, t.TempDir())
	f.Enter(1, 0, false, nil)
	f.settled()
	reading, goOn := make(chan struct{}), make(chan struct{})
	f.do(func() { close(reading); <-goOn })
	<-reading
	const steps = 40
	for step := uint64(1); step <= steps; step++ {
		name := fmt.Sprintf("%d.part", step)
		if err := os.WriteFile(filepath.Join(f.Folder(), name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
		f.Take(1, step, []File{{Name: name, Bytes: uint64(len(name))}}, false)
	}
	if entries, err := os.ReadDir(f.Folder()); err != nil || len(entries) != 1 {
		t.Errorf("%d files wait (%v)", len(entries), err)
	}
	close(goOn)
	f.settled()
	f.holds(id(1, steps))
}

// Where several processes write, and one is behind, what it has of an earlier state does not push out a newer one that waits.
func TestAProcessThatIsBehind(t *testing.T) {
	f := open(t, t.TempDir())
	f.Enter(1, 0, false, nil)
	f.settled()
	reading, goOn := make(chan struct{}), make(chan struct{})
	f.do(func() { close(reading); <-goOn })
	<-reading
	write := func(step uint64, part string) {
		name := fmt.Sprintf("%d-%s.part", step, part)
		if err := os.WriteFile(filepath.Join(f.Folder(), name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
		f.Take(1, step, []File{{Part: part, Name: name, Bytes: uint64(len(name))}}, false)
	}
	const first, second = "d0.2.0123456789abcdef", "d1.2.0123456789abcdef"
	write(10, first)
	write(11, first)
	write(10, second)
	write(11, second)
	close(goOn)
	f.settled()
	for _, part := range []string{first, second} {
		if f.Path(checkpoint.ID{Round: 1, Step: 11, Part: part}) == "" {
			t.Errorf("%s of step 11 is not held: %v", part, f.List())
		}
	}
	if entries, err := os.ReadDir(f.Folder()); err != nil || len(entries) != 2 {
		t.Errorf("%d files are there (%v)", len(entries), err)
	}
}

// A file that cannot be taken over leaves no more of the others behind than one that can.
func TestWhatCameBeforeAFailureIsTrimmed(t *testing.T) {
	f := open(t, t.TempDir())
	f.Enter(1, 0, false, nil)
	for step := uint64(1); step <= 5; step++ {
		name := fmt.Sprintf("%d.part", step)
		if err := os.WriteFile(filepath.Join(f.Folder(), name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		f.Take(1, step, []File{{Part: "s0.2.0123456789abcdef", Name: name}, {Part: "s1.2.0123456789abcdef", Name: "none.part"}}, false)
		f.settled()
	}
	if held := f.List(); len(held) != keep {
		t.Errorf("%d parts of states that are not whole are held", len(held))
	}
}

func TestFailures(t *testing.T) {
	f := open(t, t.TempDir())
	f.Enter(1, 0, false, nil)
	if !f.Ask(4) {
		t.Error("there is no place for a snapshot")
	}
	f.Failed(3, "periodic")
	if got := f.Failure(); got != "" {
		t.Errorf("what nobody asked for has failed: %s", got)
	}
	f.Failed(4, "no space left on device")
	f.Failed(4, "no space left on device")
	if got := f.Failure(); got != "no space left on device" {
		t.Errorf("failure %q", got)
	}
	f.mu.Lock()
	if len(f.notes) != 2 {
		t.Errorf("the log has %q", f.notes)
	}
	f.mu.Unlock()
	f.Ask(4)
	f.Take(1, 4, []File{{Name: "../escape.part", Bytes: 1}}, false)
	f.settled()
	if got := f.Failure(); !strings.Contains(got, "escape.part") {
		t.Errorf("failure %q", got)
	}
	f.Enter(2, 4, true, nil)
	if got := f.Failure(); got != "" {
		t.Errorf("the next world begins with the failure %s", got)
	}
}

func TestTheSizeOfTheState(t *testing.T) {
	f := open(t, t.TempDir())
	is := func(want share.Size) {
		t.Helper()
		if got := f.Size(); got != want {
			t.Errorf("the size is %+v, and not %+v", got, want)
		}
	}
	is(share.Size{})
	f.Enter(1, 0, false, nil)
	f.Measured(0, 1, share.Size{State: 100, Own: 10, Written: 60})
	is(share.Size{State: 100, Own: 10, Written: 60})
	f.Measured(0, 1, share.Size{State: 120, Own: 10}) // at a barrier
	is(share.Size{State: 120, Own: 10, Written: 60})
	f.Enter(2, 4, true, nil)
	is(share.Size{State: 120, Own: 10}) // others write as much beside it
	f.Measured(0, 1, share.Size{State: 130, Own: 10, Written: 60})
	is(share.Size{State: 130, Own: 10})
	f.Measured(0, 2, share.Size{State: 100, Own: 10, Written: 20})
	for slot := range 8 { // the processes of one worker, and the first twice
		f.Measured(slot, 2, share.Size{State: 100 + uint64(slot), Own: 10 * uint64(slot%2), Written: 100})
	}
	f.Measured(0, 2, share.Size{State: 100, Own: 10, Written: 100})
	is(share.Size{State: 107, Own: 10, Written: 800})
	f.Measured(5, 2, share.Size{State: 100, Own: 10}) // at a barrier
	is(share.Size{State: 107, Own: 10, Written: 800})
	f.Enter(3, 4, true, nil)
	is(share.Size{State: 107, Own: 10})
	f.Measured(5, 3, share.Size{State: 100, Own: 10, Written: 30})
	is(share.Size{State: 107, Own: 10, Written: 30})
	f.Measured(0, 3, share.Size{State: math.MaxUint64, Own: math.MaxUint64, Written: math.MaxUint64})
	if got := f.Size(); got != got.Bounded() {
		t.Errorf("a program may say that its state has %+v", got)
	}
}

func TestAProcessKnowsMoreThanACheckpoint(t *testing.T) {
	f := open(t, t.TempDir())
	f.Announced(share.Size{State: 1000, Own: 500})
	if got := f.Size(); got != (share.Size{State: 1000, Own: 500}) {
		t.Errorf("of a checkpoint the size is %+v", got)
	}
	f.Measured(0, 1, share.Size{State: 100, Own: 10})
	if got := f.Size(); got != (share.Size{State: 100, Own: 10}) {
		t.Errorf("of a process the size is %+v", got)
	}
}

// holding makes two keepers of one job, of which the first holds the snapshot 1-4, and what to ask it for.
func holding(t *testing.T) (holder, other *fixture, want checkpoint.Snapshot, at []checkpoint.Holder) {
	t.Helper()
	holder, other = open(t, t.TempDir()), open(t, t.TempDir())
	for _, f := range []*fixture{holder, other} {
		_, sum := f.Endpoint()
		f.Trust(1, ticket.KeyOf(secret, [32]byte(sum)))
		f.Enter(1, 0, false, nil)
	}
	holder.take(1, 4)
	port, sum := holder.Endpoint()
	at = []checkpoint.Holder{{Address: "127.0.0.1", Port: port, Certificate: [32]byte(sum)}}
	_, fetcher := other.Endpoint()
	at[0].Ticket = ticket.Issue(ticket.KeyOf(secret, at[0].Certificate), 1,
		ticket.Grant{Fetcher: [32]byte(fetcher), Round: 1, Step: 4}, time.Now().Add(time.Hour))
	return holder, other, holder.List()[0], at
}

// from is one file, of these holders.
func from(want checkpoint.Snapshot, at []checkpoint.Holder) []checkpoint.Wanted {
	return []checkpoint.Wanted{{Snapshot: want, Holders: at}}
}

var secret = []byte("a secret of the operator")

func TestFetchFromAPeer(t *testing.T) {
	_, other, want, at := holding(t)
	other.Enter(2, 4, false, &want.ID)
	done := make(chan error, 2)
	other.Fetch(from(want, at), func(err error) { done <- err })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(other.Path(want.ID)); err != nil || string(text) != "1-4.part" {
		t.Errorf("fetched %q, %v", text, err)
	}
	other.holds(want.ID)
	missing := want
	missing.Step = 5 // there is no ticket for that
	other.Fetch(from(missing, at), func(err error) { done <- err })
	if err := <-done; err == nil || !strings.Contains(err.Error(), "fetch snapshot 1-5") {
		t.Errorf("got %v", err)
	}
}

// What was fetched ahead is there when the world comes, and is not fetched again.
func TestFetchAhead(t *testing.T) {
	holder, other, want, at := holding(t)
	other.FetchAhead(from(want, at))
	other.Enter(2, 4, false, &want.ID)
	other.awaits(want.ID)
	holder.Trust(1, []byte("another")) // nobody gets anything from it any more
	done := make(chan error, 1)
	other.Fetch(from(want, at), func(err error) { done <- err })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	other.settled()
	other.holds(want.ID)
}

// One that was fetched ahead in vain is tried again, from those that the world names.
func TestFetchAheadInVain(t *testing.T) {
	_, other, want, at := holding(t)
	other.FetchAhead(from(want, nil))
	other.Enter(2, 4, false, &want.ID)
	done := make(chan error, 1)
	other.Fetch(from(want, at), func(err error) { done <- err })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	other.holds(want.ID)
}

// A world that begins with another snapshot, or none, ends what was fetched ahead.
func TestFetchAheadForAnotherWorld(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	f := open(t, t.TempDir())
	f.Trust(1, []byte("a key"))
	f.FetchAhead(from(checkpoint.Snapshot{ID: id(1, 4), Bytes: 1}, []checkpoint.Holder{{
		Address: "127.0.0.1", Port: silent.Addr().(*net.TCPAddr).Port,
	}}))
	f.mu.Lock()
	ahead := f.fetches[0]
	f.mu.Unlock()
	conn, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	f.Enter(2, 5, false, &checkpoint.ID{Round: 1, Step: 5})
	<-ahead.done
	if cause := context.Cause(ahead.ctx); cause == nil || cause.Error() != "another world has begun" {
		t.Errorf("the fetch has ended with %v", cause)
	}
}

func TestNoMemory(t *testing.T) {
	f := open(t, "")
	f.Trust(1, []byte("a key"))
	f.Enter(1, 0, false, nil)
	if f.Folder() != "" || f.List() != nil || f.Path(id(1, 1)) != "" {
		t.Error("a worker without memory offers snapshots")
	}
	if f.Ask(4) || f.Failure() == "" {
		t.Error("a worker without memory takes a snapshot")
	}
	f.Take(1, 4, []File{{Name: "x.part", Bytes: 1}}, false)
	done := make(chan error, 1)
	f.Fetch(from(checkpoint.Snapshot{ID: id(1, 1)}, nil), func(err error) { done <- err })
	if err := <-done; !errors.Is(err, errNoMemory) {
		t.Errorf("got %v", err)
	}
	// Others see all the same that this agent is there.
	port, sum := f.Endpoint()
	at := checkpoint.Holder{Address: "127.0.0.1", Port: port, Certificate: [32]byte(sum)}
	if err := open(t, "").Reach(t.Context(), at); err != nil {
		t.Error(err)
	}
}

func TestAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h history
		round, from := uint64(0), uint64(0)
		for range rapid.IntRange(1, 100).Draw(t, "worlds") {
			before := h
			round += rapid.Uint64Range(1, 2).Draw(t, "rounds")
			from = rapid.Uint64Range(0, 20).Draw(t, "from")
			continues := rapid.Bool().Draw(t, "continues")
			h = h.enter(round, from, continues, nil)
			for r := uint64(1); r < round; r++ {
				for step := range uint64(25) {
					if h.holds(id(r, step)) && (!continues || step > from || !before.holds(id(r, step))) {
						t.Fatalf("round %d from step %d holds %d-%d", round, from, r, step)
					}
				}
			}
			if !h.holds(id(round, 1<<40)) || len(h.spans) > maxSpans {
				t.Fatalf("history %+v", h)
			}
		}
	})
}
