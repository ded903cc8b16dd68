package server

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// dismissAfter is how long a connection may stay when its session is over.
	dismissAfter = time.Second
	// maxRefusals is how many tokens of one address may be refused at once, and refusalEvery how soon one
	// more may be.
	maxRefusals  = 32
	refusalEvery = time.Second
	// maxRemembered is how many addresses are remembered for their refused tokens.
	maxRemembered = 4096
)

// door lets connections in. Who has connected is a stranger until its pod is known, may stay for a moment
// only, and costs no more than a handshake. Strangers have places of their own: so many in all, and so many
// for one address, so that they can use up neither memory nor file descriptors. Those who say nothing hold
// a place only until somebody needs it.
type door struct {
	net.Listener
	maxKnown, maxStrangers, maxPerSource int
	// patience is how long a stranger may stay.
	patience time.Duration

	mu        sync.Mutex
	known     int
	strangers strangers
	refusals  map[netip.Addr]*refusals
	// turnedAway counts the connections and tokens that were not taken, by cause.
	turnedAway *prometheus.CounterVec
}

// Why the door turns somebody away, as its metric says it.
const (
	awayFull    = "full"    // there was no place for a stranger
	awaySilent  = "outbid"  // it made room for another
	awayLate    = "late"    // its time was over
	awayWorkers = "workers" // as many workers as may be are connected
	awayToken   = "token"   // its token is nobody's
	awayIgnored = "ignored" // too many tokens of its address were nobody's
)

var (
	strangersDesc = prometheus.NewDesc("concertina_rendezvous_strangers", "Connections whose worker is not known yet.", nil, nil)
	workersDesc   = prometheus.NewDesc("concertina_rendezvous_connections", "Connections of workers that are known.", nil, nil)
)

// Describe implements prometheus.Collector.
func (d *door) Describe(out chan<- *prometheus.Desc) {
	out <- strangersDesc
	out <- workersDesc
	d.turnedAway.Describe(out)
}

// Collect implements prometheus.Collector.
func (d *door) Collect(out chan<- prometheus.Metric) {
	d.mu.Lock()
	strangers, known := d.strangers.count, d.known
	d.mu.Unlock()
	out <- prometheus.MustNewConstMetric(strangersDesc, prometheus.GaugeValue, float64(strangers))
	out <- prometheus.MustNewConstMetric(workersDesc, prometheus.GaugeValue, float64(known))
	d.turnedAway.Collect(out)
}

func (d *door) away(cause string) { d.turnedAway.WithLabelValues(cause).Inc() }

// refusals is a bucket that every refused token of an address takes one out of.
type refusals struct {
	left float64
	at   time.Time
}

func newDoor(maxKnown, maxStrangers, maxPerSource int, patience time.Duration) *door {
	return &door{
		maxKnown: maxKnown, maxStrangers: maxStrangers, maxPerSource: maxPerSource,
		patience: patience, strangers: newStrangers(), refusals: map[netip.Addr]*refusals{},
		turnedAway: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "concertina_rendezvous_turned_away_total",
			Help: "Connections and tokens that were not taken: full (no place for a stranger), outbid (a stranger made room), " +
				"late (a stranger's time was over), workers (no place for a worker), token (nobody's), ignored (too many of an address were nobody's).",
		}, []string{"cause"}),
	}
}

// sourceOf is what counts as one address: of IPv6 whoever has one has all of its /64.
func sourceOf(address netip.Addr) netip.Prefix {
	address = address.Unmap().WithZone("")
	bits := 32
	if address.Is6() {
		bits = 64
	}
	source, _ := address.Prefix(bits) // the zero value, which is a source too, for no address
	return source
}

// Accept returns the next connection that there is a place for.
func (d *door) Accept() (net.Conn, error) {
	for {
		conn, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if v := d.admit(conn); v != nil {
			return v, nil
		}
		_ = conn.Close()
	}
}

// admit gives a stranger a place; nil for none.
func (d *door) admit(conn net.Conn) *visitor {
	from, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return nil
	}
	v := &visitor{Conn: conn, door: d, address: from.Addr().Unmap().WithZone("")}
	v.source = sourceOf(v.address)
	d.mu.Lock()
	now := time.Now()
	evicted, ok := d.makeRoom(v.source, v.address, now)
	if ok {
		d.strangers.add(v, now)
		v.timer = time.AfterFunc(d.patience, func() {
			if !v.settled.Load() {
				d.away(awayLate)
			}
			_ = v.Close()
		})
	}
	d.mu.Unlock()
	if evicted != nil {
		d.away(awaySilent)
		_ = evicted.Close()
	}
	if !ok {
		d.away(awayFull)
		return nil
	}
	return v
}

// makeRoom says whether there is a place for a stranger of this source, and who has to go for it: one that
// is silent, or one of a source that has more. d.mu is held.
func (d *door) makeRoom(prefix netip.Prefix, from netip.Addr, now time.Time) (evicted *visitor, ok bool) {
	switch {
	case d.strangers.of(prefix) >= d.maxPerSource:
		source := d.strangers.sources[prefix]
		if evicted = d.strangers.silent(source.quiet, now); evicted == nil {
			evicted = crowding(source, from)
		}
	case d.strangers.count >= d.maxStrangers:
		evicted = d.outbid(prefix, now)
	default:
		return nil, true
	}
	if evicted == nil {
		return nil, false
	}
	d.dropStranger(evicted)
	return evicted, true
}

// crowding finds the first visitor of the address that has most places of a source; nil when that has no more than
// the one who asks would have. Where a subnet of a cluster is a /64, all of its workers are one source.
func crowding(of *source, asks netip.Addr) *visitor {
	counts, first := map[netip.Addr]int{}, map[netip.Addr]*visitor{}
	most := asks
	for place := of.visitors.Front(); place != nil; place = place.Next() {
		v := place.Value.(*visitor)
		if counts[v.address]++; first[v.address] == nil {
			first[v.address] = v
		}
		if counts[v.address] > counts[most] {
			most = v.address
		}
	}
	if counts[most] <= counts[asks]+1 {
		return nil
	}
	return first[most]
}

// outbid finds a stranger whose place another source deserves more; nil for none.
func (d *door) outbid(prefix netip.Prefix, now time.Time) *visitor {
	crowd := d.strangers.crowded()
	if crowd == nil || crowd.visitors.Len() <= d.strangers.of(prefix)+1 {
		return d.strangers.silent(d.strangers.quiet, now)
	}
	if v := d.strangers.silent(crowd.quiet, now); v != nil {
		return v
	}
	return crowd.visitors.Front().Value.(*visitor)
}

// dropStranger takes a place back. d.mu is held.
func (d *door) dropStranger(v *visitor) {
	v.timer.Stop()
	v.stage = gone
	d.strangers.drop(v)
}

// mayTry says whether a token of this address may be checked: while so many of it were refused lately, none is.
func (d *door) mayTry(address netip.Addr, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.refusals[address]
	return r == nil || r.leftAt(now) >= 1
}

// refused notes that a token of this address was nobody's. Only those count: many workers may stand behind one
// address, and connect at once.
func (d *door) refused(address netip.Addr, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.refusals[address]
	if r == nil {
		if len(d.refusals) >= maxRemembered {
			d.forgetRefusals(now)
		}
		r = &refusals{left: maxRefusals, at: now}
		d.refusals[address] = r
	}
	r.left, r.at = max(0, r.leftAt(now)-1), now
}

// leftAt is what time has given back by now.
func (r *refusals) leftAt(now time.Time) float64 {
	return min(maxRefusals, r.left+now.Sub(r.at).Seconds()/refusalEvery.Seconds())
}

// forgetRefusals drops who has nothing to be remembered for any more, or else anybody. d.mu is held.
func (d *door) forgetRefusals(now time.Time) {
	for source, r := range d.refusals {
		if now.Sub(r.at) >= maxRefusals*refusalEvery {
			delete(d.refusals, source)
		}
	}
	for source := range d.refusals {
		if len(d.refusals) < maxRemembered {
			return
		}
		delete(d.refusals, source)
	}
}

// stage is how well a visitor is known.
type stage int

const (
	stranger stage = iota
	known
	gone
)

// visitor is a connection that was let in.
type visitor struct {
	net.Conn
	door    *door
	address netip.Addr
	source  netip.Prefix
	// settled is true once it is no stranger any more: nobody cares how silent it is.
	settled atomic.Bool

	// These belong to the door's lock. reading is true while we wait for a byte, busy while it is the visitor who
	// waits for us; waits is since when it has kept us waiting.
	stage         stage
	timer         *time.Timer
	places        places
	waits         time.Time
	reading, busy bool
}

// Read notes for how long the visitor says nothing.
func (v *visitor) Read(b []byte) (int, error) {
	v.expect(func() { v.reading = true })
	n, err := v.Conn.Read(b)
	v.expect(func() { v.reading = false })
	return n, err
}

// attend says whether the visitor waits for us: from its token to the end of its session, but while its hello is
// awaited.
func (v *visitor) attend(busy bool) { v.expect(func() { v.busy = busy }) }

// expect notes whether it is the visitor's turn from now on.
func (v *visitor) expect(change func()) {
	if v.settled.Load() {
		return
	}
	v.door.mu.Lock()
	defer v.door.mu.Unlock()
	if change(); v.reading && !v.busy {
		v.door.strangers.wait(v, time.Now())
	} else {
		v.door.strangers.answered(v)
	}
}

// welcome makes the visitor one whose pod is known. It returns false when there is no place for it.
func (v *visitor) welcome() bool {
	v.door.mu.Lock()
	defer v.door.mu.Unlock()
	switch {
	case v.stage == known:
		v.timer.Stop()
		return true
	case v.stage == gone || v.door.known >= v.door.maxKnown:
		return false
	}
	v.door.dropStranger(v)
	v.stage = known
	v.settled.Store(true)
	v.door.known++
	return true
}

// full says whether there is no place for a worker.
func (d *door) full() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known < d.maxKnown {
		return false
	}
	d.away(awayWorkers)
	return true
}

// dismiss ends the connection of a visitor soon, unless it is welcomed again: its session is over, and it was
// told so.
func (v *visitor) dismiss() {
	v.door.mu.Lock()
	defer v.door.mu.Unlock()
	if v.stage == known {
		v.timer.Reset(dismissAfter)
	}
}

// Close closes the connection and makes room for another.
func (v *visitor) Close() error {
	v.door.mu.Lock()
	switch v.stage {
	case stranger:
		v.door.dropStranger(v)
	case known:
		v.timer.Stop()
		v.stage = gone
		v.door.known--
	}
	v.door.mu.Unlock()
	return v.Conn.Close()
}
