package rendezvous

import "fmt"

// maxHolders is how many holders of a snapshot a worker is told of. Workers are told of different ones,
// so that not all of them fetch from the same.
const maxHolders = 8

// directive returns what the agent of a member should do now; false while there is nothing that may
// be said.
func (m *machine) directive(uid string) (directive, bool) {
	mem := m.members[uid]
	if m.term == 0 || m.deposed || mem == nil {
		return directive{}, false
	}
	d := directive{term: m.term, released: m.released, key: m.keyOf(mem), prefetch: m.prefetch(uid)}
	if beat := beatOf(len(m.members)); beat > beatOf(0) {
		d.beat = beat
	}
	if m.world == nil {
		d.hold = m.hold
		d.released = d.released || mem.leaving() && !m.mayLive()
		d.standby = m.gang.Strategy == InPlace && len(mem.report.processes) > 0 && mem.report.round == 0
		return d, true
	}
	rank := m.world.ranks.rank(uid)
	if rank < 0 {
		return m.outside(mem, d), true
	}
	d.round, d.world = m.world.record.Round, m.place(uid, rank)
	switch {
	case m.world.finishing:
		d.finish = true
	case m.broken != nil:
		d.abort = &abort{reason: m.broken.why, planned: m.broken.stop, save: m.broken.savesFor(uid)}
		d.raise = m.broken.raised[uid]
	case m.change != nil && m.change.attempt > 0:
		d.barrier = &barrier{attempt: m.change.attempt, step: m.change.step, save: m.change.saver == uid}
		d.hold = m.hold
	}
	return d, true
}

// outside is what a member should do that is not in the world: one that was keeps what it was told
// last, so that its programs stay where they stand. It is released only when the controller lets it go: one
// that was silent for too long may be back for the next world. And nobody is released while others load a
// snapshot from it: it may end the moment it is.
func (m *machine) outside(mem *member, d directive) directive {
	if mem.left != nil {
		kept := *mem.left
		kept.term, kept.key, kept.beat = d.term, d.key, d.beat
		if kept.barrier != nil {
			kept.hold = m.hold
		}
		kept.released = d.released || mem.unwanted() && !m.supplies(mem)
		return kept
	}
	d.released = d.released || mem.leaving() && !m.supplies(mem)
	if mem.report.round > 0 {
		d.round, d.world, d.abort = mem.report.round, m.elsewhere(&mem.report), &abort{reason: fmt.Sprintf(
			"the job is in round %d, and round %d goes on no more", m.world.record.Round, mem.report.round)}
		return d
	}
	d.standby = m.gang.Strategy == InPlace && !m.world.finishing
	return d
}

// elsewhere is the place of a member in a round that an older leader has told it of: one that was burned,
// or one that the world has gone on from without it. Its agent knows the rest.
func (m *machine) elsewhere(r *report) *place {
	return &place{
		digest: r.digest, workerRank: int32(r.workerRank), workers: int32(r.workerRank) + 1,
		processes: m.gang.ProcessesPerWorker,
	}
}

func (m *machine) place(uid string, rank int32) *place {
	w := m.world
	p := &place{
		digest: w.record.MembersDigest, fromStep: w.record.FromStep, parent: w.record.Parent,
		workerRank: rank, workers: w.record.Workers, processes: w.record.Processes / w.record.Workers,
		master: w.master, writer: w.writes(m.members[uid].want.Node, rank),
	}
	if w.adopted || m.gang.Strategy == Restart || w.live[uid] {
		return p
	}
	p.restore, p.snapshot = true, w.snapshot
	if w.snapshot != nil {
		p.holders = m.suppliers(uid, *w.snapshot, holdersFor(rank, w.holders))
	}
	return p
}

// prefetch is what a member of the world that is being written will have to load: the file can be on its
// way in the meantime.
func (m *machine) prefetch(uid string) *prefetch {
	if m.writing == nil || m.writing.plan == nil || m.gang.Strategy == Restart {
		return nil
	}
	p, rank := m.writing.plan, m.writing.ranks.rank(uid)
	if rank < 0 || p.snapshot == nil || p.live[uid] {
		return nil
	}
	return &prefetch{*p.snapshot, m.suppliers(uid, *p.snapshot, holdersFor(rank, m.writing.holders))}
}

// holdersFor are those that the worker with a rank asks for a snapshot, in this order.
func holdersFor(rank int32, all []holder) []holder {
	var some []holder
	for i := range min(len(all), maxHolders) {
		some = append(some, all[(int(rank)+i)%len(all)])
	}
	return some
}
