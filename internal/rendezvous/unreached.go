package rendezvous

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// A world may begin with a state that a few have, who are heard by this operator and reached by no peer. The others try to get
// that for a while, leave the world before it has begun, and would find the same in the next one. So agents say which holders
// they have not reached for long, and once all have left the world it is found out who is in no next one:
//
//   - a holder that two others have not reached, from two nodes if others are on as many, is lost, and the next best state serves.
//     Where these others have none, or are not more than those whom they do not reach and those who miss nobody, these go on
//     without them, if they are enough. Otherwise all wait until peers reach who has a state. Of these others those count who
//     have trained: whoever comes on a broken network, and however many come at once, has reached nobody yet;
//   - who says so alone may lie, or be the one that is cut off: it is believed of itself only. It is set aside, and is a standby
//     again once peers reach it. When that does not help, or takes too long, another takes its place.
//
// Both are probed, like those that are silent (probes.go).

const (
	// asideAtMost is for how long a worker may be set aside, asidesAtMost how many times before its world makes a step.
	asideAtMost  = 2 * time.Minute
	asidesAtMost = 2
	// firstAside is for how long who is set aside the second time stays so, though peers connect to it: that it answers does not mean
	// that a state can be had from it, or by it. It doubles with each time.
	firstAside = 30 * time.Second
	lastAside  = time.Hour
)

// witness is a member that could not reach another one.
type witness struct{ uid, name, node, why string }

// aside is what is known of a member that could not be reached, or could not reach others.
type aside struct {
	// since is when it was set aside; zero while it is not. times is how often it was since its world made a step.
	since time.Time
	times int
	// why is why it was.
	why string
	// lost is true for one that was lost by that.
	lost bool
	// by could not reach it since then: in the last world, or in one before. Who is gone, or left out, may have said the truth; whoever
	// takes part again has yet to say it again.
	by []witness
}

// backOff is for how long it is not taken back, though peers connect to it.
func (a *aside) backOff() time.Duration {
	if a.times < asidesAtMost {
		return 0
	}
	return min(firstAside<<min(a.times-asidesAtMost, 8), lastAside)
}

func (mem *member) isAside() bool { return !mem.aside.since.IsZero() }

// mayTakePart says whether a member could be in any world, as far as that is known of it alone.
func (mem *member) mayTakePart() bool { return mem.usable() && !mem.isAside() }

// findUnreached finds out who is in no next world, once all have left one that has not begun.
func (m *Machine) findUnreached(now time.Time) {
	r := m.broken
	if r.sought || m.gang.Strategy != InPlace {
		return
	}
	r.sought = true
	if m.hasBegun() {
		return
	}
	m.noteTrained()
	said := m.hearUnreached()
	gone := m.unreached()
	for _, uid := range m.world.ranks.uids {
		explained := func(s saying) bool { return gone[s.of.want.UID] != nil || m.isLost(s.of) }
		if len(said[uid]) > 0 && gone[uid] == nil && !slices.ContainsFunc(said[uid], explained) {
			m.believeOfItself(now, m.members[uid], said[uid])
		}
	}
	if len(gone) > 0 {
		m.giveUpUnreached(now, gone)
	}
}

// saying is what a member says of a holder that it could not reach.
type saying struct {
	of  *member
	why string
}

// hearUnreached takes what the members of the world say of those who hold the state that it was to begin with, and returns what
// each has said.
func (m *Machine) hearUnreached() map[string][]saying {
	named, holders := map[holder]bool{}, map[holder]*member{}
	for i := range m.world.holders {
		named[m.world.holders[i].holder] = true
	}
	for i := range m.gang.Members {
		if mem := m.members[m.gang.Members[i].UID]; mem.serves.Port > 0 && (m.world.adopted || named[mem.holder()]) {
			at := mem.holder()
			if _, both := holders[at]; both {
				mem = nil // one of them says that it is where the other is
			}
			holders[at] = mem
		}
	}
	said, missed := map[string][]saying{}, map[*member]map[string]witness{}
	for _, uid := range m.world.ranks.uids {
		mem := m.members[uid]
		if mem == nil || m.isLost(mem) || !mem.in(&m.world.record) {
			continue
		}
		for _, u := range mem.report.Unreached {
			of := holders[holder{u.Address, u.Serves}]
			if of == nil || of == mem || of.want.Ended {
				continue // that one has ended explains it
			}
			if said[uid] = append(said[uid], saying{of, u.Why}); m.isLost(of) {
				continue
			}
			if missed[of] == nil {
				missed[of] = map[string]witness{}
			}
			missed[of][uid] = witness{uid, mem.want.Name, mem.want.Node, u.Why}
		}
	}
	for of, by := range missed {
		of.aside.by = slices.DeleteFunc(of.aside.by, func(w witness) bool { _, again := by[w.uid]; return again })
		for _, uid := range slices.SortedFunc(maps.Keys(by), m.byRank) {
			of.aside.by = append(of.aside.by, by[uid])
		}
	}
	return said
}

// byRank compares members of the world.
func (m *Machine) byRank(a, b string) int {
	return cmp.Compare(m.world.ranks.rank(a), m.world.ranks.rank(b))
}

// unreached are the holders that enough others could not reach, with these. Of two halves that do not reach each other it is one:
// what those say who cannot be reached themselves does not count. Whom most have not reached goes first, and then the newest.
func (m *Machine) unreached() map[string][]witness {
	gone, there := map[string][]witness{}, map[string]int{}
	for _, uid := range m.world.ranks.uids {
		if mem := m.members[uid]; mem != nil && !m.isLost(mem) {
			there[mem.want.Node]++
		}
	}
	// missed are the members that so many have not reached, missedBy those whom each has not.
	missed, missedBy, most := map[int][]*member{}, map[string][]*member{}, 0
	for i := range m.gang.Members {
		mem := m.members[m.gang.Members[i].UID]
		n := len(mem.aside.by)
		missed[n], most = append(missed[n], mem), max(most, n)
		for _, w := range mem.aside.by {
			missedBy[w.uid] = append(missedBy[w.uid], mem)
		}
	}
	for count := most; count >= enoughWitnesses; count-- {
		slices.SortFunc(missed[count], func(a, b *member) int { return cmp.Compare(b.want.Ordinal, a.want.Ordinal) })
		for _, mem := range missed[count] {
			if n := len(mem.aside.by); n < count {
				missed[n] = append(missed[n], mem) // what one of those has said who are gone does not count
				continue
			}
			if !mem.isUnreached(there) {
				continue
			}
			uid := mem.want.UID
			gone[uid] = slices.Clone(mem.aside.by)
			for _, other := range missedBy[uid] {
				other.aside.by = slices.DeleteFunc(other.aside.by, func(w witness) bool { return w.uid == uid })
			}
		}
	}
	return gone
}

// isUnreached says whether enough others could not reach a member: two, on two nodes if others are on as many. On each node are so
// many members.
func (mem *member) isUnreached(there map[string]int) bool {
	by := mem.aside.by
	if len(by) < enoughWitnesses {
		return false
	}
	nodes := len(there)
	if there[mem.want.Node] == 1 {
		nodes-- // nobody else is there
	}
	return nodes < enoughWitnesses || slices.ContainsFunc(by, func(w witness) bool { return w.node != by[0].node })
}

// believeOfItself sets a member aside that says alone that it could not reach others.
func (m *Machine) believeOfItself(now time.Time, mem *member, said []saying) {
	names := make([]string, 0, len(said))
	for _, s := range said {
		names = append(names, s.of.want.Name)
	}
	text := fmt.Sprintf("it could not get the state of round %d from %s: %s", m.world.record.Round, list(names), brief(said[0].why))
	if m.setAside(now, mem, text); mem.aside.times >= asidesAtMost {
		m.lose(now, mem.want.UID, mem, false, text)
		return
	}
	m.explainAside("%s is left out until its peers reach it: %s", mem.want.Name, text)
}

// giveUpUnreached has the world go on without those whom enough others could not reach, or without these others, as the state
// wants it.
func (m *Machine) giveUpUnreached(now time.Time, gone map[string][]witness) {
	missing, others, why := map[string]bool{}, map[string]bool{}, map[string]string{}
	for i := range m.gang.Members {
		uid := m.gang.Members[i].UID
		by := gone[uid]
		if by == nil {
			continue
		}
		missing[uid], why[uid] = true, fmt.Sprintf("it could not be reached by %s: %s", witnessNames(by), brief(by[0].why))
		for _, w := range by {
			if m.members[w.uid] != nil && gone[w.uid] == nil {
				others[w.uid], why[w.uid] = true, fmt.Sprintf("it could not reach %s: %s", m.members[uid].want.Name, brief(w.why))
			}
		}
	}
	leave, lost, only := missing, false, false
	// Where only those say so who have been in no world that made a step, those who have made some wait for others in their place rather
	// than be lost by them, one after the other.
	enough := m.trainedAmong(others) > 0
	switch {
	case m.outweighed(others, missing) && m.goesOnWithout(now, others, enough):
		leave = others
	case m.goesOnWithout(now, missing, false):
		// What somebody has live may yet not serve: whose snapshot is the only one is not given up.
		lost = m.world.record.FromStep == 0 || m.without(now, missing, func() bool { return len(m.states()) > 0 })
		only = !lost
	case m.goesOnWithout(now, others, true):
		leave = others
	default:
		m.broken.awaits = true
	}
	for i := range m.gang.Members {
		uid := m.gang.Members[i].UID
		mem := m.members[uid]
		if !leave[uid] || mem.isAside() {
			continue
		}
		m.setAside(now, mem, why[uid])
		if others[uid] && mem.aside.times >= asidesAtMost && m.world.ranks.rank(uid) >= 0 {
			m.lose(now, uid, mem, false, fmt.Sprintf("it could not get the state of round %d, nor that of a world before", m.world.record.Round))
		}
	}
	m.explainUnreached(now, gone, lost, only)
	m.broken.awaits = m.broken.awaits || only
}

// witnessNames are the names of a few who say the same.
func witnessNames(by []witness) string {
	names := make([]string, 0, maxWitnesses)
	for _, w := range by[:min(len(by), maxWitnesses)] {
		names = append(names, w.name)
	}
	return strings.Join(names, " and ")
}

// explainUnreached says by whose word holders are lost or set aside; only is true when they have the only snapshot.
func (m *Machine) explainUnreached(now time.Time, gone map[string][]witness, lost, only bool) {
	told := false
	for i := range m.gang.Members {
		uid := m.gang.Members[i].UID
		by := gone[uid]
		if by == nil {
			continue
		}
		mem, who, why := m.members[uid], witnessNames(by), brief(by[0].why)
		switch {
		case lost && m.world.ranks.rank(uid) >= 0:
			m.lose(now, uid, mem, false, fmt.Sprintf("it holds the state that round %d was to begin with, and could not be reached by %s: %s",
				m.world.record.Round, who, why))
		case told: // one is enough to say what is wrong
		case m.broken.awaits:
			m.explainAside("nobody else has a state to go on from, and %s could not be reached by %s: %s", mem.want.Name, who, why)
		case lost || only: // it only had the state, or has it alone
			m.explainAside("%s could not be reached by %s: %s", mem.want.Name, who, why)
		default:
			m.explainAside("%s could not be reached by %s, who are left out until peers reach them: %s", mem.want.Name, who, why)
		}
		told = true
	}
}

// outweighed says whether the word of others who could not reach some is not believed: those of them who have trained are fewer than
// those whose word is against it, or as many. Newcomers alone count for nothing, but where one who has trained says the same they decide
// between two as many.
func (m *Machine) outweighed(others, missing map[string]bool) bool {
	against, trained := m.atOddsWith(others, missing), m.trainedAmong(others)
	return against > trained || against == trained && (trained == 0 || len(others) <= against)
}

// atOddsWith counts those whose word is against that of others who could not reach some: these themselves, and whoever of the world has
// its state, or gets it, and does not miss them.
func (m *Machine) atOddsWith(others, missing map[string]bool) int {
	count := len(missing)
	for _, uid := range m.world.ranks.uids {
		if mem := m.members[uid]; mem != nil && !others[uid] && !missing[uid] && !m.isLost(mem) && mem.in(&m.world.record) {
			count++
		}
	}
	return count
}

// trainedAmong counts those of some who have trained in this attempt; all of them where nobody in the world is known to have.
func (m *Machine) trainedAmong(some map[string]bool) int {
	count, known := 0, false
	for i := range m.gang.Members {
		uid := m.gang.Members[i].UID
		if m.members[uid].trained {
			known = known || m.world.ranks.rank(uid) >= 0
			if some[uid] {
				count++
			}
		}
	}
	if !known {
		return len(some)
	}
	return count
}

// noteTrained keeps of the members of a world that another leader has made who of them have trained: those of the next one may not have
// yet, of which nobody else says so.
func (m *Machine) noteTrained() {
	for i := range m.gang.Members {
		uid := m.gang.Members[i].UID
		mem := m.members[uid]
		mem.trained = mem.trained || m.hadState(uid, mem)
	}
}

// hadState says whether a member of a world that another leader has made went on there with a state of its own. After a planned change
// all do who were in the world before it, and say so once they have left.
func (m *Machine) hadState(uid string, mem *member) bool {
	r := &m.world.record
	return m.world.adopted && !r.Reason.recovers() && m.world.ranks.rank(uid) >= 0 && m.keeps(mem, r.FromStep)
}

// goesOnWithout says whether there is a state to go on from without some members, and whether those who are left are enough, where
// that is asked.
func (m *Machine) goesOnWithout(now time.Time, some map[string]bool, enough bool) bool {
	return m.without(now, some, func() bool { return m.hasState() && (!enough || m.survivors(now) != nil) })
}

// without says whether something were so if some members were set aside.
func (m *Machine) without(now time.Time, some map[string]bool, so func() bool) bool {
	were := map[*member]time.Time{}
	for uid := range some {
		mem := m.members[uid]
		were[mem], mem.aside.since = mem.aside.since, now
	}
	is := so()
	for mem, since := range were {
		mem.aside.since = since
	}
	return is
}

// hasState says whether those who were not set aside have a state to go on from. That of before the first step is what programs start
// with: it is none where others were made. What a program has live is not all of a state in shards.
func (m *Machine) hasState() bool {
	return m.world.record.FromStep == 0 && m.furthest() == 0 || len(m.states()) > 0 ||
		!m.sharded() && slices.ContainsFunc(m.lives(nil), func(l live) bool { return l.step > 0 })
}

// setAside has a member be in no world until its peers reach it.
func (m *Machine) setAside(now time.Time, mem *member, why string) {
	mem.aside.since, mem.aside.why = now, why
	mem.aside.times++
	mem.readyAt = time.Time{}
	m.endProbe(mem)
	m.out.Changed = true
}

// explainAside says why the world is left, where nothing else does.
func (m *Machine) explainAside(format string, args ...any) {
	r := m.broken
	if r.asides++; r.asides > maxExplained {
		r.why = strings.TrimSuffix(r.why, moreAside(r.asides-1)) + moreAside(r.asides)
		return
	}
	text := fmt.Sprintf(format, args...)
	m.note(notedBroken, "%s", text)
	switch {
	case r.wished || !r.unknown:
		r.why += "; " + text
	default:
		r.why, r.unknown = text, false
	}
}

// maxExplained is of how many it is said why they were set aside, in the words that all members are told.
const maxExplained = 3

// moreAside counts the others.
func moreAside(asides int) string {
	if asides <= maxExplained {
		return ""
	}
	return fmt.Sprintf("; and %d more are left out", asides-maxExplained)
}

// takeBack has those take part again that were set aside, and whom peers reach. Where nobody is left who could, nobody says otherwise.
func (m *Machine) takeBack(now time.Time) {
	back := map[string]bool{}
	for i := range m.gang.Members {
		mem := m.members[m.gang.Members[i].UID]
		if !mem.isAside() || mem.gone || mem.aside.lost && mem.aside.times >= asidesAtMost || now.Sub(mem.aside.since) < mem.aside.backOff() {
			continue
		}
		p := &mem.probe
		switch {
		case len(p.yes) > 0 && len(p.yes) >= min(enoughWitnesses, len(p.peers)):
			m.note(notedCutOff, "%s can reach %s, which was left out of round %d", m.names(p.yes), mem.want.Name, m.world.record.Round)
		case !m.hasPeers(mem):
			m.note(notedCutOff, "nobody is left who could reach %s, which was left out of round %d", mem.want.Name, m.world.record.Round)
		default:
			continue
		}
		mem.aside.since, mem.aside.why, mem.aside.by, mem.aside.lost = time.Time{}, "", nil, false
		m.endProbe(mem)
		back[mem.want.UID], m.out.Changed = true, true
	}
	if len(back) > 0 {
		m.forgetWordsOf(back)
	}
}

// forgetWordsOf forgets what members have said that are to be tried once more: those who still do not reach others say so again, and in
// the next world they may fail by something else.
func (m *Machine) forgetWordsOf(back map[string]bool) {
	for _, mem := range m.members {
		mem.aside.by = slices.DeleteFunc(mem.aside.by, func(w witness) bool { return back[w.uid] })
	}
}

// hasPeers says whether anybody else of the world is there who could be asked about a member.
func (m *Machine) hasPeers(mem *member) bool {
	return slices.ContainsFunc(m.world.ranks.uids, func(uid string) bool {
		peer := m.members[uid]
		return peer != nil && peer != mem && peer.connected && peer.usable() && !m.isLost(peer) && !peer.isAside()
	})
}

// asideLoss says why a member is lost that was set aside for long; empty when it is not.
func (m *Machine) asideLoss(now time.Time, mem *member) string {
	if !mem.isAside() || mem.aside.lost || now.Sub(mem.aside.since) < asideAtMost || m.broken != nil && m.broken.awaits {
		return ""
	}
	return fmt.Sprintf("it and its peers could not get the state of their world from each other, and in %s too few of them have reached it", asideAtMost)
}

// allReached forgets what was said of those whose world has made a step: that took the state of all. What was said of others was in
// worlds that are over.
func (m *Machine) allReached() {
	for _, mem := range m.members {
		if !mem.isAside() {
			mem.aside.by = nil
		}
	}
	for _, uid := range m.world.ranks.uids {
		if mem := m.members[uid]; mem != nil {
			mem.aside, mem.trained = aside{}, true
		}
	}
}
