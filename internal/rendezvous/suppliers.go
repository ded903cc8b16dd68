package rendezvous

import (
	"fmt"
	"slices"
	"time"

	"github.com/concertina-dev/concertina/internal/share"
)

// A world may begin with a state that only those have who are in it no more: a job of one worker that moves has it from the old one
// alone. So nobody who has it is released before a step was made, which takes all, and the pod of who leaves is not deleted before
// all have got it. An agent that gets nothing for a while leaves the world by itself, so whoever still gets something is worth the
// room; supplyTimeout only sees to it that there is an end.

// supplyTimeout is how long one who leaves, or is lost, is kept at most by one operator for what others get from it.
const supplyTimeout = time.Hour

// supplies says whether a member holds the snapshot that the world begins with, and others may be fetching
// it: an agent has entered its world before it has what its programs load, but a step takes all of them.
func (m *Machine) supplies(mem *member) bool {
	return !m.world.finishing && !mem.served && !m.hasBegun() && m.isHolder(mem)
}

// isHolder says whether a member was named as a holder of the snapshot that the world begins with. Whom an older leader has named
// nobody knows any more: of its world everybody may be one who holds a state after that step.
func (m *Machine) isHolder(mem *member) bool {
	r := &m.world.record
	if m.world.adopted {
		return mem.report.Round > 0 && mem.report.Round < r.Round && r.FromStep > 0 &&
			slices.ContainsFunc(mem.report.Snapshots, func(s Snapshot) bool { return s.Step == r.FromStep })
	}
	return slices.ContainsFunc(m.world.holders, func(h holding) bool { return h.holder == holder{mem.endpoint.Address, mem.serves} })
}

// feeds says whether a member that leaves, and is in the world no more, is still needed for what it supplies.
func (m *Machine) feeds(mem *member) bool { return m.supplies(mem) && m.awaitsState() }

// awaitsState says whether somebody in the world has not got the snapshot yet that it begins with, or will not before another world.
func (m *Machine) awaitsState() bool {
	t := m.tallied()
	if t.awaits == nil {
		awaits := m.broken != nil || slices.ContainsFunc(m.world.ranks.uids, m.lacksState)
		t.awaits = &awaits
	}
	return *t.awaits
}

// lacksState says whether a member has not said that it has what it begins the world with.
func (m *Machine) lacksState(uid string) bool {
	w, mem := m.world, m.members[uid]
	has := func(s Snapshot) bool { return slices.Contains(mem.report.Snapshots, s) }
	switch {
	case mem == nil:
		return !w.live[uid]
	case mem.isSupplied(w):
		return false
	case !w.adopted && w.snapshot != nil && w.supplied().sharded:
		return true // which shards it wants only its programs know
	case !mem.in(&w.record):
		return !w.live[uid]
	case w.adopted:
		return mem.report.Before != w.record.Parent && !mem.hasWhole(w.record.FromStep)
	case w.snapshot == nil || w.live[uid]:
		return false
	case w.parts == nil:
		return !has(*w.snapshot)
	}
	told := w.supplied()
	return slices.ContainsFunc(told.neededBy(w.ranks.rank(uid), told.whole), func(s Snapshot) bool { return !has(s) })
}

// isSupplied says whether the programs of a member have got what they have asked for of a state in shards with which the world begins.
func (mem *member) isSupplied(w *world) bool { return mem.in(&w.record) && mem.report.Supplied }

// allSupplied says so of all members.
func (m *Machine) allSupplied() bool {
	return !slices.ContainsFunc(m.world.ranks.uids, func(uid string) bool {
		mem := m.members[uid]
		return mem == nil || !mem.isSupplied(m.world)
	})
}

// hasWhole says whether a member has a whole state after a step: in one file, or all of its shares. Which shards are a whole for it only its
// programs know.
func (mem *member) hasWhole(step uint64) bool {
	shares := map[share.Key]bool{}
	of := map[string]int{}
	for _, s := range mem.report.Snapshots {
		key, parted := share.Parse(s.Part)
		switch {
		case s.Step != step || s.Part != "" && !parted || key.Rank || key.Shard || shares[key]:
			continue
		case !parted:
			return true
		}
		shares[key] = true
		layout := fmt.Sprint(s.Round, key.Of, key.Layout)
		if of[layout]++; of[layout] == key.Of {
			return true
		}
	}
	return false
}

// watchSuppliers has those known who feed others no more, and sees to it that nobody does for ever.
func (m *Machine) watchSuppliers(now time.Time) {
	feeds := false
	for uid, mem := range m.members {
		switch {
		case m.world.ranks.rank(uid) >= 0 || !mem.unwanted():
			mem.outAt, mem.served, mem.mustGo = time.Time{}, false, false // it may leave again, with what it holds then
			continue
		case mem.outAt.IsZero():
			mem.outAt = now
		case !mem.served && !now.Before(mem.outAt.Add(supplyTimeout)):
			mem.served, m.out.Publish, m.out.Changed = true, true, true
		}
		feeds = feeds || mem.leaving() && m.feeds(mem)
	}
	if m.world.feeds && !feeds {
		m.out.Changed = true
	}
	m.world.feeds = feeds
}
