package rendezvous

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// A recovery may find no state in the memory of those who are left: what an attempt has begun with has no copies before all have loaded
// it, and a state that one member alone has is gone with that. Where the storage has one of the world's history, the world that follows
// begins with it: members keep what they have of that, and bring what is missing, as the first world of an attempt does.

// bringMissing has what is missing of a checkpoint brought for the world that follows on the broken one, or waits for those who may have
// more; false where the storage has none that serves.
func (m *Machine) bringMissing(now time.Time, p *plan) bool {
	known := m.checkpoints()
	if len(known) == 0 {
		return false
	}
	if m.waitsForMore(now, known[0].Snapshot.Step) {
		m.regroup("those that are left of round %d hold no snapshot: they wait for others who may have a later one than the storage")
		return true
	}
	switch {
	case !m.bringsFor(m.broken):
		m.restoring = m.restoringOf(known)
		m.note(notedBroken, "those who are left of round %d hold no whole snapshot: what is missing of step %d is brought from the storage",
			m.world.record.Round, known[0].Snapshot.Step)
	case m.restoring.later:
		m.needLater(known)
	}
	r := m.restoring
	r.over = false // or who had brought some of it is gone
	if r.vainly == "" {
		m.askForRestore(now, p)
	}
	switch {
	case r.vainly != "" && m.mayHaveMore(0):
		m.regroup("the storage gives those that are left of round %d no snapshot: they wait for others who may hold one")
	case r.vainly != "":
		m.fail("no snapshot is left to go on from in the memory of its workers, and " + r.vainly)
	case !r.over:
		m.waitForStorage(now)
	}
	return true
}

// bringsFor says whether what is being brought, or was, is for the world that follows on a broken one.
func (m *Machine) bringsFor(broken *recovery) bool {
	return m.restoring != nil && broken != nil && m.restoring.of == broken
}

// checkpoints are those of the history of the world that the storage has, as far as anybody knows, newest first. Of another job's these are
// such as somebody has found there: there may be others by now.
func (m *Machine) checkpoints() []Durable {
	s := m.gang.Storage
	if s == nil || m.gang.Strategy == Restart {
		return nil
	}
	all := []Durable{m.durable, {Snapshot: Snapshot{Round: s.KnownRound, Step: s.Known}}}
	for _, uid := range sortedKeys(m.members) { // a leader that came later has not heard it when it was news
		said := &m.members[uid].report
		all = append(all, said.Durable)
		if said.Restored.Found {
			all = append(all, said.Restored.Durable)
		}
	}
	if m.bringsFor(m.broken) { // of another job's nobody may say any more that it is there: who had found it looks again, or has gone
		all = append(all, m.restoring.aim)
	}
	all = slices.DeleteFunc(all, func(d Durable) bool {
		there := d.Snapshot.Round > 0 || d.Path != "" && s.From != ""
		return !there || !m.isOfHistory(d.Snapshot)
	})
	slices.SortStableFunc(all, func(a, b Durable) int { return newest(a.Snapshot, b.Snapshot) })
	return all
}

// newest has the later of two snapshots first.
func newest(a, b Snapshot) int {
	return -cmp.Or(cmp.Compare(a.Round, b.Round), cmp.Compare(a.Step, b.Step))
}

// restoringOf begins to bring the newest of these: where it cannot be used, an older one. Those of the job itself are in one place.
func (m *Machine) restoringOf(known []Durable) *restoring {
	var paths []string
	for _, d := range known {
		path := d.Path
		if d.Snapshot.Round > 0 {
			path = ""
		}
		if !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	r := m.newRestoring(paths...)
	r.of, r.aim = m.broken, known[0]
	return r
}

// bringNewer begins anew where a newer checkpoint has become durable than the one that is being brought, as long as no world begins with that.
func (m *Machine) bringNewer() {
	if !m.bringsFor(m.broken) || m.restoring.later && (m.broken.gaveUp || m.hasLater()) ||
		m.writing != nil && m.writing.plan != nil && m.writing.plan.broken == m.broken {
		return
	}
	was, known := m.restoring, m.checkpoints()
	if len(known) == 0 || newest(known[0].Snapshot, was.aim.Snapshot) >= 0 {
		return
	}
	m.bringAnew(known)
	m.restoring.later, m.restoring.than = was.later, was.than
	m.broken.laterFor, m.broken.laterAt = 0, time.Time{}
	m.note(notedBroken, "what is missing of step %d, which has become durable, is brought instead of that of step %d",
		known[0].Snapshot.Step, was.aim.Snapshot.Step)
}

// bringAnew begins anew, and knows which checkpoints cannot be used.
func (m *Machine) bringAnew(known []Durable) {
	was := m.restoring
	m.restoring = m.restoringOf(known)
	m.restoring.without, m.restoring.refused = was.without, was.refused
	m.out.Tell = append(m.out.Tell, was.bringing()...)
}

// needLater has what was brought as it is later than what members had be brought as they have nothing any more. What had gone wrong was no
// reason to try for longer, and is one now.
func (m *Machine) needLater(known []Durable) {
	if r := m.restoring; r.vainly != "" || len(r.failed) > 0 {
		m.bringAnew(known)
	}
	m.restoring.later, m.restoring.muteSince, m.restoring.busySince = false, time.Time{}, time.Time{}
}

// isOfHistory says whether the state after a step is one of the history of the world: none of steps that were thrown away since. What an
// earlier world has thrown away, and was made again, counts as well, as nobody has kept where each has begun; its state is as good.
func (m *Machine) isOfHistory(s Snapshot) bool {
	of := &m.world.record
	unknown := m.world.adopted && of.Round != m.base.Round && of.FromStep == 0 // a parent, of which an older record does not tell
	if s.Round == of.Round || unknown && s.Round < of.Round {
		return s.Step <= m.mostMade()
	}
	return s.Round < of.Round && s.Step <= of.FromStep
}

// hidesKnown says whether the job has gone back before a checkpoint, and not before the newest that is known. An agent tells of the last that it
// has made for as long as it runs, also where that was damaged.
func (m *Machine) hidesKnown(d *Durable) bool {
	return m.world != nil && d.Snapshot.Round < m.world.record.Round && !m.isOfHistory(d.Snapshot) &&
		m.durable.Path != "" && m.isOfHistory(m.durable.Snapshot)
}

// mayHaveMore says whether a state after a later step could be had if all came back who may, or is about to be durable. That the
// controller has given somebody up does not mean that it has ended, and of whom nothing was heard nobody knows.
func (m *Machine) mayHaveMore(than uint64) bool {
	var all []*member
	for _, mem := range m.members {
		switch {
		case mem.want.Ended || mem.want.Gone:
		case !mem.joined && m.world.ranks.rank(mem.want.UID) >= 0:
			return true
		case m.hasHistory(mem):
			if m.livesApart(mem, than) {
				return true
			}
			all = append(all, mem)
		}
	}
	return m.finishesOne(than) || slices.ContainsFunc(m.statesOf(all), func(s state) bool { return s.Step > than })
}

// livesApart says whether a member that is not in touch, or not reached, has a state live after a later step: it can save that once it is back.
func (m *Machine) livesApart(mem *member, than uint64) bool {
	return (!mem.connected || mem.isAside()) && mem.report.any(func(p *Process) bool {
		return p.CleanStep > than && p.CleanStep <= m.mostMade() && m.cleanAt(mem, p, p.CleanStep)
	})
}

// finishesOne says whether somebody is writing the manifest of a later checkpoint, of which all else is in the storage.
func (m *Machine) finishesOne(than uint64) bool {
	u := m.uploading
	if u == nil || u.by == "" || u.puts == nil || u.snapshot.Step <= than || !newerSnapshot(u.snapshot, m.durable) {
		return false
	}
	mem := m.members[u.by]
	return m.isOfHistory(u.snapshot) && m.isThere(mem) && mem.report.UploadError == ""
}

// waitsForMore says whether those who may have a later state are waited for: once in a recovery, for half of the time that the controller
// lets the job regroup, so that the other half is left to go on without them.
func (m *Machine) waitsForMore(now time.Time, than uint64) bool {
	if !m.mayHaveMore(than) {
		return false
	}
	r := m.broken
	if r.moreSince.IsZero() {
		r.moreSince = now
	}
	return m.gang.RegroupTimeout == 0 || now.Before(r.moreSince.Add(m.gang.RegroupTimeout/2))
}

// waitsWithBrought says the same of a snapshot that was brought, which may be an older one than was known of.
func (m *Machine) waitsWithBrought(now time.Time, s Snapshot) bool {
	r := m.restoring
	found := m.bringsFor(m.broken) && r.found != nil && sameState(s, *r.found)
	return found && !r.later && m.waitsForMore(now, s.Step)
}

// waitForStorage has the job regroup as long as nobody who brings something has had an answer for a while: the controller says for how
// long it waits.
func (m *Machine) waitForStorage(now time.Time) {
	if !m.isUnanswered(now) {
		m.broken.regrouping = false
		return
	}
	m.regroup("nobody who is left of round %d has had an answer from the storage")
}

// isUnanswered says whether nobody who brings something has had an answer from the storage for a while.
func (m *Machine) isUnanswered(now time.Time) bool {
	r, busy := m.restoring, m.isBringing(true)
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
	return !r.muteSince.IsZero() && !now.Before(r.muteSince.Add(stuckTime))
}

// isBringing says whether somebody is there who brings something; or somebody who says of nothing that it goes wrong. Who gave way may say so,
// as it has nothing to do: where members have a state as well that is not waited for.
func (m *Machine) isBringing(well bool) bool {
	uids := m.restoring.bringing()
	if m.restoring.later {
		uids = m.restoring.asked()
	}
	return slices.ContainsFunc(uids, func(uid string) bool {
		mem := m.members[uid]
		return mem != nil && mem.usable() && (!well || mem.report.UploadError == "")
	})
}

// broughtFor are the parts that a member has brought for the world after the broken one, or the whole file: agents do not list them before a
// world begins with them.
func (m *Machine) broughtFor(mem *member) []Snapshot {
	r := m.restoring
	switch {
	case !m.bringsFor(m.broken) || r.found == nil:
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

// isLeftOut says whether a member is in no world as long as something is brought for the one that follows on a broken one, as it knows no
// parts. Of what is later than what members have it must be known that it is in parts, and it must be of use.
func (m *Machine) isLeftOut(mem *member) bool {
	if mem.parts || !m.bringsFor(m.broken) {
		return false
	}
	r := m.restoring
	if r.later && (m.broken.gaveUp || r.vainly != "" || r.parts == nil || r.found.Step <= r.than) {
		return false
	}
	return m.canBeLeftOut(mem)
}

// canBeLeftOut says whether a member that knows no parts came to a world whose members do, as far as they were heard. Where none was nobody
// is left out.
func (m *Machine) canBeLeftOut(mem *member) bool {
	if m.world.ranks.rank(mem.want.UID) >= 0 {
		return false
	}
	know := false
	for _, uid := range m.world.ranks.uids {
		switch of := m.members[uid]; {
		case of == nil || !of.joined:
		case !of.parts:
			return false
		default:
			know = true
		}
	}
	return know
}

// isUnfit says whether nobody goes on from a checkpoint that a member has found, and has another one looked for, or says that there is none.
func (m *Machine) isUnfit(by *member) bool {
	found := &by.report.Restored
	switch {
	case m.restoring.of == nil:
	case !m.isOfHistory(found.Snapshot):
		m.lookFurther(found.Path, "checkpoint "+found.Path+" has steps that were thrown away since")
		return true
	case len(by.report.RestoredParts) > 0 && m.anyOlder(m.canBeLeftOut):
		m.failRestore("checkpoint %s is in parts, which the agent of a worker does not know", found.Path)
		return true
	}
	return false
}

// failRestore says that what the attempt is to begin with cannot be had, which ends it; what it is to go on from somebody may yet hold.
func (m *Machine) failRestore(format string, args ...any) {
	why := fmt.Sprintf(format, args...)
	if m.restoring.of == nil {
		m.fail(why)
	} else if m.restoring.vainly == "" {
		m.restoring.vainly, m.look = why, true
	}
}
