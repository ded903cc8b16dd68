package rendezvous

import (
	"errors"
	"time"
)

// raiseTerm asks for a term above all that are known of.
func (m *machine) raiseTerm(now time.Time) {
	next := m.base
	if m.world != nil && m.world.record.Round > next.Round {
		next = m.world.record // the record in the cluster went back
	}
	if m.term > 0 {
		m.notBefore = now.Add(raiseInterval)
	}
	next.Term, next.JobUID = max(m.base.Term, m.topTerm)+1, m.gang.JobUID
	m.topTerm = next.Term
	m.writing = &pendingWrite{write: write{prev: m.base, next: next}}
	m.out.write = &m.writing.write
}

// tryClose closes the first round of the attempt if everybody is there.
func (m *machine) tryClose(now time.Time) {
	if m.gang.Attempt < m.base.Attempt {
		return // the controller's view is old
	}
	var here []Member
	for _, want := range m.gang.Members {
		mem := m.members[want.UID]
		switch {
		case want.Lost != "" || want.Leaving != "":
		case mem.ready():
			here = append(here, want)
		case !want.Starting:
			return
		}
	}
	size := m.legalSize(int32(len(here)))
	if size < m.gang.Minimum || size < 1 {
		return
	}
	m.writeRound(now, &plan{members: choose(nil, nil, here, size), reason: ReasonStart})
}

// writeRound asks for the record of the next world.
func (m *machine) writeRound(now time.Time, p *plan) {
	var before []string
	next := Record{
		Term: m.term, Attempt: m.gang.Attempt, FromStep: p.fromStep, Reason: p.reason,
		// The cluster keeps whole seconds.
		StartedAt: now.UTC().Truncate(time.Second), JobUID: m.gang.JobUID,
	}
	if m.world != nil {
		before, next.Parent, next.From = m.world.ranks.uids, m.world.record.Round, m.world.record.Workers
	}
	ranks := newRankTable(assignRanks(before, p.members))
	m.topRound = max(m.topRound, m.base.Round) + 1
	next.Round, next.MembersDigest = m.topRound, ranks.digest
	next.Workers = int32(len(p.members))
	next.Processes = next.Workers * m.gang.ProcessesPerWorker
	m.writing = &pendingWrite{
		plan: p, ranks: ranks, master: m.members[ranks.uids[0]].endpoint,
		write: write{prev: m.base, next: next},
	}
	m.out.write = &m.writing.write
	m.out.publish = m.out.publish || p.snapshot != nil // to be fetched ahead
}

// answered takes the Recorder's answer to the write under way.
func (m *machine) answered(now time.Time, ev recordAnswered) {
	done := m.writing
	if done == nil {
		return
	}
	m.writing, m.look = nil, true
	switch {
	case ev.err == nil && ev.found.Term == done.next.Term && ev.found.Round == done.next.Round:
		m.failures, m.base = 0, ev.found
		m.wrote(now, done, ev.secret)
	case errors.Is(ev.err, ErrJobGone):
		m.gone, m.out.changed = true, true
		m.endAll(refusal{refusedForGood, goneMessage})
	case errors.Is(ev.err, ErrDeposed):
		m.contested(now, done, ev.found)
	default:
		if m.term > 0 && done.plan == nil {
			m.unclearTerm = done.next.Term
		}
		m.retryLater(now)
		m.note(notedFailed, "round %d, term %d may or may not be durable, trying again at %s: %v",
			done.next.Round, done.next.Term, m.notBefore.UTC().Format(time.TimeOnly), ev.err)
	}
}

// wrote goes on after a confirmed write.
func (m *machine) wrote(now time.Time, done *pendingWrite, secret []byte) {
	if done.plan == nil {
		if m.term == 0 {
			m.inherited = m.base.Round
		}
		m.term, m.secret = m.base.Term, secret
		if m.world != nil && m.world.record.Round == m.base.Round {
			m.world.record = m.base
		}
		m.out.publish, m.out.changed = true, true
		m.note(notedTerm, "term %d is ours", m.term)
		return
	}
	if m.over() || done.overtaken || !m.holds(done.plan) {
		m.note(notedBurned, "round %d is burned: things have changed before it was published", m.base.Round)
		return
	}
	m.publish(now, done)
}

// holds says whether the next world can still be what was planned.
func (m *machine) holds(p *plan) bool {
	if p.change != m.change || p.broken != m.broken {
		return false
	}
	if p.change != nil && (p.change.step != p.fromStep || !m.parked()) {
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
		case m.world != nil && mem.lostIn == m.world.record.Round && m.world.ranks.rank(want.UID) >= 0 && !m.isStandby(want.UID, mem):
			return false
		}
	}
	return true
}

// publish makes the round that was written the world.
func (m *machine) publish(now time.Time, done *pendingWrite) {
	p := done.plan
	next := &world{
		record: m.base, ranks: done.ranks, master: done.master, since: now,
		live: p.live, snapshot: p.snapshot, writers: map[string]int32{}, ended: map[string]bool{}, why: p.why,
	}
	for rank := len(done.ranks.uids) - 1; rank >= 0; rank-- {
		next.writers[m.members[done.ranks.uids[rank]].want.Node] = int32(rank)
	}
	if p.snapshot != nil {
		next.holders = m.holdersOf(*p.snapshot)
	}
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
	m.out.publish, m.out.changed = true, true
	m.note(notedPublished, "round %d of %d workers is published", m.base.Round, m.base.Workers)
	if p.why != "" {
		m.note(notedPublished, "round %d goes on after step %d: %s", m.base.Round, m.base.FromStep, p.why)
	}
}

// freeze keeps what the members were told last that the next world goes on without.
func (m *machine) freeze(next *world) {
	if m.world == nil {
		return
	}
	for uid, mem := range m.members {
		if m.world.ranks.rank(uid) < 0 || next.ranks.rank(uid) >= 0 {
			continue
		}
		if last, ok := m.directive(uid); ok {
			if last.barrier != nil {
				last.barrier.save = false
			}
			withdraw(last.world)
			mem.left = &last
		}
	}
}

// contested goes on after a write that found another record than was expected.
func (m *machine) contested(now time.Time, done *pendingWrite, found Record) {
	m.topTerm, m.topRound = max(m.topTerm, found.Term), max(m.topRound, found.Round)
	if found.Term > m.term && (m.term > 0 && found.Term != m.unclearTerm || m.replaced(found)) {
		m.depose(found)
		return
	}
	if found.Term != m.term {
		// Either no term was held yet and the base was a cached view, or the record went back (the
		// job was made anew, or restored from a backup), or this may be our own write whose answer
		// was unclear. A term is only held after a confirmed write, so it is taken anew.
		m.term = 0
	}
	if found.Equal(m.base) {
		m.retryLater(now) // the Recorder contradicts itself; do not spin
	}
	// With the term held, only a write of our own can have changed the record: one whose answer was
	// unclear.
	m.base = found
}

// replaced says whether another leader has made a round: under a term that is not held only the term can
// have been raised by a write of our own, and that leaves the round alone.
func (m *machine) replaced(found Record) bool {
	newest := m.base.Round
	if m.world != nil {
		newest = max(newest, m.world.record.Round)
	}
	return found.Round > newest && (m.term > 0 || m.world != nil)
}

func (m *machine) depose(found Record) {
	m.deposed, m.world, m.out.changed = true, nil, true
	m.endAll(refusal{refusedForNow, "another operator leads this job now: connect again"})
	m.note(notedDeposed, "another leader has taken the job over with term %d, round %d; ours was %d", found.Term, found.Round, max(m.term, m.base.Term))
}

func (m *machine) retryLater(now time.Time) {
	m.notBefore = now.Add(min(firstRetry<<min(m.failures, 16), lastRetry))
	m.failures++
}
