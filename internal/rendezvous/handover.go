package rendezvous

// Who lacks the state of a world can get it over the links of that world, before its first step, from all who have it at once, where
// all processes of the world know how (docs/rounds.md, Handover). No snapshot is written or fetched for that. Nothing of it is in the
// record: who is in such a world says so, so a leader that publishes it again does so in the same way. One that does not know of it
// finds that there is no snapshot for those who are not in it yet, and takes them for lost.

// handsOver says whether those who are to have the state after a step in the next world can give it to its other members, over the links
// of that world. Where that has just come to nothing, snapshots are used for once.
func (m *Machine) handsOver(members []Member, live map[string]bool, step uint64) bool {
	if step == 0 || m.gang.Strategy != InPlace || m.sharded() || m.handoverFailed() {
		return false
	}
	gives := false
	for i := range members {
		mem := m.members[members[i].UID]
		if mem == nil || !mem.report.HandsOver {
			return false
		}
		gives = gives || live[members[i].UID]
	}
	return gives
}

// handoverFailed says whether the world that there is was to begin with a handover, and has not begun.
func (m *Machine) handoverFailed() bool {
	return (m.world.handover || m.isHandedOver(&m.world.record)) && !m.hasBegun()
}

// isHandedOver says whether somebody is in a round, or was, that begins with a handover.
func (m *Machine) isHandedOver(r *Record) bool {
	for _, mem := range m.members {
		if mem.in(r) && mem.report.Handover {
			return true
		}
	}
	return false
}
