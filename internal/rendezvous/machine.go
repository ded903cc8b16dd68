package rendezvous

import (
	"fmt"
	"math"
	"time"

	"github.com/concertina-dev/concertina/internal/straggler"
	"github.com/concertina-dev/concertina/internal/ticket"
)

const (
	// MaxWorkers is the largest world, as in the API.
	MaxWorkers = 10000
	// MaxCount bounds steps and samples, so that they fit the API's integers.
	MaxCount = math.MaxInt64
	// maxLead is how far beyond the durable record the terms and rounds may lie that agents report.
	// They can be beyond it only when the record was lost and restored from a backup, and then not
	// by much; the bound keeps a lying agent from using the numbers up.
	maxLead = 1 << 20
	// defaultHeartbeat is the heartbeat timeout of a gang that gives none.
	defaultHeartbeat = 5 * time.Second
	// defaultBarrier is the barrier timeout of a gang that gives none.
	defaultBarrier = time.Minute
	// firstRetry and lastRetry bound the wait after a write whose outcome is not known; it doubles
	// from one to the next.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
	// paced is the shortest time between two writes that nothing but agents' reports makes necessary: terms, and worlds
	// that are formed anew though nobody was lost.
	paced = time.Second
)

// Machine is one job under one leader. Events go in and effects come out; it has no clock, no
// goroutine, no log, no randomness and does nothing itself, so the same events always give the same
// effects.
//
// # Terms
//
// Before the machine tells anybody anything it raises the durable term by one, with the same
// compare-and-swap as for rounds. From then on no older leader can make a round durable, and agents
// that have obeyed the new term refuse older directives. Until the term is durable no directive is
// sent at all. A term is this leader's own only after a write that was confirmed, or when its own name is
// found beside it in the record, so two leaders never share one.
//
// A record with another leader's higher term means that the machine is deposed, for good. An agent
// that has obeyed a higher term than ours proves nothing by saying so; the machine then raises its
// own above it, and the compare-and-swap tells who leads (it also mends a record that was restored
// from a backup).
//
// # Rounds
//
// The first round of an attempt closes when every expected member that is not leaving, lost or on
// its way is connected and ready, and there are enough. Ranks are assigned, the round is written, and
// only the confirmed write publishes it. Its number is one more than the highest that is durable, was
// ever tried, or was reported by an agent. A round that was written, or perhaps written, and does not
// become the world (the gang changed meanwhile, the answer was unclear) is burned: its number is never
// used again. A later round of the attempt is made by a planned change (barrier.go, growth.go) or a
// recovery (recovery.go, verdict.go), and is published only when the world before it can make no
// further step: all of its processes stand at a barrier, or one has left it for good or is known to
// have ended. A higher attempt brings new pods, and its rounds have no
// parent and start from step 0.
//
// # Adoption
//
// What a new leader makes of the round that it finds stands in adoption.go.
type Machine struct {
	reconnectGrace time.Duration

	// since is when the first gang was expected: sessions are possible from then on.
	since time.Time
	// wordAt is when the first was heard who can tell what has become of the inherited round.
	wordAt  time.Time
	gang    Gang
	members map[string]*member

	// base is the record that stands in the cluster, as far as is known.
	base Record
	// term is the term that is held, 0 while none is; secret belongs to it, and issuers are for the holders by the
	// certificates that they show.
	term    uint64
	secret  []byte
	issuers map[[32]byte]*ticket.Issuer
	// inherited is the round that stood there when the term was taken.
	inherited uint64
	// namesIn are the members that the record with the digest namedIn names.
	namesIn []string
	namedIn string
	// recordNames is what the record says of its members; see naming.
	recordNames naming
	// burned is the inherited round once it is known to be dead; 0 for none.
	burned uint64
	// topTerm is the highest term that was reported or found, topRound the highest round that was, or was tried.
	topTerm, topRound uint64
	// name is this leader's: its records carry it. ledFrom and led are the first and the highest term that were held.
	name         string
	ledFrom, led uint64
	// writing is the write under way; nil for none.
	writing *pendingWrite
	// notBefore is when the next write may be asked for; failures counts those in a row whose
	// outcome is not known.
	notBefore time.Time
	failures  int
	// writtenAt is when a write was confirmed last; tried is true when it is to be found out whether one can be made.
	writtenAt time.Time
	tried     bool

	world *world
	// departed are those that have left the gang since the round in the record was made, or found, and were known to
	// make no further step: in the round that is given, or in any when it is 0. They may hold ranks of a world that is
	// adopted later.
	departed map[string]departure
	// stepRound and step are the furthest step that any member has reported, stepAt when that was.
	stepRound, step uint64
	stepAt          time.Time
	// words counts the reports of members of the world.
	words uint64
	// heardAt is when the last report came, wokenAt when the first came after nobody was heard for a
	// while: then it was this operator that was cut off.
	heardAt, wokenAt time.Time
	// probes is the number of the newest probe.
	probes uint64

	// change is the planned change that is under way, broken what is done about a world that has lost
	// somebody. At most one of the two is set.
	change *change
	broken *recovery
	// nextTry is when a planned change may be tried again; tries counts those that came to nothing, and
	// unwritten is true when the last one did because its record was not written.
	nextTry   time.Time
	tries     int
	unwritten bool
	// hold is the newest hold of those that stand at a barrier.
	hold uint64
	// retried is the furthest step when a world was last re-formed without a culprit.
	retried *uint64

	// pending is the change that led to the world, until it is known what it cost.
	pending *untold
	changes []Change
	// unsaid is how many had not said by then how long they stood still.
	unsaid int
	losses []Loss
	fatal  string

	// undecided and phase are what the Observation said last.
	undecided bool
	phase     Phase

	// restoring is how the first world of the attempt comes by its state; uploading is what is being made durable,
	// durable the newest that is, and nextUpload when the next one is due.
	restoring  *restoring
	uploadTook time.Duration
	restores   uint64
	uploading  *uploading
	// failedUploads are the last ones of members that could not make durable what they were to, until they can; with why
	// as long as nothing newer is durable.
	failedUploads map[string]failedUpload
	// failedSaves is when members could not take a snapshot while the world stood for it, last: others are asked before them.
	failedSaves map[string]time.Time
	durable     Durable
	nextUpload  time.Time
	scores      scores
	// relied is the state that members keep, where they write parts; nil before the first. unsafe is a newer one that can be
	// had and is not on as many nodes as it should be; nil for none. unrelied is true when members have told of other parts
	// since.
	relied, unsafe *Snapshot
	unrelied       bool
	// copying is the state of whose shards copies are being made; nil for none. uncopied is true when that of the last one came to
	// nothing.
	copying  *copying
	uncopied bool
	// cut is true when the last world that had formed had its state in shards, also in the attempt before; cutKnown once one had.
	cut, cutKnown bool
	// differing are the groups of holders whose shares were seen to differ; differ says so of the last one in a sentence.
	differing []string
	differ    string
	// pace is who keeps the others waiting.
	pace straggler.Watch

	released bool
	deposed  bool
	gone     bool

	tally tally

	out Effects
	// look is true when an event since the last decision can have made another one possible.
	look bool
}

// pendingWrite is a write that was asked for. A write with a plan is a new round.
type pendingWrite struct {
	Write
	plan   *plan
	ranks  *rankTable
	master Endpoint
	// holders have the snapshot of the plan, which is made of parts.
	holders []holding
	parts   []Snapshot
	told    *supply
	// receivers are the ranks of those who have to get some of it.
	receivers []int32
	// overtaken is true when the gang has changed since.
	overtaken bool
}

// plan is the next world.
type plan struct {
	members  []Member // in no order
	reason   Reason
	why      string
	fromStep uint64
	// live are the members that go on with the state that they have; the others load the snapshot.
	live     map[string]bool
	snapshot *Snapshot
	// handover is true where those others get it from them, over the links of the world, and there is no snapshot.
	handover bool
	lost     uint64
	// from is the change or recovery that the plan is made for; nil for the first world.
	change *change
	broken *recovery
}

// world is a round that was published or adopted.
type world struct {
	record  Record
	ranks   *rankTable
	master  Endpoint
	adopted bool
	since   time.Time
	// finishedAt is since when all have finished, and wait for what is being made durable; zero while they have not.
	finishedAt time.Time
	// entered counts the members that have reported the round.
	entered int
	live    map[string]bool
	// handover is true where the others get the state from those, over the links of the world.
	handover bool
	// fenced is true when the world before was known to make no further step when this one was made; before
	// are those who were in that.
	fenced bool
	before []string
	// snapshot is what the others load; it is made of parts, or whole when there are none, and holders have it.
	snapshot *Snapshot
	parts    []Snapshot
	holders  []holding
	told     *supply
	// givers says who the holders are, in their order, ended which of them are known to have ended.
	givers []giver
	ended  map[string]bool
	// receivers are the ranks of those others who have to get some of it.
	receivers []int32
	// staging is what the member of each rank writes of a snapshot; nil where writers write all of it.
	staging []Staging
	// staged is the same for a world that another leader has made, as soon as it is known who is in it.
	staged []Staging
	// copies is on how many nodes each share is to be, by what members were told when they entered; 0 where another leader told.
	copies int
	// writers is the lowest rank on each node; writes says who else writes.
	writers map[string]int32
	// barriers is the highest attempt of a barrier in this world.
	barriers uint64
	// finishing is true once every process has finished.
	finishing bool
	// begunAt is when it was seen to have begun, where its state is in shards; letsGo is true once those who are in it no more hold
	// nothing of that which others need.
	begunAt time.Time
	letsGo  bool
	// feeds is true while others get what the world begins with from one who leaves, and is in it no more.
	feeds bool
	// parted are the members that have left the gang.
	parted map[string]parting
	// named is true when the members of an adopted world are those that the record names; missing once a rank of it is
	// known to be held by nobody who is left.
	named, missing bool
	// stood is true of one that was adopted while some stood at the barrier of an older leader, or may have.
	stood bool
	// phase and why say how it came to be, until it has formed.
	phase Phase
	why   string
	// calledOff says of the last planned change of this world, if it failed, which and why.
	calledOff string
}

// departure is one who has left the gang and makes no further step in a round, or in any when that is 0.
type departure struct {
	round   uint64
	ordinal int32
}

// parting is what was known of a member when it left the gang.
type parting struct {
	// well is true when its programs had ended with code 0, over when it was known to make no further step: its
	// agent had said so, or its pod had ended. Being left out says nothing.
	well, over bool
	// entered is the last world that it was counted in.
	entered uint64
}

// supplied is the snapshot that it begins with, sorted.
func (w *world) supplied() *supply {
	if w.told == nil {
		w.told = newSupply(w.parts, w.holders)
	}
	return w.told
}

func (w *world) formed() bool { return w.entered >= len(w.ranks.uids) }

// whole says whether it is known who holds each of the ranks: of an adopted world, once all have reported.
func (w *world) whole() bool { return len(w.ranks.ranks) == len(w.ranks.uids) }

// NewMachine makes the machine of a leader whose name no other leader has.
func NewMachine(reconnectGrace time.Duration, name string) *Machine {
	return &Machine{reconnectGrace: reconnectGrace, name: name, members: map[string]*member{}, departed: map[string]departure{},
		failedUploads: map[string]failedUpload{}, failedSaves: map[string]time.Time{}, phase: PhaseForming}
}

// Handle takes an event and returns what must be done.
func (m *Machine) Handle(now time.Time, ev Event) Effects {
	m.out = Effects{}
	m.happen(now, ev)
	m.settle(now)
	return m.out
}

// Absorb takes an event and returns what must be done at once. What may be decided after it is put off: look is
// true then, until settled is called or the next event is handled. A decision looks at all members, and many
// events can share one: reports are state, so nothing is lost between two looks.
func (m *Machine) Absorb(now time.Time, ev Event) Effects {
	m.out = Effects{}
	m.happen(now, ev)
	return m.out
}

// Settled makes the decisions that were put off.
func (m *Machine) Settled(now time.Time) Effects {
	m.out = Effects{}
	m.settle(now)
	return m.out
}

// MayDecide says whether events have made a decision possible that was put off.
func (m *Machine) MayDecide() bool { return m.look }

// Size is how many members there are, beat the longest time between two of their reports.
func (m *Machine) Size() int           { return len(m.members) }
func (m *Machine) Beat() time.Duration { return BeatOf(m.Size()) }

// Attempt is the attempt that the members belong to.
func (m *Machine) Attempt() int32 { return m.gang.Attempt }

// Expected are the uids of the members.
func (m *Machine) Expected() []string {
	uids := make([]string, 0, len(m.gang.Members))
	for i := range m.gang.Members {
		uids = append(uids, m.gang.Members[i].UID)
	}
	return uids
}

// IsDeposed says whether another leader has taken the job over.
func (m *Machine) IsDeposed() bool { return m.deposed }

// happen takes note of an event.
func (m *Machine) happen(now time.Time, ev Event) {
	m.tally = tally{}
	m.renew(now)
	switch ev := ev.(type) {
	case GangExpected:
		m.expect(now, ev.Gang)
	case GangReleased:
		m.release()
	case AgentJoined:
		m.out.Refuse = m.join(now, ev)
	case AgentReported:
		m.out.Refuse = m.hear(now, ev.UID, ev.Report)
	case SessionLost:
		m.hangUp(now, ev.UID)
	case RecordAnswered:
		m.answered(now, ev)
	case TimePassed:
		m.look = true
		m.watch(now)
	}
}

// settle decides what has become possible.
func (m *Machine) settle(now time.Time) {
	m.tally = tally{}
	if m.look {
		m.look = false
		if m.unrelied && m.world != nil {
			m.unrelied = false
			m.rely()
		}
		m.decide(now)
	}
	if phase, _ := m.doing(); phase != m.phase {
		m.phase, m.out.Changed = phase, true
	}
}

// decide does the next thing that can be done.
func (m *Machine) decide(now time.Time) {
	if m.over() {
		return
	}
	next := m.attend(now)
	if m.writing != nil || now.Before(m.notBefore) || len(m.gang.Members) == 0 {
		return
	}
	switch {
	case m.term == 0 || m.topTerm > m.term || m.tried:
		m.raiseTerm(now)
	case next != nil:
		m.writeRound(now, next)
	case m.world == nil && m.fatal == "":
		if m.reconsider(); m.mayLive() {
			m.tryAdopt(now)
		}
		if m.world == nil && !m.mayLive() {
			m.tryClose(now)
		}
	}
	m.noteAsked(now)
}

// attend looks after the world that there is, and returns the next one when it is time for it.
func (m *Machine) attend(now time.Time) *plan {
	m.tried = false
	if m.world == nil || m.term == 0 {
		return nil
	}
	m.began(now)
	m.takeBack(now)
	m.watchLeavers(now)
	if m.findRefusal(now) {
		return nil
	}
	m.findFinish(now)
	m.findLosses(now)
	if m.fatal != "" || m.world.finishing {
		return nil
	}
	m.findBreak(now)
	switch {
	case m.fatal != "":
		return nil
	case m.broken != nil:
		return m.recover(now)
	case m.change != nil:
		return m.advance(now)
	}
	m.copyShards(now)
	m.listBest(now)
	m.makeDurable(now)
	if m.world.finishedAt.IsZero() {
		m.consider(now)
	}
	return nil
}

// over is true when this leader has nothing more to say about the job.
func (m *Machine) over() bool { return m.deposed || m.gone || m.released }

// endAll ends every session.
func (m *Machine) endAll(why Refusal) {
	for uid, member := range m.members {
		if member.connected {
			m.out.End = append(m.out.End, ending{uid, why})
		}
	}
	sortEndings(m.out.End)
}

func (m *Machine) note(kind noteKind, format string, args ...any) {
	m.out.Notes = append(m.out.Notes, note{kind, fmt.Sprintf(format, args...)})
}
