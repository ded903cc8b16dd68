package checkpoint

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/internal/ticket"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var secret = []byte("the secret of this term")

func open(t testing.TB, keep int) *Store {
	t.Helper()
	store, err := Open(filepath.Join(t.TempDir(), "memory", "snapshots"), keep)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func content(seed uint64, size int) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	all := make([]byte, size)
	_, _ = rand.NewChaCha8(key).Read(all) // never fails
	return all
}

// sum is the hash of a file, computed the plain way.
func sum(p []byte) Hash {
	var blocks []byte
	for block := range slices.Chunk(p, 1<<20) {
		hash := sha256.Sum256(block)
		blocks = append(blocks, hash[:]...)
	}
	return sha256.Sum256(blocks)
}

// put makes a snapshot of the content in the store.
func put(t testing.TB, store *Store, id ID, data []byte) Snapshot {
	t.Helper()
	part := id.String() + ".w.part"
	if err := os.WriteFile(filepath.Join(store.Directory(), part), data, 0o600); err != nil {
		t.Fatal(err)
	}
	snapshot, err := store.Take(id, part, uint64(len(data)))
	if err := errors.Join(err, store.Trim(false)); err != nil {
		t.Fatal(err)
	}
	return snapshot
}

func serve(t testing.TB, store *Store) (*Server, Holder) {
	t.Helper()
	identity := newIdentity()
	server, err := Serve(store, "127.0.0.1:0", identity, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	server.SetKey(1, ticket.KeyOf(secret, identity.Sum()))
	return server, Holder{Address: "127.0.0.1", Port: server.Port(), Certificate: identity.Sum()}
}

// fetcher is the worker that gets snapshots in these tests.
var fetcher = newIdentity()

func newIdentity() *Identity {
	identity, err := NewIdentity()
	if err != nil {
		panic(err)
	}
	return identity
}

// with gives holders the tickets of term 1 for a snapshot.
func with(want Snapshot, holders ...Holder) []Holder {
	for i := range holders {
		grant := ticket.Grant{Fetcher: fetcher.Sum(), Round: want.Round, Step: want.Step}
		holders[i].Ticket = ticket.Issue(ticket.KeyOf(secret, holders[i].Certificate), 1, grant, time.Now().Add(time.Hour))
	}
	return holders
}

// fetch has a store fetch one file; it returns its path.
func fetch(ctx context.Context, store *Store, want Snapshot, holders []Holder, identity *Identity) (string, error) {
	if err := store.Fetch(ctx, identity, Wanted{Snapshot: want, Holders: holders}); err != nil {
		return "", err
	}
	return store.path(want.ID), nil
}

func files(t testing.TB, store *Store) []string {
	t.Helper()
	entries, err := os.ReadDir(store.Directory())
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func TestTakeKeepsTheNewest(t *testing.T) {
	store := open(t, 2)
	want := put(t, store, ID{Round: 3, Step: 17}, []byte("123456789"))
	// Its SHA-256 is 15e2b0d3...8eb225, and this is that of these 32 bytes.
	if got := hex.EncodeToString(want.Hash[:]); want.ID != (ID{Round: 3, Step: 17}) || want.Bytes != 9 || got != "292b0d007566832db94bfae689cd70d1ab772811fd44b9f49d8550ee9ea6a494" {
		t.Errorf("it is %+v", want)
	}
	put(t, store, ID{Round: 3, Step: 16}, []byte("older"))
	newest := put(t, store, ID{Round: 4, Step: 12}, nil)
	if diff := cmp.Diff([]Snapshot{newest, want}, store.List()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"3-17", "4-12"}, files(t, store)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	path, ok := store.Path(ID{Round: 3, Step: 17})
	if data, err := os.ReadFile(path); !ok || err != nil || string(data) != "123456789" {
		t.Errorf("3-17 is %q at %s, %v, %v", data, path, ok, err)
	}
	if path, ok := store.Path(ID{Round: 3, Step: 16}); ok {
		t.Errorf("3-16 is at %s", path)
	}
}

// What has just come is not what is dropped, even if it is old.
func TestAnOldSnapshotThatComesStays(t *testing.T) {
	for keep, want := range map[int][]string{1: {"1-5"}, 2: {"1-5", "3-9"}} {
		store := open(t, keep)
		put(t, store, ID{Round: 2, Step: 7}, nil)
		put(t, store, ID{Round: 3, Step: 9}, nil)
		put(t, store, ID{Round: 1, Step: 5}, nil)
		if diff := cmp.Diff(want, files(t, store)); diff != "" {
			t.Errorf("keep %d (-want +got):\n%s", keep, diff)
		}
	}
}

// The state of which copies are being made stays, and so do copies of what others have alone, as long as their state does.
func TestCopiesStay(t *testing.T) {
	store, other := open(t, 2), open(t, 2)
	shard := put(t, other, ID{Round: 1, Step: 1, Part: "d1.2.0123456789abcdef"}, []byte("of another one"))
	_, holder := serve(t, other)
	store.Copy(shard.State())
	put(t, store, ID{Round: 1, Step: 1, Part: "d0.2.0123456789abcdef"}, []byte("its own"))
	if err := store.Fetch(t.Context(), fetcher, Wanted{Snapshot: shard, Holders: with(shard, holder)}); err != nil {
		t.Fatal(err)
	}
	for step := range uint64(3) {
		put(t, store, ID{Round: 1, Step: 2 + step, Part: "d0.2.0123456789abcdef"}, nil)
	}
	want := []string{
		"1-1.d0.2.0123456789abcdef", "1-1.d1.2.0123456789abcdef", "1-3.d0.2.0123456789abcdef", "1-4.d0.2.0123456789abcdef",
	}
	if diff := cmp.Diff(want, files(t, store)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	store.Copy(ID{})
	put(t, store, ID{Round: 1, Step: 5, Part: "d0.2.0123456789abcdef"}, nil)
	if left := files(t, store); len(left) != 2 {
		t.Errorf("left are %v", left)
	}
}

// Whatever is written in whatever pieces has the hash of the file that it becomes.
func TestHashes(t *testing.T) {
	data := content(7, 3*blockBytes+1000)
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.OneOf(
			rapid.IntRange(0, len(data)), rapid.SampledFrom([]int{0, 1, blockBytes - 1, blockBytes, blockBytes + 1, 3 * blockBytes}),
		).Draw(t, "size")
		file := data[:size]
		written := NewHasher()
		for rest := file; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			if _, err := written.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		read, err := HashOf(bytes.NewReader(file), int64(size))
		if want := sum(file); err != nil || read != want || written.Sum() != want {
			t.Fatalf("read %x (%v), written %x, want %x", read, err, written.Sum(), want)
		}
		if size > 0 {
			if _, err := HashOf(bytes.NewReader(file[:size-1]), int64(size)); !errors.Is(err, errCut) {
				t.Fatalf("a file that was cut: %v", err)
			}
		}
	})
}

// A holder that means harm can make a file of any size and CRC. What it serves is not taken all the same.
func TestAForgedSnapshotIsNotTaken(t *testing.T) {
	data := content(3, 1000)
	forged := slices.Clone(data)
	polynomial := uint64(1)<<32 | 0x1edc6f41 // of CRC-32C: adding it anywhere leaves the remainder as it is
	for bit := range 33 {
		forged[100+bit/8] ^= byte(polynomial>>(32-bit)&1) << (bit % 8)
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	if bytes.Equal(data, forged) || crc32.Checksum(data, table) != crc32.Checksum(forged, table) {
		t.Fatal("it is not forged")
	}
	want := put(t, open(t, 1), ID{Round: 3, Step: 17}, data)
	liar := open(t, 1)
	put(t, liar, ID{Round: 3, Step: 17}, forged)
	_, holder := serve(t, liar)
	to := open(t, 1)
	if path, err := fetch(t.Context(), to, want, with(want, holder), fetcher); err == nil {
		t.Errorf("%s was taken", path)
	}
	if left := files(t, to); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

func TestAnIDNamesOneState(t *testing.T) {
	store := open(t, 2)
	first := put(t, store, ID{Round: 1, Step: 8}, []byte("first"))
	if again := put(t, store, ID{Round: 1, Step: 8}, []byte("another")); again != first {
		t.Errorf("got %+v, want %+v", again, first)
	}
	if diff := cmp.Diff([]string{"1-8"}, files(t, store)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestFilesThatAreNotTaken(t *testing.T) {
	store := open(t, 2)
	dir := store.Directory()
	outside := filepath.Join(filepath.Dir(dir), "outside.part")
	for _, err := range []error{
		os.WriteFile(outside, []byte("secret"), 0o600),
		os.WriteFile(filepath.Join(dir, "short.part"), []byte("abc"), 0o600),
		os.WriteFile(filepath.Join(dir, "whole"), []byte("abc"), 0o600),
		os.Symlink(outside, filepath.Join(dir, "link.part")),
		os.Mkdir(filepath.Join(dir, "dir.part"), 0o700),
		syscall.Mkfifo(filepath.Join(dir, "pipe.part"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for part, want := range map[string]string{
		"short.part":      "has 3 bytes and 6 were announced",
		"whole":           "ends in .part",
		"../outside.part": "ends in .part",
		outside:           "ends in .part",
		"":                "ends in .part",
		"missing.part":    "no such file",
		"link.part":       "too many levels of symbolic links",
		"dir.part":        "no regular file",
		"pipe.part":       "no regular file",
	} {
		if _, err := store.Take(ID{Round: 1, Step: 1}, part, 6); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", part, err, want)
		}
	}
	if list := store.List(); len(list) > 0 {
		t.Errorf("the store holds %v", list)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Error(err)
	}
}

func TestOpenRemovesLeftoversAndTakesUpTheRest(t *testing.T) {
	dir := t.TempDir()
	for name, data := range map[string]string{
		"7.3.part": "half", "fetch-123.part": "half", "3-17": "123456789", "3-18": "x", "2-5": "old", "03-9": "odd", "notes": "n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	store, err := Open(dir, 2)
	if err != nil {
		t.Fatal(err)
	}
	want := []Snapshot{{ID{Round: 3, Step: 18}, 1, sum([]byte("x"))}, {ID{Round: 3, Step: 17}, 9, sum([]byte("123456789"))}}
	if diff := cmp.Diff(want, store.List()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"03-9", "3-17", "3-18", "notes"}, files(t, store)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestOpenThatFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file, 2); err == nil || !strings.Contains(err.Error(), "make the folder") {
		t.Errorf("a file for a folder: %v", err)
	}
	if _, err := Open(t.TempDir(), 0); err == nil {
		t.Error("a store that keeps nothing")
	}
	if _, err := Serve(open(t, 1), "192.0.2.1:1", fetcher, nil); err == nil || !strings.Contains(err.Error(), "listen") {
		t.Errorf("an address of another host: %v", err)
	}
}

func TestRetain(t *testing.T) {
	store := open(t, 5)
	for step := range uint64(4) {
		put(t, store, ID{Round: 1, Step: step}, nil)
	}
	// One that was taken away from outside is no error.
	if err := os.Remove(filepath.Join(store.Directory(), "1-3")); err != nil {
		t.Fatal(err)
	}
	if err := store.Retain(func(id ID) bool { return id.Step <= 1 }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"1-0", "1-1"}, files(t, store)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if n := len(store.List()); n != 2 {
		t.Errorf("%d snapshots are listed", n)
	}
}

func TestFetch(t *testing.T) {
	from, to := open(t, 2), open(t, 2)
	data := content(1, 3<<20+17)
	want := put(t, from, ID{Round: 3, Step: 17}, data)
	_, holder := serve(t, from)
	// Something with that name that is not it is replaced.
	put(t, to, ID{Round: 3, Step: 17}, []byte("damaged"))
	path, err := fetch(context.Background(), to, want, with(want, holder), fetcher)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the file differs: %v", err)
	}
	if diff := cmp.Diff([]Snapshot{want}, to.List()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	// Now it is held, and nobody is asked.
	if again, err := fetch(context.Background(), to, want, nil, nil); err != nil || again != path {
		t.Errorf("got %s, %v", again, err)
	}
}

// fake is a holder that answers what it likes.
func fake(t *testing.T, answer http.HandlerFunc) Holder {
	t.Helper()
	server := httptest.NewUnstartedServer(answer)
	server.StartTLS()
	t.Cleanup(server.Close)
	address := server.Listener.Addr().(*net.TCPAddr)
	return Holder{Address: address.IP.String(), Port: address.Port, Certificate: sha256.Sum256(server.Certificate().Raw)}
}

// announce answers with a length, -1 for none, and then sends what may be less.
func announce(length int, data []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if length >= 0 {
			w.Header().Set("Content-Length", strconv.Itoa(length))
		}
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write(data)
		w.(http.Flusher).Flush()
		if len(data) < length {
			panic(http.ErrAbortHandler)
		}
	}
}

func TestHoldersThatFailAndTheNextThatServes(t *testing.T) {
	data := content(2, 1<<20)
	good := open(t, 1)
	want := put(t, good, ID{Round: 2, Step: 9}, data)
	_, holder := serve(t, good)
	_, empty := serve(t, open(t, 1))
	stranger := holder
	stranger.Certificate[3] ^= 1
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := Holder{Address: "127.0.0.1", Port: nobody.Addr().(*net.TCPAddr).Port}
	_ = nobody.Close()
	wrong := bytes.Clone(data)
	wrong[777] ^= 4
	for name, row := range map[string]struct {
		holder    Holder
		want      string
		unreached bool
	}{
		"a flipped bit":     {fake(t, announce(len(wrong), wrong)), "have the hash " + fmt.Sprintf("%x", sum(wrong)), false},
		"another size":      {fake(t, announce(100, data[:100])), "a file of 100 bytes, and 1048576 are wanted", false},
		"no size":           {fake(t, announce(-1, data)), "a file of -1 bytes", false},
		"broken off":        {fake(t, announce(len(data), data[:1000])), "broke off after 1000 of 1048576 bytes", true},
		"no snapshot":       {empty, "404 Not Found: \"this worker does not hold snapshot 2-9\"", false},
		"other certificate": {stranger, "shows the certificate", true},
		"nobody there":      {gone, "connection refused", true},
	} {
		t.Run(name, func(t *testing.T) {
			store := open(t, 1)
			_, err := fetch(context.Background(), store, want, with(want, row.holder), fetcher)
			if err == nil || !strings.Contains(err.Error(), "from "+row.holder.String()+": ") || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, want %q", err, row.want)
			}
			if errors.Is(err, ErrUnreached) != row.unreached {
				t.Errorf("it is told that nobody was reached: %v", !row.unreached)
			}
			if left := UnreachedIn(fmt.Errorf("a world: %w", err)); (len(left) == 1) != row.unreached ||
				row.unreached && (left[0].Holder.String() != row.holder.String() || !strings.Contains(left[0].Why.Error(), row.want)) {
				t.Errorf("unreached are %v", left)
			}
			if left := files(t, store); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
			path, err := fetch(context.Background(), store, want, with(want, row.holder, holder), fetcher)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
				t.Errorf("the file differs: %v", err)
			}
		})
	}
}

func TestFetchThatNobodyServes(t *testing.T) {
	store := open(t, 1)
	if _, err := fetch(context.Background(), store, Snapshot{ID: ID{Round: 1, Step: 2}}, nil, fetcher); err == nil || !strings.Contains(err.Error(), "0 holders") {
		t.Errorf("no holder: %v", err)
	}
	if _, err := fetch(context.Background(), store, Snapshot{ID: ID{Round: 1, Step: 2}, Bytes: 1 << 60}, []Holder{{}}, fetcher); err == nil || !strings.Contains(err.Error(), "more than the largest") {
		t.Errorf("a snapshot of an exabyte: %v", err)
	}
}

// A holder gives a snapshot to whom the operator gave a ticket for it, there, and for now.
func TestOnlyATicketOpens(t *testing.T) {
	store := open(t, 2)
	want, other := put(t, store, ID{Round: 1, Step: 1}, []byte("state")), put(t, store, ID{Round: 1, Step: 2}, []byte("a later state"))
	_, holder := serve(t, store)
	_, elsewhere := serve(t, store)
	key := ticket.KeyOf(secret, holder.Certificate)
	grant := ticket.Grant{Fetcher: fetcher.Sum(), Round: 1, Step: 1}
	later := time.Now().Add(time.Hour)
	good := ticket.Issue(key, 1, grant, later)
	altered := append(ticket.Ticket(nil), good...)
	altered[ticket.Bytes-1] ^= 1
	for name, row := range map[string]struct {
		shown ticket.Ticket
		by    *Identity
		want  string
	}{
		"the ticket for it":        {good, fetcher, ""},
		"none":                     {nil, fetcher, "no ticket"},
		"another fetcher's":        {good, newIdentity(), "something else"},
		"for another holder":       {with(want, elsewhere)[0].Ticket, fetcher, "something else"},
		"for another snapshot":     {with(other, holder)[0].Ticket, fetcher, "something else"},
		"altered":                  {altered, fetcher, "something else"},
		"expired":                  {ticket.Issue(key, 1, grant, time.Now()), fetcher, "expired"},
		"of a term that is over":   {ticket.Issue(key, 0, grant, later), fetcher, "expired"},
		"made with another secret": {ticket.Issue(ticket.KeyOf([]byte("another"), holder.Certificate), 1, grant, later), fetcher, "something else"},
	} {
		t.Run(name, func(t *testing.T) {
			holder := holder
			holder.Ticket = row.shown
			_, err := fetch(context.Background(), open(t, 1), want, []Holder{holder}, row.by)
			switch {
			case row.want == "" && err != nil:
				t.Error(err)
			case row.want != "" && (err == nil || !strings.Contains(err.Error(), "401 Unauthorized") || !strings.Contains(err.Error(), row.want)):
				t.Errorf("got %v", err)
			case err != nil && strings.Contains(err.Error(), hex.EncodeToString(row.shown)) && len(row.shown) > 0:
				t.Errorf("the ticket is in the error: %v", err)
			}
		})
	}
}

// The holder obeys another leader by the time it is asked: what the one before has allowed is allowed.
func TestTicketsOutliveTheirLeader(t *testing.T) {
	store := open(t, 2)
	want := put(t, store, ID{Round: 1, Step: 1}, []byte("state"))
	server, holder := serve(t, store)
	server.SetKey(2, ticket.KeyOf([]byte("the next secret"), holder.Certificate))
	server.SetKey(1, ticket.KeyOf([]byte("a word of the old leader that comes late"), holder.Certificate))
	if _, err := fetch(context.Background(), open(t, 1), want, with(want, holder), fetcher); err != nil {
		t.Error(err)
	}
	var held keys
	now := time.Unix(1e9, 0)
	held.set(1, []byte("one"), now)
	held.set(2, []byte("two"), now.Add(time.Hour))
	for at, want := range map[time.Duration]string{time.Hour: "one", time.Hour + ticket.Life - 1: "one", time.Hour + ticket.Life: ""} {
		if key, early := held.of(1, now.Add(at)); string(key) != want || early {
			t.Errorf("%s after the first term began its key is %q, %v", at, key, early)
		}
	}
	if key, early := held.of(3, now); key != nil || !early {
		t.Errorf("a term that is not told yet has the key %q, %v", key, early)
	}
	for term := range uint64(100) {
		held.set(term, []byte("more"), now)
	}
	if len(held.held) != maxKeys {
		t.Errorf("%d keys are held", len(held.held))
	}
}

// A transfer breaks off because its holder goes, while another leader takes over: it goes on at the next one.
func TestATransferGoesOnAcrossAChangeOfLeader(t *testing.T) {
	data := content(5, 1<<20)
	good := open(t, 1)
	want := put(t, good, ID{Round: 2, Step: 9}, data)
	server, next := serve(t, good)
	dying := fake(t, func(w http.ResponseWriter, r *http.Request) {
		server.SetKey(2, ticket.KeyOf([]byte("the next secret"), next.Certificate))
		announce(len(data), data[:1000])(w, r)
	})
	if _, err := fetch(context.Background(), open(t, 1), want, with(want, dying, next), fetcher); err != nil {
		t.Error(err)
	}
}

// A holder that has not been told yet what its tickets are made with is asked again.
func TestAHolderThatIsAskedTooEarly(t *testing.T) {
	data := []byte("state")
	store := open(t, 1)
	want := put(t, store, ID{Round: 2, Step: 9}, data)
	identity := newIdentity()
	server, err := Serve(store, "127.0.0.1:0", identity, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	unready := Holder{Address: "127.0.0.1", Port: server.Port(), Certificate: identity.Sum()}
	// Whoever is asked after it knows that it has refused, and then it is told.
	other := fake(t, func(w http.ResponseWriter, _ *http.Request) {
		server.SetKey(1, ticket.KeyOf(secret, identity.Sum()))
		w.WriteHeader(http.StatusNotFound)
	})
	if _, err := fetch(context.Background(), open(t, 1), want, with(want, unready, other), fetcher); err != nil {
		t.Error(err)
	}
}

// Whoever answers with the certificate that is known for it is reached. Sockets alone are not enough: those of a
// process that is stopped take connections.
func TestReach(t *testing.T) {
	server, peer := serve(t, nil)
	if err := Reach(t.Context(), peer, fetcher); err != nil {
		t.Error(err)
	}
	another := peer
	another.Certificate[0]++
	if err := Reach(t.Context(), another, fetcher); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("somebody else is reached: %v", err)
	}
	stopped, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stopped.Close() }()
	silent := peer
	silent.Port = stopped.Addr().(*net.TCPAddr).Port
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := Reach(ctx, silent, fetcher); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("one that does not answer is reached: %v", err)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Reach(t.Context(), peer, fetcher); err == nil {
		t.Error("one that has ended is reached")
	}
}

// A worker without memory has nothing to give.
func TestAServerWithoutAStore(t *testing.T) {
	_, peer := serve(t, nil)
	want := Snapshot{ID: ID{Round: 1, Step: 2}, Bytes: 1}
	if _, err := fetch(t.Context(), open(t, 1), want, with(want, peer), fetcher); err == nil || !strings.Contains(err.Error(), "holds no snapshots") {
		t.Errorf("got %v", err)
	}
}

func TestOnlyTLS13IsSpoken(t *testing.T) {
	_, holder := serve(t, open(t, 2))
	for version, want := range map[uint16]bool{tls.VersionTLS12: false, tls.VersionTLS13: true} {
		config := pinned(holder.Certificate, fetcher)
		config.MinVersion, config.MaxVersion = tls.VersionTLS12, version
		conn, err := tls.Dial("tcp", holder.String(), config)
		if err == nil {
			_ = conn.Close()
		}
		if (err == nil) != want || err != nil && !strings.Contains(err.Error(), "protocol version") {
			t.Errorf("%s: %v", tls.VersionName(version), err)
		}
	}
}

func TestNamesThatAreNoSnapshots(t *testing.T) {
	store := open(t, 1)
	if err := os.WriteFile(filepath.Join(store.Directory(), "1-1.part"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, holder := serve(t, store)
	client := &http.Transport{TLSClientConfig: pinned(holder.Certificate, fetcher), DisableKeepAlives: true}
	for path, want := range map[string]int{
		"/snapshots/1-1.part": 400, "/snapshots/..%2f..%2fetc%2fpasswd": 400, "/snapshots/01-1": 400, "/snapshots/-": 400,
		"/snapshots/1-99999999999999999999": 400, "/snapshots/1-2": 404, "/": 404, "/snapshots/": 404,
	} {
		request, err := http.NewRequest(http.MethodGet, "https://"+holder.String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", scheme+hex.EncodeToString(with(Snapshot{ID: ID{Round: 1, Step: 2}}, holder)[0].Ticket))
		response, err := client.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: %s, want %d", path, response.Status, want)
		}
	}
}

func TestFetchEndsWithItsContext(t *testing.T) {
	data := content(3, 1<<20)
	halfway, overYet := make(chan struct{}), make(chan struct{})
	defer close(overYet)
	var asked atomic.Int32
	halfWay := func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		_, _ = w.Write(data[:len(data)/2])
		w.(http.Flusher).Flush()
		close(halfway)
		<-overYet
	}
	slow, other := fake(t, halfWay), fake(t, halfWay)
	ctx, cancel := context.WithCancelCause(context.Background())
	over := errors.New("the world is over")
	go func() {
		<-halfway
		cancel(over)
	}()
	store := open(t, 1)
	want := Snapshot{ID{Round: 1, Step: 1}, uint64(len(data)), sum(data)}
	if _, err := fetch(ctx, store, want, with(want, slow, other), fetcher); !errors.Is(err, over) {
		t.Errorf("got %v, want %v", err, over)
	}
	if left := files(t, store); len(left) > 0 || asked.Load() != 1 {
		t.Errorf("left behind: %v; %d holders were asked", left, asked.Load())
	}
}

func TestAFullFolder(t *testing.T) {
	from, to := open(t, 1), open(t, 1)
	want := put(t, from, ID{Round: 1, Step: 1}, content(4, 1<<20))
	_, holder := serve(t, from)
	to.create = func(dir string) (*os.File, error) {
		// Removing the link leaves the device alone.
		link := filepath.Join(dir, "full.part")
		if err := os.Symlink("/dev/full", link); err != nil {
			return nil, err
		}
		return os.OpenFile(link, os.O_WRONLY, 0)
	}
	_, err := fetch(context.Background(), to, want, with(want, holder, holder), fetcher)
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), to.Directory()+" is full") ||
		strings.Count(err.Error(), "is full") != 1 {
		t.Errorf("got %v", err)
	}
	if left := files(t, to); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A snapshot that is being served stays readable when the store drops it.
func TestServingOutlivesRetain(t *testing.T) {
	store := open(t, 1)
	data := content(5, 32<<20) // more than all buffers between the two ends
	put(t, store, ID{Round: 1, Step: 1}, data)
	_, holder := serve(t, store)
	client := &http.Transport{TLSClientConfig: pinned(holder.Certificate, fetcher), DisableKeepAlives: true}
	request, err := http.NewRequest(http.MethodGet, "https://"+holder.String()+"/snapshots/1-1", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", scheme+hex.EncodeToString(with(Snapshot{ID: ID{Round: 1, Step: 1}}, holder)[0].Ticket))
	response, err := client.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if err := store.Retain(func(ID) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if left := files(t, store); len(left) > 0 {
		t.Fatalf("not dropped: %v", left)
	}
	if got, err := io.ReadAll(response.Body); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d of %d bytes came: %v", len(got), len(data), err)
	}
}

func TestNoFileIsInMemoryWhole(t *testing.T) {
	from, to := open(t, 1), open(t, 1)
	const size = 64 << 20
	path := filepath.Join(from.Directory(), "sparse.part")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	_, holder := serve(t, from)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	want, err := from.Take(ID{Round: 1, Step: 1}, "sparse.part", size)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fetch(context.Background(), to, want, with(want, holder), fetcher); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > size/4 {
		t.Errorf("%d bytes were allocated for a file of %d", allocated, size)
	}
}

// Everything at once: whoever gets a path gets a whole file.
func TestTogether(t *testing.T) {
	from, to := open(t, 2), open(t, 2)
	_, holder := serve(t, from)
	data := content(6, 300<<10)
	want := put(t, from, ID{Round: 1, Step: 1}, data)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 10 {
				if _, err := fetch(context.Background(), to, want, with(want, holder), fetcher); err != nil {
					t.Error(err)
				}
				if err := to.Retain(func(ID) bool { return false }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Go(func() {
		for step := range uint64(50) {
			part := fmt.Sprintf("%d.part", step)
			if err := os.WriteFile(filepath.Join(to.Directory(), part), data[:step], 0o600); err != nil {
				t.Error(err)
			}
			if _, err := to.Take(ID{Round: 2, Step: step}, part, step); err != nil {
				t.Error(err)
			}
			for _, snapshot := range to.List() {
				if snapshot.Round == 2 && snapshot.Hash != sum(data[:snapshot.Bytes]) {
					t.Errorf("%+v has a wrong hash", snapshot)
				}
			}
		}
	})
	all.Wait()
	if err := to.Retain(func(ID) bool { return false }); err != nil {
		t.Error(err)
	}
	if left := files(t, to); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestIDsAndTheirNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.StringMatching(`|[rsd][0-2]\.[3-9]\.[0-9a-f]{16}`).Draw(t, "part")
		id := ID{rapid.Uint64().Draw(t, "round"), rapid.Uint64().Draw(t, "step"), part}
		if got, ok := ParseID(id.String()); !ok || got != id {
			t.Fatalf("%v became %v, %v", id, got, ok)
		}
		name := rapid.StringMatching(`[0-9+-]{0,6}([.][a-zA-Z0-9./-]{0,6})?`).Draw(t, "name")
		if got, ok := ParseID(name); ok && got.String() != name {
			t.Fatalf("%q became %v", name, got)
		}
	})
	for _, name := range []string{"1-2.part", "1-2.s0.part", "1-2.", "1-2..", "1-2.a/b"} {
		if id, ok := ParseID(name); ok {
			t.Errorf("%q became %v", name, id)
		}
	}
}
