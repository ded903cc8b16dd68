package rendezvous

import (
	"errors"
	"time"

	"connectrpc.com/connect"
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
	next.Term = max(m.base.Term, m.topTerm) + 1
	m.topTerm = next.Term
	m.writing = &pendingWrite{write: write{prev: m.base, next: next}}
	m.out.write = &m.writing.write
}

// tryClose closes the round if everybody is there.
func (m *machine) tryClose(now time.Time) {
	if m.gang.Attempt < m.base.Attempt {
		return // the controller's view is old
	}
	for _, mem := range m.members {
		if !mem.ready() {
			return
		}
	}
	ranks := newRankTable(assignRanks(nil, m.gang.Members))
	m.topRound = max(m.topRound, m.base.Round) + 1
	workers := int32(len(m.gang.Members))
	m.writing = &pendingWrite{
		ranks:  ranks,
		master: m.members[ranks.uids[0]].endpoint,
		write: write{prev: m.base, next: Record{
			Term: m.term, Round: m.topRound, Attempt: m.gang.Attempt,
			Workers: workers, Processes: workers * m.gang.ProcessesPerWorker,
			MembersDigest: ranks.digest,
			// The cluster keeps whole seconds.
			StartedAt: now.UTC().Truncate(time.Second),
		}},
	}
	m.out.write = &m.writing.write
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
		m.wrote(done)
	case errors.Is(ev.err, ErrJobGone):
		m.gone, m.out.changed = true, true
		m.endAll(refusal{connect.CodeNotFound, goneMessage})
	case errors.Is(ev.err, ErrDeposed):
		m.contested(now, done, ev.found)
	default:
		if m.term > 0 && done.ranks == nil {
			m.unclearTerm = done.next.Term
		}
		m.retryLater(now)
		m.note(notedFailed, "round %d, term %d may or may not be durable, trying again at %s: %v",
			done.next.Round, done.next.Term, m.notBefore.UTC().Format(time.TimeOnly), ev.err)
	}
}

// wrote goes on after a confirmed write.
func (m *machine) wrote(done *pendingWrite) {
	if done.ranks == nil {
		if m.term == 0 {
			m.inherited = m.base.Round
		}
		m.term = m.base.Term
		if m.world != nil {
			m.world.record = m.base
		}
		m.out.publish, m.out.changed = true, true
		m.note(notedTerm, "term %d is ours", m.term)
		return
	}
	if m.over() || done.overtaken {
		m.note(notedBurned, "round %d is burned: its gang was replaced before it was published", m.base.Round)
		return
	}
	m.world = &world{record: m.base, ranks: done.ranks, master: done.master}
	m.out.publish, m.out.changed = true, true
	m.note(notedPublished, "round %d of %d workers is published", m.base.Round, m.base.Workers)
}

// contested goes on after a write that found another record than was expected.
func (m *machine) contested(now time.Time, done *pendingWrite, found Record) {
	m.topTerm, m.topRound = max(m.topTerm, found.Term), max(m.topRound, found.Round)
	if m.term > 0 && found.Term > m.term && found.Term != m.unclearTerm {
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

func (m *machine) depose(found Record) {
	m.deposed, m.world, m.out.changed = true, nil, true
	m.endAll(refusal{connect.CodeUnavailable, "another operator leads this job now: connect again"})
	m.note(notedDeposed, "another leader has taken the job over with term %d, round %d; ours was %d", found.Term, found.Round, m.term)
}

func (m *machine) retryLater(now time.Time) {
	m.notBefore = now.Add(min(firstRetry<<min(m.failures, 16), lastRetry))
	m.failures++
}
