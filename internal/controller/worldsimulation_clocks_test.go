package controller

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// simClock is the clock of a machine: what it tells as the time of day is off, and jumps; how much time has passed
// between two looks at it is right, as it is of every clock that a process reads. The API server's is right.
type simClock struct{ off atomic.Int64 }

// nodesOff is how far the clocks of nodes are off at most, operatorsOff how far those of operators are: what is younger than
// half a minute is old to one that is ahead by more, and its gangs are given up before a scheduler has looked at them.
const (
	nodesOff     = 10 * time.Minute
	operatorsOff = 15 * time.Second
)

// now is the time by the clock; of none it is right.
func (c *simClock) now() time.Time {
	if c == nil {
		return time.Now()
	}
	return simTime(time.Now(), time.Duration(c.off.Load()))
}

// simTime is what time.Now tells once somebody has set the clock: another time of day, and the same distance to what it has
// told before. Only the runtime makes such times, and in a bubble it makes none; so it is done behind its back.
func simTime(now time.Time, off time.Duration) time.Time {
	const (
		monotonic = 1 << 63        // that there is a reading of the monotonic clock
		epoch     = -2_682_288_000 // from when it counts 33 bits of seconds: 1885, in Unix time
	)
	type parts struct {
		wall uint64
		ext  int64
		loc  *time.Location
	}
	var told time.Time
	day := now.Add(off)
	*(*parts)(unsafe.Pointer(&told)) = parts{
		wall: monotonic | uint64(day.Unix()-epoch)<<30 | uint64(day.Nanosecond()), ext: now.UnixNano(), loc: time.UTC,
	}
	return told
}

// TestASimulatedClockIsSetAsRealOnesAre: its time of day jumps, and as much time passes as does.
func TestASimulatedClockIsSetAsRealOnesAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c simClock
		begin, really := c.now(), time.Now()
		for _, off := range []time.Duration{10 * time.Minute, -time.Hour} {
			c.off.Store(int64(off))
			time.Sleep(time.Minute)
			now := c.now()
			if passed := time.Since(really); now.Sub(begin) != passed {
				t.Errorf("%s have passed by a clock that is off by %s, want %s", now.Sub(begin), off, passed)
			}
			if wrong := now.Round(0).Sub(time.Now().Round(0)); wrong != off {
				t.Errorf("the clock is off by %s, want %s", wrong, off)
			}
		}
	})
}

// clock is that of a node, or of a life of the operator. Each is off from its beginning while things go wrong.
func (t *simTraining) clock(of string) *simClock {
	c := t.clocks[of]
	if c == nil {
		c = &simClock{}
		t.clocks[of] = c
		if t.timeless {
			t.setClock(of)
		}
	}
	return c
}

// setClock has a clock jump.
func (t *simTraining) setClock(of string) {
	most := nodesOff
	if strings.HasPrefix(of, "operator") {
		most = operatorsOff
	}
	off := t.span(0, most).Truncate(time.Second)
	if t.chance(0.5) {
		off = -off
	}
	t.counts["clocks set"]++
	t.say("the clock of %s is off by %s", of, off)
	t.clock(of).off.Store(int64(off))
}

// second is the time of day on a node, as its kubelet writes it down.
func (t *simTraining) second(node string) metav1.Time {
	if t == nil {
		return simSecond()
	}
	return metav1.NewTime(t.clock(node).now().Truncate(time.Second))
}
