package checkpoint

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/concertina-dev/concertina/internal/ticket"
)

// key is that of one of 9 shares.
func key(i int) string { return fmt.Sprintf("s%d.9.0123456789abcdef", i) }

// parts puts several parts of a state into stores of their own, and returns who has them.
func parts(t *testing.T, id ID, copies int, sizes ...int) (want []Wanted, contents [][]byte, stores []*Store) {
	t.Helper()
	holders := make([]Holder, len(sizes))
	for range sizes {
		stores = append(stores, open(t, 1))
	}
	for i, store := range stores {
		_, holders[i] = serve(t, store)
	}
	for i, size := range sizes {
		data := content(uint64(i), size)
		part := id
		part.Part = key(i)
		w := Wanted{}
		for c := range copies {
			at := (i + c) % len(stores)
			w.Snapshot = put(t, stores[at], part, data)
			w.Holders = append(w.Holders, holders[at])
		}
		with(w.Snapshot, w.Holders...)
		want, contents = append(want, w), append(contents, data)
	}
	return want, contents, stores
}

func check(t *testing.T, store *Store, want []Wanted, contents [][]byte) {
	t.Helper()
	for i := range want {
		got, err := os.ReadFile(store.path(want[i].ID))
		if err != nil || !bytes.Equal(got, contents[i]) {
			t.Errorf("part %d has %d bytes that are not those of %d: %v", i, len(got), len(contents[i]), err)
		}
	}
}

func TestPartsAreGathered(t *testing.T) {
	want, contents, _ := parts(t, ID{Round: 2, Step: 7}, 1, 3<<20, 0, 1, 5<<20+3)
	store := open(t, 1)
	if err := store.Fetch(t.Context(), fetcher, want...); err != nil {
		t.Fatal(err)
	}
	check(t, store, want, contents)
	if left := files(t, store); len(left) != len(want) {
		t.Errorf("there are %v", left)
	}
}

// What has come stays: it need not come again. What has not is told of.
func TestAPartThatNobodyHas(t *testing.T) {
	want, contents, stores := parts(t, ID{Round: 2, Step: 7}, 1, 1<<20, 2<<20)
	if err := stores[1].Retain(func(ID) bool { return false }); err != nil {
		t.Fatal(err)
	}
	store := open(t, 1)
	for range 2 {
		err := store.Fetch(t.Context(), fetcher, want...)
		if err == nil || !strings.Contains(err.Error(), "2-7."+key(1)) || !strings.Contains(err.Error(), "does not hold") {
			t.Errorf("%v", err)
		}
		if diff := cmp.Diff([]string{key(1)}, LackedIn(err)); diff != "" {
			t.Error(diff)
		}
	}
	check(t, store, want[:1], contents)
	if diff := cmp.Diff([]string{"2-7." + key(0)}, files(t, store)); diff != "" {
		t.Error(diff)
	}
}

// A large file comes from all who have it, and a block that comes altered is asked for again alone.
func TestPiecesComeFromSeveralHolders(t *testing.T) {
	const size = 3*pieceBlocks<<20 + 5
	id := ID{Round: 1, Step: 9}
	data := content(9, size)
	good, bad := open(t, 1), open(t, 1)
	want := put(t, good, id, data)
	put(t, bad, id, data)
	// One bit is another than it was when it came.
	file, err := os.OpenFile(bad.path(id), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range []int64{0, 35, 66} {
		if _, err := file.WriteAt([]byte{^data[block<<20]}, block<<20); err != nil {
			t.Fatal(err)
		}
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	_, one := serve(t, good)
	_, other := serve(t, bad)
	store := open(t, 1)
	if err := store.Fetch(t.Context(), fetcher, Wanted{Snapshot: want, Holders: with(want, one, other)}); err != nil {
		t.Fatal(err)
	}
	check(t, store, []Wanted{{Snapshot: want}}, [][]byte{data})
}

// Each holder gives some of a file: nobody is asked for all of it.
func TestTheLoadIsShared(t *testing.T) {
	const size = 4 * pieceBlocks << 20
	id := ID{Round: 1, Step: 9}
	store := open(t, 1)
	want := put(t, store, id, content(3, size))
	// Both wait for each other: neither can be the only one that is asked.
	var first sync.WaitGroup
	first.Add(2)
	var given [2]atomic.Int64
	var holders []Holder
	for i := range given {
		identity := newIdentity()
		server, err := Serve(store, "127.0.0.1:0", identity, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = server.Close() })
		server.SetKey(1, ticket.KeyOf(secret, identity.Sum()))
		inner := server.http.Handler
		server.http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if given[i].Add(1) == 1 {
				first.Done()
				first.Wait()
			}
			inner.ServeHTTP(w, r)
		})
		holders = append(holders, Holder{Address: "127.0.0.1", Port: server.Port(), Certificate: identity.Sum()})
	}
	if err := open(t, 1).Fetch(t.Context(), fetcher, Wanted{Snapshot: want, Holders: with(want, holders...)}); err != nil {
		t.Fatal(err)
	}
	if total := given[0].Load() + given[1].Load(); total != 4 {
		t.Errorf("%d pieces were asked for", total)
	}
}

// The state that the job relies on stays, however many newer ones come of which others have nothing; and what others gave
// goes once something newer has come.
func TestTrimKeepsWhatIsReliedOn(t *testing.T) {
	store := open(t, 2)
	step := func(n uint64) ID { return ID{Round: 1, Step: n, Part: key(0)} }
	for n := uint64(1); n < 5; n++ {
		put(t, store, step(n), content(n, 10))
		if n == 1 {
			store.Rely(step(1).State())
		}
		if err := store.Trim(false); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"1-1." + key(0), "1-4." + key(0)}, files(t, store)); diff != "" {
		t.Error(diff)
	}
	want, _, _ := parts(t, ID{Round: 1, Step: 4}, 1, 10, 20, 30)
	want[0].Snapshot = store.List()[0]
	if err := store.Fetch(t.Context(), fetcher, want...); err != nil {
		t.Fatal(err)
	}
	if err := store.Trim(false); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"1-1." + key(0), "1-4." + key(0), "1-4." + key(1), "1-4." + key(2)}, files(t, store)); diff != "" {
		t.Error(diff)
	}
	put(t, store, step(5), content(5, 10))
	if err := store.Trim(false); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"1-1." + key(0), "1-5." + key(0)}, files(t, store)); diff != "" {
		t.Error(diff)
	}
}

// A state that was evaluated well stays until it is its turn to be uploaded, beside those that a loss may need.
func TestTrimKeepsWhatIsScored(t *testing.T) {
	store := open(t, 2)
	for n := uint64(1); n < 8; n++ {
		put(t, store, ID{Round: 1, Step: n}, content(n, 10))
		switch n {
		case 2:
			store.Scored(ID{Round: 1, Step: 2})
		case 4:
			store.Rely(ID{Round: 1, Step: 4})
		}
		if err := store.Trim(false); err != nil {
			t.Fatal(err)
		}
		if n == 3 {
			if diff := cmp.Diff([]string{"1-1", "1-2", "1-3"}, files(t, store)); diff != "" {
				t.Error(diff)
			}
		}
	}
	if diff := cmp.Diff([]string{"1-2", "1-4", "1-7"}, files(t, store)); diff != "" {
		t.Error(diff)
	}
	store.Scored(ID{})
	if err := store.Trim(false); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"1-4", "1-7"}, files(t, store)); diff != "" {
		t.Error(diff)
	}
}

// broken is a connection that breaks off after so many bytes.
type broken struct {
	net.Conn
	left int
}

func (b *broken) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := b.Conn.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// Of a holder that breaks off it is told whether something came from it.
func TestWhatCameBeforeItBrokeOff(t *testing.T) {
	for name, row := range map[string]struct {
		bytes int
		gave  bool
	}{"after two of three blocks": {5 << 19, true}, "at once": {0, false}} {
		t.Run(name, func(t *testing.T) {
			holding, store := open(t, 1), open(t, 1)
			want := put(t, holding, ID{Round: 1, Step: 9}, content(3, 3<<20))
			_, holder := serve(t, holding)
			store.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
				return &broken{conn, row.bytes}, err
			}
			err := store.Fetch(t.Context(), fetcher, Wanted{Snapshot: want, Holders: with(want, holder)})
			left := UnreachedIn(err)
			if len(left) != 1 || left[0].Gave != row.gave || MovedIn(err) != row.gave {
				t.Errorf("unreached are %+v, and it has moved: %v (%v)", left, MovedIn(err), err)
			}
		})
	}
}
