package checkpoint

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A stranger opens as many connections as there may be, and says nothing on any: the agent is still to be reached.
func TestSilentStrangersShutNobodyOut(t *testing.T) {
	id, err := NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	s, err := Serve(nil, "127.0.0.1:0", id, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	peer := Holder{Address: "127.0.0.1", Port: s.Port(), Certificate: id.Sum()}
	for range 2 * maxConnections {
		stranger, err := new(net.Dialer).DialContext(t.Context(), "tcp", peer.String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = stranger.Close() }()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := Reach(ctx, peer, id); err != nil {
		t.Errorf("behind silent strangers: %v", err)
	}
}

// from is a connection of an address.
type from struct {
	net.Conn
	address string
}

func (f *from) RemoteAddr() net.Addr {
	address, _ := net.ResolveTCPAddr("tcp", f.address)
	return address
}

func TestWhoHasToGo(t *testing.T) {
	g := newGuests(4, 4)
	now := time.Unix(0, 0)
	arrive := func(address string) (*from, net.Conn) {
		one := &from{address: address}
		now = now.Add(time.Second)
		closed := g.arrive(one, now)
		if closed != nil {
			g.leave(closed)
		}
		return one, closed
	}
	fetches, _ := arrive("10.0.0.1:1")
	g.welcome(fetches)
	first, _ := arrive("10.0.0.2:1")
	second, _ := arrive("10.0.0.2:2")
	other, closed := arrive("10.0.0.3:1")
	if closed != nil {
		t.Fatal("somebody goes, and there is room")
	}
	if _, closed = arrive("10.0.0.4:1"); closed != first {
		t.Errorf("%v goes, and the older of the address that has two should", closed)
	}
	if late, closed := arrive("10.0.0.1:2"); closed != late {
		t.Errorf("%v goes, and the address of the fetch has two now", closed)
	}
	for _, one := range []net.Conn{second, other} {
		g.welcome(one)
	}
	fourth, closed := arrive("10.0.0.5:1")
	if closed == nil || closed == fourth {
		t.Fatalf("%v goes, and one that has shown no ticket is older", closed)
	}
	g.welcome(fourth)
	if last, closed := arrive("10.0.0.6:1"); closed != last {
		t.Errorf("%v goes for one that has shown no ticket", closed)
	}
	for conn := range g.all {
		g.leave(conn)
	}
	if len(g.crowd) != 0 {
		t.Errorf("%v is left of nobody", g.crowd)
	}
}

// crowded has a server be full of those who get a file from it, and returns their connections.
func crowded(t *testing.T, s *Server, want Snapshot, holder Holder) []net.Conn {
	t.Helper()
	s.guests.mu.Lock()
	s.guests.most, s.guests.rooms = 8, 6
	s.guests.mu.Unlock()
	var all []net.Conn
	for range 6 {
		conn, err := (&tls.Dialer{Config: pinned(holder.Certificate, fetcher)}).DialContext(t.Context(), "tcp", holder.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		all = append(all, conn)
		_, err = fmt.Fprintf(conn, "GET %s%s HTTP/1.1\r\nHost: x\r\nAuthorization: %s%s\r\n\r\n",
			folder, want, scheme, hex.EncodeToString(with(want, holder)[0].Ticket))
		if _, errRead := io.ReadFull(conn, make([]byte, 64)); err != nil || errRead != nil {
			t.Fatal(err, errRead)
		}
	}
	return all
}

// A server that gives to as many as it can says so to whoever comes, who waits for a place: its agent is reached, by those who only
// look for it as well.
func TestAFullServerIsReached(t *testing.T) {
	holding, store := open(t, 1), open(t, 1)
	data := bytes.Repeat(content(5, 1<<20), 16)
	want := put(t, holding, ID{Round: 3, Step: 17}, data)
	server, holder := serve(t, holding)
	all := crowded(t, server, want, holder)
	if err := Reach(t.Context(), holder, fetcher); err != nil {
		t.Errorf("a full server is not reached: %v", err)
	}
	dials := 0
	store.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		store.mu.Lock()
		defer store.mu.Unlock()
		if dials++; dials == 3 {
			_ = all[0].Close() // two have been turned away
			_ = all[1].Close()
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	path, err := fetch(t.Context(), store, want, with(want, holder), fetcher)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) || dials < 3 {
		t.Errorf("the file differs: %v; it came after %d tries", err, dials)
	}
}

// One that has no place for long is not said not to be reached, and is asked no more in this try.
func TestAServerThatStaysFull(t *testing.T) {
	holding, store := open(t, 1), open(t, 1)
	want := put(t, holding, ID{Round: 3, Step: 17}, bytes.Repeat(content(5, 1<<20), 16))
	server, holder := serve(t, holding)
	crowded(t, server, want, holder)
	store.patience = 0
	_, err := fetch(t.Context(), store, want, with(want, holder), fetcher)
	if !errors.Is(err, ErrBusy) || errors.Is(err, ErrUnreached) || len(UnreachedIn(err)) > 0 {
		t.Errorf("it is full, and said is: %v", err)
	}
}

// An agent of a version that knows no full holders takes what it is told there for something else, and would end by it: it is hung up on,
// as it was before, and comes again.
func TestAFullServerHangsUpOnWhoDoesNotWait(t *testing.T) {
	holding, store := open(t, 1), open(t, 1)
	want := put(t, holding, ID{Round: 3, Step: 17}, bytes.Repeat(content(5, 1<<20), 16))
	server, holder := serve(t, holding)
	crowded(t, server, want, holder)
	ticket := with(want, holder)[0].Ticket
	older, err := (&tls.Dialer{Config: pinned(holder.Certificate, fetcher)}).DialContext(t.Context(), "tcp", holder.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = older.Close() }()
	_, err = fmt.Fprintf(older, "GET %s%s HTTP/1.1\r\nHost: x\r\nAuthorization: %s%s\r\n\r\n", folder, want, scheme, hex.EncodeToString(ticket))
	if said, errRead := io.ReadAll(older); err != nil || len(said) > 0 {
		t.Errorf("it is told %q (%v, %v)", said, err, errRead)
	}
	g := &gathering{store: store, ctx: t.Context(), identity: fetcher}
	response, err := g.ask(t.Context(), http.MethodGet, want, "", with(want, holder)[0])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if err := unserved(response); !errors.Is(err, ErrBusy) {
		t.Errorf("who waits for a place is told: %v", err)
	}
}

// closed is a connection that the other side has closed.
type closed struct{ net.Conn }

func (closed) Read([]byte) (int, error) { return 0, io.EOF }

// Whoever is hung up on before it has said anything tries again at once: where many come at the same time some have to go.
func TestWhoIsHungUpOnTriesAgain(t *testing.T) {
	for name, row := range map[string]struct {
		cut     []int
		reached bool
	}{"twice": {[]int{1, 2}, true}, "every time": {nil, false}} {
		t.Run(name, func(t *testing.T) {
			holding, store := open(t, 1), open(t, 1)
			want := put(t, holding, ID{Round: 1, Step: 9}, content(3, 1<<20))
			_, holder := serve(t, holding)
			dials := 0
			store.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				store.mu.Lock()
				dials++
				cut := row.cut == nil || slices.Contains(row.cut, dials)
				store.mu.Unlock()
				conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
				if cut && err == nil {
					conn = &closed{conn}
				}
				return conn, err
			}
			_, err := fetch(t.Context(), store, want, with(want, holder), fetcher)
			if (err == nil) != row.reached || errors.Is(err, ErrUnreached) == row.reached {
				t.Errorf("it is hung up on %s: %v", name, err)
			}
		})
	}
}

// A full holder that hangs up at last is asked again like any other that does, and is not said not to be reached where it goes on with
// that: it has answered. Time is that of the simulation.
func TestAFullServerThatHangsUp(t *testing.T) {
	const turnedAway = 10
	for name, row := range map[string]struct {
		hangsUp int
		comes   bool
	}{"once": {1, true}, "from then on": {1000, false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes := network(t, 2, 1<<20)
				nodes[0].server.guests = newGuests(32, 0)
				want := put(t, nodes[0].store, ID{Round: 1, Step: 9}, content(5, 1<<16))
				getting := nodes[1]
				dial, dials := getting.store.dial, 0
				getting.store.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
					nodes[0].server.guests.mu.Lock()
					dials++
					hangsUp := dials > turnedAway && dials <= turnedAway+row.hangsUp
					if dials > turnedAway {
						nodes[0].server.guests.rooms = 8
					}
					nodes[0].server.guests.mu.Unlock()
					conn, err := dial(ctx, network, address)
					if hangsUp && err == nil {
						conn = &closed{conn}
					}
					return conn, err
				}
				err := getting.store.Fetch(t.Context(), getting.identity, Wanted{Snapshot: want, Holders: getting.ticketsOf(want, nodes[:1])})
				switch {
				case row.comes && err != nil:
					t.Errorf("it hangs up once: %v", err)
				case !row.comes && (!errors.Is(err, ErrBusy) || len(UnreachedIn(err)) > 0):
					t.Errorf("it was full, and hangs up: %v; not reached are %v", err, UnreachedIn(err))
				}
				leave(t, nodes)
			})
		})
	}
}

// A holder that gives something, and has no place for the rest for some minutes: nothing that came is thrown away meanwhile, to come once more.
// Time is that of the simulation.
func TestAFullServerCostsNothingThatCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := network(t, 2, 1<<30)
		guests := nodes[0].server.guests
		want := put(t, nodes[0].store, ID{Round: 1, Step: 9}, bytes.Repeat(content(5, 1<<20), pieceBlocks+1))
		getting := nodes[1]
		dial, since := getting.store.dial, 0 // something has come
		getting.store.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			getting.store.mu.Lock()
			a := getting.store.arriving[want.ID]
			getting.store.mu.Unlock()
			a.in.mu.Lock()
			if a.left < 2 {
				since++
			}
			full := since > 0 && since < 100
			a.in.mu.Unlock()
			guests.mu.Lock()
			guests.rooms = 1
			if full {
				guests.rooms = 0
			}
			guests.mu.Unlock()
			return dial(ctx, network, address)
		}
		began := time.Now()
		if err := getting.store.Fetch(t.Context(), getting.identity, Wanted{Snapshot: want, Holders: getting.ticketsOf(want, nodes[:1])}); err != nil {
			t.Errorf("it was full for %s: %v", time.Since(began), err)
		}
		leave(t, nodes)
	})
}

// One that has no place does not say anything of its file.
func TestAFullServerSaysNothingOfItsFile(t *testing.T) {
	busy := fake(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	g := &gathering{store: open(t, 1), ctx: t.Context(), identity: fetcher}
	want := Snapshot{ID: ID{Round: 1, Step: 2}, Bytes: 7}
	if said := g.verifyAt(want, with(want, busy)[0]); !bytes.Contains([]byte(said), []byte("does not say whether its file is whole")) {
		t.Errorf("of its file it is told %q", said)
	}
}

// Who gets a state in pieces from others too does not ask a full holder for a place all the time: its processors have the training to do.
// Time is that of the simulation.
func TestAFullServerIsNotAskedAllTheTime(t *testing.T) {
	const receivers, pieces = 6, 8
	synctest.Test(t, func(t *testing.T) {
		nodes := network(t, 1+receivers, 1<<20)
		nodes[0].server.guests = newGuests(32, 2)
		want := put(t, nodes[0].store, ID{Round: 1, Step: 9}, bytes.Repeat(content(5, 1<<20), pieces))
		took := swarm(t, nodes, 1, want, func(int) []*node { return nodes[1:] })
		nodes[0].mu.Lock()
		asked := len(nodes[0].conns)
		nodes[0].mu.Unlock()
		if most := receivers*pieces + 2*receivers*int(took/busyWait+1); asked > most {
			t.Errorf("in %s it is asked %d times, and more than %d are not needed", took, asked, most)
		}
		leave(t, nodes)
	})
}
