package rendezvous

import (
	"context"
	"errors"
	"time"
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
	// Members are the pods that must all be there before the round closes.
	Members []Member
	// ProcessesPerWorker is the number of ranks in each worker.
	ProcessesPerWorker int32
	// HeartbeatTimeout is how long a member may be silent, while no step is made, before it is
	// lost.
	HeartbeatTimeout time.Duration
	// Durable is the record of the last round as the controller read it from the job's status;
	// the zero value if there is none. It may be stale: the Recorder has the last word.
	Durable Record
}

// Member is one worker that may be in a world.
type Member struct {
	// UID is the pod's uid.
	UID string
	// Name is the pod's name.
	Name string
	// Ordinal is the number at the end of the pod's name.
	Ordinal int32
	// Node is where the pod runs; empty while it is not bound.
	Node string
}

// Record is the durable record of a round.
type Record struct {
	Term, Round, Parent uint64
	// Attempt is the attempt whose gang the world was made of.
	Attempt            int32
	Workers, Processes int32
	FromStep           uint64
	MembersDigest      string
	StartedAt          time.Time
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
	// ErrJobGone; any other error leaves open whether next was written.
	Record(ctx context.Context, job JobKey, prev, next Record) (Record, error)
}

// Observation is what the rendezvous has seen of one job.
type Observation struct {
	// Known is false when no gang was expected for the job.
	Known bool
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
}

// MemberObservation is what the rendezvous has seen of one member.
type MemberObservation struct {
	// Joined is true once its agent has had a session with this leader.
	Joined bool
	// Connected is true while it has one.
	Connected bool
	// InWorld is true once its agent has reported the current round.
	InWorld bool
	// WorkerRank is its rank in the current world, -1 for none.
	WorkerRank int32
	// LastSeen is when its last report came; zero if none did.
	LastSeen time.Time
	// Silent is true when it has been silent for longer than the heartbeat timeout while no step
	// was made by any member.
	Silent bool
	// Exited is true when all of its processes have ended; ExitCode is then the first code that
	// is not 0, or 0.
	Exited   bool
	ExitCode int32
	// FailedAt is when the first of its processes was seen to end with a code that is not 0.
	FailedAt time.Time
	// Fault is the exception that its program reported; empty for none.
	Fault string
	// Terminating is true when its agent has received SIGTERM.
	Terminating bool
}

// Progress is how far a world is.
type Progress struct {
	// Step is the number of steps done by every process; TotalSteps is 0 while unknown.
	Step, TotalSteps uint64
	// Samples is the number of samples in those steps.
	Samples uint64
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
	// next Expect.
	Release(job JobKey)
	// Forget drops all that is known of a job that is finished, suspended or gone, after Release.
	Forget(job JobKey)
	// Observe says what is known of a job.
	Observe(job JobKey) Observation
	// Changed delivers the keys of jobs whose Observation has changed in a way that the controller
	// acts on (joined, formed, exited, lost, deposed). Progress alone does not count.
	Changed() <-chan JobKey
}
