package rendezvous

import "time"

// A session that has ended is no loss: it may be that the link to this operator broke, or whatever stands between, and the
// agent comes again in a moment. But a world whose member has gone stands still, and its peers notice that late: the kernel
// frees the memory of a process before it closes its connections. So they are asked at once whether anybody is at the port
// of the member's agent, which listens there as long as it lives. The kernel answers for it: that of a machine that has no
// time for the agent takes the connection all the same, and where the agent's process has ended it refuses. Two must say so, on
// two other nodes if there are, and none who is asked may reach it, since one who is wrong about the network, or lies, must not
// end a member that lives. When they cannot tell, such as that the whole machine is gone, or there are not two, the member has
// brokenSession to come again once a peer reports a fault.
//
// A firewall may refuse as well, and leave what is connected. So steps outweigh: a world whose member has gone may end the step
// that it is in, and makes no other. Reports say how far the world was when they were made, so what counts is how much further
// it comes than the first one said that came after the session had ended.
//
// When many sessions end at once it is the link, or this operator's door, and those who are back already are not asked about
// all who are on their way: about MaxProbes at most, unless a peer reports a fault.

// brokenSession is how long a session may be away while another worker reports a fault.
const brokenSession = 500 * time.Millisecond

// away says whether a member had a session, and has none.
func (mem *member) away() bool { return !mem.connected && !mem.hungUp.IsZero() }

// isAskedAbout says whether peers can be asked about a member because it is away, and their answer can matter.
func (m *Machine) isAskedAbout(mem *member) bool {
	exited, _ := mem.exited()
	return mem.away() && !exited && m.mayBeProbed(mem)
}

// askAboutAway has peers asked about members that are away, once they are, while members report so many faults.
func (m *Machine) askAboutAway(now time.Time, faults int) {
	var away []*member
	for _, uid := range m.world.ranks.uids {
		mem := m.members[uid]
		if mem == nil || !mem.away() {
			continue
		}
		if !mem.endedKnown && m.words > mem.afterWords {
			mem.endedStep, mem.endedKnown = m.furthest(), true
		}
		if m.isAskedAbout(mem) {
			away = append(away, mem)
		}
	}
	if faults == 0 && len(away) > MaxProbes {
		return
	}
	begun := 0
	for _, mem := range away {
		// Whoever hangs up again and again has others asked no more often than one who is silent.
		if begun < maxBegun && mem.probe.asked.Before(mem.hungUp) && now.Sub(mem.askedAwayAt) >= probeEvery {
			m.beginProbe(now, mem)
			mem.askedAwayAt = now
			begun++
		}
	}
}

// stepsWithoutSession says whether the world has made steps since a member's session ended that it cannot have made without it.
func (m *Machine) stepsWithoutSession(mem *member) bool {
	return mem.endedKnown && m.furthest() >= mem.endedStep+2
}

// awayLoss says why a member of the world is lost that is away, while others report so many faults; empty when it is not.
func (m *Machine) awayLoss(now time.Time, mem *member, faults int, steadyAt time.Time) string {
	switch {
	case !mem.away():
		return ""
	case m.vacant(now, mem) && !m.stepsWithoutSession(mem):
		return "its session ended, and " + m.names(mem.probe.refused) + " find nobody at its port"
	case faults > 0 && now.Sub(mem.hungUp) > brokenSession && !steadyAt.Before(mem.hungUp):
		return "its session ended, and a peer reports a fault"
	}
	return ""
}
