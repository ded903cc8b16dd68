package rendezvous

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// member is what is known of one expected worker.
type member struct {
	// want is what the controller says of it.
	want Member

	joined, connected bool
	endpoint          Endpoint
	serves            Server
	// parts is true for one whose agent knows parts of snapshots.
	parts bool
	// puts is true for one whose agent puts parts into the storage one by one.
	puts     bool
	report   Report
	lastSeen time.Time
	// hungUp is when its last session ended, or gave way to the one that it has.
	hungUp   time.Time
	failedAt time.Time
	// fellAt is when it was lost, or its programs were first seen to have failed; zero once it is a standby again.
	fellAt time.Time
	// endedAt is when all of its processes had ended, with code 0.
	endedAt time.Time
	// faultedAt is when it reported a fault first in its world, and faultText what: it counts even when
	// later reports say no more of it. faultExit is true when it was an exit.
	faultedAt time.Time
	faultText string
	faultExit bool
	// readyAt is when it was first ready to enter a world.
	readyAt time.Time
	// silent is true when it counts as lost because it says nothing, cutOff when it says nothing and takes part in
	// its world.
	silent, cutOff bool
	// mute is true while nothing is heard of it, though others are heard: what it said of itself counts no more.
	mute bool
	// probe is what its peers are asked about it, tasks are those about whom it is asked itself.
	probe probe
	tasks []string
	// askedAwayAt is when they were asked last because its session had ended.
	askedAwayAt time.Time
	// afterWords is how many reports of the world had come when its last session ended; endedStep is how far the world was
	// seen to be by the first that came later, endedKnown false until then.
	afterWords, endedStep uint64
	endedKnown            bool
	// elastic is true once all of its processes were seen to speak to their agent.
	elastic bool
	// entered is the last world that it was counted in; stale what it had done when it entered, if
	// that was more than where the world began: its programs have to go back before it counts.
	entered, stale uint64
	// spent is true when its program has failed that may fail no more: its agent is to end.
	spent bool
	// mustGo is true when it is about to be killed, or holds nothing that is needed: it is not kept for what it holds. outAt is when it
	// was seen to be out of the world, where it leaves. served is true once it was kept for as long as may be for what others load of it.
	mustGo, served bool
	outAt          time.Time
	// copyless is true when it has not made the copies that it was to make, of the last state of which it was to make some.
	copyless bool
	// fullAt is when it has last said that it has no room for copies; zero for never, or when it had some since.
	fullAt time.Time
	// lostIn is the last world that it was lost in; gone is true once it is in the list of losses
	// without having been in a world.
	lostIn uint64
	gone   bool
	// wentFrom is the last world that it went from as planned before it was gone: of who is gone nobody says any more that it
	// was to leave.
	wentFrom uint64
	// countedIn is the last world of whose losses it is one.
	countedIn uint64
	// backIn is the last world that it was back in after it was lost there, backAt when it was back first.
	backIn uint64
	backAt time.Time
	// doubtedIn says since which record it was named for saying what cannot be: one more than its round.
	doubtedIn uint64
	// aside is about the state of a world that it could not give to others, or get from them.
	aside aside
	// trained is true once a world that it was in has made a step: it has reached the others.
	trained bool
	// left is the last directive in a world that goes on without it.
	left *Directive
}

func (mem *member) leaving() bool { return mem.want.Leaving != "" }

// unwanted says whether the controller wants the member in no world any more.
func (mem *member) unwanted() bool { return mem.leaving() || mem.want.Lost != "" }

// exited says whether all of the member's processes have ended, and with which code; see code.
func (mem *member) exited() (bool, int32) {
	if len(mem.report.Processes) == 0 || mem.report.any(func(p *Process) bool { return !p.Exited }) {
		return false, 0
	}
	return true, mem.code()
}

// code is the first exit code that is not 0, or that of a broken device, by which others may have failed.
func (mem *member) code() (code int32) {
	for i := range mem.report.Processes {
		if p := &mem.report.Processes[i]; p.Exited && (code == 0 || p.ExitCode == ExitDevice) {
			code = p.ExitCode
		}
	}
	return code
}

// failed is true once any process has ended with a code that is not 0.
func (mem *member) failed() bool {
	return mem.report.any(func(p *Process) bool { return p.Exited && p.ExitCode != 0 })
}

// fault is the first exception that a process has reported.
func (mem *member) fault() string {
	for i := range mem.report.Processes {
		if fault := mem.report.Processes[i].Fault; fault != "" {
			return fault
		}
	}
	return ""
}

// ready says whether the member can enter the first world: it runs no program, or one that waits for a
// world, or one of a round that was burned.
func (mem *member) ready() bool {
	return mem.usable() && (mem.report.Standby || mem.report.Round > 0)
}

// usable says whether the member could be in any world at all.
func (mem *member) usable() bool {
	if !mem.connected || mem.report.Terminating || mem.want.Lost != "" {
		return false
	}
	return !mem.report.any(func(p *Process) bool { return p.Exited })
}

// waits says whether every process of the member waits for something.
func (mem *member) waits() bool {
	return len(mem.report.Processes) > 0 && !mem.report.any(func(p *Process) bool { return p.Waiting == waitingNone })
}

// in says whether the member has entered this round.
func (mem *member) in(r *Record) bool {
	return mem.joined && mem.report.Round == r.Round && mem.report.Digest == r.MembersDigest
}

// condition is what of a member the controller acts on.
type condition struct {
	joined, connected, silent, exited, failed, terminating, standby bool
	exitCode                                                        int32
	fault                                                           string
	round                                                           uint64
	// out and waiting are of no interest to the controller.
	out     bool
	waiting [waitingFinished + 1]bool
}

func (m *Machine) condition(uid string, mem *member) condition {
	exited, code := mem.exited()
	c := condition{
		joined: mem.joined, connected: mem.connected, silent: mem.silent,
		exited: exited, exitCode: code, failed: mem.failed(), fault: mem.fault(),
		terminating: mem.report.Terminating, round: mem.report.Round,
		standby: m.isStandby(uid, mem), out: mem.report.Out,
	}
	for i := range mem.report.Processes {
		c.waiting[mem.report.Processes[i].Waiting] = true
	}
	return c
}

// visible is the part that the controller acts on.
func (c condition) visible() condition {
	c.out, c.waiting = false, [waitingFinished + 1]bool{}
	return c
}

// Admit says why a pod may not have a session now; nil when it may.
func (m *Machine) Admit(uid string, attempt int32) *Refusal {
	switch {
	case m.deposed:
		return &Refusal{RefusedForNow, "another operator leads this job now: connect again"}
	case attempt < m.gang.Attempt:
		return &Refusal{RefusedForGood, fmt.Sprintf(
			"attempt %d of the job is over, attempt %d has taken its place", attempt, m.gang.Attempt)}
	case attempt > m.gang.Attempt:
		return &Refusal{RefusedForNow, fmt.Sprintf(
			"attempt %d of the job is not expected yet: connect again", attempt)}
	case m.released || m.gone:
		return &Refusal{RefusedForGood, GoneMessage}
	case m.members[uid] == nil:
		return &Refusal{RefusedForNow, "this pod is not expected in the gang yet: connect again"}
	}
	return nil
}

// join begins a session.
func (m *Machine) join(now time.Time, ev AgentJoined) *Refusal {
	if why := m.Admit(ev.UID, ev.Attempt); why != nil {
		return why
	}
	mem := m.members[ev.UID]
	if ev.Disowns {
		m.disown(mem, &ev.Report)
	}
	if why := m.contradiction(ev.UID, mem, &ev.Report); why != nil {
		m.doubt(mem, "%s", why.Message)
		return why
	}
	before := m.condition(ev.UID, mem)
	if mem.connected {
		mem.hungUp = now
	}
	if m.world != nil && m.isLost(mem) && mem.backIn != m.world.record.Round {
		mem.backIn, mem.backAt = m.world.record.Round, now
	}
	mem.joined, mem.connected, mem.endpoint, mem.serves, mem.parts = true, true, ev.Endpoint, ev.Serves, ev.Parts
	mem.puts = ev.Puts
	m.take(now, ev.UID, mem, ev.Report, before)
	return nil
}

// disown drops what somebody else has said for a member, who says this itself now.
func (m *Machine) disown(mem *member, says *Report) {
	if w := m.world; w != nil {
		uid := mem.want.UID
		if rank := w.ranks.rank(uid); w.adopted && !w.named && rank >= 0 {
			w.ranks.uids[rank] = ""
			delete(w.ranks.ranks, uid)
		}
		if mem.entered == w.record.Round {
			w.entered--
		}
	}
	mem.startedAnew()
	mem.entered, mem.report = 0, Report{Restarts: says.Restarts}
}

// hear takes a report on a session.
func (m *Machine) hear(now time.Time, uid string, r Report) *Refusal {
	mem := m.members[uid]
	if mem == nil || !mem.connected {
		return &Refusal{RefusedForNow, "this session is over: connect again"}
	}
	if why := m.contradiction(uid, mem, &r); why != nil {
		m.doubt(mem, "%s", why.Message)
		return why
	}
	m.take(now, uid, mem, r, m.condition(uid, mem))
	return nil
}

// take stores a report that contradicts nothing.
func (m *Machine) take(now time.Time, uid string, mem *member, r Report, before condition) {
	obeyed := mem.report.Term
	if now.Sub(m.heardAt) > m.gang.HeartbeatTimeout {
		m.wokenAt = now
	}
	m.heardAt = now
	if r.Round > mem.report.Round {
		mem.moved(m.world, &r)
	}
	if r.Restarts > mem.report.Restarts && !mem.lastSeen.IsZero() {
		mem.startedAnew()
		m.note(notedRestarted, "the programs of %s were started anew", mem.want.Name)
	}
	stored := mem.report.storage() != r.storage() || !slices.Equal(mem.report.Put, r.Put)
	snapshots := mem.report.Snapshots
	m.hearCopies(mem.report.Uncopied, r.Uncopied)
	m.hearSize(mem.report.Size, r.Size)
	mem.report, mem.lastSeen = r, now
	if r.MasterPort > 0 {
		mem.endpoint.Port = r.MasterPort
	}
	mem.elastic = mem.elastic || len(r.Processes) > 0 && !r.any(func(p *Process) bool { return !p.Elastic })
	mem.clock(now, m.gang.Strategy)
	m.topTerm, m.topRound = max(m.topTerm, r.Term), max(m.topRound, r.Round)
	m.count(now, mem)
	if m.world != nil && mem.in(&m.world.record) {
		m.words++
	}
	m.hearWord(now, mem)
	m.hearPause(now, uid, mem)
	mem.silent, mem.mute = false, false
	m.heardAgain(mem)
	m.hearProbes(uid, mem)
	if mem.readyAt.IsZero() && m.isStandby(uid, mem) {
		mem.readyAt, mem.fellAt = now, time.Time{}
	}
	if after := m.condition(uid, mem); after != before {
		m.look = true
		m.out.Changed = m.out.Changed || after.visible() != before.visible()
	}
	if stored {
		m.hearStorage(now, mem)
	}
	m.hearScores(mem)
	m.look = m.look || obeyed != r.Term || r.Refused > 0 || m.change != nil || m.broken != nil
	m.locate(uid, mem, snapshots)
}

// locate takes note of where a member is, and of the parts that it holds beside the snapshots that it had.
func (m *Machine) locate(uid string, mem *member, had []Snapshot) {
	r := &mem.report
	switch {
	case m.world == nil:
		return
	case r.Round == m.world.record.Round:
		m.enter(uid, mem)
	default:
		m.outsideIt(uid, mem)
	}
	if !slices.Equal(had, r.Snapshots) && slices.ContainsFunc(r.Snapshots, func(s Snapshot) bool { return s.Part != "" }) {
		m.unrelied, m.look = true, true
	}
}

// moved notes that a member has entered another world.
func (mem *member) moved(w *world, r *Report) {
	mem.failedAt, mem.endedAt, mem.faultedAt, mem.readyAt, mem.fellAt = time.Time{}, time.Time{}, time.Time{}, time.Time{}, time.Time{}
	mem.stale, mem.faultText, mem.faultExit, mem.spent = 0, "", false, false
	if w == nil || r.Round != w.record.Round {
		return
	}
	mem.left = nil
	if done := mem.report.furthest(); done > w.record.FromStep {
		mem.stale = done
	}
}

// clock notes when things were first seen.
func (mem *member) clock(now time.Time, strategy Strategy) {
	first := func(at *time.Time, seen bool) {
		switch {
		case !seen:
			*at = time.Time{}
		case at.IsZero():
			*at = now
		}
	}
	exited, code := mem.exited()
	first(&mem.endedAt, exited && code == 0)
	waits := mem.report.has(waitingFault)
	if mem.faultedAt.IsZero() && (waits || strategy == Restart && mem.failed() && !mem.report.Terminating) {
		mem.faultedAt, mem.faultText, mem.faultExit = now, mem.fault(), !waits
		if mem.faultText == "" {
			mem.faultText = fmt.Sprintf("its program exited with code %d", mem.code())
		}
	}
	if mem.failed() && mem.failedAt.IsZero() {
		mem.failedAt = now
	}
	if mem.hasFallen() && mem.fellAt.IsZero() && mem.readyAt.IsZero() {
		mem.fellAt = now
	}
}

// has says whether any process waits for that.
func (r *Report) has(what Waiting) bool {
	return r.any(func(p *Process) bool { return !p.Exited && p.Waiting == what })
}

// hasState says whether a member says that it has a state, of whatever history: a snapshot, or what its processes have live.
func (r *Report) hasState() bool {
	return len(r.Snapshots) > 0 || r.any(func(p *Process) bool { return p.Clean && !p.Exited && p.CleanStep > 0 })
}

// any says whether any process is so. It is asked of all members with each decision, so none is copied.
func (r *Report) any(is func(*Process) bool) bool {
	for i := range r.Processes {
		if is(&r.Processes[i]) {
			return true
		}
	}
	return false
}

// count takes over how far a member is.
func (m *Machine) count(now time.Time, mem *member) {
	r := &mem.report
	if m.world != nil && r.Round > m.world.record.Round {
		return // it is in a round that was burned
	}
	if r.Round > m.stepRound {
		m.stepRound, m.step = r.Round, 0
		if m.world != nil && m.world.record.Round == r.Round && m.gang.Strategy == InPlace {
			m.step = m.world.record.FromStep // programs that are started anew may go back further
		}
	}
	step := r.furthest()
	if mem.stale > 0 && step != mem.stale {
		mem.stale = 0
	}
	if r.Round != m.stepRound || step <= m.step || mem.stale > 0 {
		return
	}
	m.look = m.look || m.world == nil
	m.step, m.stepAt = step, now
	m.began(now)
}

// enter counts a member that has reported the world.
func (m *Machine) enter(uid string, mem *member) {
	rank := m.world.ranks.rank(uid)
	if m.world.adopted && rank == 0 {
		m.world.master = mem.endpoint
	}
	if lowest, ok := m.world.writers[mem.want.Node]; !ok || rank < lowest {
		m.world.writers[mem.want.Node] = rank
	}
	if mem.entered == m.world.record.Round {
		return
	}
	mem.entered = m.world.record.Round
	m.world.entered++
	if m.world.formed() && !m.world.adopted {
		m.note(notedFormed, "round %d is formed: all %d workers have entered it", mem.entered, m.world.entered)
	}
}

// contradiction says why a report cannot be true; nil when it can. A report of the current world
// also finds its rank here, when the world was adopted.
func (m *Machine) contradiction(uid string, mem *member, r *Report) *Refusal {
	wrong := func(format string, args ...any) *Refusal {
		return &Refusal{RefusedNonsense, fmt.Sprintf(format, args...)}
	}
	recorded, known := m.recordedDigest(r.Round)
	switch {
	case r.Restarts < mem.report.Restarts:
		return wrong("its programs were started anew %d times, and now %d", mem.report.Restarts, r.Restarts)
	case r.Term < mem.report.Term || r.Round < mem.report.Round:
		return wrong("the report went back from term %d, round %d to term %d, round %d",
			mem.report.Term, mem.report.Round, r.Term, r.Round)
	case r.Term > max(m.base.Term, m.term)+maxLead || r.Round > m.base.Round+maxLead:
		return wrong("term %d, round %d cannot be: the job's record is at term %d, round %d",
			r.Term, r.Round, m.base.Term, m.base.Round)
	case len(r.Processes) > int(m.gang.ProcessesPerWorker):
		return wrong("%d processes are reported of a worker that has %d", len(r.Processes), m.gang.ProcessesPerWorker)
	case known && r.Digest != recorded:
		return wrong("round %d has members %s in the job's record, not %s", r.Round, recorded, r.Digest)
	case m.world == nil:
		return nil
	}
	round := m.world.record.Round
	switch {
	case r.Round == round && !m.placed(uid, r.WorkerRank): // whoever leads: a round has one world
		return wrong("worker rank %d in round %d belongs to another worker, or to none", r.WorkerRank, round)
	case r.Round > round && r.Round != m.base.Round && r.Term <= m.term:
		return wrong("round %d cannot be: the newest is %d", r.Round, round)
	}
	return nil
}

// recordedDigest is what the record says of the members of a round, and whether it says anything.
func (m *Machine) recordedDigest(round uint64) (string, bool) {
	switch {
	case m.term == 0 || round == 0:
		return "", false
	case round == m.base.Round:
		return m.base.MembersDigest, true
	default:
		return m.base.ParentDigest, round == m.base.Parent && m.base.ParentDigest != ""
	}
}

// placed says whether the member may have that rank in the world.
func (m *Machine) placed(uid string, rank uint32) bool {
	if m.world.adopted {
		return m.world.ranks.place(uid, rank)
	}
	return m.world.ranks.rank(uid) == int32(rank)
}

// hangUp ends a session.
func (m *Machine) hangUp(now time.Time, uid string) {
	if mem := m.members[uid]; mem != nil && mem.connected {
		mem.connected, mem.hungUp, mem.readyAt = false, now, time.Time{}
		mem.afterWords, mem.endedKnown = m.words, false
		m.out.Changed, m.look = true, true
	}
}

func sortEndings(endings []ending) {
	slices.SortFunc(endings, func(a, b ending) int { return strings.Compare(a.UID, b.UID) })
}
