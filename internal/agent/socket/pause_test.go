package socket

import (
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/concertina-dev/concertina/internal/agent/wire"
)

// lines maps the first slot's words of a page: the agent's, and the program's.
func lines(t *testing.T, c *client) (write func(word int, value uint64)) {
	t.Helper()
	mem, err := unix.Mmap(int(c.hello().Fd()), 0, 3*64, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return func(word int, value uint64) { binary.NativeEndian.PutUint64(mem[128+8*word:], value) }
}

const (
	entered, done, ended, begun, worked = 0, 1, 5, 6, 7
)

func (f *fixture) paused(t *testing.T, want Pause) {
	t.Helper()
	if got := f.States()[0].Pause; got != want {
		t.Errorf("paused %+v, want %+v", got, want)
	}
}

// joined is a process in round 3, which begins after step 0.
func joined(t *testing.T) (*fixture, *client, func(word int, value uint64)) {
	t.Helper()
	f := listen(t, 1, DefaultTiming())
	f.enter(t, Place{Term: 1, Round: 3, WorkerRank: 1, Workers: 2})
	c := f.dial(t)
	write := lines(t, c)
	c.say(`{"type":"join"}`)
	c.hear()
	return f, c, write
}

// next gives a process that says what it waits for the world that follows after a step.
func (f *fixture) next(c *client, says string, round, from uint64) {
	c.t.Helper()
	c.say(says)
	m := <-f.changed
	f.Give(0, m.Connection, Place{Term: 1, Round: round, FromStep: from, WorkerRank: 1, Workers: 2})
	c.hear()
}

func TestPauseByStamps(t *testing.T) {
	f, c, write := joined(t)
	f.paused(t, Pause{})
	write(entered, 1)
	write(begun, 500)
	f.paused(t, Pause{Begun: true}) // there was no step before
	write(ended, 1000)
	write(done, 1)

	f.next(c, `{"type":"parked","step":1}`, 4, 1)
	f.paused(t, Pause{})
	write(entered, 2)
	f.paused(t, Pause{})
	write(begun, 4000)
	f.paused(t, Pause{Begun: true, Length: 3000})
	// It stays known while it trains on.
	write(ended, 9000)
	write(done, 2)
	f.paused(t, Pause{Begun: true, Length: 3000})

	// A world without a step changes nothing of when the last one ended.
	f.next(c, `{"type":"aborted","step":2}`, 5, 2)
	f.next(c, `{"type":"aborted","step":2}`, 6, 2)
	write(begun, 9500)
	f.paused(t, Pause{Begun: true, Length: 500})

	// Stamps that cannot be are no pause.
	f.next(c, `{"type":"aborted","step":2}`, 7, 2)
	write(begun, 8999)
	f.paused(t, Pause{Begun: true})
}

// A program that was started anew, in the slot or with all the others, goes on from what the one before it did.
func TestPauseOfAProgramThatIsStartedAnew(t *testing.T) {
	f, c, write := joined(t)
	write(entered, 1)
	write(ended, 1000)
	write(done, 1)
	_ = c.conn.Close()
	f.Drain(0, patience)
	f.enter(t, Place{Term: 1, Round: 4, WorkerRank: 1, Workers: 2})
	for _, at := range []uint64{7000, 8000} {
		again := f.dial(t)
		write = lines(t, again)
		again.say(`{"type":"join"}`)
		again.hear()
		write(entered, 1)
		write(begun, at)
		f.paused(t, Pause{Begun: true, Length: time.Duration(at - 1000)})
		_ = again.conn.Close()
		f.Drain(0, patience)
	}
}

// A program of an older SDK writes no stamps: the agent takes what it sees.
func TestPauseOfAProgramWithoutStamps(t *testing.T) {
	f, c, write := joined(t)
	write(entered, 3)
	write(done, 3)
	c.say(`{"type":"parked","step":3}`)
	m := <-f.changed
	// It is let go, and stands again later: the pause begins then.
	f.Say(0, m.Connection, wire.Go{Type: wire.TypeGo})
	c.hear()
	write(entered, 4)
	write(done, 4)
	again := time.Now()
	c.say(`{"type":"parked","step":4}`)
	<-f.changed
	stands := time.Now()
	f.Give(0, m.Connection, Place{Term: 1, Round: 4, FromStep: 4, WorkerRank: 1, Workers: 2})
	c.hear()
	f.paused(t, Pause{})
	begins := time.Now()
	write(entered, 5)
	var got Pause
	eventually(t, "the first step", func() bool { got = f.States()[0].Pause; return got.Begun })
	if least, most := begins.Sub(stands), time.Since(again); got.Length < least || got.Length > most {
		t.Errorf("paused for %v, which is between %v and %v", got.Length, least, most)
	}
}
