package rendezvous

import (
	"time"

	"connectrpc.com/connect"
)

// mayLive says whether the round that stands in the cluster may be the world of the expected gang,
// written by an earlier leader.
func (m *machine) mayLive() bool {
	if m.world != nil || m.burned || m.base.Round == 0 || m.base.Attempt != m.gang.Attempt {
		return false
	}
	return m.term == 0 || m.base.Round == m.inherited
}

// adopting says whether the fate of that round is open.
func (m *machine) adopting(now time.Time) bool {
	if m.over() || m.world != nil {
		return false
	}
	if m.term == 0 {
		return true
	}
	if !m.mayLive() {
		return false
	}
	if now.Sub(m.since) <= m.gang.HeartbeatTimeout+m.reconnectGrace {
		return true
	}
	in, _, _ := m.census()
	return in > 0
}

// census counts the expected members that have reported the durable round, those that have reported
// anything else, and those that were not heard yet.
func (m *machine) census() (in, elsewhere, unheard int) {
	for _, mem := range m.members {
		switch {
		case !mem.joined:
			unheard++
		case mem.in(&m.base):
			in++
		default:
			elsewhere++
		}
	}
	return in, elsewhere, unheard
}

// tryAdopt adopts or burns the inherited round, if it is known by now whether it lives.
func (m *machine) tryAdopt(now time.Time) {
	if m.base.Workers < 1 || m.base.Workers > maxWorkers || len(m.base.MembersDigest) != 64 {
		m.burn("the job's record of it cannot be true")
		return
	}
	in, elsewhere, unheard := m.census()
	switch {
	case m.steppedIn(&m.base):
		m.adopt("a member has made steps in it")
	case in == int(m.base.Workers):
		m.adopt("all of its workers report it")
	case unheard == 0 && elsewhere > 0 && m.shutOut():
		m.burn("not all of its workers have entered it")
	}
}

// steppedIn says whether any member has made a step in a round.
func (m *machine) steppedIn(r *Record) bool {
	for _, mem := range m.members {
		if mem.in(r) && mem.report.furthest() > r.FromStep {
			return true
		}
	}
	return false
}

// shutOut says whether a member is not in the inherited round and never can be: it has obeyed this
// leader and refuses what an older one says.
func (m *machine) shutOut() bool {
	for _, mem := range m.members {
		if mem.joined && !mem.in(&m.base) && mem.report.term == m.term {
			return true
		}
	}
	return false
}

func (m *machine) burn(why string) {
	m.burned, m.out.changed = true, true
	m.note(notedBurned, "round %d is burned: %s", m.base.Round, why)
}

// adopt makes the inherited round this leader's own.
func (m *machine) adopt(why string) {
	m.world = &world{
		record: m.base, adopted: true,
		ranks: emptyRankTable(m.base.Workers, m.base.MembersDigest),
	}
	m.out.publish, m.out.changed = true, true
	for _, expected := range m.gang.Members {
		mem := m.members[expected.UID]
		if !mem.joined {
			continue
		}
		if !mem.in(&m.base) || !m.world.ranks.place(expected.UID, mem.report.workerRank) {
			m.out.end = append(m.out.end, ending{expected.UID, refusal{connect.CodeInvalidArgument,
				"the report contradicts the world that the other workers are in"}})
			continue
		}
		m.enter(expected.UID, mem)
	}
	sortEndings(m.out.end)
	m.note(notedAdopted, "round %d of %d workers is adopted: %s", m.base.Round, m.base.Workers, why)
}
