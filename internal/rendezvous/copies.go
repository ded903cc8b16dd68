package rendezvous

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/concertina-dev/concertina/internal/share"
)

// A state is safe once each of its shares is on as many nodes as the job asks for, where it has so many, and the own part of every
// member is there: no single loss takes it along then, and whoever is left goes on with its own part. Members keep the state that
// is relied on, so that is the newest safe one: one that can be had, with a share that a single member holds, may be gone the next
// moment.

// nodesOf is on how many different nodes these members are.
func nodesOf(members []*member) int {
	nodes := map[string]bool{}
	for _, mem := range members {
		nodes[mem.want.Node] = true
	}
	return len(nodes)
}

// copiesAsked is on how many nodes each share is to be.
func (m *Machine) copiesAsked() int {
	if m.gang.Copies == 0 {
		return defaultCopies
	}
	return int(m.gang.Copies)
}

// copiesMeant is on how many nodes the members of the world put each share: a number that was changed since is that of the
// next one.
func (m *Machine) copiesMeant() int {
	if m.world.copies > 0 {
		return m.world.copies
	}
	return m.copiesAsked()
}

// copiesPossible is on how many nodes each share can be: not on more than the world has. Who serves nothing gives no copies, and
// takes none.
func (m *Machine) copiesPossible() int {
	nodes := map[string]bool{}
	for _, uid := range m.world.ranks.uids {
		if mem := m.members[uid]; mem != nil && !m.isLost(mem) && (!mem.joined || mem.serves.Port > 0) {
			nodes[mem.want.Node] = true
		}
		if len(nodes) == m.copiesMeant() {
			break
		}
	}
	return len(nodes)
}

// rely notes which state members keep. Where some member writes nothing that becomes safe, the newest that can be had serves
// once another one came after it: it is not waited for for ever.
func (m *Machine) rely() {
	left, _ := m.keepers()
	m.compare(m.catalogueOf(left))
	states := m.states()
	newest, ok := best(states, func(*state) bool { return true })
	if !ok {
		return
	}
	if now := &m.world.record; m.unsafe != nil && m.unsafe.Round < now.Round && m.unsafe.Step > now.FromStep {
		m.unsafe = nil // of steps that were thrown away
	}
	possible := m.copiesPossible()
	allCopies := func(s *state) bool { return m.copiesIn(s) >= possible && m.isComplete(s) }
	safe, isSafe := best(states, allCopies)
	kept, keptSafely := m.keepsRelied(states, allCopies)
	waits := m.waitsForCopies(safe, isSafe)
	switch {
	case isSafe && sameState(safe, newest):
		m.relied = &newest
		if m.unsafe != nil && m.unsafe.Step <= newest.Step {
			m.unsafe = nil // a later one could be had meanwhile, and its parts are gone already
		}
	case isSafe && (!kept || safe.Step > m.relied.Step || m.sharded() && !keptSafely): // a shard that one member holds is gone with it
		m.relied, m.unsafe = &safe, &newest
	case !kept, !waits && m.unsafe != nil && m.unsafe.Step < newest.Step:
		m.relied, m.unsafe = &newest, &newest
	case m.unsafe == nil:
		m.unsafe = &newest
	}
}

// keepsRelied says whether the state that is relied on is among some, and whether it is safe there.
func (m *Machine) keepsRelied(states []state, isSafe func(*state) bool) (kept, safely bool) {
	for i := range states {
		if m.relied != nil && sameState(states[i].Snapshot, *m.relied) {
			kept, safely = true, safely || isSafe(&states[i])
		}
	}
	return kept, safely
}

// waitsForCopies says whether a state in shards is relied on until another is safe, if one ever is: copies of it are under way; or it
// is the last one that no single loss takes along.
func (m *Machine) waitsForCopies(safe Snapshot, isSafe bool) bool {
	return m.sharded() && (!m.uncopied || isSafe && m.relied != nil && sameState(safe, *m.relied))
}

// mostDiffering bounds of how many groups of holders it is remembered that they differ: it is told once of each.
const mostDiffering = 16

// compare tells of shares that are not the same everywhere, once for those who have them, the oldest state first.
func (m *Machine) compare(c catalogue) {
	states := slices.SortedFunc(maps.Keys(c.parted), func(a, b fit) int {
		return cmp.Or(cmp.Compare(a.round, b.round), cmp.Compare(a.step, b.step), cmp.Compare(a.of, b.of), cmp.Compare(a.layout, b.layout))
	})
	m.compareCuts(c, states)
	for _, of := range states {
		who := differing(c.parted[of])
		if who == "" || slices.Contains(m.differing, who) || len(m.differing) == mostDiffering {
			continue
		}
		m.differing = append(m.differing, who)
		m.differ = fmt.Sprintf("after step %d the state is not the same on all ranks, as a share of it shows: %s. Where the "+
			"program computes the same on all of them, the memory or the processor of one of these nodes may be bad", of.step, who)
		m.note(notedDoubted, "%s", m.differ)
		m.out.Changed = true
	}
}

func sameState(a, b Snapshot) bool { return a.Round == b.Round && a.Step == b.Step }

// Memory is the state that the world could go back to from the memory of its workers: the one that members keep, where they
// write parts.
type Memory struct {
	Snapshot
	// Copies is on how many nodes each of its parts is, at least; 0 for no state. Asked is on how many it is to be, Possible how
	// many of these the world has.
	Copies, Asked, Possible int
}

// memory is what there is of the world.
func (m *Machine) memory() Memory {
	if m.world == nil {
		return Memory{}
	}
	states := m.states()
	newest, ok := m.bestOf(states)
	if !ok {
		return Memory{}
	}
	at := slices.IndexFunc(states, func(s state) bool { return s.Snapshot == newest })
	return Memory{newest, states[at].copies, m.copiesMeant(), m.copiesPossible()}
}

// best is the state that members keep, and the newest where they write no parts.
func (m *Machine) best() (Snapshot, bool) { return m.bestOf(m.states()) }

func (m *Machine) bestOf(states []state) (Snapshot, bool) {
	if kept, ok := best(states, func(s *state) bool { return m.relied != nil && sameState(s.Snapshot, *m.relied) }); ok {
		return kept, true
	}
	return best(states, func(*state) bool { return true })
}

// differing names who holds what of a share that is not the same everywhere, though every rank should have written the same:
// the memory or the processor of one of the nodes may be bad. Empty where all are.
func differing(keys map[share.Key]files) string {
	var found []share.Key
	for key, all := range keys {
		if !key.Rank && len(all) > 1 {
			found = append(found, key)
		}
	}
	if len(found) == 0 {
		return ""
	}
	first := slices.MinFunc(found, func(a, b share.Key) int { return cmp.Compare(a.Index, b.Index) })
	var who []string
	for _, holders := range keys[first] {
		var names []string
		for _, mem := range holders {
			names = append(names, mem.want.Name+" on "+mem.want.Node)
		}
		slices.Sort(names)
		who = append(who, list(names))
	}
	slices.Sort(who)
	return strings.Join(who, " against ")
}
