package rendezvous

// State is what a leader is at with a job. It is not kept: it follows from what the machine knows, and docs/rounds.md
// has a table of what is done in each and what follows on it. Phase is the coarser word that users see.
type State string

// The states, in the order in which a job goes through them when all goes well.
const (
	// StateExpecting: the controller has named no member yet.
	StateExpecting State = "Expecting"
	// StateClaiming: this leader's term is not durable yet, and nobody is told anything.
	StateClaiming State = "Claiming"
	// StateInheriting: a round of an earlier leader stands in the record, and its fate is open.
	StateInheriting State = "Inheriting"
	// StateGathering: the first round of the attempt waits for its members.
	StateGathering State = "Gathering"
	// StateFounding: the record of that round is being written.
	StateFounding State = "Founding"
	// StateEntering: a world is there, and not all of its members are known to be in it.
	StateEntering State = "Entering"
	// StateTraining: all are.
	StateTraining State = "Training"
	// StateArming: a planned change has begun, and not all processes stand at its barrier.
	StateArming State = "Arming"
	// StateParked: all stood there, and what the next world needs is made ready.
	StateParked State = "Parked"
	// StateCommitting: the record of the world that follows on the barrier is being written.
	StateCommitting State = "Committing"
	// StateLeaving: the world cannot go on. Its members leave it, it is found out why, and who has the state.
	StateLeaving State = "Leaving"
	// StateRegrouping: those that are left wait for others.
	StateRegrouping State = "Regrouping"
	// StateRenewing: the record of the world that follows on a broken one is being written.
	StateRenewing State = "Renewing"
	// StateFinishing: every process has finished, and may end.
	StateFinishing State = "Finishing"
	// StateFailed: the attempt cannot go on; the controller decides what comes next.
	StateFailed State = "Failed"
	// StateOver: this leader has nothing more to say about the job.
	StateOver State = "Over"
)

// State is what the leader is at.
func (m *Machine) State() State {
	switch {
	case m.over():
		return StateOver
	case len(m.gang.Members) == 0:
		return StateExpecting
	case m.term == 0:
		return StateClaiming
	case m.fatal != "":
		return StateFailed
	case m.world == nil:
		return m.beforeWorld()
	case m.world.finishing:
		return StateFinishing
	case m.broken != nil:
		return m.afterWorld()
	case m.change != nil:
		return m.betweenWorlds()
	case !m.world.formed():
		return StateEntering
	}
	return StateTraining
}

func (m *Machine) beforeWorld() State {
	switch {
	case m.writing != nil && m.writing.plan != nil && !m.writing.overtaken:
		return StateFounding
	case m.mayLive():
		return StateInheriting
	}
	return StateGathering
}

func (m *Machine) afterWorld() State {
	switch {
	case m.writing != nil && m.writing.plan != nil && m.writing.plan.broken == m.broken:
		return StateRenewing
	case m.broken.regrouping:
		return StateRegrouping
	}
	return StateLeaving
}

func (m *Machine) betweenWorlds() State {
	switch {
	case m.writing != nil && m.writing.plan != nil && m.writing.plan.change == m.change:
		return StateCommitting
	case m.change.arrived:
		return StateParked
	}
	return StateArming
}
