package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// spansOf draws spans in any order, which may touch, overlap and be empty.
func spansOf(t *rapid.T, label string) []span {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) span {
		from := rapid.Uint64Range(0, 30).Draw(t, "from")
		return span{from, from + rapid.Uint64Range(0, 9).Draw(t, "length")}
	}), 0, 8).Draw(t, label)
}

// What is done with spans is what is done with the blocks in them.
func TestSpans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := func(spans []span, i uint64) bool {
			return slices.ContainsFunc(spans, func(s span) bool { return s.from <= i && i < s.to })
		}
		drawn, other := spansOf(t, "spans"), joined(spansOf(t, "others")...)
		all := joined(drawn...)
		for i, s := range all {
			if s.from >= s.to || i > 0 && all[i-1].to >= s.from {
				t.Fatalf("%v are joined as %v", drawn, all)
			}
		}
		window := span{rapid.Uint64Range(0, 20).Draw(t, "from"), rapid.Uint64Range(20, 40).Draw(t, "to")}
		some, rest := within(all, window), without(all, other)
		n := uint64(0)
		for i := range uint64(50) {
			if in(all, i) != in(drawn, i) || in(some, i) != (in(all, i) && window.from <= i && i < window.to) ||
				in(rest, i) != (in(all, i) && !in(other, i)) {
				t.Fatalf("block %d: %v are joined as %v; within %v they are %v, without %v %v", i, drawn, all, window, some, other, rest)
			}
			if in(all, i) {
				n++
			}
		}
		if lenOf(all) != n {
			t.Fatalf("%v have %d blocks, and not %d", all, n, lenOf(all))
		}
		if len(some) > 0 {
			if read, ok := spansIn(textOf(some), window, len(some)); !ok || !slices.Equal(read, some) {
				t.Fatalf("%v are read as %v, %t", some, read, ok)
			}
			if _, ok := spansIn(textOf(some), window, len(some)-1); ok {
				t.Fatalf("%v are read as fewer", some)
			}
		}
	})
	for _, text := range []string{"", "1", "1-", "-1", "2-1", "1-1", "1-2,1-3", "3-4,1-2", "1-11", "0-2", "1-2,", "x-y", "1-2-3"} {
		if spans, ok := spansIn(text, span{1, 10}, 9); ok {
			t.Errorf("%q is read as %v", text, spans)
		}
	}
}

// The blocks that come are those with something that is wanted, and no others: so of each range at most two blocks, but for what is wanted
// of them, are too much.
func TestTheBlocksOfRanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Wanted{Snapshot: Snapshot{Bytes: rapid.Uint64Range(0, 12*blockBytes).Draw(t, "bytes")}}
		asked := uint64(0)
		for range rapid.IntRange(0, 5).Draw(t, "ranges") {
			from := rapid.Uint64Range(0, 13*blockBytes).Draw(t, "from")
			length := rapid.SampledFrom([]uint64{0, 1, 1000, blockBytes, 3 * blockBytes, 1 << 62}).Draw(t, "length")
			want.Only, asked = append(want.Only, Range{from, from + length}), asked+length
		}
		blocks, needed := want.blocks(), 0
		for i := range numberOfBlocks(want.Bytes) {
			start, end := i*blockBytes, min((i+1)*blockBytes, want.Bytes)
			isNeeded := slices.ContainsFunc(want.Only, func(r Range) bool { return max(r.From, start) < min(r.To, end) })
			if isNeeded {
				needed++
			}
			if comes := len(within(blocks, span{i, i + 1})) > 0; blocks != nil && comes != isNeeded {
				t.Fatalf("block %d of %v comes: %t", i, want, comes)
			}
		}
		if all := needed == 0 || uint64(needed) == numberOfBlocks(want.Bytes); all != (blocks == nil) {
			t.Fatalf("of %v come %v", want, blocks)
		}
		if blocks != nil && lenOf(blocks)*blockBytes > asked+uint64(2*len(want.Only))*blockBytes {
			t.Fatalf("of %v come %v", want, blocks)
		}
	})
}

// counting has a store count the bytes that come to it.
func counting(store *Store, came *atomic.Uint64) {
	dial := store.dial
	store.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return countingConn{conn, came}, nil
	}
}

type countingConn struct {
	net.Conn
	came *atomic.Uint64
}

func (c countingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.came.Add(uint64(n))
	return n, err
}

// excerptAt reads what there is of a file that is wanted in part, which must be as large as all of it.
func excerptAt(t testing.TB, store *Store, want Wanted) []byte {
	t.Helper()
	path, ok := store.PathOf(want)
	if !ok {
		t.Fatalf("%v of %v is not there", want.Only, want.Snapshot)
	}
	got, err := os.ReadFile(path)
	if err != nil || uint64(len(got)) != want.Bytes {
		t.Fatalf("%d of %d bytes: %v", len(got), want.Bytes, err)
	}
	return got
}

const shardKey = "d1.4.0123456789abcdef"

// Only blocks with something that is wanted come, each once, whoever of the worker's processes asks; and nothing of it is held, or
// given to others.
func TestAnExcerpt(t *testing.T) {
	holder, store := open(t, 2), open(t, 2)
	data := content(1, 40*blockBytes+1000)
	id := ID{Round: 1, Step: 4, Part: shardKey}
	_, at := serve(t, holder)
	want := Wanted{Snapshot: put(t, holder, id, data)}
	want.Holders = with(want.Snapshot, at)
	var came atomic.Uint64
	counting(store, &came)
	has := func(from, to uint64) {
		t.Helper()
		want.Only = append(want.Only, Range{from, to})
	}
	const small = 64 << 10 // what is said beside the blocks
	moves := func(blocks uint64) {
		t.Helper()
		came.Store(0)
		if err := store.Fetch(t.Context(), fetcher, want); err != nil {
			t.Fatal(err)
		}
		if n := came.Load(); n+small < blocks*blockBytes || n > blocks*blockBytes*101/100+small {
			t.Errorf("%v have come by %d bytes, and not about %d blocks", want.Only, n, blocks)
		}
		got := excerptAt(t, store, want)
		for _, r := range want.Only {
			if !bytes.Equal(got[r.From:r.To], data[r.From:r.To]) {
				t.Errorf("%v came altered", r)
			}
		}
		if held := store.List(); len(held) > 0 || store.Has(want.Snapshot) {
			t.Errorf("it counts as held: %v", held)
		}
		if _, ok := store.Path(id); ok {
			t.Error("it has a path as what is held has")
		}
	}
	has(3*blockBytes+5, 3*blockBytes+6)
	has(20*blockBytes, 22*blockBytes)
	has(40*blockBytes+999, 40*blockBytes+1000)
	moves(3) // and 1000 bytes
	want.Only = []Range{{3 * blockBytes, 5 * blockBytes}, {21 * blockBytes, 23 * blockBytes}}
	moves(2) // of another process
	moves(0)
	want.Only = nil
	for i := range uint64(20) { // more spans than there may be in one request would be as good
		has(2*i*blockBytes, 2*i*blockBytes+1)
	}
	moves(17)
	if _, ok := store.PathOf(Wanted{Snapshot: want.Snapshot}); ok {
		t.Error("all of it is there")
	}
	if _, ok := store.PathOf(Wanted{Snapshot: want.Snapshot, Only: []Range{{0, 2 * blockBytes}}}); ok {
		t.Error("more is there than has come")
	}
	// Somebody who has it open reads on when it is dropped.
	path, _ := store.PathOf(want)
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if remove := store.DropExcerpts(want.State()); remove != nil {
		t.Error("what came of the state that is wanted still is let go")
	}
	if err := store.DropExcerpts(ID{})(); err != nil || len(files(t, store)) > 0 {
		t.Errorf("after all is dropped there are %v: %v", files(t, store), err)
	}
	got := make([]byte, 1)
	if _, err := file.ReadAt(got, 2*blockBytes); err != nil || got[0] != data[2*blockBytes] {
		t.Errorf("read %v, %v", got, err)
	}
	if _, ok := store.PathOf(want); ok {
		t.Error("it is there still")
	}
}

// What is needed as a whole, to the last block, comes as such, and is held.
func TestAnExcerptOfAll(t *testing.T) {
	holder, store := open(t, 2), open(t, 2)
	data := content(1, 3*blockBytes+7)
	_, at := serve(t, holder)
	want := Wanted{Snapshot: put(t, holder, ID{Round: 1, Step: 4, Part: shardKey}, data)}
	want.Holders, want.Only = with(want.Snapshot, at), []Range{{1, blockBytes + 1}, {2*blockBytes + 1, 3*blockBytes + 1}}
	if err := store.Fetch(t.Context(), fetcher, want); err != nil {
		t.Fatal(err)
	}
	if held := store.List(); len(held) != 1 || held[0] != want.Snapshot {
		t.Errorf("held are %v", held)
	}
	if got := excerptAt(t, store, want); !bytes.Equal(got, data) {
		t.Error("it came altered")
	}
}

// A holder of a version that knows of no excerpts, or of no pieces, gives more than is wanted: that comes to the same.
func TestAnExcerptFromAnOlderHolder(t *testing.T) {
	for name, older := range map[string]func(r *http.Request){
		"that gives all between": func(r *http.Request) {
			query := r.URL.Query()
			query.Del(onlyQuery)
			r.URL.RawQuery = query.Encode()
		},
		"that gives whole files": func(r *http.Request) { r.URL.RawQuery = "" },
	} {
		t.Run(name, func(t *testing.T) {
			holder, store := open(t, 2), open(t, 2)
			data := content(1, 9*blockBytes)
			server, at := serve(t, holder)
			handler := server.http.Handler
			server.http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				older(r)
				handler.ServeHTTP(w, r)
			})
			want := Wanted{Snapshot: put(t, holder, ID{Round: 1, Step: 4, Part: shardKey}, data)}
			want.Holders, want.Only = with(want.Snapshot, at), []Range{{blockBytes, blockBytes + 1}, {6 * blockBytes, 7 * blockBytes}}
			if err := store.Fetch(t.Context(), fetcher, want); err != nil {
				t.Fatal(err)
			}
			got := excerptAt(t, store, want)
			for i, block := 0, bytes.Repeat([]byte{0}, blockBytes); i < 9; i++ {
				here := i == 1 || i == 6
				if found := got[i*blockBytes : (i+1)*blockBytes]; here && !bytes.Equal(found, data[i*blockBytes:(i+1)*blockBytes]) || !here && !bytes.Equal(found, block) {
					t.Errorf("block %d is not what it should be", i)
				}
			}
			if len(store.List()) > 0 {
				t.Error("it counts as held")
			}
		})
	}
}

// Whatever is wanted in whatever order, and whichever connections break off, what there is in the end is what is wanted, and nothing that had come
// comes again.
func TestAnExcerptOverABadNetwork(t *testing.T) {
	const blocks = 7
	data := content(5, blocks*blockBytes-100)
	want := Wanted{}
	for range 2 {
		holder := open(t, 2)
		_, at := serve(t, holder)
		want.Snapshot = put(t, holder, ID{Round: 1, Step: 4, Part: shardKey}, data)
		want.Holders = append(want.Holders, at)
	}
	want.Holders = with(want.Snapshot, want.Holders...)
	seed := rand.Uint64()
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	random := rand.New(rand.NewPCG(seed, 0))
	for range 20 {
		store := open(t, 2)
		var came atomic.Uint64
		counting(store, &came)
		dial, left := store.dial, make([]int, random.IntN(4))
		for i := range left {
			left[i] = random.IntN(3 * blockBytes)
		}
		var mu sync.Mutex
		store.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			mu.Lock()
			defer mu.Unlock()
			if err == nil && len(left) > 0 {
				conn, left = &broken{conn, left[0]}, left[1:]
			}
			return conn, err
		}
		breaks, needed := len(left), []span{}
		for range 1 + random.IntN(3) { // processes of the worker
			want := want
			want.Only = nil
			for range 1 + random.IntN(4) {
				from := random.Uint64N(want.Bytes)
				want.Only = append(want.Only, Range{from, from + 1 + random.Uint64N(min(want.Bytes-from, 2*blockBytes))})
			}
			if want.blocks() == nil {
				continue // it is held then
			}
			needed = joined(append(needed, want.blocks()...)...)
			for try := 0; ; try++ {
				err := store.Fetch(t.Context(), fetcher, want)
				if err == nil {
					break
				} else if try == breaks {
					t.Fatal(err)
				}
			}
			got := excerptAt(t, store, want)
			for _, r := range want.Only {
				if !bytes.Equal(got[r.From:r.To], data[r.From:r.To]) {
					t.Fatalf("of %v came %v altered", want.Only, r)
				}
			}
		}
		// A connection that breaks off takes along what was on its way: two blocks, with what is read ahead.
		if most := lenOf(needed)*(blockBytes+blockBytes/50) + uint64(breaks)*2*blockBytes + 200_000; came.Load() > most {
			t.Fatalf("%v have come by %d bytes", needed, came.Load())
		}
		if held := store.List(); len(held) > 0 {
			t.Fatalf("held are %v", held)
		}
	}
}

// A block that was altered here is fetched again when somebody else needs it.
func TestABlockOfAnExcerptThatWasAltered(t *testing.T) {
	holder, store := open(t, 2), open(t, 2)
	data := content(1, 5*blockBytes)
	_, at := serve(t, holder)
	want := Wanted{Snapshot: put(t, holder, ID{Round: 1, Step: 4, Part: shardKey}, data)}
	want.Holders, want.Only = with(want.Snapshot, at), []Range{{0, 2 * blockBytes}}
	for range 2 {
		if err := store.Fetch(t.Context(), fetcher, want); err != nil {
			t.Fatal(err)
		}
		got := excerptAt(t, store, want)
		if !bytes.Equal(got[:2*blockBytes], data[:2*blockBytes]) {
			t.Fatal("it came altered")
		}
		path, _ := store.PathOf(want)
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteAt([]byte{^data[blockBytes+7]}, blockBytes+7); err != nil {
			t.Fatal(err)
		}
		_ = file.Close()
	}
}

// Each request brings the hashes of all blocks, so there are not more requests for a larger shard: of half of one that is as large as may be
// the hashes are next to nothing. They ask for each block that is wanted, and each once.
func TestTheRequestsForAnExcerpt(t *testing.T) {
	halves := func(spans uint64) func(blocks uint64) (only []Range) {
		return func(blocks uint64) (only []Range) {
			for i := range spans {
				at := i * blocks / spans * blockBytes
				only = append(only, Range{at, at + blocks/spans/2*blockBytes})
			}
			return only
		}
	}
	for name, c := range map[string]struct {
		gib  uint64
		only func(blocks uint64) []Range
	}{
		"a small one":             {1, halves(1)},
		"in many spans":           {1, halves(500)},
		"a large one":             {100, halves(1)},
		"a large one, many spans": {100, halves(1000)},
		"a very large one":        {400, halves(3)},
	} {
		t.Run(name, func(t *testing.T) {
			blocks := numberOfBlocks(c.gib << 30)
			want := Wanted{Snapshot: Snapshot{Bytes: c.gib << 30}, Only: c.only(blocks)}
			g := &gathering{store: &Store{}}
			g.add(&want, nil)
			var asked []span
			for _, p := range g.pieces {
				if spans := p.wanted(); len(spans) > mostSpans {
					t.Errorf("%d spans are asked for at a time", len(spans))
				} else {
					asked = append(asked, spans...)
				}
			}
			if n := lenOf(asked); n != lenOf(want.blocks()) || !slices.Equal(joined(asked...), want.blocks()) {
				t.Errorf("%d blocks are asked for, and %d are wanted", n, lenOf(want.blocks()))
			}
			if hashes, all := uint64(len(g.pieces))*blocks*32, lenOf(asked)*blockBytes; hashes > all/100 {
				t.Errorf("%d requests bring %d bytes of hashes, for %d", len(g.pieces), hashes, all)
			}
		})
	}
}

// Of what cannot be written here nothing stays that would take up more of the room that is missing, but what other processes of the worker were told
// of before. Who reads why has to give room for what is wanted, which is not all of the shard.
func TestAnExcerptThatCannotBeWritten(t *testing.T) {
	holder, store := open(t, 2), open(t, 2)
	data := content(1, 5*blockBytes)
	_, at := serve(t, holder)
	want := Wanted{Snapshot: put(t, holder, ID{Round: 1, Step: 4, Part: shardKey}, data)}
	want.Holders, want.Only = with(want.Snapshot, at), []Range{{0, 2 * blockBytes}}
	fails := func() {
		t.Helper()
		err := store.Fetch(t.Context(), fetcher, want)
		if !errors.Is(err, ErrLocal) || !strings.Contains(err.Error(), fmt.Sprintf("%d of the %d bytes", 2*blockBytes, 5*blockBytes)) {
			t.Errorf("got %v", err)
		}
	}
	create := store.create
	store.create = func(dir string) (*os.File, error) {
		file, err := create(dir)
		if err != nil {
			return nil, err
		}
		defer func() { _ = file.Close() }()
		fd, err := unix.MemfdCreate("x", unix.MFD_ALLOW_SEALING|unix.MFD_CLOEXEC)
		if err != nil {
			return nil, err
		}
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE) // its size may be set
		return os.NewFile(uintptr(fd), file.Name()), err
	}
	fails()
	if store.HasExcerpts() || len(files(t, store)) > 0 {
		t.Errorf("there are %v", files(t, store))
	}
	store.create = create
	if err := store.Fetch(t.Context(), fetcher, want); err != nil {
		t.Fatal(err)
	}
	path, _ := store.PathOf(want)
	if err := errors.Join(os.Rename(path, path+".part"), os.Symlink("/dev/full", path)); err != nil {
		t.Fatal(err)
	}
	want.Only[0] = Range{2 * blockBytes, 4 * blockBytes}
	fails()
	if !store.HasExcerpts() {
		t.Error("what came for another process is gone")
	}
}
