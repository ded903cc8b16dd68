package server

import (
	orders "container/list"
	"net"
	"net/netip"
	"syscall"
	"time"
)

const (
	// silentAfter is how long a stranger may leave us waiting for its next byte before its place may be
	// given to another. A worker needs a few round trips.
	silentAfter = 250 * time.Millisecond
	// maxLooks is how many strangers are looked at for one that is silent, for each that comes.
	maxLooks = 4
)

// strangers are the visitors whose pod is not known yet. Whatever many they are, one more costs the same: they are
// kept in the orders in which somebody is looked for. It belongs to the door's lock.
type strangers struct {
	count   int
	sources map[netip.Prefix]*source
	// crowds are the sources that have so many strangers; most is the largest number that any has.
	crowds []*orders.List
	most   int
	// quiet are those who keep us waiting, first the one that does for longest.
	quiet *orders.List
	// unread says whether a connection has brought bytes that we have not read yet.
	unread func(net.Conn) bool
}

// source is what counts as one address.
type source struct {
	prefix netip.Prefix
	// visitors are in the order in which they came, quiet are those of them who keep us waiting.
	visitors, quiet *orders.List
	// place is the one in the crowds.
	place *orders.Element
}

// places are a stranger's in the orders; those of the quiet are nil while it does not keep us waiting.
type places struct {
	source                  *source
	came, quiet, quietThere *orders.Element
}

func newStrangers() strangers {
	return strangers{sources: map[netip.Prefix]*source{}, crowds: []*orders.List{orders.New()}, quiet: orders.New(), unread: unread}
}

// of counts the strangers of a source.
func (s *strangers) of(prefix netip.Prefix) int {
	if from := s.sources[prefix]; from != nil {
		return from.visitors.Len()
	}
	return 0
}

// add adds a visitor, who keeps us waiting from now on.
func (s *strangers) add(v *visitor, now time.Time) {
	from := s.sources[v.source]
	if from == nil {
		from = &source{prefix: v.source, visitors: orders.New(), quiet: orders.New()}
		s.sources[v.source] = from
	}
	s.count++
	v.places = places{source: from, came: from.visitors.PushBack(v)}
	s.crowd(from, from.visitors.Len()-1)
	s.wait(v, now)
}

// drop removes a visitor.
func (s *strangers) drop(v *visitor) {
	s.answered(v)
	from := v.places.source
	s.count--
	from.visitors.Remove(v.places.came)
	s.crowd(from, from.visitors.Len()+1)
	if from.visitors.Len() == 0 {
		delete(s.sources, from.prefix)
	}
	v.places = places{}
}

// crowd puts a source that had another number of strangers before where it belongs.
func (s *strangers) crowd(from *source, before int) {
	if from.place != nil {
		s.crowds[before].Remove(from.place)
		from.place = nil
	}
	n := from.visitors.Len()
	for len(s.crowds) <= n {
		s.crowds = append(s.crowds, orders.New())
	}
	if n > 0 {
		from.place = s.crowds[n].PushBack(from)
	}
	// The largest number changes by one at most.
	if s.most = max(s.most, n); s.most > 0 && s.crowds[s.most].Len() == 0 {
		s.most--
	}
}

// crowded is a source that has most strangers; nil when there is none.
func (s *strangers) crowded() *source {
	if s.most == 0 {
		return nil
	}
	return s.crowds[s.most].Front().Value.(*source)
}

// wait notes that a stranger keeps us waiting from now on.
func (s *strangers) wait(v *visitor, now time.Time) {
	s.answered(v)
	if v.places.source == nil {
		return // it is none any more
	}
	v.waits = now
	v.places.quiet, v.places.quietThere = s.quiet.PushBack(v), v.places.source.quiet.PushBack(v)
}

// answered notes that it does not.
func (s *strangers) answered(v *visitor) {
	if v.places.quiet == nil {
		return
	}
	s.quiet.Remove(v.places.quiet)
	v.places.source.quiet.Remove(v.places.quietThere)
	v.places.quiet, v.places.quietThere = nil, nil
}

// silent is the one who has kept us waiting for longest, and for too long; nil for none. Whose bytes have come and were
// not read yet is not silent: we are slow.
func (s *strangers) silent(quiet *orders.List, now time.Time) *visitor {
	for range maxLooks {
		front := quiet.Front()
		if front == nil {
			return nil
		}
		v := front.Value.(*visitor)
		if now.Sub(v.waits) < silentAfter {
			return nil
		}
		if !s.unread(v.Conn) {
			return v
		}
		s.wait(v, now)
	}
	return nil
}

// unread looks into the socket, without taking anything out of it.
func unread(conn net.Conn) bool {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	var waiting int
	var one [1]byte
	err = raw.Control(func(fd uintptr) {
		waiting, _, _ = syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	})
	return err == nil && waiting > 0
}
