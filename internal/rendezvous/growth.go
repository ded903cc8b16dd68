package rendezvous

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// wish is what the next world should be, if all goes well.
type wish struct {
	members []Member
	// stay are those of them that are in the world now.
	stay      map[string]bool
	newcomers int
	reason    Reason
	why       string
	// leave is true when somebody leaves or was lost, by is when the first of them is killed.
	leave bool
	by    time.Time
	// retreat is true when too few would be left, and the world is given up before that: it goes on
	// from its snapshot when there are enough again.
	retreat bool
}

// consider begins a planned change when there is a reason for one.
func (m *Machine) consider(now time.Time) {
	if !m.trains() {
		return
	}
	w := m.wish()
	switch {
	case w == nil:
	case w.retreat && w.by.Sub(now) > m.gang.BarrierTimeout+leaveMargin:
		// Others may come in time.
	case now.Before(m.nextTry) && (m.unwritten || w.by.IsZero() || w.by.Sub(now) > m.gang.BarrierTimeout+leaveMargin):
		// The last try has come to nothing.
	case m.detainsAnybody() && (w.by.IsZero() || w.by.Sub(now) > m.gang.BarrierTimeout+leaveMargin):
		// The next world would let those go who have left this one, and a loss could take along what is left then.
	case !w.leave && !m.windowOver(now, len(w.members)):
	case m.gang.Strategy == Restart && !m.canWrite(now, w):
		m.tried = m.writing == nil
	case m.gang.Strategy == Restart && !m.leavesAtBarriers(),
		w.leave && !w.by.IsZero() && !w.by.Add(-leaveMargin).After(now):
		m.breakWorld(now, &recovery{planned: true, stop: m.gang.Strategy == Restart, reason: w.reason, why: w.why})
	default:
		m.begin(now, w)
	}
}

// canWrite says whether a record was written just now. Programs that are started anew cannot go on where the next one cannot be
// written down, so they are not stopped before it is known that somebody takes records: this leader raises its term to find out.
// Whoever will be killed soon does not wait for that: the world ends then in any case, and what is saved by then is not lost.
func (m *Machine) canWrite(now time.Time, w *wish) bool {
	return !m.writtenAt.IsZero() && now.Sub(m.writtenAt) < unclearTime || !w.by.IsZero() && w.by.Sub(now) <= m.gang.BarrierTimeout+leaveMargin
}

// trains says whether the world is whole and makes steps, so that a barrier can be reached.
func (m *Machine) trains() bool {
	if !m.world.formed() || !m.hasBegun() || m.gang.Strategy == InPlace && !m.isElastic() {
		return false
	}
	for _, uid := range m.world.ranks.uids {
		mem := m.members[uid]
		if mem == nil || !mem.connected || !mem.in(&m.world.record) {
			return false
		}
		for i := range mem.report.Processes {
			p := &mem.report.Processes[i]
			if p.Exited || p.Waiting != waitingNone || p.LastStep > 0 && p.Entered >= p.LastStep {
				return false
			}
		}
	}
	return true
}

// hasBegun says whether the world has made a step, as far as its programs can tell.
func (m *Machine) hasBegun() bool {
	if m.furthest() > m.world.record.FromStep {
		return true
	}
	switch {
	case m.gang.Strategy == InPlace:
		return false
	case m.stepRound == m.world.record.Round && m.step > 0:
		return true // its programs may have gone back further than the world says
	case m.leavesAtBarriers():
		return false // they say when they have made one
	}
	for _, uid := range m.world.ranks.uids {
		if mem := m.members[uid]; mem == nil || len(mem.report.Processes) == 0 {
			return false
		}
	}
	return true
}

// isElastic says whether every process of the world that was heard can live on in another one.
func (m *Machine) isElastic() bool {
	foreign, untold := m.programs()
	return !foreign && !untold
}

// programs says whether a process of the world can live on in no other one, and whether somebody has yet to tell of its processes.
func (m *Machine) programs() (foreign, untold bool) {
	for _, uid := range m.world.ranks.uids {
		mem := m.members[uid]
		if mem == nil || m.isLost(mem) || m.world.adopted && !mem.joined {
			continue
		}
		untold = untold || len(mem.report.Processes) == 0
		for i := range mem.report.Processes {
			p := &mem.report.Processes[i]
			foreign = foreign || !p.Elastic && (!p.Exited || !mem.elastic)
		}
	}
	return foreign, untold
}

// windowOver says whether growth need not wait for further newcomers. It waits from when the first was ready that is not one of the
// spares, which have been for long.
func (m *Machine) windowOver(now time.Time, size int) bool {
	if int32(size) >= m.gang.Target {
		return true
	}
	var ready []time.Time
	starting := false
	for uid, mem := range m.members {
		switch {
		case mem.leaving() || mem.want.Lost != "":
		case m.isStandby(uid, mem):
			ready = append(ready, mem.readyAt)
		case mem.want.Starting:
			starting = true
		}
	}
	if !starting || len(ready) == 0 {
		return true
	}
	slices.SortFunc(ready, time.Time.Compare)
	first := ready[min(int(max(m.gang.Spares, 0)), len(ready)-1)]
	return now.Sub(first) >= m.gang.GrowthWindow
}

// wish is the world that the controller wants next, given who is ready; nil when it should stay as it is.
func (m *Machine) wish() *wish {
	if m.parks() {
		return m.farewell()
	}
	return m.wishOf(m.standbys())
}

func (m *Machine) wishOf(fresh []Member) *wish {
	stay, leave, first := m.sides()
	size := m.nextSize(int32(stay + len(fresh)))
	if leave == 0 && (size <= m.world.record.Workers || size < m.gang.Minimum) {
		return nil
	}
	w := &wish{stay: map[string]bool{}, leave: leave > 0}
	if size < m.gang.Minimum || size < 1 {
		w.retreat, w.members = true, m.stayers(stay)
	} else {
		w.members = choose(m.world.ranks.ranks, m.stayers(stay), fresh, size)
	}
	for i := range w.members {
		if m.world.ranks.rank(w.members[i].UID) >= 0 && !m.isLost(m.members[w.members[i].UID]) {
			w.stay[w.members[i].UID] = true
		} else {
			w.newcomers++
		}
	}
	m.explain(w, first)
	if w.retreat && w.by.IsZero() && first.lostIn == 0 {
		return nil // it can take its time
	}
	return w
}

// sides counts those in the world that stay and those that go, and names the first of these. It is asked in every
// decision, most of which change nothing: so it makes no list.
func (m *Machine) sides() (stay, leave int, first *member) {
	for _, uid := range m.world.ranks.uids {
		mem := m.members[uid]
		switch {
		case mem == nil:
			leave++
			if first == nil {
				first = &member{want: Member{Name: "a worker", Lost: "its pod is gone"}, lostIn: m.world.record.Round}
			}
		case m.goes(mem):
			leave++
			if first == nil || m.isLost(mem) && !m.isLost(first) {
				first = mem
			}
		default:
			stay++
		}
	}
	return stay, leave, first
}

// goes says whether a member of the world can be in no next one.
func (m *Machine) goes(mem *member) bool { return m.isLost(mem) || mem.isAside() || mem.leaving() }

// stayers are those that stay, of whom there are so many.
func (m *Machine) stayers(count int) []Member {
	stay := make([]Member, 0, count)
	for _, uid := range m.world.ranks.uids {
		if mem := m.members[uid]; mem != nil && !m.goes(mem) {
			stay = append(stay, mem.want)
		}
	}
	return stay
}

// explain says why the next world is wanted, and how long it may take.
func (m *Machine) explain(w *wish, first *member) {
	var names []string
	for i := range w.members {
		if !w.stay[w.members[i].UID] {
			names = append(names, w.members[i].Name)
		}
	}
	joining := ""
	if len(names) > 0 {
		joining = "joined by " + list(names)
	}
	if first == nil {
		w.reason, w.why = ReasonCapacityAvailable, joining
		return
	}
	w.reason = first.want.Leaving
	said := fmt.Sprintf("%s leaves (%s)", first.want.Name, first.want.Leaving)
	if first.want.Why != "" {
		said = fmt.Sprintf("%s leaves (%s: %s)", first.want.Name, first.want.Leaving, first.want.Why)
	}
	if m.isLost(first) {
		w.reason, said = ReasonWorkerLost, m.lastLoss()
		if losses := m.lossesNow(); len(losses) > 0 && losses[0].Program {
			w.reason = ReasonProgramFailed
		}
	} else if len(names) > 0 && int32(len(w.members)) == m.world.record.Workers && w.reason != ReasonMoved {
		w.reason = ReasonReplaced // who is moved always is, and for somebody else: that says more
	}
	w.why = strings.TrimSuffix(said+", "+joining, ", ")
	for _, uid := range m.world.ranks.uids {
		mem := m.members[uid]
		if mem == nil || !mem.leaving() || mem.want.LeaveBy.IsZero() {
			continue
		}
		if w.by.IsZero() || mem.want.LeaveBy.Before(w.by) {
			w.by = mem.want.LeaveBy
		}
	}
}

// list names a few and counts the others.
func list(names []string) string {
	const shown = 4
	if len(names) <= shown {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d others", strings.Join(names[:shown], ", "), len(names)-shown)
}
