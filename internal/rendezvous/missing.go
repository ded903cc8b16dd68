package rendezvous

import (
	"fmt"
	"slices"
	"time"
)

// A recovery may find no state in the memory of those who are left: what an attempt has begun with has no copies before its first step,
// and a state that one member alone has is gone with that. Where the storage has one of the world's history, the world that follows
// begins with it: members keep what they have of that, and bring what is missing, as the first world of an attempt does.

// bringMissing has what is missing of a checkpoint brought for the world that follows on the broken one; false where the storage has
// none that serves, or those who are away may have more.
func (m *Machine) bringMissing(now time.Time, p *plan) bool {
	at, from := m.stored()
	if at == nil || !m.isOfHistory(*at) || m.someoneAway() && m.mayHaveMore(at.Step) {
		return false
	}
	if m.restoring == nil || m.restoring.of != m.broken {
		m.restoring = m.newRestoring(from)
		m.restoring.of = m.broken
		m.note(notedBroken, "those who are left of round %d hold no whole snapshot: what is missing of step %d is brought from the storage",
			m.world.record.Round, at.Step)
	}
	r := m.restoring
	r.over = false // or who had brought some of it is gone
	m.askForRestore(now, p)
	if m.fatal == "" && !r.over {
		m.waitForStorage(now)
	}
	return true
}

// stored is a checkpoint that the storage has, as far as is known, and where to look for it; nil for none. Of another job's it is the
// one that the attempt has begun with: there may be others by now.
func (m *Machine) stored() (at *Snapshot, from string) {
	s, d := m.gang.Storage, m.durable
	if s == nil || m.gang.Strategy == Restart {
		return nil, ""
	}
	for _, uid := range sortedKeys(m.members) {
		said := &m.members[uid].report.Restored // a leader that came later has not heard it when it was news
		if said.Found && newerSnapshot(said.Snapshot, d) {
			d = said.Durable
		}
	}
	own := d.Path != "" && d.Snapshot.Round > 0
	switch {
	case s.Known > 0 && (!own || s.Known > d.Snapshot.Step):
		return &Snapshot{Round: m.world.record.Round, Step: s.Known}, "" // of that round, or an earlier one
	case own:
		return &d.Snapshot, ""
	case d.Path != "" && s.From != "":
		return &d.Snapshot, d.Path
	}
	return nil, ""
}

// isOfHistory says whether the state after a step is one of the history of the world: none of steps that were thrown away.
func (m *Machine) isOfHistory(s Snapshot) bool {
	of := &m.world.record
	if s.Round == of.Round {
		return s.Step <= m.mostMade()
	}
	return s.Round < of.Round && s.Step <= of.FromStep
}

// mayHaveMore says whether a state after a later step could be had if all came back who may. Whom the controller has
// given up nobody waits for, and of whom nothing was heard nobody knows.
func (m *Machine) mayHaveMore(than uint64) bool {
	var all []*member
	for _, mem := range m.members {
		switch {
		case mem.want.Ended || mem.want.Gone || mem.want.Lost != "":
		case !mem.joined && m.world.ranks.rank(mem.want.UID) >= 0:
			return true
		case m.hasHistory(mem):
			all = append(all, mem)
		}
	}
	return slices.ContainsFunc(m.statesOf(all), func(s state) bool { return s.Step > than })
}

// waitForStorage has the job regroup as long as nobody who brings something has had an answer for a while: the controller says for how
// long it waits.
func (m *Machine) waitForStorage(now time.Time) {
	r := m.restoring
	busy := slices.ContainsFunc(r.bringing(), func(uid string) bool {
		mem := m.members[uid]
		return mem != nil && mem.usable() && mem.report.UploadError == ""
	})
	switch {
	case !busy && r.muteSince.IsZero():
		r.muteSince, r.busySince = now, time.Time{}
	case !busy:
		r.busySince = time.Time{}
	case r.busySince.IsZero():
		r.busySince = now
	case !now.Before(r.busySince.Add(stuckTime)):
		r.muteSince = time.Time{} // it has taken that long without an error
	}
	if r.muteSince.IsZero() || now.Before(r.muteSince.Add(stuckTime)) {
		m.broken.regrouping = false
		return
	}
	m.regroup("nobody who is left of round %d has had an answer from the storage")
}

// broughtFor are the parts that a member has brought for the world after the broken one, or the whole file: agents do not list them before a
// world begins with them.
func (m *Machine) broughtFor(mem *member) []Snapshot {
	r := m.restoring
	switch {
	case r == nil || m.broken == nil || r.of != m.broken || r.found == nil:
		return nil
	case r.place != "":
		if of := r.portions[mem.want.UID]; of != nil && of.done {
			return of.parts
		}
	case r.over && r.who == mem.want.UID && r.parts == nil:
		return []Snapshot{*r.found}
	case r.over && r.who == mem.want.UID:
		return r.parts
	}
	return nil
}

// unfit says why nobody goes on from a checkpoint that a member has found; empty where somebody may.
func (m *Machine) unfit(by *member) string {
	switch {
	case m.restoring.of == nil:
	case !m.isOfHistory(by.report.Restored.Snapshot):
		return "has steps that were thrown away since"
	case len(by.report.RestoredParts) > 0 && m.anyOlder():
		return "is in parts, which the agent of a worker does not know"
	}
	return ""
}

// failRestore ends the attempt: what it is to begin with, or to go on from, cannot be had.
func (m *Machine) failRestore(format string, args ...any) {
	why := fmt.Sprintf(format, args...)
	if m.restoring.of != nil {
		why = "no snapshot is left to go on from in the memory of its workers, and " + why
	}
	m.fail(why)
}
