package lifecycle

import (
	"fmt"
	"time"
)

// This file is about programs that are started anew in each world, and leave theirs at a barrier: told to, they save,
// and end with code 0. They get no signal, and nobody looks for a checkpoint: they say themselves that it is there.

// leaveAfter tells all processes to save and to end. It returns false when not all stand at the barrier after that step: one
// that was let go is asked for a checkpoint in the other way.
func (m *Machine) leaveAfter(now time.Time, step uint64) ([]Effect, bool) {
	for i := range m.slots {
		if s := &m.slots[i]; step == 0 || !s.leaves || s.connection == 0 || !s.standsAt(m.in.Round, step) {
			return nil, false
		}
	}
	m.leaveBy = now.Add(m.limits.Save)
	effects := []Effect{Note{Text: fmt.Sprintf("the program is told to save what it has done after step %d, and to end", step)}}
	for i := range m.slots {
		s := &m.slots[i]
		s.leaving = step
		effects = append(effects, Word{Slot: i, Connection: s.connection, Say: SayLeave, Step: step})
	}
	return append(effects, Tell{}), true
}

// connect takes a process that says hello. One that leaves its world when it is told to was started in it.
func (m *Machine) connect(s *slot, e Said) {
	*s = slot{
		connection: e.Connection, elastic: true, leaves: e.Leaves, shares: e.Shares, sharded: e.Sharded, local: e.Local,
		handsOver: e.HandsOver,
	}
	if e.Leaves && m.in != nil {
		s.world = m.in.Round
	}
}

// saidLeft takes it that a process has saved the state after a step, if it was told to.
func (s *slot) saidLeft(step uint64) []Effect {
	if s.leaving == 0 || s.leaving != step {
		return nil
	}
	s.leftWell()
	return []Effect{Tell{}}
}

// leftWell notes that the process of a slot has saved what it was told to.
func (s *slot) leftWell() {
	s.left, s.waiting, s.step, s.clean = true, WaitsAborted, s.leaving, true
}

// endedLeaving takes note of a program that ended while its processes were told to leave. Code 0 says that they have
// saved, for one that did not say so before.
func (m *Machine) endedLeaving(e Exited) []Effect {
	var effects []Effect
	for _, i := range m.slotsOf(e.Program) {
		s := &m.slots[i]
		switch {
		case s.leaving == 0 || s.left:
		case e.Code == 0:
			s.leftWell()
		default:
			effects = append(effects, Note{Text: fmt.Sprintf("process %d ended with exit code %d before it had saved", i, e.Code)})
		}
	}
	return effects
}

// slotsOf are the slots of a program's processes: a launcher has all of them.
func (m *Machine) slotsOf(program int) []int {
	if m.shape.Programs == len(m.slots) {
		return []int{program}
	}
	all := make([]int, len(m.slots))
	for i := range all {
		all[i] = i
	}
	return all
}

// settleLeaving bounds how long processes may take to save, and, once all have, to end.
func (m *Machine) settleLeaving(now time.Time) []Effect {
	if m.leaveBy.IsZero() || m.stage != running {
		return nil
	}
	all := true
	for i := range m.slots {
		all = all && m.slots[i].left
	}
	switch {
	case all:
		m.stage, m.killAt, m.leaveBy = stopping, now.Add(m.limits.StopGrace), time.Time{}
		return nil
	case now.Before(m.leaveBy):
		return nil
	}
	m.leaveBy = time.Time{}
	note := Note{Text: fmt.Sprintf("the program has not saved and ended within %v: stopping it", m.limits.Save)}
	return append([]Effect{note}, m.stop(now.Add(m.limits.StopGrace))...)
}
