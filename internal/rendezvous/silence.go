package rendezvous

import (
	"fmt"
	"strings"
	"time"
)

// Silence alone proves nothing: it may be the link to this operator that is bad, and the world trains on. Nobody is
// missed while steps are made, since a step takes all ranks. Whoever is missed then is lost
//
//   - at once, when its pod has ended, or two peers on other nodes cannot reach its agent (probes.go);
//   - after the time of stepsWithout steps without one, when less is known: that its node is not ready, or that the
//     peers that there are cannot reach it, fewer than two or on its own node;
//   - after that time as well, when it was never heard by this operator, which has led for long enough: nobody can tell where
//     its agent is, so no peer can be asked, and it is the one that says nothing in a world that stands still;
//   - and otherwise when a world counts as hung, unless others evaluate, save or are only starting.
//
// That a peer reaches it outweighs what the cluster says of its node. And as long as no member is heard of a world that
// trains nothing but its end counts against anybody: what is silent is this operator, as far as it can know.

// stepsWithout is for how many steps' time none must have been made before little evidence is enough.
const stepsWithout = 3

// lastSign is when there was a sign of life of a member last: a word of its own, or a step of anybody's. Time in
// which nobody was heard does not count.
func (m *Machine) lastSign(mem *member) time.Time {
	sign := mem.lastSeen
	if !mem.joined {
		sign = m.since.Add(m.reconnectGrace)
	}
	return latest(sign, m.stepAt, m.wokenAt)
}

// quiet is for how long a member has given no sign of life; 0 for one of which none is expected.
func (m *Machine) quiet(now time.Time, mem *member) time.Duration {
	if !mem.joined && m.world == nil && !m.mayLive() {
		return 0 // it has not been in a world: it is only starting
	}
	if exited, _ := mem.exited(); exited {
		return 0
	}
	return now.Sub(m.lastSign(mem))
}

// isSilent says whether a member is missed. That is no loss yet.
func (m *Machine) isSilent(now time.Time, mem *member) bool {
	return m.quiet(now, mem) > m.gang.HeartbeatTimeout
}

// hears says whether this operator hears anybody.
func (m *Machine) hears(now time.Time) bool { return now.Sub(m.heardAt) <= m.gang.HeartbeatTimeout }

// silenceLoss says why a member of the world is lost that is silent; empty when it is not.
func (m *Machine) silenceLoss(now time.Time, mem *member) string {
	quiet := m.quiet(now, mem)
	if quiet <= m.gang.HeartbeatTimeout || !m.hears(now) || !mem.want.Ended && m.hasBegun() && !m.hearsWorld(now) {
		return ""
	}
	silent := fmt.Sprintf("it has been silent for more than %s while no step was made", m.gang.HeartbeatTimeout)
	probed := mem.probe.known(now, m.lastSign(mem))
	switch {
	case mem.want.Ended:
		return silent + ", and its pod has ended"
	case probed == unreachable && (mem.probe.foundFirm || m.slow(now)):
		return silent + ", and " + m.names(mem.probe.by) + " cannot reach it"
	case probed != reached && mem.want.NodeNotReady && m.slow(now):
		return silent + ", and its node is not ready"
	case !mem.joined && m.standsStill(now):
		return fmt.Sprintf("it was not heard since another operator leads, and no step was made in the time of %d", stepsWithout)
	case m.hangs(now, m.lastSign(mem)):
		return fmt.Sprintf("it has been silent for more than %s while no step was made", m.gang.HangTimeout)
	}
	return ""
}

// isMissed says whether the controller may take a member for lost because it is silent. One that may be in the world
// only when the world has lost it; when the world goes on no more anyway, and no peer reaches it; or when nobody is
// heard at all, and its node is not ready.
func (m *Machine) isMissed(now time.Time, mem *member) bool {
	switch {
	case !m.isSilent(now, mem):
		return false
	case m.world == nil:
		return true
	case m.world.ranks.rank(mem.want.UID) >= 0:
		over := (m.broken != nil || m.fatal != "") && mem.probe.known(now, m.lastSign(mem)) != reached
		return over || m.isLost(mem) || m.silenceLoss(now, mem) != "" || !m.hears(now) && mem.want.NodeNotReady && m.slow(now)
	case !mem.joined && m.world.adopted && !m.world.whole():
		return m.world.missing // it may hold a rank that is yet to be reported
	}
	return true
}

// slow says whether no step was made in the time that several take.
func (m *Machine) slow(now time.Time) bool {
	patience := stepsWithout * m.stepTime()
	if m.gang.HangTimeout > 0 {
		patience = min(patience, m.gang.HangTimeout)
	}
	return now.Sub(latest(m.stepAt, m.world.since)) > patience
}

// hangs says whether a world counts as hung that has given no sign since then, as far as those show who are heard.
func (m *Machine) hangs(now, since time.Time) bool {
	if m.gang.HangTimeout <= 0 || now.Sub(since) < m.gang.HangTimeout {
		return false
	}
	return !m.isBusy()
}

// standsStill says whether no step was made in the time that several take, as far as those tell how long one takes who are
// heard, and none of them does anything else. Who was never heard may be held at a barrier by an older leader, for as long as that
// holds: then the protocol has the world stand, and nobody has it.
func (m *Machine) standsStill(now time.Time) bool {
	took := m.stepTime()
	return took > 0 && (!m.world.stood || now.Sub(m.since) > holdTime) && now.Sub(latest(m.stepAt, m.world.since)) > max(stepsWithout*took, m.gang.HeartbeatTimeout) && !m.isBusy()
}

// isMute says whether this operator, which hears others, does not hear a member that it has heard, whoever makes steps meanwhile. A node
// that has lost its power hangs up no session.
func (m *Machine) isMute(now time.Time, mem *member) bool {
	return mem.joined && m.hears(now) && now.Sub(latest(mem.lastSeen, m.wokenAt)) > m.gang.HeartbeatTimeout
}

// isCutOff says whether a member takes part in the world, and this operator does not hear it: steps are made all the
// same, or peers reach it.
func (m *Machine) isCutOff(now time.Time, mem *member) bool {
	word := latest(mem.lastSeen, m.wokenAt)
	if !mem.joined || now.Sub(word) <= m.gang.HeartbeatTimeout || !m.hears(now) || m.world == nil ||
		m.world.finishing || m.broken != nil || m.world.ranks.rank(mem.want.UID) < 0 || m.isLost(mem) {
		return false
	}
	if exited, _ := mem.exited(); exited {
		return false
	}
	return m.stepAt.Sub(word) > m.gang.HeartbeatTimeout || mem.probe.known(now, word) == reached
}

// watch finds out who is silent.
func (m *Machine) watch(now time.Time) {
	if m.over() {
		return
	}
	m.probeSilent(now)
	for i := range m.gang.Members {
		mem := m.members[m.gang.Members[i].UID]
		if missed := m.isMissed(now, mem); missed != mem.silent {
			mem.silent, m.out.Changed = missed, true
		}
		if mute := m.isMute(now, mem); mute != mem.mute {
			mem.mute = mute
			m.out.Changed = m.out.Changed || m.isLost(mem)
		}
		if cutOff := m.isCutOff(now, mem); cutOff != mem.cutOff {
			mem.cutOff, m.out.Changed = cutOff, true
			m.noteCutOff(now, mem)
		}
	}
	m.watchPace(now)
	if undecided := m.adopting(now); undecided != m.undecided {
		m.undecided, m.out.Changed = undecided, true
	}
}

func (m *Machine) noteCutOff(now time.Time, mem *member) {
	switch {
	case !mem.cutOff && now.Sub(mem.lastSeen) <= m.gang.HeartbeatTimeout:
		m.note(notedCutOff, "%s is heard again", mem.want.Name)
	case !mem.cutOff:
	case mem.probe.found == reached:
		m.note(notedCutOff, "this operator does not hear %s, and %s can reach it: it trains on", mem.want.Name, m.names(mem.probe.by))
	default:
		m.note(notedCutOff, "this operator does not hear %s, and its world makes steps: it trains on", mem.want.Name)
	}
}

// names are those of members, for a sentence.
func (m *Machine) names(uids []string) string {
	names := make([]string, 0, len(uids))
	for _, uid := range uids {
		if mem := m.members[uid]; mem != nil {
			names = append(names, mem.want.Name)
		}
	}
	if len(names) == 0 {
		return "others"
	}
	return strings.Join(names, " and ")
}

func latest(times ...time.Time) time.Time {
	var last time.Time
	for _, at := range times {
		if at.After(last) {
			last = at
		}
	}
	return last
}
