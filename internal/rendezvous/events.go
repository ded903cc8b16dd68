package rendezvous

import (
	"time"

	"github.com/concertina-dev/concertina/internal/ticket"
)

// event is something that happened to one job.
type event interface{ isEvent() }

type (
	// gangExpected: the controller has said what the next world is to be made of.
	gangExpected struct{ gang Gang }
	// gangReleased: the controller lets every member go.
	gangReleased struct{}
	// agentJoined: a pod's agent has begun a session. A member has one at a time; an older one is
	// over with this.
	agentJoined struct {
		uid      string
		attempt  int32
		endpoint endpoint
		serves   server
		report   report
	}
	// agentReported: a report came on the session of a member.
	agentReported struct {
		uid    string
		report report
	}
	// sessionLost: the session of a member has ended.
	sessionLost struct{ uid string }
	// recordAnswered: the Recorder has answered the write that was asked for last. The secret is fresh
	// and random: should the answer make a term ours, it is the secret of that term.
	recordAnswered struct {
		found  Record
		err    error
		secret []byte
	}
	// timePassed: nothing happened but time.
	timePassed struct{}
)

func (gangExpected) isEvent()   {}
func (gangReleased) isEvent()   {}
func (agentJoined) isEvent()    {}
func (agentReported) isEvent()  {}
func (sessionLost) isEvent()    {}
func (recordAnswered) isEvent() {}
func (timePassed) isEvent()     {}

// endpoint is where the peers of a worker reach it, if rank 0 lands there.
type endpoint struct {
	address string
	port    uint32
}

// server is where an agent serves its snapshots, and the SHA-256 of the certificate that it shows. The
// port is 0 for one that serves none.
type server struct {
	port        uint32
	certificate [32]byte
}

// report is the whole state of an agent.
type report struct {
	term, round   uint64
	digest        string
	workerRank    uint32
	processes     []process
	terminating   bool
	standby, out  bool
	snapshots     []snapshot
	snapshotError string
	// masterPort is the port that is kept for the next world; 0 for that of the endpoint.
	masterPort uint32
	// refused is a planned round that this worker was told of and could not go on to; 0 for none.
	refused uint64
	// hold is the newest hold of the term that was obeyed; 0 for none.
	hold uint64
	// before is the round that this worker has left for that of round; 0 for none.
	before uint64
	// begun is true once all of its processes have begun their first step in round, pause how long they stood
	// still before it; 0 for not known.
	begun bool
	pause time.Duration
}

// process is one training process of a worker.
type process struct {
	phase                            phase
	entered, done, lastStep, samples uint64
	metrics                          []Metric
	fault                            string
	exited                           bool
	exitCode                         int32
	waiting                          waiting
	// barrier is the attempt of the barrier that it has been given, stop the last step before it.
	barrier, stop uint64
	elastic       bool
	// clean is true for one that has left its world with exactly the state after cleanStep steps.
	clean     bool
	cleanStep uint64
}

// phase is what a process is doing, as on the wire.
type phase int32

const (
	phaseNone phase = iota
	phaseForming
	phaseData
	phaseStep
	phaseEval
	phaseSaving
	phaseFinished
)

// waiting is what a process waits for, as on the wire.
type waiting int32

const (
	waitingNone waiting = iota
	waitingJoin
	waitingParked
	waitingAborted
	waitingFault
	waitingFinished
)

// left says whether a process makes no further step in its world.
func (w waiting) left() bool { return w == waitingAborted || w == waitingFault || w == waitingFinished }

// snapshot names the state of a job after a step.
type snapshot struct {
	round, step, bytes uint64
	checksum           uint32
}

// furthest is the highest step that any process of the worker has done.
func (r *report) furthest() uint64 {
	var step uint64
	for i := range r.processes {
		step = max(step, r.processes[i].done)
	}
	return step
}

// directive is everything that an agent should do now.
type directive struct {
	term, round uint64
	world       *place
	released    bool
	barrier     *barrier
	abort       *abort
	raise       bool
	finish      bool
	standby     bool
	prefetch    *prefetch
	// beat is the longest time between two reports; 0 for a second.
	beat time.Duration
	// hold is the newest hold; 0 where nobody stands at a barrier.
	hold uint64
	// key is what tickets for the snapshots that this member serves are made with.
	key []byte
}

// prefetch is the snapshot that a member will need in the next world.
type prefetch struct {
	snapshot snapshot
	holders  []supplier
}

// barrier stops a world after a step.
type barrier struct {
	attempt, step uint64
	save          bool
}

// abort ends a world at once.
type abort struct {
	reason  string
	planned bool
	// save is the step after which the member is to save its state; 0 for none.
	save uint64
}

// place is a member's place in a world.
type place struct {
	digest             string
	fromStep           uint64
	workerRank         int32
	workers, processes int32
	master             endpoint
	parent             uint64
	restore            bool
	snapshot           *snapshot
	holders            []supplier
	writer             bool
}

// holder is an agent that serves a snapshot.
type holder struct {
	address string
	server
}

// supplier is a holder with what opens the snapshot there.
type supplier struct {
	holder
	ticket ticket.Ticket
}

// effects are what must be done after an event, in the order of the fields. A directive that rests
// on a record is among the effects of the answer to that record and never earlier, so that doing
// them in this order is all it takes to publish nothing that is not durable.
type effects struct {
	// refuse ends the session that the event came from, with this error.
	refuse *refusal
	// end lists sessions of other members to end.
	end []ending
	// publish is true when directives have changed: every session sends its own anew.
	publish bool
	// write is what the Recorder is to make durable now. Its answer comes back as recordAnswered;
	// until then there is no other write.
	write *write
	// changed is true when the controller should look at the observation.
	changed bool
	// notes say what was decided, and why.
	notes []note
}

type ending struct {
	uid string
	why refusal
}

// write asks the Recorder to replace one record by the next.
type write struct{ prev, next Record }

// takesOver says whether it makes nothing durable but a new leader's term.
func (w write) takesOver() bool { return w.next.Term > w.prev.Term && w.next.Round == w.prev.Round }

// refusal says to an agent why its session ends.
type refusal struct {
	kind    refusalKind
	message string
}

// refusalKind is what an agent should make of a refusal.
type refusalKind string

const (
	// refusedForNow: it should connect again.
	refusedForNow refusalKind = "unavailable"
	// refusedForGood: nobody waits for it any more, and it should end.
	refusedForGood refusalKind = "not_found"
	// refusedNonsense: it says what no agent says.
	refusedNonsense refusalKind = "invalid_argument"
	// refusedRight: it is not who it says it is, or belongs elsewhere.
	refusedRight refusalKind = "permission_denied"
	// refusedVersion: it and this operator do not understand each other.
	refusedVersion refusalKind = "failed_precondition"
	// refusedSilence: it has said nothing for too long, and should connect again.
	refusedSilence refusalKind = "deadline_exceeded"
)

func (r *refusal) Error() string { return r.message }

// note is one decision in words.
type note struct {
	kind noteKind
	text string
}

type noteKind string

const (
	notedTerm      noteKind = "term"
	notedPublished noteKind = "published"
	notedFormed    noteKind = "formed"
	notedAdopted   noteKind = "adopted"
	notedBurned    noteKind = "burned"
	notedRefused   noteKind = "refused"
	notedDoubted   noteKind = "doubted"
	notedFailed    noteKind = "record-failed"
	notedDeposed   noteKind = "deposed"
	notedResizing  noteKind = "resizing"
	notedParked    noteKind = "parked"
	notedLifted    noteKind = "lifted"
	notedLost      noteKind = "lost"
	notedBroken    noteKind = "broken"
	notedVerdict   noteKind = "verdict"
	notedWaiting   noteKind = "regrouping"
	notedFatal     noteKind = "fatal"
	notedFinished  noteKind = "finished"
)
