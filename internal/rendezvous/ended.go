package rendezvous

import (
	"fmt"
	"maps"
	"slices"
)

// A world may begin with a state that only those have who are not in it: one that leaves, one whose program has failed and whose agent
// stays, or one that was lost, where nobody else had any. Agents try for a while to get it from them, as they may be reached again. Who is
// known to have ended is not: so once nobody is left who has what somebody lacks, and who lacks it has tried, the world is left, and the next
// one begins with the newest state that there is then, or what the storage has. That somebody's program has failed says nothing of its agent,
// and that somebody is not in touch says nothing at all: what these hold counts.

// giver is a holder of the snapshot that a world begins with; the zero value for one of which nobody knows who it is.
type giver struct{ uid, name string }

// giversOf says who the holders are, in their order. Of two who say that they are at the same place one lies, and nobody knows which.
func (m *Machine) giversOf(holders []holding) []giver {
	at := make(map[holder]int, len(holders))
	for i := range holders {
		at[holders[i].holder] = i
	}
	givers := make([]giver, len(holders))
	claimed := make([]bool, len(holders))
	for uid, mem := range m.members {
		i, named := at[mem.holder()]
		switch {
		case !named:
		case claimed[i]:
			givers[i] = giver{}
		default:
			givers[i], claimed[i] = giver{uid, mem.want.Name}, true
		}
	}
	return givers
}

// noteEnded takes note of who of those that hold what the world begins with is known to have ended. The controller names most of them no more
// by then.
func (m *Machine) noteEnded() {
	w := m.world
	if w == nil || len(w.givers) == 0 {
		return
	}
	over := make(map[string]bool, len(m.gang.Ended)) // there may be thousands of holders
	for _, uid := range m.gang.Ended {
		over[uid] = true
	}
	for _, g := range w.givers {
		switch mem := m.members[g.uid]; {
		case mem != nil && !mem.want.Ended:
			delete(w.ended, g.uid)
		case g.uid != "" && (mem != nil || over[g.uid]):
			if w.ended == nil {
				w.ended = map[string]bool{}
			}
			w.ended[g.uid] = true
		}
	}
}

// endedSupply says that somebody lacks what the world begins with, and that all who had it have ended; empty where that is not so.
func (m *Machine) endedSupply() string {
	w := m.world
	if len(w.ended) == 0 || m.gang.Strategy != InPlace || w.finishing || m.hasBegun() || !m.isElastic() {
		return ""
	}
	gone := m.goneParts()
	if len(gone) == 0 || !slices.ContainsFunc(w.ranks.uids, func(uid string) bool { return m.lacksAny(uid, gone) }) {
		return ""
	}
	what, told := "the state", w.supplied()
	if len(told.parts) > 0 {
		what = "some of the state"
	}
	var names []string
	for at, g := range w.givers {
		had := func(i int) bool { return len(told.parts) == 0 || slices.Contains(told.by[i], at) }
		if w.ended[g.uid] && slices.ContainsFunc(gone, had) {
			names = append(names, g.name)
		}
	}
	return fmt.Sprintf("nobody is left who has %s after step %d that round %d was to begin with: %s ended before all had got it",
		what, w.snapshot.Step, w.record.Round, list(names))
}

// goneParts are the places of those parts of what the world begins with that nobody has any more who has not ended: no holder, and nobody in
// the world, who give what they get to others. A shard they give to nobody: where somebody lacks one that another has got, the world is left
// by its agents. What is one file is one part.
func (m *Machine) goneParts() []int {
	w, told := m.world, m.world.supplied()
	serves := func(at int) bool { return !w.ended[w.givers[at].uid] }
	gone := map[Snapshot]int{}
	for i, part := range told.parts {
		if !slices.ContainsFunc(told.by[i], serves) {
			gone[part] = i
		}
	}
	if len(told.parts) == 0 && !slices.ContainsFunc(w.givers, func(g giver) bool { return !w.ended[g.uid] }) {
		gone[*w.snapshot] = 0
	}
	if len(gone) == 0 {
		return nil
	}
	for _, uid := range w.ranks.uids {
		if mem := m.members[uid]; mem != nil && !mem.want.Ended {
			for _, s := range mem.report.Snapshots {
				delete(gone, s)
			}
		}
	}
	return slices.Sorted(maps.Values(gone))
}

// lacksAny says whether a member of the world has yet to get one of the parts that nobody in it has, and has found out that it does not get
// it: it says that it does not reach one that had it. Who says so has got nothing for a while, from anybody. Before that nobody knows: what two
// have got of a file together is no holder's, and of shards its programs alone know which they want, and how much of one.
func (m *Machine) lacksAny(uid string, gone []int) bool {
	w, mem, told := m.world, m.members[uid], m.world.supplied()
	if w.live[uid] && !told.sharded || mem == nil || mem.isSupplied(w) || !m.missesEnded(mem, gone) {
		return false
	}
	own := told.ownOf(w.ranks.rank(uid))
	return len(told.parts) == 0 || slices.ContainsFunc(gone, func(i int) bool {
		return i == own || told.shards[i] || !told.isOwn(i)
	})
}

// missesEnded says whether a member says that it does not reach a holder that has ended, and had one of the parts that nobody has.
func (m *Machine) missesEnded(mem *member, gone []int) bool {
	w := m.world
	if !mem.in(&w.record) {
		return false
	}
	told := w.supplied()
	return slices.ContainsFunc(mem.report.Unreached, func(u Unreached) bool {
		at, named := told.at[holder{u.Address, u.Serves}]
		return named && w.ended[w.givers[at].uid] && (len(told.parts) == 0 || slices.ContainsFunc(gone, func(i int) bool {
			return slices.Contains(told.by[i], at)
		}))
	})
}
