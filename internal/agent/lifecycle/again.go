package lifecycle

import (
	"fmt"
	"time"

	"github.com/concertina-dev/concertina/internal/deviceerror"
)

// This file is about programs that have failed in a world, in place: the worker stays, with its snapshots, and starts them
// anew when the operator says so. They have no world then, and are a standby like those of a newcomer.

// Failure is how the programs failed last that belonged to a world.
type Failure struct {
	// Round is the newest world of this worker by then: it makes no further step there.
	Round uint64
	// Code is the first exit code that was not 0.
	Code int
	// Killed is true when the agent has killed them, since one had not left its world in time.
	Killed bool
}

// again is what is known of starting the programs anew.
type again struct {
	// allowed is how often that may have been done, by the newest directive; nil when a worker whose programs fail is to
	// end. done is how often it was.
	allowed *uint64
	done    uint64
	// failures are those of late, last the newest of a world.
	failures []time.Time
	last     Failure
}

// noteFailure takes note of the first program that has failed.
func (m *Machine) noteFailure(now time.Time) {
	a := &m.again
	late := now.Add(-m.limits.FailuresWithin)
	for len(a.failures) > 0 && a.failures[0].Before(late) {
		a.failures = a.failures[1:]
	}
	a.failures = append(a.failures, now)
	if m.in != nil && !m.anew {
		a.last = Failure{Round: m.in.Round, Code: m.code, Killed: m.unanswered}
	}
}

// Stays is true when this worker goes on without its programs, should they fail or have failed. Too many failures in a row
// speak against its device, or its node: then another should take its place.
func (m *Machine) Stays() bool {
	return m.stage != left && m.code != ExitDevice && m.shape.Strategy == InPlace && m.in != nil && m.again.allowed != nil && m.unsupplied == "" &&
		!m.released && !m.gone && !m.Terminating() && len(m.again.failures) < m.limits.Failures && (m.anew || m.allElastic())
}

// allElastic is true when every process has spoken to the agent.
func (m *Machine) allElastic() bool {
	for i := range m.slots {
		if !m.slots[i].elastic {
			return false
		}
	}
	return true
}

// Restarts is how often the programs were started anew after they had failed.
func (m *Machine) Restarts() uint64 { return m.again.done }

// LastFailure is how they failed last in a world; its round is 0 before the first time.
func (m *Machine) LastFailure() Failure { return m.again.last }

// falls is what follows when programs have failed, and none is left.
func (m *Machine) falls(now time.Time) []Effect {
	if !m.Stays() {
		return []Effect{m.leave(m.code)}
	}
	m.stage, m.out = fallen, true
	note := Note{Text: fmt.Sprintf("the program has failed (exit code %d): this worker stays, with its snapshots", m.code)}
	return append([]Effect{note, Tell{}}, m.settleFallen(now)...)
}

// settleFallen ends a worker whose programs have failed, or starts them anew, or neither yet.
func (m *Machine) settleFallen(now time.Time) []Effect {
	switch {
	case !m.Stays():
		return []Effect{m.leave(m.code)}
	case *m.again.allowed <= m.again.done || now.Before(m.againAt()):
		return nil
	}
	var effects []Effect
	if !m.anew {
		effects = append(effects, Remember{})
	}
	m.again.done++
	m.check = m.check || deviceerror.Crashed(m.code)
	m.begin()
	m.anew = true
	m.orders = orders{abort: &Abort{Reason: "the program has failed there"}}
	note := Note{Text: fmt.Sprintf("starting the program anew, to be ready for a world (%d of these since this worker began)", m.again.done)}
	return append(effects, note, Start{Term: m.obeyedTerm, Check: m.checks()}, Tell{})
}

// checks says whether the programs that are started now are to look at their devices first. Those that come after them have no
// reason to.
func (m *Machine) checks() bool {
	check := m.check
	m.check = false
	return check
}

// againAt is when programs may be started anew: at once after a failure that stands alone.
func (m *Machine) againAt() time.Time {
	failures := m.again.failures
	if len(failures) < 2 {
		return time.Time{}
	}
	return failures[len(failures)-1].Add(m.limits.AgainPause)
}

// misses is what follows when a worker whose programs have failed is told of a world: it is missing there.
func (m *Machine) misses(start *Start) []Effect {
	enter := m.moveTo(start)[0]
	m.supplied, m.out = true, true
	m.orders.abort = &Abort{Reason: "the program has failed before it was there"}
	m.again.last = Failure{Round: start.Round, Code: m.code, Killed: m.unanswered}
	return []Effect{enter, Tell{}}
}
