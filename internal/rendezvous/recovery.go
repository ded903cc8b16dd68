package rendezvous

import (
	"fmt"
	"time"
)

// outTimeout is how long after abort others wait for a worker to leave its world. Agents kill programs that have not
// answered after 5 s, or later when they may be compiling, or evaluate or save.
const outTimeout = 10 * time.Second

// recovery is what is done about a world that cannot go on. Everybody leaves it; those that are left, and
// the standbys that are there, go on from the newest state that any of them has (live.go), or from the newest
// snapshot.
type recovery struct {
	began time.Time
	why   string
	// reason is why, unless losses say more.
	reason Reason
	// planned is true when the world was given up for a planned change: faults mean nothing then. stop
	// says that programs are to be asked for a checkpoint first.
	planned, stop bool
	// unknown is true when somebody has left the world and nobody says why: an older leader had everybody leave, or an agent could
	// not have the snapshot that the world begins with. wished is true once that is taken for the leave of somebody who was to leave.
	unknown, wished bool
	// leave is the step after which programs that are started anew save and leave; 0 for none. saved are those who
	// have said that they did.
	leave uint64
	saved map[string]bool
	// sought is true once it is known whom the others could not reach, awaits when nobody else has a state, or a snapshot, to go on from.
	sought, awaits bool
	// asides is how many times it was said why somebody was set aside.
	asides int
	// hung is true when no step was made, retry when all go on as if nothing had been.
	hung, retry bool
	// judged is true once it is known whose fault it was; raised are those whose it was.
	judged   bool
	raised   map[string]bool
	raisedAt time.Time
	// alike is why the attempt fails once all of them are lost, if nothing but their programs was the cause.
	alike string
	// regrouping is true while too few are left; moreSince is since when those are waited for who may have a later state than the storage.
	regrouping bool
	moreSince  time.Time
	// laterFor is for how long members were asked by laterAt for a later state of the storage than they have, manifestSince since when its manifest
	// is waited for, gaveUp is true once it is waited for no more, and gaveUpOn is the newest of which was known then.
	laterFor               time.Duration
	laterAt, manifestSince time.Time
	gaveUp                 bool
	gaveUpOn               Snapshot
	// saver is who was asked, at askedAt, to save the live state after saveStep; said is the error that it had
	// reported before, and failed are those that could not.
	saver    string
	saveStep uint64
	said     string
	askedAt  time.Time
	// savesSince is when the first was asked to save that state.
	savesSince time.Time
	failed     map[string]bool
	// together are those who were asked to save it before anybody alone is, alone is the step for which nothing came of that.
	together *group
	alone    uint64
}

// saves says whether somebody was asked for a snapshot.
func (r *recovery) saves() bool { return r.saver != "" || r.together != nil }

// findBreak finds out whether the world can go on.
func (m *Machine) findBreak(now time.Time) {
	if m.broken != nil {
		return
	}
	if m.leaveOn(now) {
		return
	}
	lost, _ := m.lostOnes()
	faults := m.anyFault()
	switch {
	case lost == 0 && faults == 0 && !m.someoneOut():
		if why := m.endedSupply(); why != "" {
			m.breakWorld(now, &recovery{reason: ReasonRetried, why: why, judged: true}) // what fails now fails for that
			return
		}
		m.findHang(now)
	case m.gang.Strategy == InPlace && !m.isElastic():
		if foreign, _ := m.programs(); foreign {
			m.failForeign(lost)
		} // else somebody has yet to start its programs, or to tell of them
	case lost > 0 && faults == 0 && !m.someoneOut() && m.gang.Strategy == InPlace && m.parked() && !m.sharded():
		// Whoever is left stands at the barrier with its state: the change goes on without the lost.
	case lost > 0:
		m.breakWorld(now, &recovery{reason: ReasonWorkerLost, why: m.lastLoss(), planned: m.change != nil})
	case faults > 0:
		m.breakWorld(now, &recovery{reason: ReasonProgramFailed, why: m.firstFault(), planned: m.change != nil})
	default:
		m.breakWorld(now, &recovery{reason: ReasonWorkerLost, why: "a worker has left the world", unknown: true})
	}
}

// firstFault says in words which fault came first.
func (m *Machine) firstFault() string {
	if faults, _ := m.faults(); len(faults) > 0 {
		return faults[0].mem.want.Name + ": " + brief(faults[0].text)
	}
	return "a worker reports a fault"
}

// failForeign ends an attempt whose programs cannot live on in another world.
func (m *Machine) failForeign(lost int) {
	why := m.firstFault()
	if lost > 0 {
		why = m.lastLoss()
	}
	m.fail(why + ". Not every program had joined its world through the SDK, so the others cannot go on in another; " +
		"programs without it are kept going by resize.strategy Restart, if they resume from checkpoints of their own")
}

// someoneOut says whether a member has left the world without having been told to by this leader.
func (m *Machine) someoneOut() bool {
	for _, uid := range m.world.ranks.uids {
		mem := m.members[uid]
		if mem == nil || m.isLost(mem) || mem.report.Round != m.world.record.Round {
			continue
		}
		if exited, code := mem.exited(); mem.report.has(WaitingAborted) ||
			m.gang.Strategy == Restart && mem.report.Out && (!exited || code != 0) {
			return true
		}
	}
	return false
}

// breakWorld has everybody leave the world.
func (m *Machine) breakWorld(now time.Time, r *recovery) {
	r.began, r.failed = now, map[string]bool{}
	m.change, m.broken = nil, r
	m.out.Publish = true
	m.note(notedBroken, "round %d is left: %s", m.world.record.Round, r.why)
}

// recover takes a recovery further, and returns the next world when it is time for it.
func (m *Machine) recover(now time.Time) *plan {
	m.guessWhy()
	m.noteSaved()
	if !m.judge(now) || m.fatal != "" || !m.allOut(now) {
		return nil
	}
	m.findUnreached(now)
	r := m.broken
	members := m.survivors(now)
	if members == nil && m.doWithoutLater() {
		members = m.survivors(now)
	}
	if members == nil {
		m.regroup("too few workers are left of round %d: they wait for others, with their state")
		return nil
	}
	if lost, ended := m.lostOnes(); lost == len(m.world.ranks.uids) && !ended && !m.anyoneOut() {
		// Nobody has said that the world makes no further step.
		m.regroup("all workers of round %d are lost, and it is not known that one of them has ended")
		return nil
	}
	if w := m.world; !w.fenced && !m.hasBegun() && !m.isOver(&w.record, w) {
		m.regroup("round %d has made no step, and nobody says that the one before it makes none")
		return nil
	}
	p := &plan{members: members, broken: r}
	p.reason, p.why = m.blame()
	if m.gang.Strategy == Restart {
		m.afterLeave(p)
		return p
	}
	return m.rewind(now, p)
}

// guessWhy finds out why an older leader had everybody leave: when somebody has left who was to leave, it was most likely for
// that. Should somebody be lost or have failed, that explains it all the same.
func (m *Machine) guessWhy() {
	r := m.broken
	if !r.unknown || r.wished {
		return
	}
	for _, uid := range m.world.ranks.uids {
		if mem := m.members[uid]; mem != nil && mem.leaving() && m.isOut(mem) {
			r.wished, r.reason, r.why = true, mem.want.Leaving, fmt.Sprintf("%s leaves (%s)", mem.want.Name, mem.want.Leaving)
			return
		}
	}
}

// regroup waits, with whoever is left.
func (m *Machine) regroup(format string) {
	m.restartLater()
	if !m.broken.regrouping {
		m.broken.regrouping = true
		m.note(notedWaiting, format, m.world.record.Round)
	}
}

// someoneAway says whether a member that was lost, and is not known to have ended, may come back with a
// snapshot, or one that has a state is not reached.
func (m *Machine) someoneAway() bool {
	for uid, mem := range m.members {
		in := m.world.ranks.rank(uid) >= 0 // or it leaves, or its program has failed, and it is to give the others what it has
		switch {
		case mem.want.Ended || mem.want.Gone:
		case in && !mem.connected && !mem.failed():
			return true
		case (!mem.connected || mem.isAside()) && m.hasHistory(mem) && mem.report.hasState():
			return true
		}
	}
	return false
}

// rewind finds the state to go on from. It returns nil while there is none yet.
func (m *Machine) rewind(now time.Time, p *plan) *plan {
	furthest := min(m.furthest(), m.mostMade())
	m.doubtClaims()
	m.tryNewer()
	m.bringNewer()
	if !m.haveLeft(now) {
		return nil // what they have is not known yet
	}
	if m.gang.Storage != nil {
		if step, has := m.newestHeld(p); has && m.bringLater(now, p, step) {
			return nil
		}
	}
	taken, ok := m.newestSnapshot()
	next, onLive := m.goOnLive(now, p)
	if !onLive {
		p.live, p.snapshot, p.handover, p.fromStep = nil, nil, false, 0
	}
	switch {
	case onLive && next == nil:
		return nil
	case onLive:
		p = next
	case ok && m.bringLater(now, p, taken.Step): // what they have live cannot be had
		return nil
	case ok && m.waitsWithBrought(now, taken):
		m.regroup("what was brought for those that are left of round %d is older than what others may hold: they wait for them")
		return nil
	case ok:
		p.snapshot, p.fromStep = &taken, taken.Step
	case m.world.record.FromStep == 0 && furthest == 0:
		// Nothing was done yet: the state that programs start with is as good.
	case m.bringMissing(now, p):
		return nil
	case m.someoneAway():
		m.regroup("those that are left of round %d hold no snapshot: they wait for others who may")
		return nil
	default:
		m.fail(fmt.Sprintf("no snapshot is left to go on from: the world was at step %d and those who held one are gone", furthest))
		return nil
	}
	if furthest > p.fromStep {
		p.lost = furthest - p.fromStep
	}
	return p
}

// allOut says whether everybody who is not lost has left the world, and gives up those who do not come.
func (m *Machine) allOut(now time.Time) bool {
	r := m.broken
	limit := outTimeout
	if m.gang.Strategy == Restart {
		limit += m.gang.BarrierTimeout // checkpoints take their time
	}
	// Of an adopted world it must be known first who is left.
	all := m.world.whole() || m.world.missing
	for _, uid := range m.world.ranks.uids {
		mem := m.members[uid]
		if mem == nil || m.isLost(mem) {
			all = all && (mem == nil || !m.returns(now, mem))
			continue
		}
		switch {
		case r.raised[uid], !mem.joined && mem.want.Lost == "" && now.Sub(m.since) <= m.gang.HeartbeatTimeout+m.reconnectGrace:
			all = false
		case m.isOut(mem) && mem.connected:
		case m.isOut(mem) && (now.Sub(mem.hungUp) < limit || now.Sub(r.began) < limit):
			all = false
		case m.isOut(mem):
			// Nobody trains: that its peers reach it is no reason to wait for it.
			m.lose(now, uid, mem, false, fmt.Sprintf("it has left the world, and was not heard for %s", limit))
		case now.Sub(r.began) >= limit:
			m.lose(now, uid, mem, false, fmt.Sprintf("it did not leave the world within %s", limit))
		default:
			all = false
		}
	}
	return all
}

// returns says whether a member that was lost is back, and has yet to leave the world: it may have the newest state. It is
// waited for once, for a moment.
func (m *Machine) returns(now time.Time, mem *member) bool {
	return m.gang.Strategy == InPlace && mem.backIn == m.world.record.Round && now.Sub(mem.backAt) < outTimeout &&
		mem.usable() && mem.in(&m.world.record) && !m.isOut(mem)
}

func (m *Machine) isOut(mem *member) bool {
	return mem.report.Round == m.world.record.Round && mem.report.Out
}

func (m *Machine) anyoneOut() bool {
	for uid, mem := range m.members {
		if m.world.ranks.rank(uid) >= 0 && m.isOut(mem) {
			return true
		}
	}
	return false
}

// survivors are the members of the world that follows on a broken one; nil when there are too few.
func (m *Machine) survivors(now time.Time) []Member {
	count, _, _ := m.sides()
	stay := m.stayers(count)
	fresh := m.standbys()
	if size := m.nextSize(int32(len(stay) + len(fresh))); size >= max(m.gang.Minimum, 1) {
		return choose(m.world.ranks.ranks, stay, fresh, size)
	}
	if m.broken.planned {
		return nil
	}
	// Those that leave, and can take their time, help out.
	for _, uid := range m.world.ranks.uids {
		mem := m.members[uid]
		if mem == nil || m.isLost(mem) || mem.isAside() || !mem.leaving() || mem.report.Terminating {
			continue
		}
		if by := mem.want.LeaveBy; by.IsZero() || by.Sub(now) > m.gang.BarrierTimeout+leaveMargin {
			stay = append(stay, mem.want)
		}
		if size := m.nextSize(int32(len(stay) + len(fresh))); size >= max(m.gang.Minimum, 1) {
			return choose(m.world.ranks.ranks, stay, fresh, size)
		}
	}
	return nil
}

// blame says why the world is left, in one word and in more.
func (m *Machine) blame() (Reason, string) {
	r := m.broken
	losses := m.lossesNow()
	switch {
	case len(losses) == 0 && m.world.missing && !r.planned:
		return ReasonWorkerLost, r.why // what others said of it was its consequence
	case len(losses) == 0 && r.reason == ReasonWorkerLost && r.asides > 0:
		return ReasonUnreached, r.why
	case len(losses) == 0 && r.unknown && m.leftForItsState():
		return ReasonRetried, r.why + " before it had begun: it could not have the state that it begins with"
	case len(losses) == 0:
		return r.reason, r.why
	}
	why := lossText(losses)
	mem := m.members[losses[0].UID]
	switch {
	case r.planned && m.gang.Strategy == InPlace && r.reason != ReasonWorkerLost:
		return r.reason, r.why + "; " + why
	case r.hung:
		return ReasonHung, why
	case losses[0].Program:
		return ReasonProgramFailed, why
	case mem != nil && mem.leaving():
		return mem.want.Leaving, why
	}
	return ReasonWorkerLost, why
}

// leftForItsState says whether a world that somebody has left, and nobody says why, can have been left only since its state was
// not to be had: it has not begun, and no other leader has told anybody to leave it.
func (m *Machine) leftForItsState() bool {
	return m.gang.Strategy == InPlace && !m.world.adopted && !m.hasBegun()
}

// fail ends the attempt.
func (m *Machine) fail(why string) {
	if m.fatal != "" {
		return
	}
	m.fatal, m.out.Changed, m.out.Publish = why, true, true
	m.note(notedFatal, "attempt %d cannot go on: %s", m.gang.Attempt, why)
}
