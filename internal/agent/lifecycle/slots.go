package lifecycle

import (
	"fmt"
	"slices"
	"time"
)

// This file is about processes that speak to the agent: what each of them is told, and when.

// Waiting is what a process waits for, with its training stopped.
type Waiting int

// A process waits for nothing, for its first world, at the barrier, for the next world after it has
// left one, for a verdict about its fault, or for the end.
const (
	WaitsNot Waiting = iota
	WaitsJoin
	WaitsParked
	WaitsAborted
	WaitsFault
	WaitsFinished
)

// slot is one process.
type slot struct {
	// connection is the process's connection; 0 for none. elastic is true once there was one.
	connection uint64
	elastic    bool
	// leaves is true for a process that was started in its world, and leaves it when it is told to. leaving is the step
	// after which it was; left is true once it has saved that.
	leaves  bool
	leaving uint64
	left    bool
	// shares is true for one that can write its state in shares.
	shares bool
	// sharded is true for one that has its own shard of the state.
	sharded bool
	// local is true for one that has the share of its local rank of a state that is the same on all workers.
	local bool
	// handsOver is true for one that can give its state over the links of a world, and get it so.
	handsOver bool
	// wants are the shards that it waits for; nil for none. ranges are the bytes of each that it needs; none for all.
	wants  []string
	ranges [][][2]uint64
	// fetching is true until it is known what came of these.
	fetching bool
	// handed is the last round whose shards it was handed, or that it wanted none of.
	handed  uint64
	waiting Waiting
	// step is the number of steps done, of a process that is parked or has left its world; clean says that one
	// that has left has the state after it.
	step  uint64
	clean bool
	// world is the round whose world it was given last; 0 for none. kept is true when it was not given that, since
	// it was over, and has left the one before with the state that it began with, or an older one of its history.
	world uint64
	kept  bool
	// parent and from are that world's. of is the last round of whose history its state is known to be, once it has left its world; 0 for none.
	parent, from, of uint64

	// armed is the barrier that it has been given, and stop where that made it stop; arming is true
	// until the latter is known.
	armed  Barrier
	stop   uint64
	arming bool
	// saved is true once it was asked for the snapshot of the barrier that it has been given, of its state in savedOf
	// shares; interrupted, raised and ended say that it was told so.
	saved   bool
	savedOf int
	// savedStep is the step whose state it was asked for after it had left its world.
	savedStep uint64
	// saving is the step whose state it was asked for, until it has said what came of that; 0 for none.
	saving                     uint64
	interrupted, raised, ended bool
	// answerBy is when it is killed if it has not left its world by then, once it was told to.
	answerBy time.Time
	// device is true of one whose newest fault is an error of a device.
	device bool
}

// orders are what the operator says of the world that this worker is in.
type orders struct {
	barrier Barrier
	// attempts is the highest attempt of a barrier in this round by the operator of term: the next one
	// counts anew.
	attempts, term uint64
	abort          *Abort
	// saveStep is what the newest directive says of it: abort stays as it was first heard.
	saveStep      uint64
	staging       Staging
	raise, finish bool
	// checkpointing is true while programs have their time for a checkpoint.
	checkpointing bool
}

// obey takes what a directive says of the world that this worker is in.
func (m *Machine) obey(now time.Time, d Directive) []Effect {
	o := &m.orders
	o.raise, o.finish, o.staging = d.Raise, d.Finish, d.Staging
	if d.Term > o.term {
		o.term, o.attempts = d.Term, 0
	}
	if d.Barrier.Attempt == 0 || d.Barrier.Attempt >= o.attempts {
		o.barrier, o.attempts = d.Barrier, max(o.attempts, d.Barrier.Attempt)
	}
	o.saveStep = 0
	if d.Abort != nil {
		o.saveStep = d.Abort.SaveStep
	}
	if d.Abort == nil || (o.abort != nil && (!o.abort.Planned || d.Abort.Planned)) {
		return nil
	}
	o.abort = d.Abort
	note := Note{Text: fmt.Sprintf("the world of round %d is over: %s", d.Round, d.Abort.Reason)}
	return append([]Effect{note}, m.stopForAnother(now)...)
}

// stopForAnother has the programs stopped, under Restart.
func (m *Machine) stopForAnother(now time.Time) []Effect {
	switch {
	case m.shape.Strategy != Restart || m.stage != running:
		return nil
	case m.orders.abort.Planned:
		if effects, leaving := m.leaveAfter(now, m.orders.abort.LeaveStep); leaving {
			return effects
		}
		m.orders.checkpointing = true
		return []Effect{Checkpoint{Round: m.in.Round}}
	default:
		m.orders.checkpointing = false
		return m.stop(now.Add(m.limits.StopGrace))
	}
}

func (m *Machine) checkpointed(now time.Time, c Checkpointed) []Effect {
	if m.in == nil || c.Round != m.in.Round || !m.orders.checkpointing || m.stage != running {
		return nil
	}
	m.orders.checkpointing = false
	return m.stop(now.Add(m.limits.StopGrace))
}

func (m *Machine) said(e Said) []Effect {
	if e.Slot < 0 || e.Slot >= len(m.slots) || m.stage == waiting || m.stage == fallen {
		return nil
	}
	s := &m.slots[e.Slot]
	if e.What == Connected {
		m.connect(s, e)
		return []Effect{Tell{}}
	}
	if s.connection != e.Connection {
		return nil
	}
	if e.What != Saved || e.Step == s.saving {
		s.saving = 0 // a process does one thing after another
	}
	switch e.What {
	case Disconnected:
		s.disconnect()
	case Joined:
		s.waiting = WaitsJoin
	case Parked:
		if s.world != 0 {
			s.waiting, s.step = WaitsParked, e.Step
		}
	case Aborted:
		// Once it has been told, and not after it was given another world.
		if s.interrupted {
			s.waiting, s.step, s.clean = WaitsAborted, e.Step, e.Clean
		}
	case Faulted:
		s.waiting, s.raised, s.step, s.clean, s.device = WaitsFault, false, e.Step, e.Clean, e.Device
	case Finished:
		s.waiting, s.ended, s.step, s.clean = WaitsFinished, false, e.Step, e.Clean
	case Left, Wants, Saved, Connected:
		return m.saidOtherwise(s, e)
	}
	m.judgeState(s)
	return []Effect{Tell{}}
}

// saidOtherwise takes what says nothing of where a process stands.
func (m *Machine) saidOtherwise(s *slot, e Said) []Effect {
	switch e.What {
	case Left:
		return s.saidLeft(e.Step)
	case Wants:
		return m.wants(e.Slot, s, e.Parts, e.Ranges)
	default:
		return nil // what is held now is told by who holds it
	}
}

// disconnect notes that the process's connection has ended. Whether it had left its world stays known.
func (s *slot) disconnect() {
	s.connection, s.clean = 0, s.left
	if !s.hasLeft() {
		s.waiting = WaitsNot
	}
}

func (m *Machine) armed(a Armed) []Effect {
	s := &m.slots[a.Slot]
	s.stop, s.arming = a.Stop, false
	return []Effect{Tell{}}
}

// hasLeft is true when the process makes no further step in the world that it was given.
func (s *slot) hasLeft() bool {
	return s.waiting == WaitsAborted || s.waiting == WaitsFault || s.waiting == WaitsFinished
}

// ready is true when the process can be given a world now. One that was told to leave its world must
// say so first: what it says later would be taken to speak of the next.
func (s *slot) ready() bool {
	if s.world == 0 {
		return s.waiting == WaitsJoin
	}
	return s.waiting != WaitsNot && (!s.interrupted || s.hasLeft())
}

// standsAt is true while the process can go on from a round with the state after a step: it stands at the
// barrier there, and may not go on, or has left the round for good with that state.
func (s *slot) standsAt(round, step uint64) bool {
	return s.world == round && s.step == step &&
		(s.keeps(step) || s.waiting == WaitsParked && !s.arming && !s.interrupted && s.stop == step)
}

// keeps is true while the process has left its world, and still has the state after a step.
func (s *slot) keeps(step uint64) bool {
	return s.hasLeft() && s.clean && s.step == step && s.world != 0
}

// apart is true for a process that has something of the state that no other one of its worker has.
func (s *slot) apart() bool { return s.sharded || s.local }

// keeps is true while a process that has left its world still has the state after a step. Where each has the share of its local
// rank nobody has anything as long as another one of the worker lacks its own.
func (m *Machine) keeps(s *slot, step uint64) bool {
	return s.keeps(step) && (!s.local || !slices.ContainsFunc(m.slots, func(other slot) bool { return other.world != s.world || !other.keeps(step) }))
}

// attend tells every process what is due.
func (m *Machine) attend(now time.Time) []Effect {
	if m.in == nil || m.stage != running {
		return nil
	}
	effects := append(m.lapse(now), m.fetchAgain(now)...)
	for i := range m.slots {
		s := &m.slots[i]
		if s.world != m.in.Round {
			effects = append(effects, m.bring(now, i, s)...)
		}
		switch s.world {
		case m.in.Round:
			effects = append(effects, m.direct(now, i, s)...)
		case 0:
			// It may fail before it has asked for a world.
			effects = append(effects, m.verdict(i, s)...)
		}
	}
	if !m.out && m.isOut() {
		m.out = true
		effects = append(effects, Tell{})
	}
	return effects
}

// isOut is true when one process has left the world, or was kept from entering one that is over.
func (m *Machine) isOut() bool {
	if m.shape.Strategy != InPlace {
		return false
	}
	for i := range m.slots {
		s := &m.slots[i]
		switch {
		case s.world == m.in.Round && s.hasLeft():
			return true
		case s.world != m.in.Round && s.waiting != WaitsNot && m.orders.abort != nil:
			return true
		}
	}
	return false
}

// bring takes a process to the world that this worker is in.
func (m *Machine) bring(now time.Time, i int, s *slot) []Effect {
	over := m.orders.abort != nil
	switch {
	case s.world != 0 && !s.interrupted && (!s.ready() || over && s.waiting == WaitsParked):
		// It still trains in the world before, or stands there and has a state that others may need.
		return m.interrupt(now, i, s, fmt.Sprintf("the world goes on as round %d", m.in.Round))
	case over && m.keepsState(s):
		effects := []Effect{Tell{}}
		if s.world == m.in.World.Parent {
			s.of = m.in.Round
		} else {
			effects = append(effects, Keep{Round: s.world, Step: s.step})
		}
		s.world, s.kept, s.waiting = m.in.Round, true, WaitsAborted
		s.parent, s.from = m.in.World.Parent, m.in.World.FromStep
		return effects
	case s.connection == 0 || !s.ready() || !m.supplied || over:
		return nil
	case s.saving != 0:
		return nil // what it says of that would be taken for a snapshot of the next world
	case m.in.World.Handover && !s.handsOver:
		return s.refuse(i, fmt.Sprintf("the state of round %d goes over the links of its world, and this process knows of no such thing", m.in.Round))
	case s.waiting == WaitsJoin && !m.in.World.Restore && m.in.World.FromStep > 0:
		why := fmt.Sprintf("round %d goes on with the state after step %d, which this process does not have", m.in.Round, m.in.World.FromStep)
		return s.refuse(i, why)
	default:
		*s = slot{connection: s.connection, elastic: true, shares: s.shares, sharded: s.sharded, local: s.local, handsOver: s.handsOver,
			world: m.in.Round, parent: m.in.World.Parent, from: m.in.World.FromStep, of: s.carries()}
		return []Effect{Give{Slot: i, Connection: s.connection, Start: *m.in}, Tell{}}
	}
}

// interrupt tells a process to leave the world that it was given.
func (m *Machine) interrupt(now time.Time, i int, s *slot, reason string) []Effect {
	s.interrupted, s.answerBy = true, now.Add(m.limits.Answer)
	return []Effect{Interrupt{Slot: i, Connection: s.connection, Round: s.world, Reason: reason}}
}

// direct tells a process what the operator says of the world that it is in.
func (m *Machine) direct(now time.Time, i int, s *slot) []Effect {
	o := &m.orders
	if s.leaving > 0 {
		return nil
	}
	if o.abort != nil && m.shape.Strategy == InPlace {
		if s.interrupted || s.hasLeft() {
			return append(m.saveLive(i, s), m.verdict(i, s)...)
		}
		return m.interrupt(now, i, s, o.abort.Reason)
	}
	effects := m.barrier(i, s)
	return append(effects, m.verdict(i, s)...)
}

// saveLive asks a process that has left its world for the state that others need: the first that has it, or each for what it has of it.
func (m *Machine) saveLive(i int, s *slot) []Effect {
	step := m.orders.saveStep
	asked := func(of *slot) bool { return of.savedStep == step && of.savedOf == m.orders.staging.Of }
	if step == 0 || asked(s) || !m.keeps(s, step) || s.connection == 0 {
		return nil
	}
	for j := range m.slots {
		if other := &m.slots[j]; !s.apart() && other.world == s.world && other.keeps(step) && (j < i || asked(other)) {
			return nil
		}
	}
	s.savedStep = step
	return m.save(i, s, step)
}

// save asks a process for its state, or what this worker is to write of it. Of those that know no shares the one writes
// all of it that would have the first.
func (m *Machine) save(i int, s *slot, step uint64) []Effect {
	staging := m.orders.staging
	s.savedOf = staging.Of
	if s.sharded {
		staging = Staging{}
	}
	if !s.shares && staging.Of > 0 {
		if !slices.Contains(staging.Shares, 0) {
			return nil
		}
		staging = Staging{}
	}
	s.saving = step
	return []Effect{Word{Slot: i, Connection: s.connection, Say: SaySave, Step: step, Staging: staging}}
}

// barrier keeps a process where the operator wants it to stop.
func (m *Machine) barrier(i int, s *slot) []Effect {
	want := Barrier{Attempt: m.orders.barrier.Attempt, Step: m.orders.barrier.Step}
	var effects []Effect
	switch {
	case want == s.armed:
	case want.Attempt == 0:
		s.armed, s.stop, s.arming, s.saved = Barrier{}, 0, false, false
		effects = append(effects, Lift{Slot: i}, Tell{})
	default:
		s.armed, s.arming, s.saved = want, true, false
		effects = append(effects, Arm{Slot: i, Step: want.Step})
	}
	if s.waiting != WaitsParked || s.arming || s.connection == 0 {
		return effects
	}
	if s.stop == 0 || s.step < s.stop {
		s.waiting = WaitsNot
		return append(effects, Word{Slot: i, Connection: s.connection, Say: SayGo}, Tell{})
	}
	// One process of each worker writes where all of them have the same state.
	if m.orders.barrier.Save && (i == 0 || s.apart()) && s.step == want.Step && (!s.saved || s.savedOf != m.orders.staging.Of) {
		s.saved = true
		effects = append(effects, m.save(i, s, s.step)...)
	}
	return effects
}

// verdict lets a process end that waits for it.
func (m *Machine) verdict(i int, s *slot) []Effect {
	switch {
	case s.connection == 0:
	case (m.orders.raise || m.anew) && s.waiting == WaitsFault && !s.raised: // what is in no world fails by itself
		s.raised = true
		return []Effect{Word{Slot: i, Connection: s.connection, Say: SayRaise}}
	case m.orders.finish && s.waiting == WaitsFinished && !s.ended:
		s.ended = true
		return []Effect{Word{Slot: i, Connection: s.connection, Say: SayEnd}}
	}
	return nil
}

// interrupted takes note of what a process is about that was told to leave its world.
func (m *Machine) interrupted(now time.Time, e Interrupted) {
	s := &m.slots[e.Slot]
	switch {
	case !s.interrupted:
	case e.Forming:
		s.answerBy = now.Add(m.limits.AnswerForming)
	case e.Apart:
		s.answerBy = now.Add(m.limits.AnswerApart)
	}
}

// answerBy is when the first process is killed that does not leave its world; zero when none is to.
func (m *Machine) answerBy() time.Time {
	var first time.Time
	for i := range m.slots {
		s := &m.slots[i]
		if m.stage == running && s.interrupted && !s.hasLeft() && (first.IsZero() || s.answerBy.Before(first)) {
			first = s.answerBy
		}
	}
	return first
}

// lookAt is when it is noted what the programs are about, of which one has until then to leave its world; or that time,
// when it was noted.
func (m *Machine) lookAt(by time.Time) time.Time {
	if m.lookedFor.Equal(by) {
		return by
	}
	return by.Add(-m.limits.Look)
}

// settleAnswers kills the programs when one of their processes does not leave its world.
func (m *Machine) settleAnswers(now time.Time) []Effect {
	by := m.answerBy()
	if by.IsZero() || now.Before(m.lookAt(by)) {
		return nil
	}
	var effects []Effect
	if !m.lookedFor.Equal(by) {
		m.lookedFor = by
		effects = append(effects, Look{Slots: m.unanswering(by)})
	}
	if now.Before(by) {
		return effects
	}
	first := m.unanswering(by)[0]
	m.stage, m.unanswered = stopping, true
	note := Note{Text: fmt.Sprintf("process %d has not left the world of round %d in time: killing it", first, m.slots[first].world)}
	return append(effects, note, Kill{})
}

// unanswering are the slots of processes that have until then to leave their world, and have not left it.
func (m *Machine) unanswering(by time.Time) []int {
	var slots []int
	for i := range m.slots {
		if s := &m.slots[i]; s.interrupted && !s.hasLeft() && s.answerBy.Equal(by) {
			slots = append(slots, i)
		}
	}
	return slots
}
