package rendezvous

import (
	"slices"
	"time"
)

// A recovery begins with the newest state that anything can give: live state and snapshots in memory where they are of the same step or a
// later one, and a checkpoint where the storage has a later one, as where copies come more slowly than checkpoints. Members keep what they
// hold meanwhile, and go on from that where nothing comes of it (docs/rounds.md).

// leastPatience is how long a later checkpoint is brought at least. It is brought for longer where the steps that it saves take longer: whoever
// gives up then has waited for no longer than it takes to make them again, which is at most twice as long as the better choice takes.
const leastPatience = 4 * stuckTime

// newestHeld is the step of the newest state that members of the broken world have, live or in memory; false where they have none.
func (m *Machine) newestHeld(p *plan) (step uint64, ok bool) {
	newest, held := m.newestSnapshot()
	if lives := m.lives(p.members); len(lives) > 0 {
		return max(newest.Step, lives[0].step), true
	}
	return newest.Step, held
}

// isLaterStored says whether the storage has a state of the world's history after a later step than that, as far as anybody knows: it has not
// turned out to be of no use, and was not given up.
func (m *Machine) isLaterStored(than uint64) bool {
	known := m.checkpoints()
	if m.broken.gaveUp || len(known) == 0 || known[0].Snapshot.Step <= than {
		return false
	}
	if !m.bringsFor(m.broken) {
		return true
	}
	r := m.restoring
	return r.vainly == "" && (r.found == nil || r.found.Step > than)
}

// bringLater has a checkpoint brought for the world that follows on the broken one, where it is later than the newest state that members
// have; false where there is none, or it is not worth to be waited for any more.
func (m *Machine) bringLater(now time.Time, p *plan, than uint64) bool {
	b := m.broken
	switch {
	case b.gaveUp:
		return false
	case !m.staysHeld(now, p, than):
		if m.isLaterStored(than) {
			m.giveUpLater(than, "those who hold what is in memory are about to go")
		}
		return false
	case m.hasLater():
		return false // what is newer would take its place before it is there itself
	case (!m.bringsFor(b) || !m.isLaterStored(than)) && m.awaitsManifest(now, than):
		b.regrouping = false
		return true
	case !m.isLaterStored(than):
		return false
	}
	if !m.bringsFor(b) {
		m.restoring = m.restoringOf(m.checkpoints())
		m.note(notedBroken, "those who are left of round %d have the state after step %d, and the storage that after step %d: it is brought",
			m.world.record.Round, than, m.restoring.aim.Snapshot.Step)
	}
	r := m.restoring
	r.over, r.later, r.than = false, true, than // or who had brought it is gone
	m.askForRestore(now, p)
	b.countLater(now, m.isBringing(false))
	switch {
	case !m.isLaterStored(than):
		return false
	case r.over: // all of it is there, as is seen when this is decided next
		b.regrouping = false
		return true
	case m.isUnanswered(now) && !m.isBringing(true): // who has just taken over may have an answer
		m.giveUpLater(than, "nobody has had an answer from the storage for "+stuckTime.String())
	case b.laterFor >= max(leastPatience, m.takesAgain(r.aim.Snapshot.Step-than)):
		m.giveUpLater(than, "it takes longer than to make the steps again")
	default:
		b.regrouping = false
		return true
	}
	return false
}

// hasLater says whether members have a later checkpoint in full that was brought.
func (m *Machine) hasLater() bool {
	r := m.restoring
	if !m.bringsFor(m.broken) || !r.later || !r.over || r.found == nil || r.found.Step <= r.than {
		return false
	}
	_, held := m.stateOf(*r.found)
	return held
}

// awaitsManifest says whether the manifest of a later checkpoint is waited for, of which all else is in the storage: for as long as an answer.
func (m *Machine) awaitsManifest(now time.Time, than uint64) bool {
	b := m.broken
	if m.gang.Strategy != InPlace || !m.finishesOne(than) {
		return false
	}
	if b.manifestSince.IsZero() {
		b.manifestSince = now
	}
	return now.Before(b.manifestSince.Add(stuckTime))
}

// countLater counts how long somebody has been asked for a later checkpoint: while nobody is nothing comes of it, and nothing is waited for.
func (r *recovery) countLater(now time.Time, asked bool) {
	if !r.laterAt.IsZero() {
		r.laterFor += now.Sub(r.laterAt)
	}
	if r.laterAt = (time.Time{}); asked {
		r.laterAt = now
	}
}

// restartLater has what is later be waited for anew once there are enough to go on: nobody could have gone on before.
func (m *Machine) restartLater() {
	b := m.broken
	b.laterFor, b.laterAt, b.manifestSince = 0, time.Time{}, time.Time{}
	if m.bringsFor(b) && m.restoring.later {
		m.restoring.muteSince, m.restoring.busySince = time.Time{}, time.Time{}
	}
}

// takesAgain is how long so many steps take to be made again; 0 where nobody says how long one takes.
func (m *Machine) takesAgain(steps uint64) time.Duration {
	const longest = 24 * time.Hour
	took := m.stepTime()
	if took > 0 && steps > uint64(longest/took) {
		return longest
	}
	return time.Duration(steps) * took
}

// giveUpLater has the world go on from what members have.
func (m *Machine) giveUpLater(than uint64, why string) {
	m.broken.gaveUp = true
	if known := m.checkpoints(); len(known) > 0 {
		m.broken.gaveUpOn = known[0].Snapshot
	}
	if m.bringsFor(m.broken) {
		m.out.Tell = append(m.out.Tell, m.restoring.bringing()...)
	}
	m.note(notedBroken, "the later state of the storage is not waited for, %s: round %d is followed by one that begins after step %d",
		why, m.world.record.Round, than)
}

// tryNewer has a checkpoint be waited for again where one was given up, and a newer one has become durable since, as long as no world begins
// without it: that the storage has taken it is news, and it saves more steps.
func (m *Machine) tryNewer() {
	b := m.broken
	if !b.gaveUp || m.writing != nil && m.writing.plan != nil && m.writing.plan.broken == b {
		return
	}
	known := m.checkpoints()
	if len(known) == 0 || known[0].Snapshot.Step <= b.gaveUpOn.Step {
		return
	}
	b.gaveUp = false
	m.restartLater()
	m.note(notedBroken, "step %d has become durable since the storage's state after step %d was given up: it is tried", known[0].Snapshot.Step, b.gaveUpOn.Step)
}

// staysHeld says whether what members have after a step can be had for some time yet, and those who go on are there for as long: who is about to
// be killed has to give what it holds to others before, or to be in the next world before, and who is lost may end at any moment.
func (m *Machine) staysHeld(now time.Time, p *plan, than uint64) bool {
	for i := range p.members {
		if mem := m.members[p.members[i].UID]; mem.leaving() && !m.remains(now, mem) {
			return false
		}
	}
	for _, l := range m.lives(p.members) {
		if l.step == than && slices.ContainsFunc(l.savers, func(uid string) bool { return m.remains(now, m.members[uid]) }) {
			return true
		}
	}
	left, _ := m.keepers()
	left = slices.DeleteFunc(left, func(mem *member) bool { return !m.remains(now, mem) })
	return slices.ContainsFunc(m.statesOf(left), func(s state) bool { return s.Step >= than })
}

// remains says whether a member is there for longer than those who leave have to be to be of use to the next world.
func (m *Machine) remains(now time.Time, mem *member) bool {
	by := mem.want.LeaveBy
	return mem.connected && !mem.report.Terminating && mem.want.Lost == "" && !m.mayEnd(mem) &&
		(by.IsZero() || by.Sub(now) > m.gang.BarrierTimeout+2*leaveMargin)
}

// doWithoutLater has nobody left out for a later checkpoint where those who know how to bring it are too few without the others; false where
// nobody is.
func (m *Machine) doWithoutLater() bool {
	if !m.bringsFor(m.broken) || !m.restoring.later || !slices.ContainsFunc(sortedKeys(m.members), func(uid string) bool { return m.isLeftOut(m.members[uid]) }) {
		return false
	}
	m.giveUpLater(m.restoring.than, "those who know how to bring it are too few")
	m.restoring = nil // nobody begins with any of it who does not know what it is
	return true
}

// isMixable says whether some may begin with a snapshot and others with the live state after the same step: it is the very same. What the storage
// has may be of a round of which the last steps were thrown away, and made again since.
func (m *Machine) isMixable(s Snapshot) bool {
	if !m.bringsFor(m.broken) || m.restoring.found == nil || !sameState(s, *m.restoring.found) {
		return true
	}
	of := &m.world.record
	return s.Round == of.Round || s.Round == of.Parent && s.Round > 0
}
