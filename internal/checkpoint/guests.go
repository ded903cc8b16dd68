package checkpoint

import (
	"cmp"
	"net"
	"net/netip"
	"sync"
	"time"
)

// guests are the connections of a server. Anybody who reaches its port may open some, so those that have shown a ticket
// have their places for sure, and of all others the one goes first that keeps us waiting longest, of the address that has
// most: who fills the server fills it against itself.
type guests struct {
	mu    sync.Mutex
	most  int
	all   map[net.Conn]*guest
	crowd map[netip.Prefix]int
}

// guest is one connection; welcome once it has shown a ticket.
type guest struct {
	from    netip.Prefix
	since   time.Time
	welcome bool
}

func newGuests(most int) *guests {
	return &guests{most: most, all: map[net.Conn]*guest{}, crowd: map[netip.Prefix]int{}}
}

// arrive takes a connection in. It returns one that has to be closed for it: it itself when all others are welcome.
func (g *guests) arrive(conn net.Conn, now time.Time) (closed net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := &guest{from: addressOf(conn), since: now}
	g.all[conn] = one
	g.crowd[one.from]++
	if len(g.all) <= g.most {
		return nil
	}
	var last *guest
	for other, o := range g.all {
		if o.welcome {
			continue
		}
		if last == nil || cmp.Or(cmp.Compare(g.crowd[o.from], g.crowd[last.from]), last.since.Compare(o.since)) > 0 {
			closed, last = other, o
		}
	}
	return closed
}

// leave forgets a connection that is closed.
func (g *guests) leave(conn net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.all[conn]
	if one == nil {
		return
	}
	delete(g.all, conn)
	if g.crowd[one.from]--; g.crowd[one.from] == 0 {
		delete(g.crowd, one.from)
	}
}

// welcome keeps the place of a connection that has shown a ticket.
func (g *guests) welcome(conn net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if one := g.all[conn]; one != nil {
		one.welcome = true
	}
}

// addressOf is what counts as one address: of IPv6 whoever has one has all of its /64.
func addressOf(conn net.Conn) netip.Prefix {
	from, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
	address := from.Addr().Unmap()
	bits := address.BitLen()
	if address.Is6() {
		bits = 64
	}
	prefix, _ := address.Prefix(bits) // the zero value, which counts as an address too, for none
	return prefix
}
