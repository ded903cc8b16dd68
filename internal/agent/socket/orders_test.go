package socket

import (
	"encoding/binary"
	"encoding/json"
	"net"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/concertina-dev/concertina/internal/agent/wire"
)

func TestEverythingAProcessSaysIsHeardInItsOrder(t *testing.T) {
	f := listen(t, 1, DefaultTiming())
	f.enter(t, Place{Term: 1, Round: 3, WorkerRank: 1, Workers: 2})
	c := f.dial(t)
	c.hello()
	c.say(`{"type":"join"}`)
	c.hear()
	c.say(`{"type":"parked","step":17}`)
	c.say(`{"type":"snapshot","step":17,"file":"17.part","bytes":9}`)
	c.say(`{"type":"aborted","step":17}`)
	var first uint64
	for i, want := range []any{
		wire.Parked{Type: "parked", Step: 17},
		wire.Snapshot{Type: "snapshot", Step: 17, File: "17.part", Bytes: 9},
		wire.Aborted{Type: "aborted", Step: 17},
	} {
		got := <-f.changed
		if diff := cmp.Diff(want, got.Body); diff != "" || got.Slot != 0 || got.Round != 3 || got.Connection == 0 {
			t.Errorf("message %d is %+v (-want +got):\n%s", i, got, diff)
		}
		first = got.Connection
	}

	// What is meant for one process never reaches the next in its slot.
	_ = c.conn.Close()
	f.Drain(0, patience)
	next := f.dial(t)
	next.hello()
	f.Say(0, first, wire.Go{Type: wire.TypeGo})
	f.Interrupt(0, first, 3, "for the one before")
	f.Give(0, first, *f.place.Load())
	f.Deny(0, first, "not you")
	next.say(`{"type":"finished"}`)
	f.Say(0, (<-f.changed).Connection, wire.End{Type: wire.TypeEnd})
	if got := next.hear(); got != `{"type":"end"}` {
		t.Errorf("heard %s", got)
	}
}

func TestStopsOfTheGate(t *testing.T) {
	f := listen(t, 1, DefaultTiming())
	if stop := f.Arm(0, 5); stop != 0 {
		t.Errorf("armed at %d before there is a program", stop)
	}
	f.enter(t, Place{Term: 1, Round: 3, WorkerRank: 1, Workers: 2})
	c := f.dial(t)
	mem, err := unix.Mmap(int(c.hello().Fd()), 0, 3*64, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	stop := func() uint64 { return binary.NativeEndian.Uint64(mem[64:]) }
	if got := f.Arm(0, 5); got != 5 || stop() != 5 {
		t.Errorf("armed at %d, the page says %d", got, stop())
	}
	f.Lift(0)
	if stop() != 0 {
		t.Errorf("the page says %d after it was lifted", stop())
	}
	c.say(`{"type":"join"}`)
	c.hear()
	c.say(`{"type":"fault","step":1,"message":"connection reset"}`)
	m := <-f.changed
	f.Interrupt(0, m.Connection, 3, "a worker was lost")
	if got := c.hear(); got != `{"type":"abort","round":3,"reason":"a worker was lost"}` || stop() != 1 {
		t.Errorf("heard %s, the page says %d", got, stop())
	}
	f.Give(0, m.Connection, Place{Term: 1, Round: 4, Workers: 2, WorkerRank: 1})
	if c.hear(); stop() != 0 || f.States()[0].Fault != "" {
		t.Errorf("in the next world the page says %d, the fault is %q", stop(), f.States()[0].Fault)
	}
}

// The process of rank 0 still serves its last world when it is given the next one, and PyTorch's store
// ends the whole process when its listening socket is shut down.
func TestEveryWorldHasItsOwnListener(t *testing.T) {
	f := listen(t, 1, DefaultTiming())
	place := Place{Term: 1, Round: 1, Workers: 1, MasterAddress: "127.0.0.1", MasterPort: freePort(t), GivesPort: true}
	f.enter(t, place)
	c := f.dial(t)
	c.hello()
	c.say(`{"type":"join"}`)
	c.hear()
	file := c.file()
	old, err := net.FileListener(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = old.Close() }()
	_ = file.Close()
	c.say(`{"type":"finished"}`)
	m := <-f.changed
	last := place.MasterPort
	place.Round, place.MasterPort = 2, freePort(t)
	f.Give(0, m.Connection, place)
	var world wire.World
	if err := json.Unmarshal([]byte(c.hear()), &world); err != nil || world.Round != 2 || world.FDs != 1 {
		t.Fatalf("heard %+v, %v", world, err)
	}
	checkListener(t, c.file(), place.MasterPort)
	peer, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(last)))
	if err != nil {
		t.Fatalf("the last world's listener is closed: %v", err)
	}
	defer func() { _ = peer.Close() }()
	accepted, err := old.Accept()
	if err != nil {
		t.Fatalf("the last world's listener accepts nobody: %v", err)
	}
	_ = accepted.Close()
}

func TestAProcessThatReadsNothingIsLeft(t *testing.T) {
	f := listen(t, 1, DefaultTiming())
	f.enter(t, Place{Round: 1, WorkerRank: 1, Workers: 2})
	c := f.dial(t)
	c.hello()
	c.say(`{"type":"finished"}`)
	m := <-f.changed
	long := wire.Abort{Type: wire.TypeAbort, Reason: string(make([]byte, 4000))}
	for range 1000 {
		f.Say(0, m.Connection, long)
	}
	f.Drain(0, patience)
	f.dial(t).hello()
}
