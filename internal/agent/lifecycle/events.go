package lifecycle

import "time"

// Event is something that happened.
type Event interface{ isEvent() }

// Heard is a directive that came. Sent is when the report was sent that it answers.
type Heard struct {
	Directive Directive
	Sent      time.Time
}

// Gone says that the operator knows no such job any more.
type Gone struct{}

// Said is what the process of a slot has said.
type Said struct {
	Slot int
	// Connection tells the connections of a slot apart; it is not 0.
	Connection uint64
	What       What
	// Step is the number of steps done, with Parked and with what says that its world is behind it: Aborted,
	// Faulted and Finished. Clean says with these that its state is exactly the one after Step. With Saved it is
	// the step whose state was asked for.
	Step  uint64
	Clean bool
	// Leaves comes with Connected: the process was started in its world, asks for none, and leaves it when it is told to.
	Leaves bool
	// Shares says with Connected that the process knows shares of a state.
	Shares bool
	// Sharded says with Connected that the process has its own shard of the state.
	Sharded bool
	// Local says with Connected that it has the share of its local rank of a state that is the same on all workers.
	Local bool
	// HandsOver says with Connected that it can give its state over the links of a world, and get it so.
	HandsOver bool
	// Device says with Faulted that it is an error of a device, at which the process may look before it ends.
	Device bool
	// Parts are the shards that it wants, with Wants, and Ranges the bytes of each of these that it needs; none for all.
	Parts  []string
	Ranges [][][2]uint64
}

// What a process says.
type What int

// The things that matter here. Saved answers SaySave: the snapshot is there, or could not be taken. Left answers
// SayLeave: what the program keeps is saved, and it ends. Wants asks for shards of the state that its world begins with.
const (
	Connected What = iota
	Joined
	Parked
	Aborted
	Faulted
	Finished
	Disconnected
	Saved
	Left
	Wants
)

// Armed says where a slot's process stops, after Arm.
type Armed struct {
	Slot int
	Stop uint64
}

// Interrupted says what a slot's process is about, after Interrupt: Forming until it has ended its first step in its
// world, Apart in an evaluation and while it saves.
type Interrupted struct {
	Slot           int
	Forming, Apart bool
}

// Fetched says that the snapshot of a round's world is there, or in Why that it cannot be had; Unreached is true when
// there are holders that could not be reached, and Holders are these, Busy when there are some that give it to as many as they can,
// Moved when some of it came, Local when there is no place for it here. Lacks are the keys of those parts that are not here.
type Fetched struct {
	Round                         uint64
	Why                           string
	Unreached, Busy, Moved, Local bool
	Holders                       []Unreached
	Lacks                         []string
}

// Unreached is a holder that could not be reached, and why. Gave is true when something came from it in that try.
type Unreached struct {
	Address     string
	Port        int
	Certificate [32]byte
	Why         string
	Gave        bool
}

// HasShards says that shards are there that were asked for with FetchShards, or in Fetched that they cannot be had.
type HasShards struct {
	FetchShards
	Fetched
}

// Checkpointed says that the programs have had their time for a checkpoint, after Checkpoint.
type Checkpointed struct{ Round uint64 }

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

func (Heard) isEvent()        {}
func (Gone) isEvent()         {}
func (Said) isEvent()         {}
func (Armed) isEvent()        {}
func (Interrupted) isEvent()  {}
func (Fetched) isEvent()      {}
func (HasShards) isEvent()    {}
func (Checkpointed) isEvent() {}
func (Exited) isEvent()       {}
func (Terminated) isEvent()   {}
func (Tick) isEvent()         {}

// Effect is something to do.
type Effect interface{ isEffect() }

// Start starts the programs in a world, or, with Round 0, as a standby without one.
type Start struct {
	Term, Round uint64
	World       World
	// Check has them look at their devices first: nobody knows whether these have ended the programs before.
	Check bool
}

// Remember keeps what the processes have said of why they failed: others take their place.
type Remember struct{}

// Trust says with which key the operator of a term makes the tickets for the snapshots that are served here.
type Trust struct {
	Term uint64
	Key  string
}

// Enter says that the worker is in another world from now on. Its snapshots up to the world's
// FromStep stay valid when Continues is true, and otherwise only the one that the world names.
type Enter struct {
	Round     uint64
	World     World
	Continues bool
}

// Keep says that a process has left an earlier round with a state that counts in the present world, though that does not continue the round:
// its snapshots up to that step, if it writes any, are valid as well.
type Keep struct{ Round, Step uint64 }

// Fetch gets a world's snapshot. Fetched answers.
type Fetch struct {
	Round   uint64
	World   World
	Holders []Holder
}

// FetchAhead gets a snapshot that the next world may begin with. Nothing answers.
type FetchAhead struct{ Prefetch }

// FetchShards gets shards of the state that a world begins with, for a process that waits for them. HasShards answers.
type FetchShards struct {
	Slot       int
	Connection uint64
	Round      uint64
	World      World
	Parts      []string
	Ranges     [][][2]uint64
}

// Hand tells a process that the shards are there that it has asked for.
type Hand struct {
	Slot       int
	Connection uint64
	Round      uint64
	World      World
	Parts      []string
	Ranges     [][][2]uint64
}

// Give tells a process that waits its next world.
type Give struct {
	Slot       int
	Connection uint64
	Start      Start
}

// Deny ends the connection of a process that cannot be given its world.
type Deny struct {
	Slot       int
	Connection uint64
	Why        string
}

// Arm has a slot's process stop after a step. Armed answers, before any other event.
type Arm struct {
	Slot int
	Step uint64
}

// Lift takes the bound of Arm away.
type Lift struct{ Slot int }

// Interrupt tells a slot's process to leave the world of a round. Connection is 0 when nobody is
// there to be told; the gate says it all the same. Interrupted answers, before any other event.
type Interrupt struct {
	Slot       int
	Connection uint64
	Round      uint64
	Reason     string
}

// Word is a message that is nothing but itself.
type Word struct {
	Slot       int
	Connection uint64
	Say        Say
	// Step comes with SaySave and SayLeave, Staging with SaySave.
	Step    uint64
	Staging Staging
}

// Say is what a Word says.
type Say int

// The words.
const (
	SayGo Say = iota
	SaySave
	SayRaise
	SayEnd
	SayLeave
)

// Checkpoint asks the programs for a checkpoint. Checkpointed answers.
type Checkpoint struct{ Round uint64 }

// Refuse leaves a directive unobeyed; the session with whoever sent it should end.
type Refuse struct{ Why string }

// Terminate sends SIGTERM to these programs.
type Terminate struct{ Programs []int }

// Kill ends every process that the programs left or are, and waits for that.
type Kill struct{}

// Look has those of these slots' programs write what their threads are about that have done nothing since they were told to leave
// their world: they are about to be killed for not leaving it.
type Look struct{ Slots []int }

// Tell reports the new state to the operator at once.
type Tell struct{}

// Note is for the worker's log.
type Note struct{ Text string }

// Leave ends the agent with an exit code.
type Leave struct{ Code int }

func (Start) isEffect()       {}
func (Remember) isEffect()    {}
func (Trust) isEffect()       {}
func (Enter) isEffect()       {}
func (Keep) isEffect()        {}
func (Fetch) isEffect()       {}
func (FetchAhead) isEffect()  {}
func (FetchShards) isEffect() {}
func (Hand) isEffect()        {}
func (Give) isEffect()        {}
func (Deny) isEffect()        {}
func (Arm) isEffect()         {}
func (Lift) isEffect()        {}
func (Interrupt) isEffect()   {}
func (Word) isEffect()        {}
func (Checkpoint) isEffect()  {}
func (Refuse) isEffect()      {}
func (Terminate) isEffect()   {}
func (Kill) isEffect()        {}
func (Look) isEffect()        {}
func (Tell) isEffect()        {}
func (Note) isEffect()        {}
func (Leave) isEffect()       {}
