package gate

import (
	"time"

	"golang.org/x/sys/unix"
)

// Stamps are when a training process ended its last step, and began the first in its world, in nanoseconds
// of CLOCK_MONOTONIC: the processes of one worker share that clock. 0 for never, or for a process whose SDK
// writes none. Worked is for how long it has worked in steps that are done, in nanoseconds, without what it waited for others;
// 0 for a process that does not know.
type Stamps struct{ Ended, Begun, Worked uint64 }

// sane returns s without what is no time.
func (s Stamps) sane() Stamps {
	for _, word := range []*uint64{&s.Ended, &s.Begun, &s.Worked} {
		if *word > maxWord {
			*word = 0
		}
	}
	return s
}

// Stamps reads when the owner of a slot has ended its last step and begun the first in its world, and how long it has worked. Should
// Progress say before that a step is done, then so do these.
func (p *Page) Stamps(slot int) Stamps {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mem == nil {
		return Stamps{}
	}
	line := programLine(slot)
	return Stamps{
		Ended: p.mem.load(line, wordEnded), Begun: p.mem.load(line, wordBegun), Worked: p.mem.load(line, wordWorked),
	}.sane()
}

// clock is CLOCK_MONOTONIC, read without a system call each time: Go's own clock is the same, but says only
// what has passed.
type clock struct {
	origin time.Time
	at     uint64
}

func newClock() clock {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return clock{} // there is no such kernel; stamps are left out
	}
	return clock{origin: time.Now(), at: uint64(now.Nano())}
}

// now is 0 when there is no clock.
func (c *clock) now() uint64 {
	if c.at == 0 {
		return 0
	}
	return c.at + uint64(time.Since(c.origin))
}
