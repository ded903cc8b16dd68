package rendezvous

import (
	"slices"
	"time"
)

// mayLive says whether the round that stands in the cluster may be the world of the expected gang,
// written by an earlier leader.
func (m *Machine) mayLive() bool {
	if m.world != nil || m.base.Round == 0 || m.base.Round == m.burned || m.base.Attempt != m.gang.Attempt {
		return false
	}
	return m.term == 0 || m.base.Round == m.inherited
}

// adopting says whether the fate of that round is open.
func (m *Machine) adopting(now time.Time) bool {
	if m.over() || m.world != nil {
		return false
	}
	if m.term == 0 {
		return true
	}
	if !m.mayLive() {
		return false
	}
	if !m.isLate(now) {
		return true
	}
	c := m.census()
	return c.in > 0 || m.waitsForWord(now, &c)
}

// isLate says whether agents have had the time to find this leader: the heartbeat timeout and a grace, and that grace from the first on
// that can tell what has become of the inherited round. Where that one could not find it before, the others could not either.
func (m *Machine) isLate(now time.Time) bool {
	return now.Sub(m.since) > m.gang.HeartbeatTimeout+m.reconnectGrace && (m.wordAt.IsZero() || now.Sub(m.wordAt) > m.reconnectGrace)
}

// hearWord takes note of the first who can tell: it is in the inherited round, or in the one before, and was to go on to it.
func (m *Machine) hearWord(now time.Time, mem *member) {
	if m.world != nil || !m.wordAt.IsZero() || mem.report.Round == 0 {
		return
	}
	_, named := m.naming().ranks[mem.want.Ordinal]
	if mem.in(&m.base) || mem.report.Round == m.base.Parent && (named || len(m.naming().ranks) == 0) {
		m.wordAt = now
	}
}

// waitsForWord says whether only such are heard of whom nothing follows, as newcomers, and those who leave and stand in the world before
// yet, and others may come who know what has become of the round: they may train, and find this operator later. That is not waited for
// longer than a world that gives no sign is.
func (m *Machine) waitsForWord(now time.Time, c *census) bool {
	long := m.gang.HangTimeout > 0 && now.Sub(m.since) >= m.gang.HangTimeout
	open := c.before == 0 || c.possible() >= int(m.base.Workers)
	return c.heard() > 0 && open && c.knowing > 0 && !long
}

// The round that a new leader finds belongs to an earlier attempt, and is of no interest, or to the
// attempt that is expected, and may live. It may also have been published to some members only, or to
// none. The leader
//
//   - adopts it when every rank of it is reported by its member with the durable digest: all have
//     entered it;
//   - adopts it when any member reports it with a step done beyond fromStep: a step takes all ranks,
//     so all have entered it, whoever is slow to reconnect;
//   - publishes it again, unchanged, when some are in it, and all others can still enter it (republish.go);
//   - burns the first round of an attempt when somebody whom it names has obeyed this leader's term and is not in it: it refuses
//     older directives, so the round was never complete, and never will be; or when all that it names have ended, and nobody is
//     left who has anything of it. That somebody has ended proves nothing, and nor does a newcomer: others may have trained. If
//     some are in it, it is adopted without those who have ended;
//   - burns a later one when so many have obeyed this leader's term and are not in it that it can never be
//     complete. If nobody is in it at all, and members are still in the round before, that world is adopted: it can go on as if
//     nothing had been. As long as nobody has reported either of the two, and somebody may, it waits. If some
//     are in it, it is adopted all the same, as a world that has lost the others; and so it is, as one that has lost
//     everybody, when all that it names have ended and none was heard: they may have made steps;
//   - gives it up when the heartbeat timeout and the grace for reconnecting have passed and nobody
//     was heard, or when only such have been who know nothing of it for as long as a world may give no sign.
//     This only ends Observation.Adopting: should it be reported later, and no new
//     round be written by then, it is adopted all the same, also one that was burned.
//
// Adoption itself changes nothing for the agents but the term. The rank table is what the record names; where that
// names nobody, as one of an older version, or the parent, it is rebuilt from the members' reports. It must have the
// durable digest, and a report that cannot be part of it is refused. A
// barrier that an older leader has set up is lifted, as the directive of the new one has none; a world
// that somebody has left already is broken, and recovers.

// census is where the expected members are.
type census struct {
	// in have reported the durable round, before the round that it continues, and elsewhere neither.
	in, before, elsewhere int
	// unheard have not been heard yet, and may be anywhere; awaited are those of them who may come: a pod that is gone
	// gets no session. unled have not obeyed this leader's term, and are not in the round, and are not known to have
	// ended.
	unheard, awaited, unled int
	// knowing are those who have not been heard, may come, and may know what has become of the round, or the one before.
	knowing int
	// ended are known to have ended, and were not heard to be in the round, or to have obeyed this leader's term: they may have been in it.
	ended int
	// without are those who have obeyed this leader's term, are not in the round, and were to be, as far as the record says.
	without int
}

// heard is how many have been heard, possible how many could be in the round now, or still enter it.
func (c *census) heard() int    { return c.in + c.before + c.elsewhere }
func (c *census) possible() int { return c.in + c.unheard + c.unled }

// onlyGone says whether nothing more will be known of those who may be in the round: their pods are gone.
func (c *census) onlyGone() bool { return c.unheard > 0 && c.awaited+c.unled == 0 }

func (m *Machine) census() census {
	var c census
	ranks := m.naming().ranks
	for _, mem := range m.members {
		// Who is not named cannot enter it, however long it is not heard.
		_, named := ranks[mem.want.Ordinal]
		stranger := len(ranks) > 0 && !named
		switch {
		case !mem.joined:
			c.miss(&mem.want, stranger, stranger && m.base.Parent == 0)
			continue
		case mem.in(&m.base):
			c.in++
			continue
		case m.base.Parent > 0 && mem.report.Round == m.base.Parent:
			c.before++
		default:
			c.elsewhere++
		}
		switch {
		case stranger:
		case mem.report.Term == m.term:
			c.without++
		case mem.want.Ended:
			c.ended++
		default:
			c.unled++
		}
	}
	return c
}

// miss counts a member that was not heard. A stranger is not named by the record; one that is new was in no world of it.
func (c *census) miss(want *Member, stranger, isNew bool) {
	there := !want.Ended && !want.Gone
	if there && !isNew && !want.Starting && !want.NodeNotReady {
		c.knowing++
	}
	switch {
	case stranger:
	case want.Ended:
		c.ended++
	default:
		c.unheard++
		if there {
			c.awaited++
		}
	}
}

// isSize says whether a world can have so many workers.
func isSize(workers int32) bool { return workers >= 1 && workers <= MaxWorkers }

// tryAdopt adopts or burns the inherited round, if it is known by now whether it lives.
func (m *Machine) tryAdopt(now time.Time) {
	if !m.isPlausible() {
		m.burn("the job's record of it cannot be true")
		return
	}
	c := m.census()
	late := m.isLate(now)
	uids, named := m.outlook(&c)
	switch {
	case m.mayBeLeaving(&c, late):
	case m.steppedIn(&m.base):
		m.adopt(now, m.base, "a member has made steps in it")
	case c.in == int(m.base.Workers):
		m.adopt(now, m.base, "all of its workers report it")
	case named == outlookWhole:
		m.republish(now, uids)
	case m.base.Parent == 0:
		m.tryAdoptFirst(now, &c, late)
	case c.in > 0 && (late || c.onlyGone() && named != outlookOpen):
		m.adopt(now, m.base, "some of its workers report it, and others were not heard in time")
	case c.heard() == 0 || (c.awaited > 0 || named == outlookOpen) && !late || c.possible() >= int(m.base.Workers):
		// Too early to say.
	case c.in > 0:
		m.adopt(now, m.base, "some of its workers have entered it")
	default:
		m.endInherited(now, &c)
	}
}

// tryAdoptFirst adopts or burns the first round of an attempt, of which no steps are heard.
func (m *Machine) tryAdoptFirst(now time.Time, c *census, late bool) {
	switch {
	case m.neverWhole(c):
		m.burn("not all of its workers have entered it")
	case c.in > 0 && c.awaited+c.unled == 0:
		m.adopt(now, m.base, "some of its workers report it, and nobody else can")
	case c.in > 0 && late:
		m.adopt(now, m.base, "some of its workers report it, and others were not heard in time")
	case c.in == 0 && c.heard() > 0 && c.unheard+c.unled == 0:
		m.burn("all of its workers have ended, and nobody has anything of it")
	}
}

// neverWhole says whether somebody is certainly not in the inherited round, and never will be, without whom it cannot have made a
// step. Of a record that names nobody, that follows from how many others there are.
func (m *Machine) neverWhole(c *census) bool {
	if len(m.naming().ranks) > 0 {
		return c.without > 0
	}
	return c.heard() > 0 && c.possible()+c.ended < int(m.base.Workers)
}

// endInherited ends an inherited round in which nobody is, and that continues another one. Of neither anybody may have been heard,
// though somebody may train in one of them: then nothing ends yet.
func (m *Machine) endInherited(now time.Time, c *census) {
	switch {
	case m.allUnheard() && (c.awaited == 0 || c.before > 0):
		m.adopt(now, m.base, "none of its workers can be heard, and how far they came is not known")
	case c.before > 0 || m.isOver(&m.base, nil):
		m.burn("none of its workers has entered it")
		m.adoptParent(now)
	}
}

// isPlausible says whether the record can be true.
func (m *Machine) isPlausible() bool {
	return isSize(m.base.Workers) && len(m.base.MembersDigest) == 64
}

// reconsider has a round that was burned live after all, when somebody turns up who has made steps in it, or who is in it or in the
// one before it, as long as no other was written.
func (m *Machine) reconsider() {
	if m.burned == 0 || m.burned != m.base.Round || m.burned != m.inherited || m.base.Attempt != m.gang.Attempt || !m.isPlausible() {
		return
	}
	c := m.census()
	goesOn := c.in > 0 || c.before > 0 && isSize(m.base.From) && m.parentDigest() != ""
	if m.steppedIn(&m.base) || m.base.Parent > 0 && goesOn {
		m.note(notedBurned, "round %d is not burned: somebody has turned up who knows of it, or of the one before", m.burned)
		m.burned, m.out.Changed = 0, true
		m.restoring = nil // nobody begins with what was brought
	}
}

// allUnheard says whether the record names the members of the inherited round, and none of them has been heard: they may
// have made steps in it that nobody else knows of. One that was heard, and is not in it, shows that there were none.
func (m *Machine) allUnheard() bool {
	ranks := m.naming().ranks
	if len(ranks) == 0 {
		return false
	}
	for _, mem := range m.members {
		if _, named := ranks[mem.want.Ordinal]; named && mem.joined {
			return false
		}
	}
	return true
}

// findRefusal finds out whether a worker that was to go on to this world with its state could not: it had been
// let go from the barrier before it heard of the world. Others may have entered it, so nobody knows what is
// alive. The leader then finds out like a new one: under another term, which ends what it has said before.
func (m *Machine) findRefusal(now time.Time) bool {
	w := m.world
	if w.adopted || w.record.Parent == 0 || m.hasBegun() || m.writing != nil {
		return false
	}
	for _, uid := range w.ranks.uids {
		mem := m.members[uid]
		if mem == nil || mem.report.Refused != w.record.Round || mem.report.Round != w.record.Parent || mem.failed() {
			continue
		}
		if m.base.Round != w.record.Round {
			// A later round was burned since: what stands in the record says nothing of this one.
			if m.broken == nil {
				m.breakWorld(now, &recovery{reason: ReasonWorkerLost, why: mem.want.Name + " could not go on to it"})
			}
			return false
		}
		m.note(notedRefused, "round %d is in doubt: %s did not stand at the barrier any more when it was told of it", w.record.Round, mem.want.Name)
		for _, mem := range m.members {
			mem.entered, mem.left = 0, nil
		}
		// Should the parent live on the change is tried again later: a worker that always refuses must not keep it standing.
		m.nextTry = now.Add(m.backOff())
		m.tries++
		m.world, m.change, m.broken, m.pending = nil, nil, nil, nil
		m.since, m.wordAt, m.inherited, m.topTerm, m.hold = now, time.Time{}, m.base.Round, max(m.topTerm, m.term+1), 0
		m.out.Publish, m.out.Changed = true, true
		return true
	}
	return false
}

// adoptParent goes on with the world before the one that was burned, if its members are still in it.
func (m *Machine) adoptParent(now time.Time) {
	parent := Record{
		Term: m.base.Term, Round: m.base.Parent, Attempt: m.base.Attempt, Workers: m.base.From,
		Processes: m.base.From * m.gang.ProcessesPerWorker, StartedAt: m.base.StartedAt,
		FromStep: m.base.ParentFromStep, Parent: m.base.Grandparent,
	}
	if parent.Round == 0 || !isSize(parent.Workers) {
		return
	}
	if parent.MembersDigest = m.parentDigest(); parent.MembersDigest != "" {
		m.adopt(now, parent, "the round after it has never begun")
		m.world.fenced = true // or no round would have gone on from it
	}
}

// parentDigest says which members the parent had, of whom at least one reports it; empty when none does. A record of an
// older version does not tell: then most of those who are in it are believed, and of two the first.
func (m *Machine) parentDigest() string {
	votes := map[string]int{}
	said := ""
	for i := range m.gang.Members {
		mem := m.members[m.gang.Members[i].UID]
		if !mem.joined || mem.report.Round != m.base.Parent {
			continue
		}
		digest := mem.report.Digest
		if digest == m.base.ParentDigest {
			return digest
		}
		if votes[digest]++; votes[digest] > votes[said] {
			said = digest
		}
	}
	if m.base.ParentDigest != "" {
		return ""
	}
	return said
}

// steppedIn says whether any member has made a step in a round.
func (m *Machine) steppedIn(r *Record) bool {
	for _, mem := range m.members {
		if mem.in(r) && mem.report.furthest() > r.FromStep {
			return true
		}
	}
	return false
}

func (m *Machine) burn(why string) {
	m.burned, m.out.Changed = m.base.Round, true
	m.note(notedBurned, "round %d is burned: %s", m.base.Round, why)
}

// adopt makes an inherited round this leader's own.
func (m *Machine) adopt(now time.Time, record Record, why string) {
	m.world = &world{
		record: record, adopted: true, since: now,
		ranks:   emptyRankTable(record.Workers, record.MembersDigest),
		writers: map[string]int32{}, parted: map[string]parting{}, stood: record.Round != m.base.Round,
	}
	m.fillRanks()
	m.inherit(&record)
	m.copyAnew()
	m.dropRestore()
	m.out.Publish, m.out.Changed = true, true
	if m.stepRound > record.Round {
		// Somebody has reported a round that goes on no more: steps count from this one again.
		m.stepRound, m.step = record.Round, record.FromStep
	}
	for _, expected := range m.gang.Members {
		mem := m.members[expected.UID]
		if !mem.joined || mem.report.Round != record.Round {
			continue
		}
		if !mem.in(&record) || !m.world.ranks.place(expected.UID, mem.report.WorkerRank) {
			m.out.End = append(m.out.End, ending{expected.UID, Refusal{RefusedNonsense,
				"the report contradicts the world that the other workers are in"}})
			continue
		}
		m.world.stood = m.world.stood || mem.report.has(waitingParked)
		m.count(now, mem)
		m.enter(expected.UID, mem)
		m.hearPause(now, expected.UID, mem)
	}
	sortEndings(m.out.End)
	m.note(notedAdopted, "round %d of %d workers is adopted: %s", record.Round, record.Workers, why)
	m.leaveOn(now) // or the first directive would let those go who stand
}

// fillRanks has those in the rank table of an adopted world whom the record names, and who are in it or may be: they
// have not been heard yet. Of a pod that is gone nobody says for sure which it was.
func (m *Machine) fillRanks() {
	w := m.world
	if w.record.Round != m.base.Round {
		return // of its parent the record names nobody
	}
	uids := make([]string, w.record.Workers)
	known := 0
	expected := m.ordinals()
	for rank, ordinal := range m.naming().ordinals {
		if uid := expected[ordinal]; uid != "" && !m.members[uid].want.Gone {
			uids[rank] = uid
			known++
		}
	}
	if known == len(uids) && MembersDigest(uids) != w.record.MembersDigest {
		return // the record contradicts itself
	}
	w.named = len(m.naming().ordinals) > 0
	for rank, uid := range slices.Backward(uids) {
		if mem := m.members[uid]; mem != nil && (!mem.joined || mem.in(&w.record)) {
			w.ranks.uids[rank], w.ranks.ranks[uid] = uid, int32(rank)
			w.writers[mem.want.Node] = int32(rank)
		}
	}
}

// outsideIt notes that a member has turned up that could have been in the adopted world, and is not in it.
func (m *Machine) outsideIt(uid string, mem *member) {
	w := m.world
	if rank := w.ranks.rank(uid); w.adopted && rank >= 0 && mem.entered != w.record.Round {
		w.ranks.uids[rank] = ""
		delete(w.ranks.ranks, uid)
		m.look = true
	}
}
