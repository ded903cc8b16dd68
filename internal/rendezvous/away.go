package rendezvous

import "time"

// A session that has ended is no loss: it may be that the link to this operator broke, or whatever stands between, and the
// agent comes again in a moment. A world that waits for somebody who has gone cannot wait long either: its peers report
// faults, and stand still. So they are asked at once whether anybody is at the port of the member's agent, which listens
// there as long as it lives. The kernel answers for it: that of a machine that has no time for the agent takes the
// connection all the same, and only where the agent's process has ended it refuses. Two must say so, as whoever has
// reported the fault, or is wrong about the network, must not end a member that lives. When they cannot tell, such as that
// the whole machine is gone, or there are not two, the member has brokenSession to come again.

// brokenSession is how long a session may be away while another worker reports a fault.
const brokenSession = 500 * time.Millisecond

// away says whether a member had a session, and has none.
func (mem *member) away() bool { return !mem.connected && !mem.hungUp.IsZero() }

// isDoubtful says whether a member of the world is away while others report faults, so many with its own.
func (m *Machine) isDoubtful(mem *member, faults int) bool {
	if m.accuses(mem) {
		faults--
	}
	return mem.away() && faults > 0
}

// askAboutAway has peers asked about members that are away while others report faults.
func (m *Machine) askAboutAway(now time.Time, faults int) {
	if faults == 0 {
		return
	}
	begun := 0
	for _, uid := range m.world.ranks.uids {
		mem := m.members[uid]
		if mem != nil && begun < maxBegun && mem.probe.asked.Before(mem.hungUp) && m.isDoubtful(mem, faults) && m.mayBeProbed(mem) {
			m.beginProbe(now, mem)
			begun++
		}
	}
}

// awayLoss says why a member of the world is lost that is away; empty when it is not.
func (m *Machine) awayLoss(now time.Time, mem *member, faults int, steadyAt time.Time) string {
	switch {
	case !m.isDoubtful(mem, faults):
		return ""
	case mem.probe.vacant(mem.hungUp):
		return "its session ended while a peer reports a fault, and " + m.names(mem.probe.refused) + " find nobody at its port"
	case now.Sub(mem.hungUp) > brokenSession && !steadyAt.Before(mem.hungUp):
		return "its session ended, and a peer reports a fault"
	}
	return ""
}
