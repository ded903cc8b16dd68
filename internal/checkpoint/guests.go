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
// most: who fills the server fills it against itself. There are fewer rooms for those with a ticket than places at the door, so
// whoever comes while all are taken is told so, by an agent that is reached.
type guests struct {
	mu          sync.Mutex
	most, rooms int
	all         map[net.Conn]*guest
	crowd       map[netip.Prefix]int
	// taken is how many rooms are.
	taken int
}

// guest is one connection; welcome once it has shown a ticket.
type guest struct {
	from    netip.Prefix
	since   time.Time
	welcome bool
}

func newGuests(most, rooms int) *guests {
	return &guests{most: most, rooms: rooms, all: map[net.Conn]*guest{}, crowd: map[netip.Prefix]int{}}
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
	if one.welcome {
		g.taken--
	}
	if g.crowd[one.from]--; g.crowd[one.from] == 0 {
		delete(g.crowd, one.from)
	}
}

// welcome keeps the place of a connection that has shown a ticket; false when there is no room.
func (g *guests) welcome(conn net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.all[conn]
	if one == nil || g.taken >= g.rooms {
		return false // it was closed meanwhile, or has to come again
	}
	one.welcome = true
	g.taken++
	return true
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
