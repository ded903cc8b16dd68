package rendezvous

import (
	"slices"
	"time"
)

// A leader may end while it publishes a planned change: some members have entered the next world, and the others
// stand at the barrier of the one before, or wait as newcomers. Nothing is lost then. The record names the members
// and where they meet, so the next leader publishes the same world again, and the second half joins the first.

// outlook is what may become of an inherited round that some have entered and others not.
type outlook int

const (
	// outlookNone: not all of its members can enter it any more, nobody is in it, or the record does not name them.
	outlookNone outlook = iota
	// outlookOpen: nothing speaks against it yet, and not all were heard under this leader's term.
	outlookOpen
	// outlookWhole: everybody is in it, or can enter it now.
	outlookWhole
)

// namedMembers are the uids of the members of the inherited round in rank order; nil when the record does not name
// them, or others than those that are expected.
func (m *Machine) namedMembers() []string {
	if m.namedIn != m.base.MembersDigest {
		m.namedIn, m.namesIn = m.base.MembersDigest, m.findNamed()
	}
	return m.namesIn
}

func (m *Machine) findNamed() []string {
	ordinals := m.naming().ordinals
	if ordinals == nil {
		return nil
	}
	expected := m.ordinals()
	uids := make([]string, len(ordinals))
	for rank, ordinal := range ordinals {
		uids[rank] = expected[ordinal]
	}
	if slices.Contains(uids, "") || MembersDigest(uids) != m.base.MembersDigest {
		return nil
	}
	return uids
}

// outlook is what may become of the inherited round, and its members by rank when the record names them.
func (m *Machine) outlook(c *census) ([]string, outlook) {
	if c.in == 0 || m.base.Parent == 0 {
		return nil, outlookNone
	}
	uids := m.namedMembers()
	return uids, m.outlookOf(uids)
}

// outlookOf says whether the members of the inherited round, in which some are, can all be in it yet.
func (m *Machine) outlookOf(uids []string) outlook {
	if len(uids) == 0 || m.base.Master.Port == 0 || m.gang.Strategy == Restart {
		return outlookNone
	}
	found := outlookWhole
	for rank, uid := range uids {
		mem := m.members[uid]
		switch {
		case mem.want.Lost != "" || mem.want.Ended || mem.failed():
			return outlookNone
		case !mem.connected:
			found = outlookOpen
		case !m.canEnter(mem):
			return outlookNone
		case rank == 0 && mem.endpoint.Address != m.base.Master.Address:
			return outlookNone
		case mem.in(&m.base):
		case rank == 0 && mem.endpoint != m.base.Master:
			return outlookNone // the others would look for it elsewhere
		case mem.report.Term != m.term:
			found = outlookOpen
		}
	}
	return found
}

// canEnter says whether a member is in the inherited round, and has not left it, or can enter it now: it stands
// where its parent ended, or is a newcomer.
func (m *Machine) canEnter(mem *member) bool {
	r := &mem.report
	switch {
	case r.Out || !mem.usable() || r.Refused == m.base.Round:
		return false
	case mem.in(&m.base):
		return !r.any(func(p *Process) bool { return p.Waiting.left() })
	case r.Round == 0:
		return r.Standby
	}
	return r.Round == m.base.Parent && len(r.Processes) > 0 && !r.any(func(p *Process) bool {
		return p.Waiting != waitingParked || p.Done != m.base.FromStep || p.Stop != m.base.FromStep
	})
}

// republish makes an inherited round this leader's own that not all of its members have entered. When nobody serves
// what its newcomers load, it is a world that has lost them.
func (m *Machine) republish(now time.Time, uids []string) {
	w := &world{
		record: m.base, ranks: newRankTable(uids), master: m.base.Master, since: now, phase: PhaseResizing,
		live: map[string]bool{}, writers: map[string]int32{}, parted: map[string]parting{},
	}
	for rank, uid := range slices.Backward(uids) {
		mem := m.members[uid]
		w.writers[mem.want.Node] = int32(rank)
		if mem.report.Round == m.base.Parent || mem.report.Before == m.base.Parent {
			w.live[uid] = true
		}
	}
	for uid, mem := range m.members {
		if w.live[uid] || mem.report.Round == m.base.Parent {
			w.before = append(w.before, uid)
		}
	}
	w.staging, w.copies = m.stagings(uids, &m.base), m.copiesAsked() // as those who have entered were told: it follows from who is where
	m.world = w
	w.handover = m.isHandedOver(&m.base)
	if !w.handover && len(w.live) < len(uids) || m.sharded() {
		snapshot, ok := m.snapshotAfter(m.base.FromStep)
		if !ok {
			m.world = nil
			m.adopt(now, m.base, "some of its workers have entered it, and nobody has the state for the others")
			return
		}
		w.snapshot = &snapshot
		w.holders, w.parts = m.holdersOf(snapshot)
		w.givers = m.giversOf(w.holders)
	}
	if m.stepRound > m.base.Round {
		m.stepRound, m.step = m.base.Round, m.base.FromStep
	}
	m.inherit(&m.base)
	m.copyAnew()
	m.dropRestore()
	m.out.Publish, m.out.Changed = true, true
	for _, uid := range uids {
		if mem := m.members[uid]; mem.in(&m.base) {
			m.count(now, mem)
			m.enter(uid, mem)
			m.hearPause(now, uid, mem)
		}
	}
	m.note(notedAdopted, "round %d of %d workers is published again: some have entered it, and the others can", m.base.Round, m.base.Workers)
}
