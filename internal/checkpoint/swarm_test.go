package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/concertina-dev/concertina/internal/ticket"
)

// link is one direction of a worker's link: what goes over it takes its time, one after another.
type link struct {
	mu    sync.Mutex
	rate  float64
	free  time.Time
	bytes atomic.Int64
}

// carry lets so many bytes pass.
func (l *link) carry(n int) {
	l.mu.Lock()
	if now := time.Now(); l.free.Before(now) {
		l.free = now
	}
	l.free = l.free.Add(time.Duration(float64(n) / l.rate * float64(time.Second)))
	left := time.Until(l.free)
	l.mu.Unlock()
	l.bytes.Add(int64(n))
	time.Sleep(left)
}

// limited is one end of a connection; what it sends goes over its own link, and what it hears over its own other one.
type limited struct {
	net.Conn
	up, down *link
}

// goodbyeBytes has a record of TLS by which one end says that it closes the connection.
const goodbyeBytes = 24

func (c limited) Write(p []byte) (n int, err error) {
	if len(p) == goodbyeBytes {
		// Both ends may say it at once, with locks held, and there is nothing between them that would keep it.
		goodbye := slices.Clone(p)
		go func() { _, _ = c.Conn.Write(goodbye) }()
		return len(p), nil
	}
	for len(p) > 0 && err == nil {
		part := p[:min(len(p), 64<<10)]
		c.up.carry(len(part))
		var sent int
		sent, err = c.Conn.Write(part)
		n, p = n+sent, p[sent:]
	}
	return n, err
}

func (c limited) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.down.carry(n)
	return n, err
}

// node is a worker on a network that there is only in this process.
type node struct {
	store    *Store
	identity *Identity
	server   *Server
	holder   Holder
	up, down link
	arrivals chan net.Conn

	mu     sync.Mutex
	conns  []net.Conn
	gone   sync.Once
	closed chan struct{}
}

func (n *node) Accept() (net.Conn, error) {
	select {
	case conn := <-n.arrivals:
		return conn, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

// Close ends all of its connections.
func (n *node) Close() error {
	n.gone.Do(func() { close(n.closed) })
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, conn := range n.conns {
		_ = conn.Close()
	}
	return nil
}

func (n *node) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: n.holder.Port} }

// network are so many workers whose links carry so many bytes a second in each direction.
func network(t *testing.T, workers int, rate float64) []*node {
	t.Helper()
	nodes := make([]*node, workers)
	for i := range nodes {
		n := &node{store: open(t, 1), identity: newIdentity(), arrivals: make(chan net.Conn), closed: make(chan struct{})}
		n.holder = Holder{Address: "10.0.0.1", Port: i + 1, Certificate: n.identity.Sum()}
		n.up.rate, n.down.rate = rate, rate
		n.store.sharedBlocks = 1
		n.store.dial = func(ctx context.Context, _, address string) (net.Conn, error) {
			for _, to := range nodes {
				if to.holder.String() != address {
					continue
				}
				here, there := net.Pipe()
				select {
				case to.arrivals <- limited{there, &to.up, &to.down}:
					to.mu.Lock()
					to.conns = append(to.conns, there)
					to.mu.Unlock()
					return limited{here, &n.up, &n.down}, nil
				case <-to.closed:
					return nil, net.ErrClosed
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			return nil, errors.New("there is no such worker")
		}
		n.server = serveOn(n.store, n, i+1, n.identity, nil)
		n.server.SetKey(1, ticket.KeyOf(secret, n.identity.Sum()))
		nodes[i] = n
	}
	return nodes
}

// ticketsOf gives a worker the tickets for a snapshot at others.
func (n *node) ticketsOf(want Snapshot, others []*node) (holders []Holder) {
	for _, other := range others {
		if other == n {
			continue
		}
		h := other.holder
		grant := ticket.Grant{Fetcher: n.identity.Sum(), Round: want.Round, Step: want.Step}
		h.Ticket = ticket.Issue(ticket.KeyOf(secret, h.Certificate), 1, grant, time.Now().Add(time.Hour))
		holders = append(holders, h)
	}
	return holders
}

// leave ends all servers, and lets what says goodbye have its time for that.
func leave(t *testing.T, nodes []*node) {
	t.Helper()
	for _, n := range nodes {
		_ = n.Close()
		if err := n.server.Close(); err != nil {
			t.Error(err)
		}
	}
	time.Sleep(time.Minute)
}

// swarm has workers get what the first ones have, and says how long that takes.
func swarm(t *testing.T, nodes []*node, have int, want Snapshot, peers func(i int) []*node) time.Duration {
	t.Helper()
	began := time.Now()
	var fetching sync.WaitGroup
	for i, n := range nodes[have:] {
		fetching.Go(func() {
			wanted := Wanted{Snapshot: want, Holders: n.ticketsOf(want, nodes[:have]), Peers: n.ticketsOf(want, peers(i))}
			if err := n.store.Fetch(t.Context(), n.identity, wanted); err != nil {
				t.Errorf("worker %d: %v", i, err)
			}
		})
	}
	fetching.Wait()
	return time.Since(began)
}

// Sixteen workers get a state from four, or from the one that has brought it from the storage: it takes little longer than one link
// needs for it, though those who had it could not give so much in that time, and none of them is asked for much more than everybody is
// on the average. Time is that of the simulation.
func TestManyWorkersGetTheSame(t *testing.T) {
	const (
		receivers = 16
		size      = 32 << 20
		rate      = 10 << 20
	)
	// For one holder a state of so few pieces is the harder case: none can be given on before it has given that alone.
	for holders, most := range map[int]float64{4: 1.5, 1: 2} {
		t.Run(fmt.Sprint(receivers, " from ", holders), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes := network(t, holders+receivers, rate)
				data := content(5, size)
				var want Snapshot
				for _, n := range nodes[:holders] {
					want = put(t, n.store, ID{Round: 1, Step: 9}, data)
				}
				took := swarm(t, nodes, holders, want, func(i int) []*node {
					others := slices.Clone(nodes[holders:])
					return append(others[i+1:], others[:i]...)[:8]
				})
				ideal := time.Duration(float64(size) / rate * float64(time.Second))
				total, busiest := int64(0), int64(0)
				for _, n := range nodes {
					total += n.up.bytes.Load()
				}
				for _, n := range nodes[:holders] {
					busiest = max(busiest, n.up.bytes.Load())
				}
				mean := float64(total) / float64(len(nodes))
				t.Logf("%.2f times what one link needs; %.2f bytes are sent for each; a holder sends at most %.2f times the mean",
					took.Seconds()/ideal.Seconds(), float64(total)/receivers/size, float64(busiest)/mean)
				if took.Seconds() > most*ideal.Seconds() {
					t.Errorf("it takes %s, more than %.1f times %s", took, most, ideal)
				}
				if float64(busiest) > 2*mean {
					t.Errorf("a holder sends %d bytes, and the mean is %.0f", busiest, mean)
				}
				for i, n := range nodes[holders:] {
					got, err := os.ReadFile(n.store.path(want.ID))
					if err != nil || !bytes.Equal(got, data) {
						t.Errorf("worker %d has %d bytes that are not those of the state (%v)", i, len(got), err)
					}
				}
				leave(t, nodes)
			})
		})
	}
}

// between is how many pieces of a file some workers have between them.
func between(nodes []*node, id ID) int {
	var all pieceSet
	for _, n := range nodes {
		file, _, here, _ := n.store.some(id, 1)
		if all |= here; file != nil {
			_ = file.Close()
		}
	}
	return bits.OnesCount64(uint64(all))
}

// What has come is given on: when the only one that had all of it is gone, those who have it between them still get it, and nobody
// waits for what nobody has.
func TestWhoHadAllOfItGoes(t *testing.T) {
	const (
		size = 16 << 20
		rate = 4 << 20
	)
	for name, row := range map[string]struct {
		// pieces are as many as others have between them when the holder goes.
		pieces int
		ends   bool
	}{
		"once all has come to somebody": {size >> 20, true},
		"too early":                     {size >> 21, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes := network(t, 4, rate)
				data := content(5, size)
				want := put(t, nodes[0].store, ID{Round: 1, Step: 9}, data)
				stop := make(chan struct{})
				go func() {
					defer close(stop)
					for between(nodes[1:], want.ID) < row.pieces {
						time.Sleep(10 * time.Millisecond)
					}
					_ = nodes[0].Close()
				}()
				errs := make([]error, len(nodes))
				began := time.Now()
				var fetching sync.WaitGroup
				for i, n := range nodes[1:] {
					fetching.Go(func() {
						wanted := Wanted{Snapshot: want, Holders: n.ticketsOf(want, nodes[:1]), Peers: n.ticketsOf(want, nodes[1:])}
						errs[i] = n.store.Fetch(t.Context(), n.identity, wanted)
					})
				}
				fetching.Wait()
				<-stop
				if err := errors.Join(errs...); (err == nil) != row.ends {
					t.Errorf("%v", err)
				} else if err != nil && !errors.Is(err, ErrUnreached) {
					t.Errorf("the network is at fault: %v", err)
				}
				if took, most := time.Since(began), 3*stallTimeout; took > most {
					t.Errorf("it ends after %s", took)
				}
				for _, n := range nodes[1:] {
					if got, err := os.ReadFile(n.store.path(want.ID)); row.ends && (err != nil || !bytes.Equal(got, data)) {
						t.Errorf("%d bytes are not those of the state (%v)", len(got), err)
					}
					if left := files(t, n.store); row.ends && len(left) != 1 || !row.ends && len(left) != 0 {
						t.Errorf("there are %v", left)
					}
				}
				leave(t, nodes)
			})
		})
	}
}

// What a peer gives is looked at like all that comes: altered blocks are not taken, and come from who has them.
func TestAPeerThatGivesWhatIsAltered(t *testing.T) {
	const size = 8 << 20
	synctest.Test(t, func(t *testing.T) {
		nodes := network(t, 3, 8<<20)
		data := content(5, size)
		var want Snapshot
		for _, n := range nodes[:2] {
			want = put(t, n.store, ID{Round: 1, Step: 9}, data)
		}
		file, err := os.OpenFile(nodes[1].store.path(want.ID), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		for block := range int64(size >> 20) {
			if _, err := file.WriteAt([]byte{^data[block<<20]}, block<<20); err != nil {
				t.Fatal(err)
			}
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		n := nodes[2]
		wanted := Wanted{Snapshot: want, Holders: n.ticketsOf(want, nodes[:1]), Peers: n.ticketsOf(want, nodes[1:])}
		if err := n.store.Fetch(t.Context(), n.identity, wanted); err != nil {
			t.Fatal(err)
		}
		if nodes[1].up.bytes.Load() < 1<<20 {
			t.Error("the peer was asked for nothing")
		}
		if got, err := os.ReadFile(n.store.path(want.ID)); err != nil || !bytes.Equal(got, data) {
			t.Errorf("it has %d bytes that are not those of the state (%v)", len(got), err)
		}
		leave(t, nodes)
	})
}

// Agents of a version that gives no pieces to others that lack some, and whoever has no ticket, are asked once.
func TestAPeerThatRefuses(t *testing.T) {
	const size = 8 << 20
	synctest.Test(t, func(t *testing.T) {
		nodes := network(t, 3, 8<<20)
		data := content(5, size)
		want := put(t, nodes[0].store, ID{Round: 1, Step: 9}, data)
		n := nodes[2]
		wanted := Wanted{Snapshot: want, Holders: n.ticketsOf(want, nodes[:1]), Peers: n.ticketsOf(want, nodes[1:2])}
		wanted.Peers[0].Ticket = nil
		if err := n.store.Fetch(t.Context(), n.identity, wanted); err != nil {
			t.Fatal(err)
		}
		if sent := nodes[1].up.bytes.Load(); sent > 8<<10 {
			t.Errorf("it has refused with %d bytes", sent)
		}
		leave(t, nodes)
	})
}
