package rendezvous

import "time"

// watch finds out who is silent.
func (m *Machine) watch(now time.Time) {
	if m.over() {
		return
	}
	for _, mem := range m.members {
		if silent := m.isSilent(now, mem); silent != mem.silent {
			mem.silent, m.out.Changed = silent, true
		}
	}
	if undecided := m.adopting(now); undecided != m.undecided {
		m.undecided, m.out.Changed = undecided, true
	}
}

func (m *Machine) isSilent(now time.Time, mem *member) bool {
	heard := mem.lastSeen
	if !mem.joined {
		if m.world == nil && !m.mayLive() {
			return false // it has not been in a world: it is only starting
		}
		heard = m.since.Add(m.reconnectGrace)
	}
	if exited, _ := mem.exited(); exited {
		return false
	}
	for _, sign := range []time.Time{m.stepAt, m.wokenAt} {
		if sign.After(heard) {
			heard = sign
		}
	}
	return now.Sub(heard) > m.gang.HeartbeatTimeout
}
