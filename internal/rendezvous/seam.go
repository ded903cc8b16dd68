package rendezvous

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/concertina-dev/concertina/internal/share"
)

// JobKey names a job in the cluster.
type JobKey struct{ Namespace, Name string }

// String is namespace/name.
func (k JobKey) String() string { return k.Namespace + "/" + k.Name }

// Gang is what the controller wants the next world to be made of.
type Gang struct {
	// JobUID is the uid of the job. A gang with another uid than before belongs to another job of
	// the same name: all that is known of the old one is dropped.
	JobUID string
	// Attempt is the life of the gang that the members belong to. A higher attempt replaces the
	// members of a lower one; a lower one is ignored.
	Attempt int32
	// Members are the pods of the attempt that have a node, and those of the world whose pods are gone as
	// long as they are not known to have ended. One that is left out is not wanted any more; that it is
	// left out says nothing of its processes.
	Members []Member
	// Ended are the uids of those who were members, are left out by now, and whose processes are certainly gone, as far as that is known.
	Ended []string
	// Addresses are the IP addresses of each member's pod in all of its networks, by uid. One that has
	// none yet is believed what it says, until it has.
	Addresses map[string][]netip.Addr
	// Minimum is the smallest number of workers of a world. The first world of an attempt is made of
	// that many.
	Minimum int32
	// Target is the largest number of workers that the next world should have, at least Minimum.
	Target int32
	// Spares is how many members that are ready should be kept beside a world when it grows. A world that lacks members takes them.
	Spares int32
	// Sizes are the legal numbers of workers, in ascending order; nil when every number is.
	Sizes []int32
	// ProcessesPerWorker is the number of ranks in each worker.
	ProcessesPerWorker int32
	// Strategy says how programs get from one world to the next.
	Strategy Strategy
	// HeartbeatTimeout is how long a member may be silent, while no step is made, before it is
	// missed. What is lost by it stands in silence.go.
	HeartbeatTimeout time.Duration
	// BarrierTimeout is how long a planned change may wait for the barrier and the snapshot.
	BarrierTimeout time.Duration
	// GrowthWindow is how long the first newcomer that is ready waits for the others.
	GrowthWindow time.Duration
	// HangTimeout is how long a world may make no step, in the phase of a step, before it is taken
	// for hung, and a member that is silent for lost, whatever is known of it; 0 for ever.
	HangTimeout time.Duration
	// RegroupTimeout is how long the controller lets survivors wait for others before it ends the attempt; 0 for ever.
	RegroupTimeout time.Duration
	// MayRestart is true while a failure of the program does not end the job: its worker stays then.
	MayRestart bool
	// Sharded is true when an earlier world of the job had its state in shards, as far as the controller knows.
	Sharded bool
	// Copies is on how many nodes each share of a snapshot should be, where there are as many; 0 means 2.
	Copies int32
	// Storage says what is to be done about the job's storage; nil when it has none.
	Storage *Storage
	// Durable is the record of the last round as the controller read it from the job's status;
	// the zero value if there is none. It may be stale: the Recorder has the last word.
	Durable Record
}

// Storage says how often snapshots are made durable, how many are kept, and what the first world of an attempt begins
// with.
type Storage struct {
	Interval time.Duration
	Keep     int32
	// Own is true when the job may have a checkpoint of its own, which its attempt goes on from; Known is the step of one
	// that was seen, so that there must be one, and KnownRound its round; 0 for none.
	Own               bool
	Known, KnownRound uint64
	// From is the path of another job's checkpoint that it begins with when it has none; empty for no such.
	From string
	// Park says why all workers are about to be let go, in words: the world stops, and what it has done is made durable
	// first. Empty while they are not.
	Park string
	// Best says which checkpoints are kept for their scores, beside the newest Keep.
	Best Best
	// Rate is how many bytes each member may upload in a second as long as nobody waits for it; 0 for all that it can.
	Rate uint64
}

// Strategy says how programs get from one world to the next.
type Strategy int

const (
	// InPlace: the process lives on; its SDK re-forms the world.
	InPlace Strategy = iota
	// Restart: programs are stopped, and started anew in the next world.
	Restart
)

// Member is one worker that may be in a world.
type Member struct {
	// UID is the pod's uid.
	UID string
	// Name is the pod's name.
	Name string
	// Ordinal is the number at the end of the pod's name.
	Ordinal int32
	// Node is where the pod runs; empty while it is not bound. Rack names what the node shares with others that may be lost
	// along with it; empty where that is not known.
	Node, Rack string
	// Leaving says why the worker should be in no world any more, as the reason of a resize:
	// ReasonScaledDown and so on; empty for one that stays. It is let go once the world goes on
	// without it.
	Leaving Reason
	// Why says so in a sentence; empty for nothing more to say than the reason.
	Why string
	// LeaveBy is when a leaving worker will be killed; zero when it can take its time.
	LeaveBy time.Time
	// Lost says how the controller knows that the worker will make no step any more, in words; empty
	// while it may. Ended says that its processes are certainly gone: reported by its kubelet, or its
	// node deleted or tainted out-of-service.
	Lost  string
	Ended bool
	// NodeNotReady is true while the cluster does not hear the kubelet of its node, or hears that it is not ready.
	NodeNotReady bool
	// Gone is true when its pod is not in the API any more: it comes back no more, and may train on.
	Gone bool
	// Starting is true for a newcomer that should be ready soon: a growth window that is open waits
	// for it.
	Starting bool
}

// Reason is why a world was made, in one word.
type Reason string

// The reasons of worlds.
const (
	ReasonStart             Reason = "Start"
	ReasonCapacityAvailable Reason = "CapacityAvailable"
	ReasonScaledDown        Reason = "ScaledDown"
	ReasonNodeTainted       Reason = "NodeTainted"
	ReasonEvicted           Reason = "Evicted"
	ReasonPreempted         Reason = "Preempted"
	ReasonReclaimed         Reason = "Reclaimed"
	ReasonEvened            Reason = "Evened"
	ReasonMoved             Reason = "Moved"
	ReasonDeleted           Reason = "Deleted"
	ReasonTerminated        Reason = "Terminated"
	ReasonReplaced          Reason = "Replaced"
	ReasonWorkerLost        Reason = "WorkerLost"
	ReasonProgramFailed     Reason = "ProgramFailed"
	ReasonHung              Reason = "Hung"
	ReasonRetried           Reason = "Retried"
	ReasonUnreached         Reason = "Unreached"
	ReasonParked            Reason = "Parked"
)

// recovers says whether a world was made since the one before could not go on.
func (r Reason) recovers() bool {
	switch r {
	case ReasonWorkerLost, ReasonProgramFailed, ReasonHung, ReasonRetried, ReasonUnreached:
		return true
	}
	return false
}

// Record is the durable record of a round.
type Record struct {
	Term, Round, Parent uint64
	// Attempt is the attempt whose gang the world was made of.
	Attempt            int32
	Workers, Processes int32
	FromStep           uint64
	MembersDigest      string
	// ParentDigest is the MembersDigest of the parent; empty when there is none, and in a record of an older version.
	ParentDigest string
	// ParentFromStep and Grandparent are FromStep and Parent of the parent; 0 when there is none, and in a record of an older version.
	ParentFromStep, Grandparent uint64
	// Members are the ordinals of the members in rank order, as packOrdinals writes them, and Master is where they
	// meet; empty in a record of an older version.
	Members string
	Master  Endpoint
	// Nodes are the names of the members' nodes in rank order, as packNodes writes them; empty in a record of an older
	// version.
	Nodes string
	// Racks are those of these nodes, as packRacks writes them: who writes which shares follows from them. Empty where none
	// are known, and in a record of an older version.
	Racks     string
	StartedAt time.Time
	// Reason is why the world was made, From the number of workers of the one before; 0 for none.
	Reason Reason
	From   int32
	// Recoveries are the newest changes before it that followed a loss, as packRecoveries writes them; empty in a record of an older
	// version.
	Recoveries string
	// JobUID is the uid of the job that the record was made for; empty in one of an older version.
	JobUID string
	// Leader is a random name of the leader that has written it; empty in one of an older version.
	Leader string
}

// Equal says whether two records are the same.
func (r Record) Equal(other Record) bool {
	sameStart := r.StartedAt.Equal(other.StartedAt)
	r.StartedAt, other.StartedAt = time.Time{}, time.Time{}
	return sameStart && r == other
}

// ErrDeposed is returned by a Recorder when the record in the cluster is not the expected one: a
// newer leader has written it.
var ErrDeposed = errors.New("another leader has written the job's world")

// ErrJobGone is returned by a Recorder when the job does not exist any more.
var ErrJobGone = errors.New("the job is gone")

// Recorder makes rounds durable. It is the only way in which the rendezvous touches the cluster.
type Recorder interface {
	// Record replaces prev by next in the job's status, if prev is still what stands there, and
	// returns the record that stands there afterwards. Errors: ErrDeposed (with the record found),
	// ErrJobGone (also when the job of that name has another uid than next.JobUID); any other error leaves open whether next was written.
	Record(ctx context.Context, job JobKey, prev, next Record) (Record, error)
}

// Observation is what the rendezvous has seen of one job.
type Observation struct {
	// Known is false when no gang was expected for the job.
	Known bool
	// JobUID is the uid of the job that was expected: one of the same name may have taken its place.
	JobUID string
	// Deposed is true when another leader has taken the job over.
	Deposed bool
	// Attempt is the attempt that this observation speaks of.
	Attempt int32
	// Adopting is true while this leader does not yet know whether the durable round lives.
	Adopting bool
	// Round is the published (or adopted) round of this attempt; 0 while there is none.
	Round uint64
	// Members is what is known of each expected member, by pod uid.
	Members map[string]MemberObservation
	// Progress is how far the world is.
	Progress Progress
	// Phase is what the job is in the middle of, and Why says so in words; while it trains, which change
	// of its world was called off last, and why.
	Phase Phase
	Why   string
	// Elastic is true when every process of the world speaks to its agent, so that the world can
	// change in place.
	Elastic bool
	// Changes are the worlds that were made in this attempt and have begun to train, or were left before
	// they did (without a Pause), oldest first, at most 16.
	Changes []Change
	// Untold is true while the change that led to the world of Round is not among Changes, and will be: once it
	// has made a step, and its members have said how long they stood still, or when it is left.
	Untold bool
	// Losses are the members that were lost in this attempt, oldest first, at most 64; MemberObservation.LostIn tells of more.
	Losses []Loss
	// Durable is the newest snapshot in the job's storage that this leader has heard of, the zero value while it has of
	// none. Storage says what is wrong with the storage, in words; empty for nothing.
	// Restored says what the attempt has begun with, of what is in the storage; empty for nothing.
	// UploadTook is how long it took to make the last snapshot durable that this leader has asked for; 0 before the first.
	Durable    Durable
	Storage    string
	Restored   string
	UploadTook time.Duration
	// Best are the checkpoints with the best scores, the best first; Missed says why a state that was evaluated is not kept, or nothing
	// is known of how good it is, in words; empty for nothing. BestWaits is true while a state is to be made durable for its score.
	// BestListed is true once Best is all that there is in the storage, as somebody has listed it. BestBy is by which metric all of that is;
	// empty for none.
	Best       []Kept
	BestListed bool
	BestBy     string
	Missed     string
	BestWaits  bool
	// Memory is the newest state that the world could go back to. Differ says of whose shares of a state were last seen to
	// differ that should be the same; empty for nobody's.
	Memory Memory
	Differ string
	// Size is how large the state is, by the newest measure of the members of the world; zero for not known.
	Size share.Size
	// Stragglers are the processes that have kept the others waiting for minutes, the slowest first, at most straggler.Most.
	// Watched is true once this leader has looked for as long as it takes to find any.
	Stragglers []Straggler
	Watched    bool
	// Parked is true once the world stands for Gang.Storage.Park, and its state is durable.
	Parked bool
	// Fatal is set when the attempt cannot go on: nothing is left to continue from, or the programs
	// have failed on their own. In words.
	Fatal string
}

// Phase is what a job is in the middle of.
type Phase string

// The phases of a job.
const (
	// PhaseForming: the first world of the attempt is not there yet.
	PhaseForming Phase = "Forming"
	// PhaseTraining: a world trains, and nothing else is going on.
	PhaseTraining Phase = "Training"
	// PhaseResizing: a planned change is under way.
	PhaseResizing Phase = "Resizing"
	// PhaseRecovering: a member was lost, and the others are about to go on.
	PhaseRecovering Phase = "Recovering"
	// PhaseRegrouping: too few are left; they wait for others, with their state.
	PhaseRegrouping Phase = "Regrouping"
)

// Change is one world, and what it cost to get there.
type Change struct {
	Round uint64
	// From and To are numbers of workers.
	From, To int32
	Reason   Reason
	// Message says in words why.
	Message string
	// Joined names those who have taken the place of others that were lost; empty for nobody.
	Joined string
	// Begun is true once a step was made in the world.
	Begun bool
	// Pause is how long training stood still: from the end of a worker's last step before to the beginning of its
	// first in this world, by its own clock, on the slowest worker that was in both worlds. 0 when it is not known,
	// as when there was none.
	Pause time.Duration
	// StepsLost is the number of steps that must be made again.
	StepsLost uint64
	At        time.Time
	// Inherited is true when an earlier leader has made the world: Message and StepsLost are not known.
	Inherited bool
}

// Loss is one member that was lost.
type Loss struct {
	UID, Name string
	// Program is true when the program was at fault: it ended by itself, failed, or hung.
	Program bool
	// Unreached is true when the operator hears it, and its peers do not reach it, or it does not reach them.
	Unreached bool
	// Message says in words what happened; of a fault its traceback.
	Message string
	// Round is the world that it was in, and Rank its worker rank there; 0 and -1 for none.
	Round uint64
	Rank  int32
	At    time.Time
}

// MemberObservation is what the rendezvous has seen of one member.
type MemberObservation struct {
	// Joined is true once its agent has had a session with this leader.
	Joined bool
	// Connected is true while it has one.
	Connected bool
	// InWorld is true once its agent has reported the current round.
	InWorld bool
	// Standby is true when it could enter a world at once.
	Standby bool
	// Out is true when it was in a world of this attempt, is leaving, and the world goes on without
	// it, and without what it holds, which those have who need it: its pod can be deleted.
	Out bool
	// WasIn is true once this leader has counted it in a world, whatever became of that.
	WasIn bool
	// WorkerRank is its rank in the current world, -1 for none.
	WorkerRank int32
	// LastSeen is when its last report came; zero if none did.
	LastSeen time.Time
	// Silent is true when it counts as lost because it says nothing while no step is made.
	Silent bool
	// CutOff is true while it says nothing to this operator and takes part in the world: steps are made, or its
	// peers reach it. Witnesses names those peers; empty where steps are made.
	CutOff    bool
	Witnesses string
	// Aside says why it is left out until its peers reach it, though the operator hears it; empty while it is not, or once
	// it is lost. AsideSince is since when it is.
	Aside      string
	AsideSince time.Time
	// LostIn is the world that has lost it last, as long as it is in no later one; 0 for none. Losses says how, of the last
	// ones.
	LostIn uint64
	// Exited is true when all of its processes have ended; ExitCode is then the first code that
	// is not 0, or 0.
	Exited   bool
	ExitCode int32
	// FailedAt is when the first of its processes was seen to end with a code that is not 0.
	FailedAt time.Time
	// Stays is true of one that was lost and whose agent goes on: its programs leave their world, or are started anew, and
	// it is a standby then, or is one already. It is lost only as far as the world that it was in is concerned.
	Stays bool
	// FellAt is when it was lost, or its programs were seen to have failed; zero once it is a standby again.
	FellAt time.Time
	// Fault is the exception that its program reported; empty for none.
	Fault string
	// Written is how much it has written of the last snapshot of its world, or has tried to; 0 for none.
	Written uint64
	// SnapshotTrouble is why its last snapshot could not be taken, or why it has no copies of what others have alone, in its own words;
	// empty where it could.
	SnapshotTrouble string
	// Terminating is true when its agent has received SIGTERM.
	Terminating bool
}

// Progress is how far a world is.
type Progress struct {
	// Step is the number of steps done by every process; TotalSteps is 0 while unknown.
	Step, TotalSteps uint64
	// Samples is the number of samples in those steps.
	Samples uint64
	// StepTime is how long a step takes in this world, without its first one, evaluation and snapshots, by most of the
	// workers that say so; 0 while nobody does.
	StepTime time.Duration
	// Metrics are what rank 0 reported last.
	Metrics []Metric
}

// Metric is a number that the program reported.
type Metric struct {
	Name  string
	Value float64
}

// Coordinator is what the controller needs of the rendezvous. Its methods return at once.
type Coordinator interface {
	// Expect says what the next world of a job is to be made of. Saying the same again changes
	// nothing. A higher attempt may be expected only when every pod of the lower ones is known to
	// have ended: that is what keeps their world from making another step.
	Expect(job JobKey, gang Gang)
	// Release lets every member of the job go: their agents pass SIGTERM on and end. New sessions
	// of that attempt are refused with NotFound from then on; those of a later one wait for the
	// next Expect. A job of that name with another uid than this is left alone.
	Release(job JobKey, uid string)
	// Forget drops all that is known of a job that is finished, suspended or gone, after Release. A job
	// of that name with another uid than this is left alone.
	Forget(job JobKey, uid string)
	// Observe says what is known of a job.
	Observe(job JobKey) Observation
	// Changed delivers the keys of jobs whose Observation has changed in a way that the controller
	// acts on (joined, formed, exited, lost, deposed). Progress alone does not count.
	Changed() <-chan JobKey
}
