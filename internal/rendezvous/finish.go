package rendezvous

import "time"

// findFinish finds out whether every process of the world has finished: it waits for the permission to
// end, or has ended with code 0.
func (m *Machine) findFinish(now time.Time) {
	if m.world.finishing || m.broken != nil {
		return
	}
	for _, uid := range m.world.ranks.uids {
		mem := m.members[uid]
		if mem == nil {
			if !m.world.parted[uid].well {
				return
			}
			continue
		}
		if !mem.in(&m.world.record) || len(mem.report.Processes) == 0 || m.isLost(mem) {
			return
		}
		for i := range mem.report.Processes {
			p := &mem.report.Processes[i]
			if p.Waiting != waitingFinished && (!p.Exited || p.ExitCode != 0) {
				return
			}
		}
	}
	if m.awaitsBest(now) {
		return
	}
	m.missAll()
	m.world.finishing, m.change = true, nil
	m.out.Publish, m.out.Changed = true, true
	m.note(notedFinished, "round %d has finished: all processes may end", m.world.record.Round)
}
