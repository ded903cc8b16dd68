package rendezvous

import "time"

const (
	// holdTime is how long agents keep processes standing at a barrier after they sent the report that was
	// answered with the newest hold: a leader's lease, the next one's election, the heartbeat timeout, and
	// 5 s. It is a rule of the protocol.
	holdTime = 30 * time.Second
	// renewEvery is the time from one hold to the next.
	renewEvery = 5 * time.Second
	// holdMargin is how long before a hold ends a round that goes on from a barrier must be published.
	holdMargin = 5 * time.Second
	// unclearTime is how long a world stands for a record of which nobody says whether it was written.
	unclearTime = 5 * time.Second
)

// A world that stands at a barrier is held there, and a hold ends: when this operator is gone the agents let
// their processes go, and the world trains on. While the operator lives it renews, and every directive with a
// barrier carries the newest hold. When a member has acknowledged none for a while, its processes may be let
// go soon, and the others would wait for them: then the barrier is lifted for all.
//
// Holds are numbered by the time since this leader has known the job, so that a number says when it was first
// given. That a few processes resume while the next world is published breaks nothing, whatever the clocks say:
// whoever is to go on and does not stand at the barrier refuses it, and no world makes a step without all.

// renew makes another hold when it is time for it. A leader that has yet to find out which world there is
// renews as well, as long as that may take.
func (m *Machine) renew(now time.Time) {
	if m.since.IsZero() {
		return
	}
	// Whether there is a world to find out about takes a look at all members: that is for the next hold, not for each report.
	if next := uint64(max(now.Sub(m.since), 0)/renewEvery) + 1; next > m.hold && (m.world != nil || m.adopting(now)) {
		m.hold = next
	}
}

// oldestHold is when the oldest hold was given that keeps a process of the world standing, of those that are not
// lost: the barrier may begin to fall apart holdTime after.
func (m *Machine) oldestHold(now time.Time) time.Time {
	oldest := now
	for _, uid := range m.world.ranks.uids {
		mem := m.members[uid]
		if mem == nil || m.isLost(mem) {
			continue
		}
		if at := m.heldSince(now, mem); at.Before(oldest) {
			oldest = at
		}
	}
	return oldest
}

// heldSince is when the newest hold was given that a member has acknowledged; the begin of the change for one
// that has acknowledged none since then.
func (m *Machine) heldSince(now time.Time, mem *member) time.Time {
	at := m.change.began
	if mem.report.Term < m.ledFrom || mem.report.Term > m.term || m.hold == 0 {
		return at // another leader's holds have other numbers
	}
	if mem.report.Hold == 0 {
		for i := range mem.report.Processes {
			if mem.report.Processes[i].Barrier == m.change.attempt {
				return now // an agent that knows no holds keeps it standing until it is told otherwise
			}
		}
		return at
	}
	given := m.since.Add(time.Duration(min(mem.report.Hold, m.hold)-1) * renewEvery)
	if given.After(at) {
		return given
	}
	return at
}

// noteAsked takes note of a change that cannot go on before a record is written. Its write may fail before anything else is
// heard, so that is noted when it is asked for.
func (m *Machine) noteAsked(now time.Time) {
	if m.writing != nil && m.change != nil && m.change.askedFor.IsZero() {
		m.change.askedFor = now
	}
}

// unclear says whether a record was asked for too long ago that this change needs, and nobody has said whether it
// was written.
func (m *Machine) unclear(now time.Time) bool {
	m.noteAsked(now)
	return !m.change.askedFor.IsZero() && now.Sub(m.change.askedFor) >= unclearTime
}
