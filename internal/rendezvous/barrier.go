package rendezvous

import (
	"fmt"
	"slices"
	"time"
)

const (
	// firstAgain and lastAgain bound the wait after a planned change that came to nothing; it doubles
	// from one to the next.
	firstAgain = 30 * time.Second
	lastAgain  = 5 * time.Minute
	// leaveMargin is how long before a worker is killed it should have been let go.
	leaveMargin = 5 * time.Second
	// errorGrace is for how many beats an agent may go on to report an error from before it was asked.
	errorGrace = 2
)

// change is a planned change of the world that is under way.
//
// All processes stop at the barrier after step N, the furthest that any of them is known to have begun.
// Should one that was given the barrier stop later, the next attempt has that N; it then holds the others
// within a step. A process stops later than it was told once at most, when it was given its first barrier, so
// attempts end; an agent that reports otherwise ends the change. When all stand at N, a snapshot is taken if anybody needs it, and the next
// world goes on from there.
type change struct {
	began         time.Time
	why           string
	attempt, step uint64
	// reason is why it was begun, to how many workers the next world was to have then.
	reason Reason
	to     int32
	// attempts is how many this change has made.
	attempts int32
	// arrived is true once everybody was seen at the barrier, at arrivedAt.
	arrived   bool
	arrivedAt time.Time
	// saver is who was asked for a snapshot, at askedAt; said is the error that it had reported before.
	saver   string
	said    string
	askedAt time.Time
	// together are those who were asked for a snapshot before anybody alone is, alone is true when nothing came of that.
	together *group
	alone    bool
	// unsaved says why no snapshot could be taken: the change goes on without newcomers.
	unsaved string
	// askedFor is since when a record is being written of which nobody has said whether it was; zero for
	// none.
	askedFor time.Time
}

// begin stops the world at a barrier.
func (m *Machine) begin(now time.Time, w *wish) {
	m.change, m.world.calledOff = &change{began: now, why: w.why, reason: w.reason, to: int32(len(w.members))}, ""
	m.note(notedResizing, "round %d is to be changed to %d workers: %s", m.world.record.Round, len(w.members), w.why)
	m.raiseBarrier(m.stand())
}

// raiseBarrier makes another attempt.
func (m *Machine) raiseBarrier(s standing) {
	m.world.barriers = max(m.world.barriers, s.attempt) + 1
	m.change.attempt, m.change.step = m.world.barriers, s.top
	m.change.attempts++
	m.change.arrived, m.change.saver, m.change.together, m.change.alone = false, "", nil, false
	m.out.Publish = true
}

// reach is the step up to which a process moves the barrier.
//
// Before the first attempt that is every step that it is known to have begun. After it only those that
// were given a barrier count, with where it stops them: that covers each step begun before, and none
// follows. One that was not given any goes on until it is, held by those that stand; should the barrier
// go after it, they would let it begin another step each time.
func (c *change) reach(p *Process) uint64 {
	switch {
	case c == nil || c.attempt == 0:
		return max(p.Entered, p.Stop, p.Done)
	case p.Barrier == 0:
		return 0
	default:
		return max(p.Stop, p.Done)
	}
}

// standing is how far the processes of the world are.
type standing struct {
	// top is the furthest step that the barrier has to let them make, attempt the highest barrier that was
	// given.
	top, attempt uint64
	// last is the last step of the training, 0 while unknown; finished is true when a process is done
	// with it.
	last     uint64
	finished bool
	// parked is true when all stand at the barrier of the change, under this leader's term: an older leader
	// that still has a member's ear could let it go on.
	parked bool
}

// stand looks at the members of the world that are not lost.
func (m *Machine) stand() standing {
	s := standing{parked: m.change != nil && m.change.attempt > 0}
	left := 0
	for _, uid := range m.world.ranks.uids {
		mem := m.members[uid]
		if mem == nil || m.isLost(mem) {
			continue
		}
		left++
		if !mem.in(&m.world.record) || len(mem.report.Processes) == 0 {
			s.parked = false
			continue
		}
		s.parked = s.parked && mem.report.Term == m.term
		for i := range mem.report.Processes {
			p := &mem.report.Processes[i]
			s.top = max(s.top, m.change.reach(p))
			s.attempt = max(s.attempt, p.Barrier)
			s.last = max(s.last, p.LastStep)
			s.finished = s.finished || p.Waiting == waitingFinished || p.Exited
			if c := m.change; c != nil {
				s.parked = s.parked && p.Waiting == waitingParked && p.Done == c.step && p.Stop == c.step && p.Barrier == c.attempt
			}
		}
	}
	s.parked = s.parked && left > 0
	return s
}

// parked says whether all that are left stand at the barrier, with their state.
func (m *Machine) parked() bool { return m.change != nil && m.stand().parked }

// advance takes a planned change further, and returns the next world when it is time for it.
func (m *Machine) advance(now time.Time) *plan {
	c := m.change
	w := m.wish()
	if w == nil {
		m.lift("nobody wants the change any more")
		return nil
	}
	s := m.stand()
	switch {
	case s.finished || s.last > 0 && c.step >= s.last:
		m.lift("the training ends first")
		return nil
	case m.unclear(now):
		m.unwritten = true
		m.callOff(now, fmt.Sprintf("nobody has said for %s whether the job's record was written", unclearTime))
		return nil
	case now.Sub(m.oldestHold(now)) >= holdTime/2:
		m.giveUp(now, w, "not all workers are in touch, and those that are not may go on by themselves")
		return nil
	case s.parked:
	case !now.Before(m.lateAt(w)):
		m.giveUp(now, w, "not all processes came to the barrier in time")
		return nil
	case s.top > c.step && c.attempts > m.mostAttempts():
		m.giveUp(now, w, fmt.Sprintf("the barrier was moved %d times, more often than its processes can make it move", c.attempts))
		return nil
	case s.top > c.step:
		m.raiseBarrier(s)
		m.note(notedResizing, "a process stops after step %d: barrier %d of round %d stands there", s.top, c.attempt, m.world.record.Round)
		return nil
	default:
		return nil
	}
	if !c.arrived {
		c.arrived, c.arrivedAt = true, now
		m.note(notedParked, "all processes of round %d stand after step %d", m.world.record.Round, c.step)
	}
	return m.changed(now, w)
}

// mostAttempts is how often the barrier can move: each process stops later than it was told once at most, when it was
// given its first barrier. One that looks at the gate only every few steps stops once more where it looks next.
func (m *Machine) mostAttempts() int32 {
	if m.gang.Strategy == Restart {
		return 2 * m.world.record.Processes
	}
	return m.world.record.Processes
}

// changed returns the world that follows on a barrier, once its snapshot is there.
func (m *Machine) changed(now time.Time, w *wish) *plan {
	c := m.change
	if m.gang.Strategy == Restart {
		if m.tried = m.writing == nil && !m.canWrite(now, w); m.canWrite(now, w) {
			m.leaveAt(now, c.step, w.reason, w.why)
		}
		return nil // it may have taken long to come here: until a record is written they can go on
	}
	if m.parks() {
		m.park(now, w)
		return nil
	}
	if c.unsaved != "" {
		if w = m.wishOf(nil); w == nil || w.retreat {
			m.callOff(now, "no snapshot could be taken")
			return nil
		}
	}
	p := &plan{
		members: w.members, reason: w.reason, why: w.why, fromStep: c.step, live: w.stay, change: c,
	}
	handover := w.newcomers > 0 && !w.retreat && m.handsOver(w.members, w.stay, c.step)
	if c.unsaved != "" || !m.sharded() && (w.newcomers == 0 || handover) && !w.retreat && !m.onlyOthersHold(w.stay) {
		p.handover = handover
		return p
	}
	m.doubtClaims()
	taken, ok := m.snapshotAfter(c.step)
	if !ok {
		m.save(now, w)
		return nil
	}
	if w.retreat || len(w.stay) == 0 {
		if m.outlives(now, w, taken) {
			return nil
		}
		// Nobody carries the world on: before another begins one of its members must have left it.
		m.breakWorld(now, &recovery{planned: true, reason: w.reason, why: w.why})
		return nil
	}
	p.snapshot = &taken
	return p
}

// saves says whether somebody was asked for a snapshot.
func (c *change) saves() bool { return c.saver != "" || c.together != nil }

// saveTogether has those who stay take the snapshot of the barrier together; false where one has to do it alone.
func (m *Machine) saveTogether(now time.Time, w *wish) bool {
	c := m.change
	if c.alone || c.saver != "" {
		return false
	}
	if c.together == nil {
		stay := slices.DeleteFunc(slices.Clone(m.world.ranks.uids), func(uid string) bool { return !w.stay[uid] })
		if c.together, c.askedAt = m.allRanks(now, m.lateAt(w)), now; c.together == nil {
			c.together = m.group(now, m.lateAt(w), m.thoseWhoUpload(stay))
		}
		c.alone, m.out.Publish = c.together == nil, true
	} else if why := m.failing(now, c.together); why != "" {
		if m.sharded() {
			m.unsaved(now, w, "no snapshot could be taken of all shards: "+brief(why))
			return true
		}
		m.note(notedResizing, "the snapshot of step %d is not written in shares: %s", c.step, brief(why))
		c.together, c.alone, m.out.Publish = nil, true, true
	}
	return !c.alone
}

// save has workers take the snapshot of the barrier.
func (m *Machine) save(now time.Time, w *wish) {
	c := m.change
	if m.saveTogether(now, w) {
		return
	}
	if mem := m.members[c.saver]; mem == nil || m.isLost(mem) {
		c.saver = ""
	}
	if c.saver == "" {
		for _, uid := range m.world.ranks.uids {
			if mem := m.members[uid]; mem != nil && !m.isLost(mem) && (c.saver == "" || m.savesBetter(uid, c.saver, w)) {
				c.saver = uid
			}
		}
		if c.saver == "" {
			return
		}
		c.said, c.askedAt = m.members[c.saver].report.SnapshotError, now
		m.out.Publish = true
		return
	}
	said := m.members[c.saver].report.SnapshotError
	switch {
	case said != "" && (said != c.said || now.Sub(c.askedAt) >= errorGrace*m.beat()):
		m.failedSaves[c.saver] = now
		m.unsaved(now, w, "no snapshot could be taken: "+said)
	case !now.Before(m.lateAt(w)):
		m.failedSaves[c.saver] = now
		m.unsaved(now, w, "the snapshot was not taken in time")
	}
}

// savesBetter says whether a member should rather take the snapshot of a barrier than another one: who stays, then who has not
// failed to take one, or failed the longest ago, and then whose uploads do not fail, since nobody else holds it.
func (m *Machine) savesBetter(uid, than string, w *wish) bool {
	if w.stay[uid] != w.stay[than] {
		return w.stay[uid]
	}
	if failed := m.failedSaves[uid].Compare(m.failedSaves[than]); failed != 0 {
		return failed < 0
	}
	return m.failedUploads[uid].at.Before(m.failedUploads[than].at)
}

// unsaved goes on after a snapshot that failed: a leave without newcomers, and growth not at all.
func (m *Machine) unsaved(now time.Time, w *wish, why string) {
	if w.leave && !m.parks() && !m.sharded() {
		m.change.unsaved = why
		m.note(notedResizing, "%s", why)
		if next := m.wishOf(nil); next != nil && !next.retreat {
			m.change.why = next.why
			return
		}
	}
	m.giveUp(now, w, why)
}

// lateAt is when a change has taken too long. Until the steps are done that were under way when it began nobody stands, so
// they do not count.
func (m *Machine) lateAt(w *wish) time.Time {
	late := m.change.began.Add(m.gang.BarrierTimeout + stepsWithout*m.stepTime())
	if stands := m.change.arrivedAt.Add(m.gang.BarrierTimeout); m.change.arrived && stands.Before(late) {
		late = stands
	}
	if by := w.by.Add(-leaveMargin); !w.by.IsZero() && by.Before(late) {
		return by
	}
	return late
}

// giveUp lets the world train on, or leaves it at once when a member that leaves cannot wait for another
// try.
func (m *Machine) giveUp(now time.Time, w *wish, why string) {
	if w.leave && !w.by.IsZero() && !w.by.Add(-leaveMargin).After(now.Add(m.backOff())) {
		m.note(notedLifted, "the change of round %d cannot wait: %s", m.world.record.Round, why)
		m.breakWorld(now, &recovery{planned: true, stop: m.gang.Strategy == Restart, reason: w.reason, why: w.why + "; " + why})
		return
	}
	m.callOff(now, why)
}

// lift takes the barrier away.
func (m *Machine) lift(why string) {
	m.note(notedLifted, "the change of round %d is called off: %s", m.world.record.Round, why)
	m.change, m.out.Publish = nil, true
}

func (m *Machine) backOff() time.Duration { return min(firstAgain<<min(m.tries, 8), lastAgain) }

// callOff lets the world train on after a change that failed. It is tried again later.
func (m *Machine) callOff(now time.Time, why string) {
	m.world.calledOff = fmt.Sprintf("the change of round %d (%s) was called off: %s; it is tried again in %s",
		m.world.record.Round, m.change.why, why, m.backOff())
	m.lift(why)
	m.nextTry = now.Add(m.backOff())
	m.tries++
}
