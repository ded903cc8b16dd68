package lifecycle

import "slices"

// Standing is what the operator is to know of one process.
type Standing struct {
	// Elastic is true once it has spoken to the agent.
	Elastic bool
	// Sharded is true for one that has its own shard of the state.
	Sharded bool
	Waiting Waiting
	// Attempt and Stop are the barrier that it was given, and where that makes it stop.
	Attempt, Stop uint64
	// Entering is true while it has yet to be given the world that the worker is in: what it has done
	// belongs to another.
	Entering bool
	// Loads is true while it waits for shards of the state that the world begins with.
	Loads bool
	// Clean is true for one that has left that world with exactly the state after Step, or had the state that it
	// begins with, or an older one, when it was over.
	Clean bool
	Step  uint64
	// Leaves is true for one that can be told to leave its world at a barrier, Leaving the step after which it was; 0
	// for not yet.
	Leaves  bool
	Leaving uint64
}

// Term is the highest term that was obeyed.
func (m *Machine) Term() uint64 { return m.obeyedTerm }

// Hold is the newest hold of that term that was obeyed; 0 for none.
func (m *Machine) Hold() uint64 { return m.hold.number }

// In is the world that this worker is in, or was in last; nil before the first.
func (m *Machine) In() *Start { return m.in }

// Before is the round that this worker was in before that of In, and has left for it; 0 for none.
func (m *Machine) Before() uint64 { return m.before }

// Supplied says whether all processes have got the shards that they wanted of the state that the world of In begins with.
func (m *Machine) Supplied() bool {
	return m.in != nil && len(m.slots) > 0 && !slices.ContainsFunc(m.slots, func(s slot) bool { return s.handed != m.in.Round })
}

// HandsOver says whether all processes can give their state over the links of a world, and get it so.
func (m *Machine) HandsOver() bool {
	return len(m.slots) > 0 && !slices.ContainsFunc(m.slots, func(s slot) bool { return !s.handsOver })
}

// Refused is a planned round that this worker could not go on to, since its processes did not stand where it
// begins; 0 for none.
func (m *Machine) Refused() uint64 { return m.refused }

// Started is true while programs run.
func (m *Machine) Started() bool { return m.stage == running || m.stage == stopping }

// Ready is true when this worker could enter its first world: it runs no program, or each of its
// processes has asked for a world.
func (m *Machine) Ready() bool {
	if m.in != nil || m.stage == stopping || m.stage == left {
		return false
	}
	if m.stage == waiting {
		return true
	}
	for i := range m.slots {
		if m.slots[i].waiting != WaitsJoin {
			return false
		}
	}
	return true
}

// Out is true when this worker makes no further step in the world of In.
func (m *Machine) Out() bool { return m.out }

// Terminating is true once SIGTERM has arrived.
func (m *Machine) Terminating() bool { return !m.terminatedAt.IsZero() }

// Exit is the exit code of a program that has ended by itself, or with the agent; false while it
// runs, or when it was stopped on behalf of the operator.
func (m *Machine) Exit(program int) (int, bool) {
	if m.stage != left && m.shape.Strategy == Restart && (m.stoppedForAnother() || m.held()) {
		return 0, false
	}
	code, ended := m.exits[program]
	return code, ended
}

// Unsupplied is why the programs were killed before they entered their world: its snapshot could not be had.
// Empty for any other end.
func (m *Machine) Unsupplied() string { return m.unsupplied }

// Failure is the exit code of a program that has failed while the operator has yet to say what
// follows from it; false for any other.
func (m *Machine) Failure(program int) (int, bool) {
	if m.stage == left || m.shape.Strategy != Restart || m.failed != program {
		return 0, false
	}
	return m.code, m.held() || m.out
}

// Process is what is known of the process of a slot.
func (m *Machine) Process(i int) Standing {
	s := m.slots[i]
	standing := Standing{Elastic: s.elastic, Sharded: s.sharded, Waiting: s.waiting, Attempt: s.armed.Attempt, Stop: s.stop, Leaves: s.leaves, Leaving: s.leaving,
		Loads: s.wants != nil && s.connection != 0}
	if m.in == nil || s.world == m.in.Round {
		if m.keeps(&s, s.step) {
			standing.Clean, standing.Step = true, s.step
		}
		standing.Entering = s.kept
		return standing
	}
	// What it waits for has nothing to do with the world that it is about to enter, unless that is
	// over before it has begun.
	standing = Standing{Elastic: s.elastic, Sharded: s.sharded, Entering: true}
	switch {
	case s.world == 0 && s.waiting == WaitsFault:
		standing.Waiting = WaitsFault
	case m.orders.abort != nil && s.ready():
		standing.Waiting = WaitsAborted
	}
	return standing
}
