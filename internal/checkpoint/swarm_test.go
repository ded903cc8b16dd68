package checkpoint

import (
	"context"
	"errors"
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

func (c limited) Write(p []byte) (n int, err error) {
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
	closed   chan struct{}
}

func (n *node) Accept() (net.Conn, error) {
	select {
	case conn := <-n.arrivals:
		return conn, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

func (n *node) Close() error   { close(n.closed); return nil }
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

// Sixteen workers get a state from four: it takes little longer than one link needs for it, though all four together could not give
// so much in that time, and none of those is asked for much more than everybody is on the average. Time is that of the simulation.
func TestManyWorkersGetTheSame(t *testing.T) {
	const (
		holders, receivers = 4, 16
		size               = 64 << 20
		rate               = 10 << 20
	)
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
		total, most := int64(0), int64(0)
		for _, n := range nodes {
			total += n.up.bytes.Load()
		}
		for _, n := range nodes[:holders] {
			most = max(most, n.up.bytes.Load())
		}
		mean := float64(total) / float64(len(nodes))
		t.Logf("%.2f times what one link needs; %.2f bytes are sent for each; a holder sends at most %.2f times the mean",
			took.Seconds()/ideal.Seconds(), float64(total)/receivers/size, float64(most)/mean)
		if limit := ideal * 3 / 2; took > limit {
			t.Errorf("it takes %s, more than %s", took, limit)
		}
		if float64(most) > 2*mean {
			t.Errorf("a holder sends %d bytes, and the mean is %.0f", most, mean)
		}
		for i, n := range nodes[holders:] {
			got, err := os.ReadFile(n.store.path(want.ID))
			if err != nil || !slices.Equal(got, data) {
				t.Errorf("worker %d has %d bytes that are not those of the state (%v)", i, len(got), err)
			}
		}
		leave(t, nodes)
	})
}
