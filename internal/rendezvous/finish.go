package rendezvous

// findFinish finds out whether every process of the world has finished: it waits for the permission to
// end, or has ended with code 0.
func (m *machine) findFinish() {
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
		if !mem.in(&m.world.record) || len(mem.report.processes) == 0 || m.isLost(mem) {
			return
		}
		for i := range mem.report.processes {
			p := &mem.report.processes[i]
			if p.waiting != waitingFinished && (!p.exited || p.exitCode != 0) {
				return
			}
		}
	}
	m.world.finishing, m.change = true, nil
	m.out.publish, m.out.changed = true, true
	m.note(notedFinished, "round %d has finished: all processes may end", m.world.record.Round)
}
