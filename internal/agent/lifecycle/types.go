package lifecycle

import (
	"time"

	"github.com/concertina-dev/concertina/internal/deviceerror"
	"github.com/concertina-dev/concertina/internal/ticket"
)

// Strategy says how programs get from one world to the next.
type Strategy int

const (
	// InPlace gives a living program its next world through the socket.
	InPlace Strategy = iota
	// Restart stops programs and starts them anew in the next world.
	Restart
)

// Shape is what never changes in one worker.
type Shape struct {
	// Programs is how many programs a start has, Processes how many ranks a world gives each worker:
	// a launcher is one program with several processes.
	Programs, Processes int
	Strategy            Strategy
	// Check is true when the first programs are to look at their devices before anything else: those of a worker that was here before
	// have ended so that nobody knows whether a device was the cause.
	Check bool
}

// World is the members of one round, as one worker sees it.
type World struct {
	// Digest identifies the ordered members.
	Digest string
	// Parent is the round whose state this world continues; 0 for none.
	Parent uint64
	// FromStep is the number of steps done before this world.
	FromStep uint64
	// WorkerRank is this worker's place among Workers.
	WorkerRank, Workers int
	// Processes is the number of ranks in each worker.
	Processes int
	// MasterAddress and MasterPort are where rank 0 listens.
	MasterAddress string
	MasterPort    int
	// Restore is false when the processes go on with the state that they have. Otherwise they load
	// Snapshot, which Holders have and Peers are getting as well, or begin anew when it is nil.
	Restore        bool
	Snapshot       *Snapshot
	Holders, Peers []Holder
	// Handover is true where the processes that have the state give it to those that are to load it, over the links of the world.
	Handover bool
	// Parts are what Snapshot is made of, the part of a rank first and then all shares, or all shards; nil for one that is
	// whole. Of a state in shards processes load what they need of it also when Restore is false.
	Parts []Part
	// Writer is true when this worker writes snapshots. Staging is what it writes of a state that comes in shares.
	Writer  bool
	Staging Staging
}

// Staging is what a worker writes of a snapshot that several make: Shares of Of. Its zero value is all of it.
type Staging struct {
	Of     int
	Shares []int
}

// Part is a part of a snapshot.
type Part struct {
	Key   string
	Bytes uint64
	Hash  [32]byte
}

// Snapshot names the state of a job after a step.
type Snapshot struct {
	Round, Step uint64
	// Bytes is its size, Hash what tells it from all others; see checkpoint.Snapshot.
	Bytes uint64
	Hash  [32]byte
}

// Holder is a worker that serves a snapshot.
type Holder struct {
	Address string
	Port    int
	// Certificate is the SHA-256 of the certificate that it shows.
	Certificate [32]byte
	// Ticket opens the snapshot there.
	Ticket ticket.Ticket
	// Parts says which of the parts it has, counted from 0; nil for a snapshot that is whole.
	Parts []int
}

// Prefetch is a snapshot that is to be fetched before the world that begins with it.
type Prefetch struct {
	Snapshot       Snapshot
	Parts          []Part
	Holders, Peers []Holder
}

// Barrier is the last step that may be made in a round. The zero value is none.
type Barrier struct {
	// Attempt grows with every barrier of a round, from 1.
	Attempt, Step uint64
	// Save asks for a snapshot: every process of the world stands there.
	Save bool
}

// Abort says why a world is over.
type Abort struct {
	Reason string
	// Planned asks for a checkpoint first.
	Planned bool
	// SaveStep asks for a snapshot of the state after this step, of a process that has left the world with
	// it; 0 for none.
	SaveStep uint64
	// LeaveStep, with Planned, has processes save and end that stand at the barrier after this step; 0 for none.
	LeaveStep uint64
}

// Directive is what the operator says the agent should do now.
type Directive struct {
	Term, Round uint64
	// World is set when Round is not 0.
	World World
	// Released is true when nothing holds the member back any more.
	Released bool
	// Standby asks for programs without a world, that are ready for one.
	Standby bool
	// Key is what the operator of this term makes the tickets with for the snapshots that are served here; empty
	// for nothing new.
	Key string
	// Prefetch is what the next world will need here; nil for nothing. That world may not come.
	Prefetch *Prefetch
	// Barrier, Abort, Raise and Finish speak of the world of Round.
	Barrier       Barrier
	Abort         *Abort
	Raise, Finish bool
	// Staging is what of the state is written where Barrier or Abort ask for a snapshot.
	Staging Staging
	// Hold grows with every renewal of the right to keep processes at a barrier, within a term; 0 for
	// none.
	Hold uint64
	// Restarts is how often the programs may have been started anew after they had failed; nil when a worker whose
	// programs fail is to end.
	Restarts *uint64
}

// Limits are the waits that the agent decides by.
type Limits struct {
	// StopGrace is how long a program that was asked to stop has before it is killed.
	StopGrace time.Duration
	// Check is the same of one that may be looking at its device.
	Check time.Duration
	// OutOfReach is how long the operator may be silent after a SIGTERM before the agent decides
	// alone. An operator that takes over meanwhile lets the worker go without a lost step.
	OutOfReach time.Duration
	// Grace is the time from SIGTERM to the moment at which the kubelet kills everything.
	Grace time.Duration
	// Answer is how long a process may take to leave a world that is over, in a step or between two; AnswerApart in an
	// evaluation or while it saves, and AnswerForming before it has ended its first step there.
	Answer, AnswerApart, AnswerForming time.Duration
	// Look is how long before that it is noted what the programs are about.
	Look time.Duration
	// Failures is how many failures of its programs within FailuresWithin end a worker that otherwise stays. After all
	// but the first of these the programs are started anew AgainPause later.
	Failures       int
	FailuresWithin time.Duration
	AgainPause     time.Duration
	// Hold is how long, under Restart, the agent of a program that has failed waits for the operator
	// to say that another worker was the cause.
	Hold time.Duration
	// Stand is how long processes stand at a barrier after the report was sent that was answered with the
	// newest hold: as long as it takes to find the next operator, and for it to speak.
	Stand time.Duration
	// Supply is how long a worker tries to get the snapshot of its world when those who have it cannot be reached.
	Supply time.Duration
	// Save is how long a program may take to save and to end when it is told to leave its world.
	Save time.Duration
}

// DefaultLimits are the limits of a worker whose pod has so much grace.
func DefaultLimits(grace time.Duration) Limits {
	return Limits{
		StopGrace: 5 * time.Second, Check: deviceerror.CheckTimeout, OutOfReach: 20 * time.Second, Grace: grace,
		Answer: 5 * time.Second, AnswerApart: 30 * time.Second, AnswerForming: time.Minute, Look: time.Second,
		Failures: 3, FailuresWithin: 10 * time.Minute, AgainPause: 5 * time.Second,
		Hold: 3 * time.Second, Stand: 30 * time.Second, Supply: 30 * time.Second, Save: time.Minute,
	}
}

// killAfter is when, after SIGTERM, the program is killed: early enough that its exit can still be
// reported.
func (l Limits) killAfter() time.Duration { return l.Grace - min(2*time.Second, l.Grace/5) }

// passAfter is when, after SIGTERM, the program is told at the latest.
func (l Limits) passAfter() time.Duration {
	return l.killAfter() - min(l.StopGrace, l.killAfter()/2)
}
