package lifecycle

import "time"

// World is the members of one round, as one worker sees it.
type World struct {
	// Digest identifies the ordered members.
	Digest string
	// FromStep is the number of steps done before this world.
	FromStep uint64
	// WorkerRank is this worker's place among Workers.
	WorkerRank, Workers int
	// Processes is the number of ranks in each worker.
	Processes int
	// MasterAddress and MasterPort are where rank 0 listens.
	MasterAddress string
	MasterPort    int
}

// Directive is what the operator says the agent should do now.
type Directive struct {
	Term, Round uint64
	// World is set when Round is not 0.
	World World
	// Released is true when nothing holds the member back any more.
	Released bool
}

// Limits are the waits that the agent decides by.
type Limits struct {
	// StopGrace is how long a program that was asked to stop has before it is killed.
	StopGrace time.Duration
	// OutOfReach is how long the operator may be silent after a SIGTERM before the agent decides
	// alone.
	OutOfReach time.Duration
	// Grace is the time from SIGTERM to the moment at which the kubelet kills everything.
	Grace time.Duration
}

// DefaultLimits are the limits of a worker whose pod has so much grace.
func DefaultLimits(grace time.Duration) Limits {
	return Limits{StopGrace: 5 * time.Second, OutOfReach: 2 * time.Second, Grace: grace}
}

// killAfter is when, after SIGTERM, the program is killed: early enough that its exit can still be
// reported.
func (l Limits) killAfter() time.Duration { return l.Grace - min(2*time.Second, l.Grace/5) }

// passAfter is when, after SIGTERM, the program is told at the latest.
func (l Limits) passAfter() time.Duration {
	return l.killAfter() - min(l.StopGrace, l.killAfter()/2)
}

// Event is something that happened.
type Event interface{ isEvent() }

// Heard is a directive that came.
type Heard struct{ Directive Directive }

// Gone says that the operator knows no such job any more.
type Gone struct{}

// Exited says that a program ended, or could not be started.
type Exited struct {
	// Program counts from 0.
	Program int
	// Code is the exit code; 128 + signal when a signal ended it.
	Code int
}

// Terminated says that SIGTERM has arrived.
type Terminated struct{}

// Tick says that the time of Deadline has come.
type Tick struct{}

func (Heard) isEvent()      {}
func (Gone) isEvent()       {}
func (Exited) isEvent()     {}
func (Terminated) isEvent() {}
func (Tick) isEvent()       {}

// Effect is something to do.
type Effect interface{ isEffect() }

// Start starts the programs in a world.
type Start struct {
	Term, Round uint64
	World       World
}

// Refuse leaves a directive unobeyed; the session with whoever sent it should end.
type Refuse struct{ Why string }

// Terminate sends SIGTERM to these programs.
type Terminate struct{ Programs []int }

// Kill ends every process that the programs left or are, and waits for that.
type Kill struct{}

// Tell reports the new state to the operator at once.
type Tell struct{}

// Note is for the worker's log.
type Note struct{ Text string }

// Leave ends the agent with an exit code.
type Leave struct{ Code int }

func (Start) isEffect()     {}
func (Refuse) isEffect()    {}
func (Terminate) isEffect() {}
func (Kill) isEffect()      {}
func (Tell) isEffect()      {}
func (Note) isEffect()      {}
func (Leave) isEffect()     {}
