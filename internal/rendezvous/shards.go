package rendezvous

import (
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/concertina-dev/concertina/internal/share"
)

// Programs may have a state of which each process has its own shard. All of them write a snapshot then, also those that leave,
// and all load it when the world has another size, since the state is cut otherwise there: each says itself what it needs. Live
// state lacks the shard of whoever is lost, so a recovery goes on from a snapshot; where nobody is lost all write one first. Others have no copy of a shard but what they
// fetch: partners on other nodes do, behind the training, of one state after another.

// copyTimeout is how long copies of one state are waited for before those of a newer one are made; it begins with the first step of the world.
const copyTimeout = 10 * time.Minute

// fullTime is after which time who had no room for copies is asked again: its program may write less by now, or somebody has removed what
// was in its way. It costs one transfer that comes to nothing, and others take over at once.
const fullTime = 10 * time.Minute

// copying is a state of whose shards copies are being made.
type copying struct {
	Snapshot
	since time.Time
	// orders are the parts that each member is to get, by its uid; failed are those who have said that they cannot.
	orders map[string][]Snapshot
	failed map[string]bool
	// members are those of whom the orders were made: who is lost gets none, and gives none.
	members int
	// at is who holds what of it, as of the last decision.
	at *state
}

// sharded says whether processes of the world have their own shards of the state.
func (m *Machine) sharded() bool {
	if m.world == nil || m.gang.Strategy != InPlace {
		return false
	}
	t := m.tallied()
	if t.sharded == nil {
		found := slices.ContainsFunc(m.world.ranks.uids, func(uid string) bool {
			mem := m.members[uid]
			return mem != nil && mem.report.any(func(p *Process) bool { return p.Sharded })
		})
		t.sharded = &found
	}
	return *t.sharded
}

// inShards says whether a state in these parts is in shards.
func inShards(parts []Snapshot) bool {
	return slices.ContainsFunc(parts, func(p Snapshot) bool { return share.IsShard(p.Part) })
}

// allRanks is the group of all members of the world, where each has to write its own shard; nil where they have none, or one is
// not there.
func (m *Machine) allRanks(now, late time.Time) *group {
	if !m.sharded() {
		return nil
	}
	g := &group{said: map[string]string{}, askedAt: now, by: late}
	for _, uid := range m.world.ranks.uids {
		if mem := m.members[uid]; mem != nil {
			g.said[uid] = mem.report.SnapshotError
		}
		g.uids = append(g.uids, uid)
	}
	return g
}

// awaitsShards has all members of a broken world write the state after a step, where all of them are left and have just that
// state: with the shard of each there is a snapshot of it, from which the next world begins. It is false when nothing can come
// of that, so that an older one has to serve.
func (m *Machine) awaitsShards(now time.Time, step uint64) bool {
	r := m.broken
	switch {
	case m.writing != nil:
		return true // another plan is being made durable, and may stand
	case step == 0 || r.alone == step || slices.ContainsFunc(m.world.ranks.uids, func(uid string) bool { return !m.keeps(m.members[uid], step) }):
		return false
	case r.together == nil || r.saveStep != step:
		r.together, r.saver, r.saveStep, m.out.Publish = m.allRanks(now, now.Add(m.gang.BarrierTimeout)), "", step, true
	default:
		if why := m.failing(now, r.together); why != "" {
			m.note(notedBroken, "the shards of the state after step %d cannot be had: %s", step, brief(why))
			r.together, r.alone, r.saveStep, m.out.Publish = nil, step, 0, true
			return false
		}
	}
	return true
}

// copyShards has copies made of the newest state in shards, once those of the one before are there.
func (m *Machine) copyShards(now time.Time) {
	if m.world.formed() {
		m.cut, m.cutKnown = m.sharded(), true
	}
	// Who still loads what the world begins with has the way to itself. A step took all of it, and agents say it before.
	if !m.sharded() || !m.world.formed() || !m.hasBegun() && !m.allSupplied() {
		m.stopCopying()
		return
	}
	if c := m.copying; c != nil {
		at, held := m.stateOf(c.Snapshot)
		switch {
		case held && m.copiesIn(&at) >= m.copiesPossible():
			m.uncopied = false
			m.noteCopied(c, &at)
			if c.Step >= m.world.record.FromStep {
				m.letLeaversGo()
			}
		case !held: // who held some of it is lost: that says nothing of the next one
		case m.isOverdue(now, c):
			m.uncopied = true
			m.noteCopied(c, &at)
			m.letLeaversGo()
		case m.hearUncopied(now, c) || c.members != m.reachable():
			m.order(now, c, &at)
			return
		default:
			c.at = &at
			return
		}
		m.stopCopying()
	}
	m.copyNewest(now)
}

// isOverdue says whether copies were waited for long enough. Before the first step, which may take long, nobody has a newer state, and who has no
// room for them beside what is loaded makes them after it.
func (m *Machine) isOverdue(now time.Time, c *copying) bool {
	since := c.since
	if begun := m.world.begunAt; begun.After(since) {
		since = begun
	}
	return m.hasBegun() && !now.Before(since.Add(copyTimeout))
}

// copyNewest has copies made of the newest state in shards, or lets those go who leave, where it has them.
func (m *Machine) copyNewest(now time.Time) {
	newest, ok := m.newestSnapshot()
	at, held := m.stateOf(newest)
	switch {
	case ok && held && inShards(at.parts) && m.copiesIn(&at) < m.copiesPossible():
		m.copying = &copying{Snapshot: newest, since: now, failed: map[string]bool{}}
		m.order(now, m.copying, &at)
	case ok && newest.Step >= m.world.record.FromStep || !m.awaitsHolders():
		m.letLeaversGo()
	}
}

// awaitsHolders says whether somebody is out of touch, and not lost, who may have some of the state that the world begins with: as long as that
// cannot be had, an older one says nothing of whether those who leave are still needed.
func (m *Machine) awaitsHolders() bool {
	if m.world.record.FromStep == 0 {
		return false
	}
	for uid, mem := range m.members {
		if !mem.connected && mem.want.Lost == "" && !m.isLost(mem) && (m.world.ranks.rank(uid) >= 0 || mem.leaving()) {
			return true
		}
	}
	return false
}

// hearCopies has somebody look at once when a member says that it cannot get its copies, or that it can: the cause may be in other words each
// time, as those of a connection are.
func (m *Machine) hearCopies(before, now Uncopied) {
	if before.Round != now.Round || before.Step != now.Step || (before.Why == "") != (now.Why == "") {
		m.look = true
	}
}

// hearUncopied says whether somebody has said, who had not before, that it cannot get what it was told to get: others are to, where
// there are some.
func (m *Machine) hearUncopied(now time.Time, c *copying) bool {
	news := false
	for _, uid := range sortedKeys(c.orders) {
		mem := m.members[uid]
		if mem == nil || c.failed[uid] || len(c.orders[uid]) == 0 {
			continue
		}
		if said := mem.report.Uncopied; said.Why != "" && said.Round == c.Round && said.Step == c.Step {
			c.failed[uid], news = true, true
			if isFull(said.Why) {
				mem.fullAt = now
			}
			m.note(notedDoubted, "%s cannot get copies of the shards of step %d: %s", mem.want.Name, c.Step, brief(said.Why))
		}
	}
	return news
}

// isFull says whether an error says that there is no room: that will be so of the next state as well, for a while. Other causes pass.
func isFull(why string) bool {
	return strings.Contains(why, syscall.ENOSPC.Error()) || strings.Contains(why, syscall.EDQUOT.Error())
}

// noteCopied notes who has made the copies that it was to make, and who has not.
func (m *Machine) noteCopied(c *copying, at *state) {
	for uid, parts := range c.orders {
		mem := m.members[uid]
		if mem == nil || c.failed[uid] {
			continue // it has said why
		}
		mem.fullAt = time.Time{}
		mem.copyless = slices.ContainsFunc(parts, func(part Snapshot) bool {
			i := slices.Index(at.parts, part)
			return i < 0 || !slices.Contains(at.holders[i], mem)
		})
	}
}

// copiesIn is on how many nodes of the world each of the shards is, at least: others that have some are about to leave.
func (m *Machine) copiesIn(s *state) int {
	if !inShards(s.parts) {
		return s.copies
	}
	least := -1
	for i, part := range s.parts {
		if !share.IsShard(part.Part) {
			continue
		}
		in := slices.DeleteFunc(slices.Clone(s.holders[i]), func(mem *member) bool { return m.world.ranks.rank(mem.want.UID) < 0 })
		if n := nodesOf(in); least < 0 || n < least {
			least = n
		}
	}
	return least
}

// letLeaversGo lets those go who are in the world no more, and were kept for what they hold of its state.
func (m *Machine) letLeaversGo() {
	if !m.world.letsGo {
		m.world.letsGo, m.out.Publish, m.out.Changed = true, true, true
	}
}

// watchLeavers lets them go when the copies do not come, and earlier those who will be killed.
func (m *Machine) watchLeavers(now time.Time) {
	m.watchSuppliers(now)
	w := m.world
	if !m.sharded() {
		return
	}
	begun := m.hasBegun()
	if begun && w.begunAt.IsZero() {
		w.begunAt = now
	}
	if w.letsGo {
		return
	}
	m.watchLongGone(now)
	if begun && !now.Before(w.begunAt.Add(copyTimeout)) {
		m.letLeaversGo()
	}
	for uid, mem := range m.members {
		by := mem.want.LeaveBy
		isKilled := begun && !by.IsZero() && !now.Before(by.Add(-leaveMargin))
		if w.ranks.rank(uid) < 0 && mem.leaving() && !mem.mustGo && (isKilled || !begun && mem.served) {
			mem.mustGo, m.out.Publish, m.out.Changed = true, true, true
		}
	}
}

// watchLongGone lets those go who left some worlds ago, and hold nothing of the state that the next one would go back to, nor of the newest: another
// world may come before the copies of each are there.
func (m *Machine) watchLongGone(now time.Time) {
	for uid, mem := range m.members {
		if m.world.ranks.rank(uid) >= 0 || !mem.leaving() || mem.mustGo || now.Before(mem.outAt.Add(copyTimeout)) {
			continue
		}
		best, ok := m.best()
		newest, _ := m.newestSnapshot() // of that copies may be made yet
		if ok && !slices.ContainsFunc(mem.report.Snapshots, func(s Snapshot) bool { return sameState(s, best) || sameState(s, newest) }) {
			mem.mustGo, m.out.Publish, m.out.Changed = true, true, true
		}
	}
}

// detains says whether a member that leaves, and is in the world no more, is kept for what it holds of a state in shards: those who
// stay have what they load of it and no more, so that each of them would take some of it along.
func (m *Machine) detains(mem *member) bool {
	return !m.world.letsGo && !m.world.finishing && m.sharded() && !mem.mustGo && mem.want.Lost == "" && !m.isLost(mem) &&
		m.serving(mem) && len(mem.report.Snapshots) > 0
}

// detainsAnybody says whether somebody who leaves is kept so.
func (m *Machine) detainsAnybody() bool {
	if m.world.letsGo || !m.sharded() {
		return false
	}
	for uid, mem := range m.members {
		if m.world.ranks.rank(uid) < 0 && mem.leaving() && m.detains(mem) {
			return true
		}
	}
	return false
}

// copyAnew forgets what came of copies in the world before: a state that had all of them may have lost some with it, and is relied on
// until they are there again. Shards have another size by now, and who had no room for some may have it.
func (m *Machine) copyAnew() {
	m.copying, m.uncopied = nil, false
	for _, mem := range m.members {
		mem.fullAt = time.Time{}
	}
}

// isFull says whether a member is not to be given copies, since it has had no room for them lately.
func (mem *member) isFull(now time.Time) bool {
	return !mem.fullAt.IsZero() && now.Before(mem.fullAt.Add(fullTime))
}

func (m *Machine) stopCopying() {
	if m.copying != nil {
		m.copying, m.out.Publish = nil, true
	}
}

// reachable is how many members of the world could get copies, or give them.
func (m *Machine) reachable() (n int) {
	for _, uid := range m.world.ranks.uids {
		if m.isThere(m.members[uid]) {
			n++
		}
	}
	return n
}

// order says who gets what of a state. Who was told before and can goes on.
func (m *Machine) order(now time.Time, c *copying, at *state) {
	var there []*member
	var places []share.Place
	var failed []bool
	for _, uid := range m.world.ranks.uids {
		if mem := m.members[uid]; m.isThere(mem) && mem.serves.Port > 0 {
			there, places = append(there, mem), append(places, share.Place{Node: mem.want.Node, Rack: mem.want.Rack})
			failed = append(failed, mem.copyless || c.failed[mem.want.UID] || mem.isFull(now))
		}
	}
	before := c.orders
	c.orders, c.members, c.at, m.out.Publish = map[string][]Snapshot{}, m.reachable(), at, true
	for _, mem := range there {
		if uid := mem.want.UID; !c.failed[uid] && len(before[uid]) > 0 {
			c.orders[uid] = before[uid]
		}
	}
	var parts []Snapshot
	var holders [][]int
	for i, part := range at.parts {
		if !share.IsShard(part.Part) {
			continue
		}
		ranks := m.ranksWith(at.holders[i], there)
		if ranks != nil {
			for rank, mem := range there {
				if !slices.Contains(ranks, rank) && slices.Contains(c.orders[mem.want.UID], part) {
					ranks = append(ranks, rank)
				}
			}
		}
		slices.Sort(ranks)
		parts, holders = append(parts, part), append(holders, ranks)
	}
	for rank, got := range share.Copies(places, holders, m.copiesMeant(), failed) {
		for _, part := range got {
			uid := there[rank].want.UID
			c.orders[uid] = append(c.orders[uid], parts[part])
		}
	}
}

// ranksWith are the ranks of those that have a part; nil where nobody could give it. Who has left the world may be the only one that
// could: those who stay have loaded what they need of it, and no more.
func (m *Machine) ranksWith(holders, there []*member) (ranks []int) {
	for _, mem := range holders {
		if rank := slices.Index(there, mem); rank >= 0 {
			ranks = append(ranks, rank)
		}
	}
	if ranks == nil && slices.ContainsFunc(holders, func(mem *member) bool { return m.isThere(mem) && mem.serves.Port > 0 }) {
		return []int{}
	}
	return ranks
}

// copiesFor is what a member is told of the state that is being copied; nil for nothing.
func (m *Machine) copiesFor(mem *member) *prefetch {
	c := m.copying
	if c == nil || m.world == nil || m.world.ranks.rank(mem.want.UID) < 0 {
		return nil
	}
	uid := mem.want.UID
	p := &prefetch{Snapshot: c.Snapshot, Parts: c.orders[uid]}
	if len(p.Parts) > 0 {
		p.Holders = m.supply(uid, c.Snapshot, c.sourcesOf(p.Parts, m.world.ranks.rank(uid)))
	}
	return p
}

// sourcesOf are those that the worker with a rank asks for some of the shards: a few for each of them, and which of these they have.
func (c *copying) sourcesOf(parts []Snapshot, rank int32) []source {
	var sources []source
	has := map[holder]int{}
	for i, part := range parts {
		key, _ := share.Parse(part.Part)
		if key.Index >= len(c.at.parts) || c.at.parts[key.Index] != part {
			continue // of another layout
		}
		by := c.at.holders[key.Index]
		asked := 0
		for j := range by {
			mem := by[(int(rank)+j)%len(by)]
			if mem.serves.Port == 0 || !mem.connected {
				continue
			}
			at, known := has[mem.holder()]
			if !known && asked == maxHoldersOfPart {
				continue
			}
			asked++
			if !known {
				at = len(sources)
				has[mem.holder()] = at
				sources = append(sources, source{holder: mem.holder()})
			}
			sources[at].parts = append(sources[at].parts, uint32(i))
		}
	}
	return sources
}
