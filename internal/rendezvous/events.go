package rendezvous

import (
	"time"

	"github.com/concertina-dev/concertina/internal/share"
	"github.com/concertina-dev/concertina/internal/ticket"
)

// Event is something that happened to one job.
type Event interface{ isEvent() }

type (
	// GangExpected says that the controller has told what the next world is to be made of.
	GangExpected struct{ Gang Gang }
	// GangReleased says that the controller lets every member go.
	GangReleased struct{}
	// AgentJoined says that a pod's agent has begun a session. A member has one at a time; an older one is
	// over with this.
	AgentJoined struct {
		UID      string
		Attempt  int32
		Endpoint Endpoint
		Serves   Server
		// Parts is true for an agent that knows parts of snapshots.
		Parts bool
		// Puts is true for one that puts parts into the storage one by one.
		Puts bool
		// Disowns is true when it comes from the pod's own address, and the session before did not: what was said on that does not
		// count, since whoever has the pod's token may have said it.
		Disowns bool
		Report  Report
	}
	// AgentReported says that a report came on the session of a member.
	AgentReported struct {
		UID    string
		Report Report
	}
	// SessionLost says that the session of a member has ended.
	SessionLost struct{ UID string }
	// RecordAnswered says that the Recorder has answered the write that was asked for last. The secret is fresh
	// and random: should the answer make a term ours, it is the secret of that term.
	RecordAnswered struct {
		Found  Record
		Err    error
		Secret []byte
	}
	// TimePassed says that nothing happened but time.
	TimePassed struct{}
)

func (GangExpected) isEvent()   {}
func (GangReleased) isEvent()   {}
func (AgentJoined) isEvent()    {}
func (AgentReported) isEvent()  {}
func (SessionLost) isEvent()    {}
func (RecordAnswered) isEvent() {}
func (TimePassed) isEvent()     {}

// Endpoint is where the peers of a worker reach it, if rank 0 lands there.
type Endpoint struct {
	Address string
	Port    uint32
}

// Server is where an agent serves its snapshots, and the SHA-256 of the certificate that it shows. The
// port is 0 for one that serves none.
type Server struct {
	Port        uint32
	Certificate [32]byte
}

// Report is the whole state of an agent.
type Report struct {
	Term, Round   uint64
	Digest        string
	WorkerRank    uint32
	Processes     []Process
	Terminating   bool
	Standby, Out  bool
	Snapshots     []Snapshot
	SnapshotError string
	// MasterPort is the port that is kept for the next world; 0 for that of the endpoint.
	MasterPort uint32
	// Refused is a planned round that this worker was told of and could not go on to; 0 for none.
	Refused uint64
	// Hold is the newest hold of the term that was obeyed; 0 for none.
	Hold uint64
	// Before is the round that this worker has left for that of round; 0 for none.
	Before uint64
	// Begun is true once all of its processes have begun their first step in round, pause how long they stood
	// still before it; 0 for not known.
	Begun bool
	Pause time.Duration
	// StepTime is how long a step of round takes; 0 for not known.
	StepTime time.Duration
	// Probed are the answers to the probes that it is asked for.
	Probed []Probed
	// Unreached are the holders of the snapshot that round begins with that it has not reached for long.
	Unreached []Unreached
	// Durable is the newest snapshot that it has made durable, the zero value before the first; UploadError is why the
	// one that it was asked for is not yet.
	Durable     Durable
	UploadError string
	// Scored is true where its score lies with what it has made durable, Score is that. Scores is what its programs have said of states
	// that were evaluated, the newest, oldest first, at most 8.
	Scored bool
	Score  float64
	Scores []Score
	// Listed are the best checkpoints in the storage, as it was asked for them; the zero value while it has not found out.
	Listed Listed
	// Put are the parts that it has put into the storage, of the last snapshot of which it was to put some. RestoredParts are
	// those that it has of Restored, where it came in parts, and RestoredOf all that there are, where that is more.
	Put, RestoredParts, RestoredOf []Snapshot
	// SnapshotTrouble is why the last snapshot that it was to take, whoever asked for it, could not be taken; empty once one
	// was.
	SnapshotTrouble string
	// Size is how large the state of its programs was when it was last measured, and what it has written of it in round.
	Size share.Size
	// Supplied is true once all processes have got the shards that they wanted of the state that the world begins with.
	Supplied bool
	// HandsOver is true of a worker all of whose processes can give the state over the links of their world, and get it so.
	// Handover is true where the world of round begins with that.
	HandsOver, Handover bool
	// Uncopied is why the last try to make the copies that it was told to make has come to nothing; the zero value where none has.
	Uncopied Uncopied
	// Restored is what has come of the newest restore; the zero value while nothing has.
	Restored Restored
	// Stays is true of an agent that goes on when its programs fail, and starts them anew when it is told so. Restarts is
	// how often it has, and Failure how they failed last in a world.
	Stays    bool
	Restarts uint64
	Failure  Failure
}

// Unreached is a holder that a worker could not reach, and why.
type Unreached struct {
	Address string
	Serves  Server
	Why     string
}

// Uncopied is why a worker could not get copies of a state.
type Uncopied struct {
	Round, Step uint64
	Why         string
}

// Failure is how the programs of a worker failed in a world, of which it makes no further step; the zero value for none.
type Failure struct {
	Round   uint64
	Code    int32
	Message string
	// Killed is true when the agent has killed them, since one had not left its world in time.
	Killed bool
}

// Durable is a snapshot in the job's storage, and where: below the URL of the storage.
type Durable struct {
	Snapshot Snapshot
	Path     string
}

// Restored is what has come of a restore.
type Restored struct {
	Number uint64
	// Found is false when there is no checkpoint, where Path says which one's shards were asked for, if any were; Error says why it is
	// not known whether there is one.
	Found bool
	Durable
	// Refused says, in words, which newer checkpoints could not be used.
	Refused string
	Error   string
}

// Process is one training process of a worker.
type Process struct {
	ProgramPhase                     ProgramPhase
	Entered, Done, LastStep, Samples uint64
	Metrics                          []Metric
	Fault                            string
	Exited                           bool
	ExitCode                         int32
	Waiting                          Waiting
	// Barrier is the attempt of the barrier that it has been given, stop the last step before it.
	Barrier, Stop uint64
	Elastic       bool
	// Sharded is true for one that has its own shard of the state, which no other process has.
	Sharded bool
	// Clean is true for one that has left its world with exactly the state after cleanStep steps.
	Clean     bool
	CleanStep uint64
	// Leaves is true for one that can be told to leave its world at a barrier, Leaving the step after which it was; 0
	// for not yet.
	Leaves  bool
	Leaving uint64
	// OwnTime is how long it works in a step, without what it waits for others; 0 for not known.
	OwnTime time.Duration
}

// ProgramPhase is what a process is doing, as on the wire.
type ProgramPhase int32

const (
	phaseNone ProgramPhase = iota
	phaseForming
	phaseData
	phaseStep
	phaseEval
	phaseSaving
	phaseFinished
)

// Waiting is what a process waits for, as on the wire.
type Waiting int32

const (
	waitingNone Waiting = iota
	waitingJoin
	waitingParked
	WaitingAborted
	waitingFault
	waitingFinished
)

// left says whether a process makes no further step in its world.
func (w Waiting) left() bool { return w == WaitingAborted || w == waitingFault || w == waitingFinished }

// Snapshot names the state of a job after a step.
type Snapshot struct {
	Round, Step, Bytes uint64
	// Hash tells it from all others; see checkpoint.Snapshot.
	Hash [32]byte
	// Part is the share.Key of a part that a member holds; empty for a whole state.
	Part string
}

// furthest is the highest step that any process of the worker has done.
func (r *Report) furthest() uint64 {
	var step uint64
	for i := range r.Processes {
		step = max(step, r.Processes[i].Done)
	}
	return step
}

// Directive is everything that an agent should do now.
type Directive struct {
	Term, Round uint64
	World       *Place
	Released    bool
	Barrier     *barrier
	Abort       *abort
	Raise       bool
	Finish      bool
	Standby     bool
	Prefetch    *prefetch
	// Beat is the longest time between two reports; 0 for a second.
	Beat time.Duration
	// Hold is the newest hold; 0 where nobody stands at a barrier.
	Hold uint64
	// Key is what tickets for the snapshots that this member serves are made with.
	Key []byte
	// Probes are those that the member is asked for, at most MaxProbes.
	Probes []Probe
	// Upload is a snapshot that the member is to make durable.
	Upload *upload
	// Staging is what it writes of its state where Barrier or Abort ask for that.
	Staging *Staging
	// Relied is the state that the world would go back to.
	Relied *Snapshot
	// Scored is the state that is to be made durable since it was evaluated well.
	Scored *Snapshot
	// Copies are what the member is to get of shards that others have alone; nil while no state is being copied.
	Copies *prefetch
	// Restore has it bring a checkpoint back.
	Restore *restore
	// ListBest has it say which checkpoints in the storage are the best, once for each number; 0 for not.
	ListBest uint64
	// Restarts is how often its programs may have been started anew after they had failed; nil when its agent is to end
	// if they fail.
	Restarts *uint64
}

// upload is an order to make a snapshot durable, and how many checkpoints to keep.
type upload struct {
	Snapshot Snapshot
	Keep     int32
	// Put are the parts that the member puts into the storage, Manifest all that were put, for who is to write the manifest.
	Put, Manifest []Snapshot
	// Parts are what a member without Puts gathers, from Holders.
	Parts   []Snapshot
	Holders []Supplier
	// Rate is how many bytes it may send in a second; 0 for all that it can.
	Rate uint64
	// Score is put beside it; nil for none. With Durable it is there, and lacks only that.
	Score   *float64
	Durable bool
}

// restore is an order to bring back the newest checkpoint below a path; of this job when it is empty.
type restore struct {
	Number uint64
	Path   string
	// Apart leaves the shards of a state in shards where they are. With Parts these are all that is brought, of the checkpoint at Path.
	Apart bool
	Parts []Snapshot
	// Without are the paths of checkpoints that cannot be used.
	Without []string
}

// prefetch is the snapshot that a member will need in the next world.
type prefetch struct {
	Snapshot       Snapshot
	Parts          []Snapshot
	Holders, Peers []Supplier
}

// Staging is what a member writes of a snapshot that several make: shares, from 0, of so many.
type Staging struct {
	Of     int
	Shares []int
}

// barrier stops a world after a step.
type barrier struct {
	Attempt, Step uint64
	Save          bool
}

// abort ends a world at once.
type abort struct {
	Reason  string
	Planned bool
	// Save is the step after which the member is to save its state; 0 for none.
	Save uint64
	// Leave is the step after which all processes stand, and are told to save and to end; 0 for none.
	Leave uint64
}

// Place is a member's place in a world.
type Place struct {
	Digest             string
	FromStep           uint64
	WorkerRank         int32
	Workers, Processes int32
	Master             Endpoint
	Parent             uint64
	Restore            bool
	Snapshot           *Snapshot
	// Handover is true where those who have the state give it over the links of the world to those with Restore.
	Handover bool
	// Parts are what the member needs of the snapshot; nil for one that is whole.
	Parts []Snapshot
	// Holders have it, Peers are getting it as well, and give what has come.
	Holders, Peers []Supplier
	Writer         bool
	// Staging is what it writes of a large state as it trains; nil where writers write all of it.
	Staging *Staging
}

// holder is an agent that serves a snapshot.
type holder struct {
	Address string
	Server
}

// Supplier is a holder with what opens the snapshot there.
type Supplier struct {
	holder
	Ticket ticket.Ticket
	// Parts says which of the parts it has, or is getting, counted from 0; nil for a whole snapshot.
	Parts []uint32
}

// Effects are what must be done after an event, in the order of the fields. A directive that rests
// on a record is among the effects of the answer to that record and never earlier, so that doing
// them in this order is all it takes to publish nothing that is not durable.
type Effects struct {
	// Refuse ends the session that the event came from, with this error.
	Refuse *Refusal
	// End lists sessions of other members to end.
	End []ending
	// Publish is true when directives have changed: every session sends its own anew.
	Publish bool
	// Tell lists members whose directives have changed: their sessions send them anew.
	Tell []string
	// Write is what the Recorder is to make durable now. Its answer comes back as recordAnswered;
	// until then there is no other write.
	Write *Write
	// Changed is true when the controller should look at the observation.
	Changed bool
	// Lost says of each member that was lost how.
	Lost []LossCause
	// Notes say what was decided, and why.
	Notes []note
}

type ending struct {
	UID string
	Why Refusal
}

// Write asks the Recorder to replace one record by the next.
type Write struct{ Prev, Next Record }

// TakesOver says whether it makes nothing durable but a new leader's term.
func (w Write) TakesOver() bool { return w.Next.Term > w.Prev.Term && w.Next.Round == w.Prev.Round }

// Refusal says to an agent why its session ends.
type Refusal struct {
	Kind    RefusalKind
	Message string
}

// RefusalKind is what an agent should make of a refusal.
type RefusalKind string

const (
	// refusedForNow: it should connect again.
	RefusedForNow RefusalKind = "unavailable"
	// refusedForGood: nobody waits for it any more, and it should end.
	RefusedForGood RefusalKind = "not_found"
	// refusedNonsense: it says what no agent says.
	RefusedNonsense RefusalKind = "invalid_argument"
	// refusedRight: it is not who it says it is, or belongs elsewhere.
	RefusedRight RefusalKind = "permission_denied"
	// refusedVersion: it and this operator do not understand each other.
	RefusedVersion RefusalKind = "failed_precondition"
	// refusedSilence: it has said nothing for too long, and should connect again.
	RefusedSilence RefusalKind = "deadline_exceeded"
)

func (r *Refusal) Error() string { return r.Message }

// note is one decision in words.
type note struct {
	Kind noteKind
	Text string
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
	notedCutOff    noteKind = "cut-off"
	notedPace      noteKind = "pace"
	notedBroken    noteKind = "broken"
	notedVerdict   noteKind = "verdict"
	notedRestarted noteKind = "restarted"
	notedWaiting   noteKind = "regrouping"
	notedFatal     noteKind = "fatal"
	notedFinished  noteKind = "finished"
	notedDurable   noteKind = "durable"
)
