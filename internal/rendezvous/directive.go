package rendezvous

import (
	"fmt"
	"slices"
)

// maxHolders is how many holders of a snapshot a worker is told of. Workers are told of different ones,
// so that not all of them fetch from the same.
const maxHolders = 8

// maxHoldersOfPart is how many of each part.
const maxHoldersOfPart = 3

// Directive returns what the agent of a member should do now; false while there is nothing that may
// be said.
func (m *Machine) Directive(uid string) (Directive, bool) {
	mem := m.members[uid]
	if m.term == 0 || m.deposed || mem == nil {
		return Directive{}, false
	}
	d := Directive{Term: m.term, Released: m.released, Key: m.keyOf(mem), Prefetch: m.prefetch(uid), Probes: m.probesFor(mem)}
	if beat := m.beat(); beat > BeatOf(0) {
		d.Beat = beat
	}
	d.Upload, d.Restore, d.Restarts = m.uploadFor(uid), m.restoreFor(uid), m.restartsFor(mem)
	d.ListBest = m.listsFor(uid)
	d.Relied, d.Scored, d.Copies = m.relied, m.scores.next, m.copiesFor(mem)
	if m.world == nil {
		d.Hold = m.hold
		d.Released = d.Released || mem.leaving() && !m.mayLive()
		d.Standby = m.gang.Strategy == InPlace && len(mem.report.Processes) > 0 && mem.report.Round == 0
		return d, true
	}
	rank := m.world.ranks.rank(uid)
	if rank < 0 {
		return m.outside(mem, d), true
	}
	d.Round, d.World = m.world.record.Round, m.place(uid, rank)
	switch {
	case m.world.finishing:
		d.Finish = true
	case m.broken != nil:
		d.Abort = &abort{Reason: m.broken.why, Planned: m.broken.stop, Save: m.broken.savesFor(uid), Leave: m.broken.leave}
		d.Raise, d.Staging = m.broken.raised[uid], m.broken.together.stagingOf(uid)
	case m.change != nil && m.change.attempt > 0:
		d.Barrier = &barrier{Attempt: m.change.attempt, Step: m.change.step, Save: m.change.saver == uid || m.change.together.has(uid)}
		d.Staging = m.change.together.stagingOf(uid)
		d.Hold = m.hold
	}
	return d, true
}

// outside is what a member should do that is not in the world: one that was keeps what it was told
// last, so that its programs stay where they stand. It is released only when the controller lets it go: one
// that was silent for too long may be back for the next world. And nobody is released while others load a
// snapshot from it, or make copies of what it holds: it may end the moment it is.
func (m *Machine) outside(mem *member, d Directive) Directive {
	if mem.left != nil {
		kept := *mem.left
		kept.Term, kept.Key, kept.Beat, kept.Probes = d.Term, d.Key, d.Beat, d.Probes
		kept.Upload, kept.Restore, kept.Restarts, kept.ListBest = d.Upload, d.Restore, d.Restarts, d.ListBest
		if kept.Barrier != nil {
			kept.Hold = m.hold
		}
		kept.Released = d.Released || mem.unwanted() && !m.supplies(mem) && !m.detains(mem)
		return kept
	}
	d.Released = d.Released || mem.leaving() && !m.supplies(mem) && !m.detains(mem)
	if mem.report.Round > 0 {
		d.Round, d.World, d.Abort = mem.report.Round, m.elsewhere(&mem.report), &abort{Reason: fmt.Sprintf(
			"the job is in round %d, and round %d goes on no more", m.world.record.Round, mem.report.Round)}
		return d
	}
	d.Standby = m.gang.Strategy == InPlace && !m.world.finishing
	return d
}

// elsewhere is the place of a member in a round that an older leader has told it of: one that was burned,
// or one that the world has gone on from without it. Its agent knows the rest.
func (m *Machine) elsewhere(r *Report) *Place {
	return &Place{
		Digest: r.Digest, WorkerRank: int32(r.WorkerRank), Workers: int32(r.WorkerRank) + 1,
		Processes: m.gang.ProcessesPerWorker,
	}
}

func (m *Machine) place(uid string, rank int32) *Place {
	w := m.world
	p := &Place{
		Digest: w.record.MembersDigest, FromStep: w.record.FromStep, Parent: w.record.Parent,
		WorkerRank: rank, Workers: w.record.Workers, Processes: w.record.Processes / w.record.Workers,
		Master: w.master, Writer: w.writes(m.members[uid].want.Node, rank),
	}
	switch {
	case w.staging == nil:
	case w.staging[rank].Of > 0:
		p.Staging = &w.staging[rank]
	default:
		p.Writer = false // others have all shares: nobody writes a large state whole besides
	}
	p.Handover = w.handover
	if w.adopted || m.gang.Strategy == Restart || w.live[uid] && !w.supplied().sharded {
		return p
	}
	p.Restore, p.Snapshot = !w.live[uid], w.snapshot
	// A step takes all ranks, so everybody has what it needs once one was made.
	if w.snapshot != nil && !m.hasBegun() {
		told := w.supplied()
		p.Parts = told.neededBy(rank, told.whole)
		p.Holders = m.supply(uid, *w.snapshot, told.holdersFor(rank, told.whole))
		p.Peers = m.supply(uid, *w.snapshot, m.peersFor(rank, w.ranks, w.receivers, told, told.whole))
	}
	return p
}

// prefetch is what a member of the world that is being written will have to load: the file can be on its
// way in the meantime.
func (m *Machine) prefetch(uid string) *prefetch {
	if m.writing == nil || m.writing.plan == nil || m.gang.Strategy == Restart {
		return nil
	}
	p, rank := m.writing.plan, m.writing.ranks.rank(uid)
	if rank < 0 || p.snapshot == nil || p.live[uid] {
		return nil
	}
	// Which shards it gets its programs say once they are in that world.
	w, told := m.writing, m.writing.told
	holders, peers := told.holdersFor(rank, told.ahead), m.peersFor(rank, w.ranks, w.receivers, told, told.ahead)
	return &prefetch{
		*p.snapshot, told.neededBy(rank, told.ahead), m.supply(uid, *p.snapshot, holders), m.supply(uid, *p.snapshot, peers),
	}
}

// holdersFor are those that the worker with a rank asks for a snapshot, in this order. Of one in parts they are as many as
// have each of those between them, and a few more. One without a rank may ask as well: it has left the world, and still makes
// a snapshot durable.
func holdersFor(rank int32, parts []Snapshot, all []holding) []holding {
	var some []holding
	asked := map[Snapshot]int{}
	for i := range all {
		h := all[(int(max(rank, 0))+i)%len(all)]
		news := len(parts) == 0 && i < maxHolders
		for _, part := range h.parts {
			news = news || slices.Contains(parts, part) && asked[part] < maxHoldersOfPart
		}
		if !news {
			continue
		}
		for _, part := range h.parts {
			asked[part]++
		}
		some = append(some, h)
	}
	return some
}
