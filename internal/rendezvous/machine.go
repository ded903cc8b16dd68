package rendezvous

import (
	"fmt"
	"time"

	"connectrpc.com/connect"
)

const (
	// maxWorkers is the largest world, as in the API.
	maxWorkers = 10000
	// maxLead is how far beyond the durable record the terms and rounds may lie that agents report.
	// They can be beyond it only when the record was lost and restored from a backup, and then not
	// by much; the bound keeps a lying agent from using the numbers up.
	maxLead = 1 << 20
	// defaultHeartbeat is the heartbeat timeout of a gang that gives none.
	defaultHeartbeat = 5 * time.Second
	// firstRetry and lastRetry bound the wait after a write whose outcome is not known; it doubles
	// from one to the next.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
	// raiseInterval is the shortest time between two terms that agents' reports make necessary.
	raiseInterval = time.Second
)

// machine is one job under one leader. Events go in and effects come out; it has no clock, no
// goroutine, no log and does nothing itself, so the same events always give the same effects.
//
// # Terms
//
// Before the machine tells anybody anything it raises the durable term by one, with the same
// compare-and-swap as for rounds. From then on no older leader can make a round durable, and agents
// that have obeyed the new term refuse older directives. Until the term is durable no directive is
// sent at all. A term is this leader's own only after a write that was confirmed: after an unclear
// answer the next attempt is one higher, so two leaders never share a term.
//
// A record with another leader's higher term means that the machine is deposed, for good. An agent
// that has obeyed a higher term than ours proves nothing by saying so; the machine then raises its
// own above it, and the compare-and-swap tells who leads (it also mends a record that was restored
// from a backup).
//
// # Rounds
//
// A round closes when every expected member is connected, none of them has ended or is ending, and
// there is no world. Then ranks are assigned, the round is written, and only the confirmed write
// publishes it. Its number is one more than the highest that is durable, was ever tried, or was
// reported by an agent. A round that was written, or perhaps written, and does not become the world
// (the gang changed meanwhile, the answer was unclear) is burned: its number is never used again.
// In this state of things a world does not change inside an attempt: a higher attempt brings new
// pods, and its rounds have no parent and start from step 0.
//
// # Adoption
//
// The round that a new leader finds belongs to an earlier attempt, and is of no interest, or to the
// attempt that is expected, and may live. It may also have been published to some members only, or
// to none. The leader
//
//   - adopts it when every rank of it is reported by its member with the durable digest: all have
//     entered it;
//   - adopts it when any member reports it with a step done beyond fromStep: a step takes all ranks,
//     so all have entered it, whoever is slow to reconnect;
//   - burns it when all expected members have joined and one of them, who has obeyed this leader's
//     term, is not in it: that member can never enter it now, since it refuses older directives, so
//     it cannot make a step. Then the next round closes at once;
//   - gives it up when the heartbeat timeout and the grace for reconnecting have passed and nobody
//     has reported it. This only ends Observation.Adopting: should it be reported later, and no new
//     round be written by then, it is adopted all the same.
//
// Adoption changes nothing for the agents but the term. The rank table is rebuilt from their
// reports; it must have the durable digest, and a report that cannot be part of it is refused.
//
// # Loss
//
// A member is silent when, for the heartbeat timeout, it has not reported and no step was made by
// anybody. A leader counts silence from its own start, plus the grace for reconnecting. What a loss
// means is the controller's business, and so are exits, faults and terminations.
type machine struct {
	reconnectGrace time.Duration

	// since is when the first gang was expected: sessions are possible from then on.
	since   time.Time
	gang    Gang
	members map[string]*member

	// base is the record that stands in the cluster, as far as is known.
	base Record
	// term is the term that is held; 0 while none is.
	term uint64
	// inherited is the round that stood there when the term was taken.
	inherited uint64
	// burned is true once the inherited round is known to be dead.
	burned bool
	// topTerm is the highest term that was reported or tried, topRound the same for rounds.
	topTerm, topRound uint64
	// unclearTerm is a term that was tried while another was held, without a clear answer.
	unclearTerm uint64
	// writing is the write under way; nil for none.
	writing *pendingWrite
	// notBefore is when the next write may be asked for; failures counts those in a row whose
	// outcome is not known.
	notBefore time.Time
	failures  int

	world *world
	// stepRound and step are the furthest step that any member has reported, stepAt when that was.
	stepRound, step uint64
	stepAt          time.Time
	// undecided is what Observation.Adopting was last.
	undecided bool

	released bool
	deposed  bool
	gone     bool

	out effects
	// look is true when this event can have made a decision possible.
	look bool
}

// pendingWrite is a write that was asked for. A write with ranks is a new round.
type pendingWrite struct {
	write
	ranks  *rankTable
	master endpoint
	// overtaken is true when the gang has changed since.
	overtaken bool
}

// world is a round that was published or adopted.
type world struct {
	record  Record
	ranks   *rankTable
	master  endpoint
	adopted bool
	// entered counts the members that have reported the round.
	entered int
}

func (w *world) formed() bool { return w.entered >= len(w.ranks.uids) }

func newMachine(reconnectGrace time.Duration) *machine {
	return &machine{reconnectGrace: reconnectGrace, members: map[string]*member{}}
}

// handle takes an event and returns what must be done.
func (m *machine) handle(now time.Time, ev event) effects {
	m.out, m.look = effects{}, false
	switch ev := ev.(type) {
	case gangExpected:
		m.expect(now, ev.gang)
	case gangReleased:
		m.release()
	case agentJoined:
		m.out.refuse = m.join(now, ev)
	case agentReported:
		m.out.refuse = m.hear(now, ev.uid, ev.report)
	case sessionLost:
		m.lose(ev.uid)
	case recordAnswered:
		m.answered(now, ev)
	case timePassed:
		m.look = true
		m.watch(now)
	}
	if m.look {
		m.decide(now)
	}
	return m.out
}

// decide does the next thing that can be done.
func (m *machine) decide(now time.Time) {
	if m.over() || m.writing != nil || now.Before(m.notBefore) || len(m.gang.Members) == 0 {
		return
	}
	switch {
	case m.term == 0 || m.topTerm > m.term:
		m.raiseTerm(now)
	case m.world != nil:
		// A world does not change inside an attempt.
	default:
		if m.mayLive() {
			m.tryAdopt(now)
		}
		if m.world == nil && !m.mayLive() {
			m.tryClose(now)
		}
	}
}

// over is true when this leader has nothing more to say about the job.
func (m *machine) over() bool { return m.deposed || m.gone || m.released }

// expect takes over what the controller wants.
func (m *machine) expect(now time.Time, gang Gang) {
	first := m.since.IsZero()
	gang = normal(gang)
	switch {
	case m.deposed || gang.Attempt < m.gang.Attempt:
		return
	case (m.released || m.gone) && gang.Attempt == m.gang.Attempt:
		// These members were let go.
		return
	case gang.Attempt == m.gang.Attempt && m.world != nil && m.world.formed():
		// The world stays as it is; only the timeout can change.
		m.gang.HeartbeatTimeout = gang.HeartbeatTimeout
		return
	}
	if first {
		m.since = now
	}
	if m.term == 0 && m.writing == nil && newer(gang.Durable, m.base) {
		m.base = gang.Durable
	}
	same := !first && gang.Attempt == m.gang.Attempt && sameMembers(gang.Members, m.gang.Members)
	m.gang = gang
	m.released, m.gone = false, false
	m.look = true
	m.replaceMembers()
	if same {
		return
	}
	m.out.changed = true
	if m.writing != nil {
		m.writing.overtaken = true
	}
	if m.world != nil {
		if !m.world.formed() {
			m.note(notedBurned, "round %d is burned: its gang was replaced before all members had entered it", m.world.record.Round)
		}
		m.world, m.out.publish = nil, true
	}
}

// normal fills in what is left out and drops members that are named twice.
func normal(gang Gang) Gang {
	if gang.HeartbeatTimeout <= 0 {
		gang.HeartbeatTimeout = defaultHeartbeat
	}
	gang.ProcessesPerWorker = max(gang.ProcessesPerWorker, 1)
	known := make(map[string]bool, len(gang.Members))
	members := make([]Member, 0, len(gang.Members))
	for _, member := range gang.Members {
		if !known[member.UID] {
			known[member.UID] = true
			members = append(members, member)
		}
	}
	gang.Members = members
	return gang
}

func newer(a, b Record) bool {
	return a.Term > b.Term || a.Term == b.Term && a.Round > b.Round
}

func sameMembers(a, b []Member) bool {
	if len(a) != len(b) {
		return false
	}
	known := make(map[string]bool, len(a))
	for i := range a {
		known[a[i].UID] = true
	}
	for i := range b {
		if !known[b[i].UID] {
			return false
		}
	}
	return true
}

// replaceMembers keeps what is known of members that stay, and lets the others go.
func (m *machine) replaceMembers() {
	members := make(map[string]*member, len(m.gang.Members))
	for _, expected := range m.gang.Members {
		known := m.members[expected.UID]
		if known == nil {
			known = &member{}
		}
		delete(m.members, expected.UID)
		members[expected.UID] = known
	}
	for uid, left := range m.members {
		if left.connected {
			m.out.end = append(m.out.end, ending{uid, refusal{connect.CodeNotFound,
				"this worker does not belong to the gang any more"}})
		}
	}
	sortEndings(m.out.end)
	m.members = members
}

// release lets every member go.
func (m *machine) release() {
	if m.over() {
		return
	}
	m.released, m.out.changed = true, true
	if m.term > 0 {
		m.out.publish = true
		return
	}
	m.endAll(refusal{connect.CodeNotFound, goneMessage})
}

const goneMessage = "the job is finished, suspended or deleted: its workers are not needed any more"

// endAll ends every session.
func (m *machine) endAll(why refusal) {
	for uid, member := range m.members {
		if member.connected {
			m.out.end = append(m.out.end, ending{uid, why})
		}
	}
	sortEndings(m.out.end)
}

// directive returns what the agent of a member should do now; false while there is nothing that may
// be said.
func (m *machine) directive(uid string) (directive, bool) {
	member := m.members[uid]
	if m.term == 0 || m.deposed || member == nil {
		return directive{}, false
	}
	d := directive{term: m.term, released: m.released}
	if m.world == nil {
		return d, true
	}
	if rank := m.world.ranks.rank(uid); rank >= 0 {
		record := &m.world.record
		d.round = record.Round
		d.world = &place{
			digest: record.MembersDigest, fromStep: record.FromStep,
			workerRank: rank, workers: record.Workers, processes: record.Processes / record.Workers,
			master: m.world.master,
		}
	}
	return d, true
}

func (m *machine) note(kind noteKind, format string, args ...any) {
	m.out.notes = append(m.out.notes, note{kind, fmt.Sprintf(format, args...)})
}
