package checkpoint

import (
	"context"
	"net"
	"testing"
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
	g := newGuests(4)
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
