package rendezvous

import (
	"time"

	"github.com/concertina-dev/concertina/internal/straggler"
)

// Straggler is a process that has kept the others of its world waiting for minutes.
type Straggler struct {
	// Name and Node are those of its worker.
	Name, Node string
	// Rank is that of the process in the world.
	Rank int32
	// Own is how long it works in a step, without what it waits for others, Median how long most do.
	Own, Median time.Duration
	// Since is when it was first seen.
	Since time.Time
}

// watchPace finds out who keeps the others waiting. In a world that changes, or has yet to form, nobody does.
func (m *Machine) watchPace(now time.Time) {
	if m.world == nil || !m.world.formed() || m.change != nil || m.broken != nil || !m.pace.Due(now, m.step) {
		return
	}
	each := int(m.gang.ProcessesPerWorker)
	processes := make([]straggler.Process, 0, each*len(m.world.ranks.uids))
	for _, uid := range m.world.ranks.uids {
		mem := m.members[uid]
		for local := range each {
			one := straggler.Process{ID: straggler.ID{Worker: uid, Local: local}}
			if mem != nil && mem.in(&m.world.record) && local < len(mem.report.Processes) {
				one.Own = mem.report.Processes[local].OwnTime
			}
			processes = append(processes, one)
		}
	}
	if !m.pace.Look(now, m.step, m.stepTime(), processes) {
		return
	}
	m.out.Changed = true
	for _, one := range m.stragglers() {
		m.note(notedPace, "rank %d, in %s on %s, works %s in a step, and most do %s", one.Rank, one.Name, one.Node, one.Own, one.Median)
	}
}

// stragglers are those of the world that keep the others waiting, the slowest first.
func (m *Machine) stragglers() []Straggler {
	if m.world == nil {
		return nil
	}
	var all []Straggler
	for _, slow := range m.pace.Named() {
		mem, rank := m.members[slow.Worker], m.world.ranks.rank(slow.Worker)
		if mem != nil && rank >= 0 {
			all = append(all, Straggler{
				Name: mem.want.Name, Node: mem.want.Node, Rank: rank*m.gang.ProcessesPerWorker + int32(slow.Local),
				Own: slow.Own, Median: slow.Median, Since: slow.Since,
			})
		}
	}
	return all
}
