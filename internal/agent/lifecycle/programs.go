package lifecycle

import (
	"fmt"
	"time"
)

// This file is about programs: how they end, and what follows from it.

// stop tells the programs that still run to end, and sets when they are killed.
func (m *Machine) stop(killAt time.Time) []Effect {
	m.stage, m.killAt = stopping, killAt
	if m.stopsForNext() {
		return []Effect{Rest{Connection: m.launcher.connection}}
	}
	if programs := m.alive(); len(programs) > 0 {
		return []Effect{Terminate{Programs: programs}}
	}
	return nil
}

func (m *Machine) alive() []int {
	if m.launcher.rests {
		return nil
	}
	var programs []int
	for i := range m.shape.Programs {
		if _, ended := m.exits[i]; !ended {
			programs = append(programs, i)
		}
	}
	return programs
}

func (m *Machine) exited(now time.Time, e Exited) []Effect {
	if m.stage == waiting || m.stage == fallen {
		m.launcher = launcher{} // one that has ended while it rested
		return nil
	}
	m.exits[e.Program] = e.Code
	effects := append(m.endedLeaving(e), Tell{})
	if e.Code == 0 || m.stoppedForAnother() && e.Code != ExitDevice {
		return effects
	}
	if e.Code == ExitDevice && m.code != 0 { // the others may have failed by it
		m.code, m.failed, m.again.last.Code = e.Code, e.Program, e.Code
	}
	if m.code == 0 {
		m.code, m.failed = e.Code, e.Program
		m.holdUntil = now.Add(m.limits.Hold)
		m.noteFailure(now)
	}
	if m.stage == running && len(m.alive()) > 0 {
		effects = append(effects, Note{Text: fmt.Sprintf("process %d ended with exit code %d: stopping the others", e.Program, e.Code)})
		effects = append(effects, m.stop(now.Add(m.graceOfOthers()))...)
	}
	return effects
}

// graceOfOthers is how long programs have to end once another has failed. One that looks at its device may find out why all did.
func (m *Machine) graceOfOthers() time.Duration {
	for _, i := range m.alive() {
		if m.slots[i].device {
			return m.limits.Check
		}
	}
	return m.limits.StopGrace
}

// stoppedForAnother is true when the programs are stopped on behalf of the operator, which makes
// their exit codes nobody's fault.
func (m *Machine) stoppedForAnother() bool {
	return m.shape.Strategy == Restart && (m.orders.abort != nil || m.next != nil)
}

// held is true while a program has failed under Restart, and the operator has yet to say whether
// another worker was the cause.
func (m *Machine) held() bool {
	return m.shape.Strategy == Restart && m.code != 0 && !m.Terminating() && !m.orders.raise &&
		(m.stage == running || m.stage == stopping)
}

// settle applies the rules that depend on the state and the time alone.
func (m *Machine) settle(now time.Time) []Effect {
	var effects []Effect
	if m.Terminating() {
		effects = append(effects, m.settleTermination(now)...)
	}
	effects = append(effects, m.settleAnswers(now)...)
	effects = append(effects, m.settleLeaving(now)...)
	if m.stage == stopping && !m.killAt.IsZero() && !now.Before(m.killAt) {
		m.killAt = time.Time{}
		effects = append(effects, Kill{})
	}
	if (m.stage == running || m.stage == stopping) && len(m.alive()) == 0 {
		effects = append(effects, m.settleEnd(now)...)
	}
	if m.stage == fallen {
		effects = append(effects, m.settleFallen(now)...)
	}
	if m.stage == waiting && m.orders.raise && m.code != 0 {
		effects = append(effects, m.leave(m.code))
	}
	return effects
}

func (m *Machine) leave(code int) Effect {
	m.stage = left
	return Leave{Code: code}
}

// settleEnd is what follows when no program is left.
func (m *Machine) settleEnd(now time.Time) []Effect {
	var effects []Effect
	if !m.ended && !m.launcher.rests {
		m.ended = true
		effects = append(effects, Kill{})
	}
	switch {
	case m.code == ExitDevice:
		note := Note{Text: fmt.Sprintf(
			"a device of this node is broken (exit code %d): this worker ends, so that another takes its place", ExitDevice)}
		return append(effects, note, m.leave(m.code))
	case m.next != nil:
		return append(effects, m.start(m.next)...)
	case m.shape.Strategy == Restart && m.orders.abort != nil && m.Terminating():
		m.out = true
		for i, code := range m.exits {
			if code == 0 {
				m.exits[i] = ExitTerminated // it was stopped, and has not finished
			}
		}
		return append(append(effects, m.dismiss()...), m.leave(ExitTerminated))
	case m.shape.Strategy == Restart && m.orders.abort != nil:
		m.stage, m.out = waiting, true
		return append(effects, Tell{})
	case m.held() && now.Before(m.holdUntil):
		return effects
	case m.code != 0:
		return append(effects, m.falls(now)...)
	default:
		return append(effects, m.leave(m.code))
	}
}

func (m *Machine) terminated(now time.Time) []Effect {
	if m.Terminating() {
		return nil
	}
	m.terminatedAt = now
	return []Effect{Tell{}}
}

func (m *Machine) settleTermination(now time.Time) []Effect {
	// Whatever comes, no program is started any more.
	m.next = nil
	switch m.stage {
	case waiting:
		return append(m.dismiss(), m.leave(ExitTerminated))
	case running:
		if why := m.mayPass(now); why != "" {
			note := Note{Text: "SIGTERM goes on to the program: " + why}
			return append([]Effect{note}, m.stop(m.terminatedAt.Add(m.limits.killAfter()))...)
		}
	case stopping:
		// Told to stop already; the grace period may end before the time it was given.
		if last := m.terminatedAt.Add(m.limits.killAfter()); !m.killAt.IsZero() && last.Before(m.killAt) {
			m.killAt = last
		}
	}
	return nil
}

// mayPass says why SIGTERM may reach the program now; empty when it may not.
func (m *Machine) mayPass(now time.Time) string {
	switch {
	case m.in == nil || m.anew:
		return "this worker is in no world"
	case m.released:
		return "the operator has released this worker"
	case m.gone:
		return "the operator knows no such job any more"
	case !now.Before(m.decideAloneAt()):
		return "the operator cannot be reached"
	case !now.Before(m.terminatedAt.Add(m.limits.passAfter())):
		return "the grace period is nearly over"
	default:
		return ""
	}
}

// decideAloneAt is when the operator counts as out of reach.
func (m *Machine) decideAloneAt() time.Time {
	from := m.terminatedAt
	if m.lastHeard.After(from) {
		from = m.lastHeard
	}
	return from.Add(m.limits.OutOfReach)
}
