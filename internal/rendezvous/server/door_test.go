package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvoustest"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// fakeListener hands out connections whose addresses the test chooses.
type fakeListener struct{ conns chan net.Conn }

func (l fakeListener) Accept() (net.Conn, error) {
	conn, ok := <-l.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (fakeListener) Close() error   { return nil }
func (fakeListener) Addr() net.Addr { return &net.TCPAddr{} }

// caller is the far end of a connection from some address.
type caller struct {
	net.Conn
	near fakeConn
}

type fakeConn struct {
	net.Conn
	from net.Addr
}

func (c fakeConn) RemoteAddr() net.Addr { return c.from }

// hall is a door without a network, and those who were let in.
type hall struct {
	t       *testing.T
	door    *door
	conns   chan net.Conn
	entered chan *visitor
}

func newHall(t *testing.T, maxKnown, maxStrangers, maxPerSource int) *hall {
	h := &hall{t: t, conns: make(chan net.Conn), entered: make(chan *visitor, 100)}
	h.door = newDoor(maxKnown, maxStrangers, maxPerSource, 10*time.Second)
	h.door.Listener = fakeListener{h.conns}
	go func() {
		defer close(h.entered)
		for {
			conn, err := h.door.Accept()
			if err != nil {
				return
			}
			h.entered <- conn.(*visitor)
		}
	}()
	return h
}

// call connects from an address, and returns the visitor, or nil when it was turned away.
func (h *hall) call(from string) (*visitor, *caller) {
	h.t.Helper()
	far, near := net.Pipe()
	conn := fakeConn{near, net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 4000))}
	h.conns <- conn
	synctest.Wait()
	select {
	case v := <-h.entered:
		return v, &caller{far, conn}
	default:
		return nil, &caller{far, conn}
	}
}

// over says whether the connection was closed.
func (c *caller) over() bool {
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	return errors.Is(err, io.EOF)
}

// listen waits for what the visitor says, as a TLS handshake does.
func listen(v *visitor) { go func() { _, _ = v.Read(make([]byte, 1)) }() }

func (h *hall) end() {
	close(h.conns)
	h.door.mu.Lock()
	var all []*visitor
	for _, from := range h.door.strangers.sources {
		for place := from.visitors.Front(); place != nil; place = place.Next() {
			all = append(all, place.Value.(*visitor))
		}
	}
	h.door.mu.Unlock()
	for _, v := range all {
		_ = v.Close()
	}
	synctest.Wait()
	if left := &h.door.strangers; left.count != 0 || len(left.sources) != 0 || left.quiet.Len() != 0 || left.most != 0 {
		h.t.Errorf("%d strangers of %d sources are left", left.count, len(left.sources))
	}
}

func TestStrangersStayForAMomentOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t, 10, 10, 10)
		defer h.end()
		_, silent := h.call("10.0.0.1")
		talks, talker := h.call("10.0.0.2")
		v, worker := h.call("10.0.0.3")
		if !v.welcome() {
			t.Fatal("a worker is not welcome")
		}
		defer func() { _ = v.Close() }()
		// Whoever says something every now and then gains nothing by it.
		go func() {
			for {
				if _, err := talks.Read(make([]byte, 1)); err != nil {
					return
				}
			}
		}()
		go func() {
			for {
				if _, err := talker.Write([]byte("x")); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}()
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if !silent.over() || !talker.over() {
			t.Error("strangers stay")
		}
		if worker.over() {
			t.Error("a worker was sent away like a stranger")
		}
		v.dismiss()
		time.Sleep(dismissAfter)
		synctest.Wait()
		if !worker.over() || h.door.known != 0 {
			t.Error("a worker whose session is over stays")
		}
	})
}

// One address fills its own places, not those of others; of IPv6 a /64 is one address.
func TestPlacesOfOneAddress(t *testing.T) {
	for _, c := range []struct{ name, one, same, other string }{
		{"IPv4", "10.0.0.1", "::ffff:10.0.0.1", "10.0.0.2"},
		{"IPv6", "2001:db8:1:2::1", "2001:db8:1:2:ffff::9", "2001:db8:1:3::1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHall(t, 10, 10, 2)
				defer h.end()
				for _, from := range []string{c.one, c.same} {
					if v, _ := h.call(from); v == nil {
						t.Fatalf("%s is turned away", from)
					}
				}
				if v, _ := h.call(c.same); v != nil {
					t.Error("a third of one address is let in")
				}
				v, _ := h.call(c.other)
				if v == nil {
					t.Fatal("another address is turned away")
				}
				// Who is known takes no place of its address any more.
				if !v.welcome() {
					t.Fatal("not welcome")
				}
				defer func() { _ = v.Close() }()
				for range 2 {
					if v, _ := h.call(c.other); v == nil {
						t.Error("a worker takes a place of its address")
					}
				}
			})
		})
	}
}

// Where a subnet is a /64, one pod of it cannot keep the others out, however talkative its connections are.
func TestOneAddressDoesNotFillItsSubnet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t, 10, 10, 4)
		defer h.end()
		_, first := h.call("2001:db8:1:2::1")
		for range 3 {
			h.call("2001:db8:1:2::1")
		}
		for range 2 {
			if v, _ := h.call("2001:db8:1:2::9"); v == nil {
				t.Fatal("a neighbour is turned away")
			}
		}
		if v, _ := h.call("2001:db8:1:2::9"); v != nil {
			t.Error("it gets more than its neighbour has")
		}
		synctest.Wait()
		if !first.over() {
			t.Error("nobody made room")
		}
	})
}

// Four pods that connect as often as they can and say nothing keep nobody out.
func TestSilentStrangersMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t, 10, 8, 2)
		defer h.end()
		for source := range 4 {
			for range 5 {
				if v, _ := h.call(fmt.Sprintf("10.0.0.%d", source+1)); v != nil {
					listen(v)
				}
			}
		}
		if h.door.strangers.count != 8 {
			t.Fatalf("%d strangers", h.door.strangers.count)
		}
		v, _ := h.call("10.0.0.9")
		if v == nil {
			t.Fatal("a worker with an address of its own does not come before those of a crowd")
		}
		// From now on it waits for us, and is not silent.
		v.attend(true)
		time.Sleep(silentAfter)
		if v, _ := h.call("10.0.0.1"); v == nil {
			t.Error("a worker behind the address of silent strangers is turned away")
		}
		if full, outbid := h.door.counted(awayFull), h.door.counted(awaySilent); full != 12 || outbid != 2 {
			t.Errorf("%v found no place and %v made room, want 12 and 2", full, outbid)
		}
		time.Sleep(silentAfter)
		for source := range 20 {
			_, _ = h.call(fmt.Sprintf("10.0.1.%d", source+1))
		}
		if v.stage == gone {
			t.Error("a worker whose token is being checked had to make room")
		}
	})
}

// When many workers come at once nobody pushes out another.
func TestAStormPushesNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t, 10, 3, 2)
		defer h.end()
		var first []*visitor
		for source := range 3 {
			v, _ := h.call(fmt.Sprintf("10.0.0.%d", source+1))
			first = append(first, v)
		}
		for source := range 3 {
			if v, _ := h.call(fmt.Sprintf("10.0.1.%d", source+1)); v != nil {
				t.Error("there was no place, and one was let in")
			}
		}
		for i, v := range first {
			if v == nil || v.stage != stranger {
				t.Errorf("worker %d had to go", i)
			}
		}
	})
}

// An operator that is too busy to read what has come does not take workers for silent ones: nobody makes room for
// them, and those who come then cost a few looks each.
func TestSlownessIsNotSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t, 10, 64, 2)
		defer h.end()
		looks, slow := 0, true
		h.door.strangers.unread = func(net.Conn) bool { looks++; return slow }
		var waiting []*visitor
		for source := range 64 {
			v, _ := h.call(fmt.Sprintf("10.0.0.%d", source+1))
			listen(v)
			waiting = append(waiting, v)
		}
		time.Sleep(silentAfter)
		for source := range 8 {
			if v, _ := h.call(fmt.Sprintf("10.0.1.%d", source+1)); v != nil {
				t.Error("a worker whose bytes were not read had to make room")
			}
		}
		if looks != 8*maxLooks {
			t.Errorf("8 that came cost %d looks, want %d each", looks, maxLooks)
		}
		slow = false
		if v, _ := h.call("10.0.1.1"); v == nil {
			t.Error("a silent stranger keeps a worker out")
		}
		if slices.IndexFunc(waiting, func(v *visitor) bool { return v.stage == gone }) != 8*maxLooks {
			t.Error("another one had to go than the one that was silent for longest")
		}
	})
}

// Bytes that nobody has read yet are seen in the socket, and stay there.
func TestUnreadBytesAreSeen(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	far, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = far.Close() }()
	near, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = near.Close() }()
	if unread(near) {
		t.Error("a silent connection has bytes")
	}
	if _, err := far.Write([]byte("ab")); err != nil {
		t.Fatal(err)
	}
	one := make([]byte, 1)
	if _, err := io.ReadFull(near, one); err != nil || !unread(near) {
		t.Errorf("the second byte is not seen: %v", err)
	}
	if _, err := io.ReadFull(near, one); err != nil || string(one) != "b" || unread(near) {
		t.Errorf("the second byte was not left there: %q, %v", one, err)
	}
}

// The largest crowd is known however sources grow and shrink.
func TestCrowdsAreCounted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newStrangers()
		var all []*visitor
		counts := map[netip.Prefix]int{}
		for range rapid.IntRange(1, 60).Draw(t, "changes") {
			if len(all) > 0 && rapid.Bool().Draw(t, "leaves") {
				i := rapid.IntRange(0, len(all)-1).Draw(t, "who")
				s.drop(all[i])
				counts[all[i].source]--
				all = slices.Delete(all, i, i+1)
			} else {
				from := sourceOf(netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(0, 3).Draw(t, "source"))}))
				all = append(all, &visitor{source: from})
				s.add(all[len(all)-1], time.Time{})
				counts[from]++
			}
			most := 0
			for from, n := range counts {
				most = max(most, n)
				if s.of(from) != n {
					t.Fatalf("%v has %d strangers, want %d", from, s.of(from), n)
				}
			}
			if s.most != most || s.count != len(all) || s.quiet.Len() != len(all) {
				t.Fatalf("%d strangers, %d quiet, at most %d of a source; want %d, and %d", s.count, s.quiet.Len(), s.most, len(all), most)
			}
			if crowd := s.crowded(); most > 0 && counts[crowd.prefix] != most {
				t.Fatalf("%v is the largest crowd with %d, want %d", crowd.prefix, counts[crowd.prefix], most)
			}
		}
	})
}

func TestKnownWorkersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t, 1, 10, 10)
		defer h.end()
		one, _ := h.call("10.0.0.1")
		two, _ := h.call("10.0.0.2")
		if !one.welcome() || two.welcome() {
			t.Fatal("the bound of workers does not hold")
		}
		_ = one.Close()
		if !two.welcome() {
			t.Error("a place that is free is not given")
		}
		_ = two.Close()
	})
}

// A worker that finds no place is told why, and who can mend it.
func TestAFullOperatorSaysSo(t *testing.T) {
	f := serve(t, func(o *Options) { o.MaxConnections = 1 })
	f.Expect(digits, gangOf(1, "a", "b"))
	a := f.agent(t, "a")
	f.eventually(t, "one worker is there", func(rendezvous.Observation) bool { return f.door.workers() == 1 })
	wantCode(t, f.converse(t, "token-b", first(f.pod("b"))), codes.Unavailable,
		"1 workers are connected, no more may be (--rendezvous-max-connections)")
	if got := f.door.counted(awayWorkers); got != 1 {
		t.Errorf("%v workers were turned away", got)
	}
	a.Stop()
	f.eventually(t, "its place is free", func(rendezvous.Observation) bool { return f.door.workers() == 0 })
	b := f.agent(t, "b")
	await(t, b, func(s rendezvoustest.Snapshot) bool { return s.Term == 1 })
}

func TestRefusedTokensOfOneAddressAreCounted(t *testing.T) {
	d := newDoor(1, 1, 1, time.Second)
	one, other := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	now := time.Now()
	for i := range maxRefusals {
		if !d.mayTry(one, now) {
			t.Fatalf("token %d may not be tried", i)
		}
		d.refused(one, now)
	}
	if d.mayTry(one, now) {
		t.Error("there is no end of refused tokens")
	}
	if !d.mayTry(other, now) {
		t.Error("another address pays for it")
	}
	now = now.Add(refusalEvery)
	for range 2 {
		if !d.mayTry(one, now) {
			t.Error("time gives nothing back, or a good token costs one")
		}
	}
	if d.refused(one, now); d.mayTry(one, now) {
		t.Error("time gives too much back")
	}
	for i := range 2 * maxRemembered {
		d.refused(netip.AddrFrom4([4]byte{11, 0, byte(i >> 8), byte(i)}), now)
	}
	if len(d.refusals) > maxRemembered {
		t.Errorf("%d addresses are remembered", len(d.refusals))
	}
}

// Nothing is asked about a token unless its pod is expected.
func TestOnlyExpectedPodsAreAskedAbout(t *testing.T) {
	f := serve(t, nil)
	f.Expect(digits, gangOf(1, "a"))
	f.pod("z")
	f.tokens.issue("elsewhere", rendezvous.Identity{Namespace: "elsewhere", PodName: "a", PodUID: "uid-a", Expires: time.Now().Add(time.Hour)})
	wantCode(t, f.converse(t, "garbage", first(f.pod("a"))), codes.Unauthenticated, "unknown token")
	wantCode(t, f.converse(t, "token-z", first(f.pod("z"))), codes.Unavailable, "not expected in the gang yet")
	wantCode(t, f.converse(t, "elsewhere", first(f.pod("a"))), codes.PermissionDenied, "elsewhere/a")
	if n := f.tokens.count(); n != 0 {
		t.Errorf("%d tokens were checked", n)
	}
	f.tokens.forge("forged", "a")
	wantCode(t, f.converse(t, "forged", first(f.pod("a"))), codes.Unauthenticated, "unknown token")
	if n := f.tokens.count(); n != 1 {
		t.Errorf("%d tokens were checked", n)
	}
}

// Forged tokens of expected pods cost so many checks of one address and no more; others are not kept out.
func TestForgedTokensAreCheckedForAWhileOnly(t *testing.T) {
	f := serve(t, nil)
	f.Expect(digits, gangOf(1, "a"))
	f.tokens.forge("forged", "a")
	began := time.Now()
	for range maxRefusals + 10 {
		_ = f.converse(t, "forged", first(f.pod("a")))
	}
	most := maxRefusals + int(time.Since(began)/refusalEvery) + 1
	if n := f.tokens.count(); n > most {
		t.Errorf("%d forged tokens were checked, want at most %d", n, most)
	}
	wantCode(t, f.converse(t, "forged", first(f.pod("a"))), codes.Unavailable, "too many tokens from 127.0.0.1/32 were refused")
	other := f.from("127.0.0.2")
	await(t, startFrom(t, f, "a", other), func(s rendezvoustest.Snapshot) bool { return s.Round == 1 })
	for cause, least := range map[string]float64{awayToken: maxRefusals, awayIgnored: 1} {
		if got := f.door.counted(cause); got < least {
			t.Errorf("%v were turned away for %s, want at least %v", got, cause, least)
		}
	}
	f.eventually(t, "the worker counts as one", func(rendezvous.Observation) bool { return f.door.workers() == 1 })
	wantMetrics(t, f.metrics, map[string]float64{"concertina_rendezvous_connections": 1})
}

// counted is how many were turned away for a cause.
func (d *door) counted(cause string) float64 {
	var metric dto.Metric
	_ = d.turnedAway.WithLabelValues(cause).Write(&metric)
	return metric.GetCounter().GetValue()
}

// from is a dialer with another address of this host.
func (f *fixture) from(address string) *net.Dialer {
	return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
}

func startFrom(t *testing.T, f *fixture, name string, dialer *net.Dialer) *rendezvoustest.Agent {
	t.Helper()
	config := f.config(f.pod(name))
	config.Dial = dialer.DialContext
	agent := rendezvoustest.Start(config)
	t.Cleanup(agent.Stop)
	return agent
}

// Whoever connects and says nothing, before or after the handshake, holds no place that a worker needs.
func TestSilentStrangersKeepNoWorkerOut(t *testing.T) {
	f := serve(t, func(o *Options) { o.MaxUnproven, o.MaxUnprovenPerSource, o.HelloTimeout = 4, 4, time.Minute })
	f.Expect(digits, gangOf(1, "a"))
	f.pod("b")
	for range 2 {
		conn, err := net.Dial("tcp", f.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if err := f.open(t, "token-b").err; err != nil {
			t.Fatal(err)
		}
	}
	f.eventually(t, "the strangers are there", func(rendezvous.Observation) bool { return f.door.count() == 4 })
	await(t, f.agent(t, "a"), func(s rendezvoustest.Snapshot) bool { return s.Round == 1 })
}

func (d *door) workers() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.known
}

func (d *door) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.strangers.count
}

// Silent sessions with the worker's own token do not keep it out either.
func TestAStolenTokenHoldsNoPlace(t *testing.T) {
	f := serve(t, func(o *Options) { o.HelloTimeout = time.Minute })
	f.Expect(digits, gangOf(1, "a"))
	f.pod("a")
	var lurkers []*clientStream
	for i := range maxIntroductions {
		lurker := f.open(t, "token-a")
		if err := lurker.err; err != nil {
			t.Fatal(err)
		}
		lurkers = append(lurkers, lurker)
		f.eventually(t, "the lurker is known", func(rendezvous.Observation) bool { return f.introducing.count("uid-a") == i+1 })
	}
	await(t, startFrom(t, f, "a", f.from("127.0.0.2")), func(s rendezvoustest.Snapshot) bool { return s.Round == 1 })
	_, err := lurkers[0].Receive()
	wantCode(t, err, codes.Unavailable, "other sessions of this pod have begun")
	if n := f.introducing.count("uid-a"); n > maxIntroductions {
		t.Errorf("%d sessions of one token wait", n)
	}
}

func (i *introductions) count(uid string) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.of[uid])
}

// greetFrom begins a session of pod a and returns how it is answered.
func (f *fixture) greetFrom(t *testing.T, dialer *net.Dialer, hello *rendezvousv1.Hello) (*clientStream, error) {
	t.Helper()
	config := f.config(hello)
	config.Dial = dialer.DialContext
	stream := f.openWith(t, config, "token-"+hello.GetPodName())
	if err := stream.Send(first(hello)); err != nil {
		t.Fatal(err)
	}
	_, err := stream.Receive()
	return stream, err
}

// A token that was stolen does not end the session of its pod: not at all from elsewhere while the pod's own
// address is seen, and otherwise a few times at most.
func TestAStolenTokenEvictsNobodyForEver(t *testing.T) {
	t.Run("the pod's address is seen", func(t *testing.T) {
		f := serve(t, nil)
		gang := gangOf(1, "a")
		gang.Addresses = map[string][]netip.Addr{"uid-a": {netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("10.0.0.1")}}
		f.Expect(digits, gang)
		hello := f.pod("a")
		if _, err := f.greetFrom(t, f.from("127.0.0.3"), hello); err != nil {
			t.Fatalf("nobody else is there: %v", err)
		}
		for range 2 * replaceBurst {
			if _, err := f.greetFrom(t, f.from("127.0.0.2"), hello); err != nil {
				t.Fatalf("the pod is kept out: %v", err)
			}
			_, err := f.greetFrom(t, f.from("127.0.0.3"), hello)
			wantCode(t, err, codes.Unavailable, "a session of this pod from its own address 127.0.0.2 lives")
		}
		if n := f.door.workers(); n > 1+2*replaceBurst {
			t.Errorf("%d connections count as workers: those that got no session too", n)
		}
		f.eventually(t, "only the living session has a place", func(rendezvous.Observation) bool { return f.door.workers() == 1 })
	})
	t.Run("it is not", func(t *testing.T) {
		f := serve(t, nil)
		f.Expect(digits, gangOf(1, "a"))
		hello := f.pod("a")
		began, taken := time.Now(), 0
		var err error
		for range 4 * replaceBurst {
			if _, err = f.greetFrom(t, f.from("127.0.0.3"), hello); err == nil {
				taken++
			} else {
				break
			}
		}
		wantCode(t, err, codes.Unavailable, "take each other's place too often")
		if most := 1 + replaceBurst + int(time.Since(began)/replaceEvery) + 1; taken > most {
			t.Errorf("the session was taken %d times, want at most %d", taken, most)
		}
	})
}

// A session that has gone silent may be replaced whatever happened before.
func TestASilentSessionIsReplaced(t *testing.T) {
	j := newJob(newRegistry(Options{}, newServerMetrics()), digits, "")
	defer j.registry.cancel()
	now := time.Now()
	older, newer := &session{uid: "a", heard: now}, &session{uid: "a"}
	for range replaceBurst {
		if why := j.takeOver(older, newer, now); why != nil {
			t.Fatal(why)
		}
	}
	if why := j.takeOver(older, newer, now.Add(staleBeats*rendezvous.BeatOf(1)-1)); why == nil {
		t.Error("there is no end of it")
	}
	if why := j.takeOver(older, newer, now.Add(staleBeats*rendezvous.BeatOf(1))); why != nil {
		t.Error(why)
	}
	older.own = true
	if why := j.takeOver(older, newer, now.Add(staleBeats*rendezvous.BeatOf(1))); why != nil {
		t.Error(why)
	}
}

// A worker may say that it is reached where its pod is, in any of its networks, and nowhere else.
func TestAddressesAreThoseOfThePod(t *testing.T) {
	f := serve(t, nil)
	addresses := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1"), netip.MustParseAddr("192.168.7.7")}
	expect := func(known ...netip.Addr) {
		gang := gangOf(1, "a")
		gang.Addresses = map[string][]netip.Addr{"uid-a": known}
		f.Expect(digits, gang)
	}
	expect(addresses...)
	say := func(address string) (*clientStream, error) {
		hello := f.pod("a")
		hello.Address = address
		return f.greetFrom(t, &net.Dialer{}, hello)
	}
	for _, address := range []string{"10.0.0.1", "fd00::1", "192.168.7.7", "::ffff:10.0.0.1"} {
		stream, err := say(address)
		if err != nil {
			t.Errorf("%s is refused: %v", address, err)
		}
		stream.hangUp()
		f.eventually(t, "the session is over", func(o rendezvous.Observation) bool { return !o.Members["uid-a"].Connected })
	}
	_, err := say("10.0.0.2")
	wantCode(t, err, codes.PermissionDenied, "its address is 10.0.0.2, and its pod (uid-a) has [10.0.0.1 fd00::1 192.168.7.7]")

	// A pod whose addresses are not known yet is believed until they are.
	f.Expect(digits, gangOf(2, "b"))
	hello := f.pod("b")
	hello.Attempt, hello.Address = 2, "10.0.0.2"
	stream, err := f.greetFrom(t, &net.Dialer{}, hello)
	if err != nil {
		t.Fatal(err)
	}
	gang := gangOf(2, "b")
	gang.Addresses = map[string][]netip.Addr{"uid-b": addresses}
	f.Expect(digits, gang)
	for err == nil {
		_, err = stream.Receive()
	}
	wantCode(t, err, codes.PermissionDenied, "its address is 10.0.0.2")
}

// What a half-open connection or one that speaks no TLS costs ends with it.
func TestStrangersLeaveNothingBehind(t *testing.T) {
	f := serve(t, nil)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			conn, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", f.address)
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = conn.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
			if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, syscall.ECONNRESET) {
				t.Error(err)
			}
			_ = conn.Close()
		})
	}
	all.Wait()
	f.eventually(t, "no stranger is left", func(rendezvous.Observation) bool { return f.door.count() == 0 })
}
