package rendezvous

import (
	"errors"
	"time"

	"github.com/concertina-dev/concertina/internal/ticket"
)

// raiseTerm asks for a term above all that are known of.
func (m *Machine) raiseTerm(now time.Time) {
	next := m.base
	m.tried = false
	if m.world != nil && m.world.record.Round > next.Round {
		next = m.world.record // the record in the cluster went back
	}
	if m.term > 0 {
		m.notBefore = now.Add(paced)
	}
	next.Term, next.JobUID, next.Leader = max(m.base.Term, m.topTerm, m.led)+1, m.gang.JobUID, m.name
	m.writing = &pendingWrite{Write: Write{Prev: m.base, Next: next}}
	m.out.Write = &m.writing.Write
}

// tryClose closes the first round of the attempt if everybody is there.
func (m *Machine) tryClose(now time.Time) {
	if m.gang.Attempt < m.base.Attempt {
		return // the controller's view is old
	}
	if m.burned > 0 && m.base.Attempt == m.gang.Attempt && !m.isOver(&m.base, nil) {
		return // the world before the burned one may train on, out of our sight
	}
	var ready []int
	for i := range m.gang.Members {
		want := &m.gang.Members[i]
		switch {
		case want.Lost != "" || want.Leaving != "":
		case m.members[want.UID].ready():
			ready = append(ready, i)
		case !want.Starting:
			return
		}
	}
	here := make([]Member, 0, len(ready))
	for _, i := range ready {
		here = append(here, m.gang.Members[i])
	}
	size := m.legalSize(int32(len(here)))
	if size < m.gang.Minimum || size < 1 {
		return
	}
	p := &plan{members: choose(nil, nil, here, size), reason: ReasonStart}
	if m.bringBack(now, p) {
		m.writeRound(now, p)
	}
}

// writeRound asks for the record of the next world.
func (m *Machine) writeRound(now time.Time, p *plan) {
	var before []string
	next := Record{
		Term: m.term, Attempt: m.gang.Attempt, FromStep: p.fromStep, Reason: p.reason,
		// The cluster keeps whole seconds.
		StartedAt: now.UTC().Truncate(time.Second), JobUID: m.gang.JobUID, Leader: m.name,
	}
	if m.world != nil {
		before, next.Parent, next.From = m.ranksBefore(), m.world.record.Round, m.world.record.Workers
		next.ParentDigest = m.world.record.MembersDigest
		next.ParentFromStep, next.Grandparent = m.world.record.FromStep, m.world.record.Parent
		next.Recoveries = m.recoveries()
	}
	ranks := newRankTable(assignRanks(before, p.members))
	m.topRound = max(m.topRound, m.base.Round) + 1
	next.Round, next.MembersDigest = m.topRound, ranks.digest
	next.Workers = int32(len(p.members))
	next.Processes = next.Workers * m.gang.ProcessesPerWorker
	next.Name(m.membersNamed(ranks.uids))
	next.Master = m.members[ranks.uids[0]].endpoint
	m.writing = &pendingWrite{
		plan: p, ranks: ranks, master: next.Master,
		Write: Write{Prev: m.base, Next: next},
	}
	m.out.Write = &m.writing.Write
	if p.broken != nil && !p.broken.planned && len(m.lossesNow()) == 0 {
		m.notBefore = now.Add(paced) // a member that says time and again that it has left must not have us write all the time
	}
	if p.snapshot != nil {
		m.writing.holders, m.writing.parts = m.holdersOf(*p.snapshot)
		m.writing.told = newSupply(m.writing.parts, m.writing.holders)
		m.writing.receivers = m.receiversOf(ranks, p.live, m.writing.told)
		m.out.Publish = true // to be fetched ahead
	}
}

// answered takes the Recorder's answer to the write under way.
func (m *Machine) answered(now time.Time, ev RecordAnswered) {
	done := m.writing
	if done == nil {
		return
	}
	m.writing, m.look = nil, true
	switch {
	case ev.Err == nil && ev.Found.Term == done.Next.Term && ev.Found.Round == done.Next.Round:
		m.failures, m.base, m.writtenAt = 0, ev.Found, now
		m.clear()
		m.wrote(now, done, ev.Secret)
	case errors.Is(ev.Err, ErrJobGone):
		m.gone, m.out.Changed = true, true
		m.endAll(Refusal{RefusedForGood, GoneMessage})
	case errors.Is(ev.Err, ErrDeposed):
		m.clear()
		m.contested(now, ev)
	default:
		m.retryLater(now)
		m.note(notedFailed, "round %d, term %d may or may not be durable, trying again at %s: %v",
			done.Next.Round, done.Next.Term, m.notBefore.UTC().Format(time.TimeOnly), ev.Err)
	}
}

// clear notes that it is known what stands in the cluster.
func (m *Machine) clear() {
	m.unwritten = false
	if m.change != nil {
		m.change.askedFor = time.Time{}
	}
}

// wrote goes on after a confirmed write.
func (m *Machine) wrote(now time.Time, done *pendingWrite, secret []byte) {
	if done.plan == nil {
		m.lead(secret)
		return
	}
	if m.over() || done.overtaken || !m.holds(now, done.plan) {
		m.note(notedBurned, "round %d is burned: things have changed before it was published", m.base.Round)
		return
	}
	m.publish(now, done)
}

// holds says whether the next world can still be what was planned.
func (m *Machine) holds(now time.Time, p *plan) bool {
	if p.change != m.change || p.broken != m.broken || !m.standsYet(now, p) || !m.isHeld(p.snapshot) {
		return false
	}
	for i := range p.members {
		want := &p.members[i]
		mem := m.members[want.UID]
		switch {
		case mem == nil || mem.want.Lost != "" || mem.failed():
			return false
		case mem.leaving() && want.Leaving == "":
			return false
		case p.broken != nil && p.live[want.UID] && !m.keeps(mem, p.fromStep):
			return false
		case p.handover && !mem.report.HandsOver:
			return false // its programs were started anew, and have yet to say so
		case m.world != nil && mem.lostIn == m.world.record.Round && m.world.ranks.rank(want.UID) >= 0 && !m.isStandby(want.UID, mem):
			return false
		}
	}
	return true
}

// standsYet says whether the world stands at the barrier that the next one goes on from, where there is one.
func (m *Machine) standsYet(now time.Time, p *plan) bool {
	return p.change == nil || p.change.step == p.fromStep && m.parked() && now.Sub(m.oldestHold(now)) < holdTime-holdMargin
}

// isHeld says whether the snapshot of the next world can still be had. When who has it is not in touch nobody knows whom to ask.
func (m *Machine) isHeld(s *Snapshot) bool {
	if s == nil || m.world == nil {
		return true // nothing is loaded, or it was brought from the storage
	}
	_, held := m.stateOf(*s)
	return held
}

// publish makes the round that was written the world.
func (m *Machine) publish(now time.Time, done *pendingWrite) {
	p := done.plan
	next := &world{
		record: m.base, ranks: done.ranks, master: done.master, since: now,
		live: p.live, snapshot: p.snapshot, handover: p.handover, writers: map[string]int32{}, parted: map[string]parting{}, why: p.why,
	}
	next.fenced = p.change == nil
	if m.world != nil {
		next.before = m.world.ranks.uids
	}
	for rank := len(done.ranks.uids) - 1; rank >= 0; rank-- {
		next.writers[m.members[done.ranks.uids[rank]].want.Node] = int32(rank)
	}
	if p.snapshot != nil {
		next.holders, next.parts = m.holdersOf(*p.snapshot)
		next.givers = m.giversOf(next.holders)
		next.receivers = m.receiversOf(next.ranks, p.live, next.supplied())
	}
	next.staging, next.copies = m.stagings(done.ranks.uids, &m.base), m.copiesAsked()
	if p.change != nil || p.broken != nil && p.broken.planned {
		next.phase = PhaseResizing
	} else if p.broken != nil {
		next.phase = PhaseRecovering
	}
	m.freeze(next)
	if m.pending != nil {
		// That world was left before its first step, or before it was known how long that took; what broke it
		// must be counted all the same.
		m.noteChange(m.pending.Change)
	}
	m.pending = m.changeTo(next, p, now)
	if m.broken != nil && m.broken.retry {
		furthest := m.furthest()
		m.retried = &furthest
	}
	m.world, m.change, m.broken, m.burned = next, nil, nil, 0
	m.copyAnew()
	clear(m.departed)
	m.out.Publish, m.out.Changed = true, true
	m.note(notedPublished, "round %d of %d workers is published", m.base.Round, m.base.Workers)
	if p.why != "" {
		m.note(notedPublished, "round %d goes on after step %d: %s", m.base.Round, m.base.FromStep, p.why)
	}
}

// freeze keeps what the members were told last that the next world goes on without.
func (m *Machine) freeze(next *world) {
	if m.world == nil {
		return
	}
	for uid, mem := range m.members {
		if m.world.ranks.rank(uid) < 0 || next.ranks.rank(uid) >= 0 {
			continue
		}
		if last, ok := m.Directive(uid); ok {
			if last.Barrier != nil {
				last.Barrier.Save = false
			}
			withdraw(last.World)
			mem.left = &last
		}
	}
}

// lead begins to speak with the term that stands in the cluster.
func (m *Machine) lead(secret []byte) {
	if m.term == 0 {
		m.inherited = m.base.Round
	}
	if m.ledFrom == 0 {
		m.ledFrom = m.base.Term
	}
	m.term, m.led, m.secret, m.issuers = m.base.Term, m.base.Term, secret, map[[32]byte]*ticket.Issuer{}
	if m.world != nil && m.world.record.Round == m.base.Round {
		m.world.record = m.base
	}
	m.out.Publish, m.out.Changed = true, true
	m.note(notedTerm, "term %d is ours", m.term)
}

// contested goes on after a write that found another record than was expected.
func (m *Machine) contested(now time.Time, ev RecordAnswered) {
	found := ev.Found
	m.topTerm, m.topRound = max(m.topTerm, found.Term), max(m.topRound, found.Round)
	ours := m.name != "" && found.Leader == m.name
	if !ours && m.led > 0 && found.Term > m.led {
		m.depose(found)
		return
	}
	if found.Equal(m.base) {
		m.retryLater(now) // the Recorder contradicts itself; do not spin
	}
	m.base = found
	switch {
	case ours && found.Term > m.led:
		// A write of ours has raised the term, and its answer was unclear.
		m.failures = 0
		m.lead(ev.Secret)
	case found.Term != m.term:
		// Either no term was held yet and the base was a cached view, or the record went back: the job was
		// made anew, or restored from a backup. The term is taken anew.
		m.term = 0
	}
	// Otherwise a round of ours has landed whose answer was unclear. Its number is not used again.
}

func (m *Machine) depose(found Record) {
	m.deposed, m.world, m.out.Changed = true, nil, true
	m.endAll(Refusal{RefusedForNow, "another operator leads this job now: connect again"})
	m.note(notedDeposed, "another leader has taken the job over with term %d, round %d; ours was %d", found.Term, found.Round, max(m.term, m.base.Term))
}

func (m *Machine) retryLater(now time.Time) {
	m.notBefore = now.Add(min(firstRetry<<min(m.failures, 16), lastRetry))
	m.failures++
}
