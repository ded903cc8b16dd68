package rendezvous

import (
	"maps"
	"slices"
	"time"
)

// A recovery goes on from live state where it can. A process that leaves its world says whether its state is
// exactly that after the steps it has made. The next world then begins after F, the highest such step: who has
// made it could only do so because every rank has given its part, so it counts, however many others were
// still in it. Members that have F in all of their processes keep their state. When others need it, one that
// has it takes a snapshot, as after a barrier; the state moves as a whole file.

// live is a state that processes of a broken world still have.
type live struct {
	step uint64
	// keep are the members of the next world that go on with it.
	keep map[string]bool
	// savers can give it to others: those that go on, and then those that leave, in the order of their ranks.
	savers []string
}

// cleanAt says whether a process that has left its world has just the state after a step. That may be before the one that the
// world begins with, when the world was over before the process was in it: it still has what it has left the one before with.
func (p *Process) cleanAt(step, fromStep uint64) bool {
	return p.Clean && !p.Exited && p.CleanStep == step && (p.Done == step || p.Done == fromStep && step < fromStep)
}

// cleanAt says whether a process of a member has left the world with just the state after a step. What it has from before that counts where it
// is of the history of the world: older states may have been gone back from, and two members have different ones of one step. Nothing is no
// state, but where the world begins with it: newcomers that wait for one have it as well.
func (m *Machine) cleanAt(mem *member, p *Process, step uint64) bool {
	r := &m.world.record
	return p.cleanAt(step, r.FromStep) && (step >= r.FromStep || step > 0 && r.goesOnFrom(mem.report.Before, step))
}

// goesOnFrom says whether a world goes on from what another one had after a step, as far as its record says: the world before it, whose
// members were told of it with the last of their steps that counts, or the one before that, which may have gone further than counts.
func (r *Record) goesOnFrom(round, step uint64) bool {
	return round > 0 && step <= r.FromStep && (round == r.Parent || round == r.Grandparent && step <= r.ParentFromStep)
}

// keeps says whether all processes of a member of the world have left it with the state after a step.
func (m *Machine) keeps(mem *member, step uint64) bool {
	return m.hasLive(mem) && len(mem.report.Processes) == int(m.gang.ProcessesPerWorker) &&
		!mem.report.any(func(p *Process) bool { return !m.cleanAt(mem, p, step) })
}

// hasLive says whether the processes of a member may have live state of the world. One that was taken for lost, and is
// back, has left the world like the others: its state is as good as theirs.
func (m *Machine) hasLive(mem *member) bool {
	return mem != nil && !mem.isAside() && (!m.isLost(mem) || m.isBack(mem)) && m.isOut(mem) && len(mem.report.Processes) > 0
}

// isBack says whether a member that the world has lost could go on, and its program was not at fault. That its collective
// broke is no fault of its.
func (m *Machine) isBack(mem *member) bool {
	fault := mem.fault()
	return m.isStandby(mem.want.UID, mem) && (fault == "" || CommunicationError(fault)) &&
		!slices.ContainsFunc(m.lossesNow(), func(l Loss) bool { return l.UID == mem.want.UID && l.Program })
}

// lives are the states that members of the broken world have, newest first. Whoever is not to go on counts too:
// it can hand its state over.
func (m *Machine) lives(members []Member) []live {
	among := make(map[string]bool, len(members))
	for i := range members {
		among[members[i].UID] = true
	}
	byStep := map[uint64]*live{}
	var leavers []string
	made := m.mostMade()
	note := func(uid string) {
		mem := m.members[uid]
		for i := range mem.report.Processes {
			step := mem.report.Processes[i].CleanStep
			if !m.cleanAt(mem, &mem.report.Processes[i], step) || step > made {
				continue
			}
			l := byStep[step]
			if l == nil {
				l = &live{step: step, keep: map[string]bool{}}
				byStep[step] = l
			}
			if n := len(l.savers); n == 0 || l.savers[n-1] != uid { // of a member with several processes
				l.savers = append(l.savers, uid)
			}
			if among[uid] && m.keeps(mem, step) {
				l.keep[uid] = true
			}
		}
	}
	for _, uid := range m.world.ranks.uids {
		switch {
		case !m.hasLive(m.members[uid]):
		case among[uid]:
			note(uid)
		default:
			leavers = append(leavers, uid)
		}
	}
	for _, uid := range leavers {
		note(uid)
	}
	all := make([]live, 0, len(byStep))
	for _, step := range slices.Backward(slices.Sorted(maps.Keys(byStep))) {
		all = append(all, *byStep[step])
	}
	return all
}

// goOnLive plans the next world from live state. It returns false when there is none that serves, and a
// snapshot has to; and no plan while the state is not known yet, or is being saved for those that do not have
// it.
func (m *Machine) goOnLive(now time.Time, p *plan) (*plan, bool) {
	if !m.haveLeft(now) {
		return nil, true
	}
	lives := m.lives(p.members)
	newest, held := m.newestSnapshot()
	held = held && !m.onlyLostHold(newest) // they may end before anybody has it
	if m.sharded() {
		return nil, len(lives) > 0 && (!held || newest.Step < lives[0].step) && m.awaitsShards(now, lives[0].step)
	}
	for i := range lives {
		l := &lives[i]
		p.fromStep, p.live = l.step, l.keep
		switch {
		case held && newest.Step > l.step:
			return nil, false
		case len(l.keep) == len(p.members):
			return p, true
		case m.handsOver(p.members, l.keep, l.step):
			p.handover = true
			return p, true
		case held && newest.Step == l.step:
			if !m.isMixable(newest) {
				return nil, false
			}
			p.snapshot = &newest
			return p, true
		case l.step > 0 && m.saveLive(now, l): // newcomers have the state before the first step
			return nil, true
		}
	}
	// Of a newer one only some processes of a worker may be clean, as when others of it have got nothing yet of what was handed over.
	whole := slices.IndexFunc(lives, func(l live) bool { return len(l.keep) > 0 })
	if whole < 0 || lives[whole].step == 0 {
		return nil, false
	}
	return m.goOnAlone(p, &lives[whole], held)
}

// onlyLostHold says whether a snapshot cannot be had without members that were lost.
func (m *Machine) onlyLostHold(s Snapshot) bool {
	left, _ := m.keepers()
	return !slices.ContainsFunc(m.statesOf(left), func(at state) bool { return at.Snapshot == s })
}

// haveLeft says whether all processes of those that are left have left the broken world, and not just one of
// each: what those that follow have is not known yet. Agents see to it that they do; one that is only starting
// is not waited for long.
func (m *Machine) haveLeft(now time.Time) bool {
	if now.Sub(m.broken.began) >= outTimeout {
		return true
	}
	for _, uid := range m.world.ranks.uids {
		mem := m.members[uid]
		if mem == nil || m.isLost(mem) {
			continue
		}
		if mem.report.any(func(p *Process) bool { return !p.Exited && !p.Waiting.left() }) {
			return false
		}
	}
	return true
}

// goOnAlone plans a world of those that have the live state, when it cannot be given to anybody else. With a
// snapshot that is only done when the others would be newcomers: members of the old world are worth going
// back for.
func (m *Machine) goOnAlone(p *plan, l *live, held bool) (*plan, bool) {
	var alone []Member
	for i := range p.members {
		switch uid := p.members[i].UID; {
		case l.keep[uid]:
			alone = append(alone, p.members[i])
		case held && m.world.ranks.rank(uid) >= 0:
			return nil, false
		}
	}
	p.fromStep, p.live = l.step, l.keep
	size := m.legalSize(int32(len(alone)))
	if size < max(m.gang.Minimum, 1) {
		return nil, false
	}
	p.members = choose(m.world.ranks.ranks, alone, nil, size)
	return p, true
}

// saversAtMost is how many members may be asked in turn for as long as one may take: when the volumes of all hang, the
// world goes on from a snapshot.
const saversAtMost = 2

// saveLive has a member that has the live state take a snapshot of it. It returns false when all that could
// have failed to.
func (m *Machine) saveLive(now time.Time, l *live) bool {
	r := m.broken
	if m.saveLiveTogether(now, l) {
		return true
	}
	if r.saver != "" && r.saveStep == l.step && slices.Contains(l.savers, r.saver) {
		why := m.members[r.saver].report.SnapshotError
		late := now.Sub(r.askedAt) >= m.gang.BarrierTimeout
		if (why == "" || why == r.said && now.Sub(r.askedAt) < errorGrace*m.beat()) && !late {
			return true
		}
		if why == "" {
			why = "it was not taken in time"
		}
		m.note(notedBroken, "round %d: %s could not save the state after step %d: %s",
			m.world.record.Round, m.members[r.saver].want.Name, l.step, brief(why))
		r.failed[r.saver] = true
	}
	if m.writing != nil {
		return true // another plan is being made durable, and may stand
	}
	next := slices.IndexFunc(l.savers, func(uid string) bool { return !r.failed[uid] })
	if next >= 0 && (r.saver == "" || r.saveStep != l.step) {
		r.savesSince = now
	}
	if next >= 0 && now.Sub(r.savesSince) >= saversAtMost*m.gang.BarrierTimeout {
		for _, uid := range l.savers {
			r.failed[uid] = true
		}
		next = -1
	}
	if next < 0 {
		if r.saveStep == l.step && r.saver != "" {
			r.saver, m.out.Publish = "", true
		}
		return false
	}
	r.saver, r.saveStep, r.askedAt = l.savers[next], l.step, now
	r.said = m.members[r.saver].report.SnapshotError
	m.out.Publish = true
	return true
}

// saveLiveTogether has the members that go on with the live state take the snapshot together; false where one has to do it
// alone.
func (m *Machine) saveLiveTogether(now time.Time, l *live) bool {
	r := m.broken
	if r.alone == l.step || r.saver != "" && r.saveStep == l.step || m.writing != nil {
		return false
	}
	if r.together == nil || r.saveStep != l.step {
		able := slices.DeleteFunc(slices.Clone(l.savers), func(uid string) bool { return !l.keep[uid] || r.failed[uid] })
		g := m.group(now, now.Add(m.gang.BarrierTimeout), able)
		if g == nil {
			r.together, r.alone = nil, l.step
			return false
		}
		r.together, r.saver, r.saveStep, m.out.Publish = g, "", l.step, true
	} else if why := m.failing(now, r.together); why != "" {
		m.note(notedBroken, "the state after step %d is not saved in shares: %s", l.step, brief(why))
		r.together, r.alone, r.saveStep, m.out.Publish = nil, l.step, 0, true
		return false
	}
	return true
}

// savesFor is the step after which a member of the broken world is to save its state; 0 for none.
func (r *recovery) savesFor(uid string) uint64 {
	if r.saver != uid && !r.together.has(uid) {
		return 0
	}
	return r.saveStep
}
