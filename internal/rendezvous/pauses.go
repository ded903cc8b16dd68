package rendezvous

import "time"

// MaxPause is the longest pause that is believed: no process stands still for longer and goes on.
const MaxPause = 30 * 24 * time.Hour

// untold is the change that led to the world, until it can be told what it cost: the first step was made, and
// everybody who was in the world before as well has said how long it stood still. Each says so by its own clock,
// from the end of its last step to the beginning of its first in this world; the pause is the longest. It is not
// known when nobody was in both.
//
// A leader that has adopted the world was not told who was in the one before. It hears all of its members: those
// who have come new say that they do not know.
type untold struct {
	Change
	// awaited are those who have yet to say it; of an adopted world said are those who have.
	awaited, said map[string]bool
	// since is from when on steps of a world before can have been made, so that no pause is longer; zero when this
	// leader does not know.
	since time.Time
	// begunAt is when the first step in the world was seen.
	begunAt time.Time
}

// changeTo is the change that leads to a world, which follows on the one that there is.
func (m *Machine) changeTo(next *world, p *plan, now time.Time) *untold {
	u := &untold{Change: Change{
		Round: next.record.Round, From: next.record.From, To: next.record.Workers, Reason: p.reason, Message: p.why,
		StepsLost: p.lost, At: now,
	}, awaited: map[string]bool{}}
	switch before := m.world; {
	case before == nil:
		return u
	case m.pending != nil && !m.pending.Begun:
		u.since = m.pending.since // that one has made no step
	case !before.adopted:
		u.since = before.since
	}
	var joined []string
	for _, uid := range next.ranks.uids {
		mem := m.members[uid]
		if m.world.ranks.rank(uid) >= 0 && mem != nil && mem.elastic {
			u.awaited[uid] = true
		}
		if m.world.ranks.rank(uid) < 0 && mem != nil && p.broken != nil && p.reason.recovers() {
			joined = append(joined, mem.want.Name)
		}
	}
	if len(joined) > 0 {
		u.Joined = list(joined)
	}
	return u
}

// inherited is the change that led to a world that an earlier leader has made; nil when there was none before it,
// or nothing is known of that.
func inherited(r *Record) *untold {
	if r.From == 0 || r.Reason == "" {
		return nil
	}
	return &untold{Change: Change{
		Round: r.Round, From: r.From, To: r.Workers, Reason: r.Reason, At: r.StartedAt, Inherited: true,
	}, said: map[string]bool{}}
}

// began takes note of the first step of a world, and tells of the change that led to it when its cost is known.
func (m *Machine) began(now time.Time) {
	u := m.pending
	if u == nil || m.world == nil || m.world.record.Round != u.Round || !u.Begun && !m.hasBegun() {
		return
	}
	if !u.Begun {
		u.Begun = true
		m.tries, m.nextTry = 0, time.Time{}
		m.allReached()
		for uid, mem := range m.members {
			// Who was kept because of its snapshot may go now.
			kept := m.world.ranks.rank(uid) < 0 && mem.unwanted() && m.isHolder(mem)
			m.out.Publish, m.out.Changed = m.out.Publish || kept, m.out.Changed || kept
		}
	}
	// Programs that are started anew are in their world before they make a step.
	if u.begunAt.IsZero() && (u.Inherited || m.furthest() > m.world.record.FromStep) {
		u.begunAt = now
	}
	late := !u.begunAt.IsZero() && now.Sub(u.begunAt) >= m.gang.HeartbeatTimeout
	if u.complete(m.world) || late {
		m.pending, m.unsaid = nil, len(u.awaited)
		m.noteChange(u.Change)
	}
}

// complete is true when everybody has said how long it stood still.
func (u *untold) complete(w *world) bool {
	if u.Inherited {
		return len(u.said) >= int(w.record.Workers)
	}
	return len(u.awaited) == 0
}

// hearPause takes over how long a member says that it stood still.
func (m *Machine) hearPause(now time.Time, uid string, mem *member) {
	u, r := m.pending, &mem.report
	if u == nil || m.world == nil || r.Round != u.Round || !r.Begun || !u.Inherited && !u.awaited[uid] {
		return
	}
	if u.Inherited {
		if u.said[uid] {
			return
		}
		u.said[uid] = true
	}
	delete(u.awaited, uid)
	if most := now.Sub(u.since); !u.since.IsZero() && r.Pause > most {
		m.note(notedDoubted, "%s says that it stood still for %s before round %d, and the world before that is %s old",
			mem.want.Name, r.Pause.Round(time.Millisecond), u.Round, most.Round(time.Millisecond))
	} else {
		u.Pause = max(u.Pause, r.Pause)
	}
	m.began(now)
}

func (m *Machine) noteChange(done Change) {
	if len(m.changes) == maxChanges {
		m.changes = m.changes[1:]
	}
	m.changes = append(m.changes, done)
	m.out.Changed = true
}
